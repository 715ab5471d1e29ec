"""SplitFed (SFLV1, SFLV2) is training of the whole network; CSE-FSL too where its head is the server."""

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.numerics.split_methods import (
    RULES,
    SGD,
    SIDE,
    C,
    Parts,
    apart,
    close,
    fedavg,
    flat,
    is_whole,
    method,
    resnet,
    run,
    same,
    seeded,
    seeded_flat,
    setting,
    small,
    training,
    twins,
    whole_of,
)
from zofl_mpi.engine.streams import Streams
from zofl_mpi.methods.cse_fsl import CSEFSL
from zofl_mpi.methods.splitfed import SFLV1, SFLV2, SplitLoRA
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.numerics.schedules import Pace
from zofl_mpi.problems.flat import gradients
from zofl_mpi.rounds.split.client import CutLoss, Point
from zofl_mpi.rounds.split.training import Training
from zofl_mpi.run.command import flags


def returning() -> Streams:
    """With --beta 0.6 some client takes part in round 0, rests in round 1, and is back in round 2."""
    own = setting(small)
    for seed in range(100):
        plan = training(replace(own, streams=Streams(seed)), beta=0.6)
        zero, one, two = (plan.participants(r) for r in range(3))
        if set(zero) & set(two) - set(one):
            return Streams(seed)
    raise AssertionError


@pytest.mark.parametrize(
    ("beta", "statistics"), [(1.0, {}), (0.6, {}), (1.0, {"batchnorm": "running"})], ids=["all", "some", "running"]
)
@pytest.mark.parametrize("state", ["keep", "reset", "average"])
@RULES
def test_sflv1_is_fedavg_on_the_unsplit_network(
    rule: Optimiser, state: str, beta: float, statistics: dict[str, str]
) -> None:
    """To rounding, BatchNorm included; in turns or client by client. Mutations: the server's replicas are one; their
    moments lost, or kept; the gradient at the cut after the server's step; uniform weights; a replica's running
    statistics not averaged; moments of who rests lost; moments averaged at one side only; the number of steps rounded,
    or the largest; where statistics are constants, gradients through those of the batch."""
    own = replace(setting(), streams=returning())
    plan = training(own, rule, state=state, beta=beta, **statistics)
    found = run(method(SFLV1, plan), 4)
    net = fedavg(plan, resnet, 4, (0, 1, 2))
    is_whole(found, own, net, 1e-9)
    assert apart(flat(net), flat(whole_of(resnet)))
    again = run(method(SFLV1, replace(plan, order="client_major")), 4)
    assert same(found, again)
    if rule is not SGD and beta == 1 and not statistics:
        for another in {"keep", "reset", "average"} - {state}:
            other = run(method(SFLV1, replace(plan, state=another)), 4)
            assert apart(found.theta, other.theta) and apart(found.theta_s, other.theta_s)


@RULES
def test_cse_fsl_with_the_server_as_its_head_is_sflv2(rule: Optimiser) -> None:
    """One client, k = 1: theta_a is theta_s for ever. Mutations: a head that does not step; uploads after a step."""
    cse, sfl = (run(method(cls, training(setting(twins, (2,)), rule)), 3) for cls in (CSEFSL, SFLV2))
    n = sum(p.numel() for p in seeded(twins)[0].parameters())
    close(cse.theta[n:], cse.theta_s)
    close(cse.theta[:n], sfl.theta[:n])
    close(cse.theta_s, sfl.theta_s)
    close(cse.buffers_s, sfl.buffers_s)
    assert apart(cse.theta_s, seeded_flat(twins))


ADAMW = Optimiser("adamw", weight_decay=0.1)
RANK = 2


class Adapted(nn.Module):
    """W x + 2 B A x, of which A and B train; B is not 0, so that both move from the first step on."""

    def __init__(self, n: int, k: int) -> None:
        super().__init__()
        self.W = nn.Linear(n, k).requires_grad_(False)
        self.A, self.B = nn.Parameter(torch.randn(RANK, n) / n), nn.Parameter(torch.randn(k, RANK) / 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.W(x) + 2 * x @ self.A.T @ self.B.T  # type: ignore[no-any-return]


def adapted() -> Parts:
    client = nn.Sequential(nn.Flatten(), Adapted(SIDE * SIDE, 5), nn.Tanh())
    return client, Adapted(5, C), nn.Sequential(Adapted(5, 4), nn.Tanh(), nn.Linear(4, C).requires_grad_(False))


def planned(own: Any, **given: Any) -> Training:
    return training(own, ADAMW, **{"pace": Pace(warmup=3), "weights": "uniform", **given})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_splitlora_is_sflv2_with_the_same_flags_to_the_bit(dtype: str) -> None:
    """Three clients, one of which rests; what travels and is kept are entries of A and B. Mutation: another round."""
    own = setting(adapted, dtype=dtype)
    plan = planned(own, beta=0.6, h=3)
    lora, sfl = (run(method(cls, plan), 4) for cls in (SplitLoRA, SFLV2))
    assert same(lora, sfl) and (lora.server_steps, lora.server_loss) == (sfl.server_steps, sfl.server_loss)
    assert own.problem.n_client == RANK * (SIDE * SIDE + 5) and own.problem.server_side.n == RANK * (5 + 4)
    assert apart(lora.theta, method(SplitLoRA, plan).start().theta)


def test_its_defaults_are_those_of_its_code() -> None:
    """Mutations: another default moved; the other methods' defaults moved with them."""
    own = setting(adapted)
    roomy = replace(own, data=tuple(data.subset([0] * 8) for data in own.data))
    lora, sfl = (flags.from_flags(cls, roomy, batch=4).training for cls in (SplitLoRA, SFLV2))
    papers = {leaf.name: leaf.paper for leaf in flags.leaves(SplitLoRA) if leaf.name in ("batch", "h")}
    assert papers == {"batch": 8, "h": 100}
    assert (lora.lr_client, lora.lr_server, lora.weights) == (2e-4, 2e-4, "uniform")
    assert lora.optimiser == Optimiser("adamw_transformers", weight_decay=0.01) and lora.pace == Pace(warmup=500)
    usual = {"batch": 4, "h": 0, "lr_client": 1e-4, "lr_server": 1e-4, "weights": "size"}
    assert sfl == Training(roomy, **{**usual, "optimiser": Optimiser(), "pace": Pace()})  # type: ignore[arg-type]
    differing = {name for name in vars(lora) if name != "participants" and vars(lora)[name] != vars(sfl)[name]}
    assert differing == {"h", "lr_client", "lr_server", "weights", "optimiser", "pace"}


def test_lambda_lies_in_memory_as_the_samples_that_went_up() -> None:
    """Mutations: as it came out of a block, in C's order; its numbers in the samples' order of memory."""
    smashed = torch.rand(3, 4, 5, 6).to(memory_format=torch.channels_last)
    point, lam = Point(smashed, smashed), torch.rand(3, 4, 5, 6)
    point.upload(torch.zeros(3), keep=False)
    assert torch.equal(point.laid_out(lam), lam) and point.laid_out(lam).stride() == smashed.stride() != lam.stride()
    assert point.laid_out(smashed) is smashed


def test_the_gradient_continues_lambda_through_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations: the gradient of the sum of s; torch's own way, whose first step imports sympy."""
    x, unused = torch.rand(5, requires_grad=True), torch.rand(2, requires_grad=True)
    lam = torch.rand(5)
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.symbolic_shapes", None)  # an import of it fails
    slope, zero = gradients(x * x, [x, unused], lam)
    assert torch.equal(slope, 2 * x.detach() * lam) and torch.equal(zero, torch.zeros(2))


def test_lambda_along_s_is_summed_in_float64() -> None:
    """Mutations: bfloat16 products; a float32 sum, which loses the small ones of many."""
    inner, one = CutLoss(setting().problem), torch.full((2**20,), 1 / 3)
    assert abs(float(inner(one, one)) / 2**20 - float(one[0] * one[0])) < 1e-15
    half = torch.full((4,), 1 + 2**-7, dtype=torch.bfloat16)
    assert float(inner(half, half)) == 4 * (1 + 2**-7) ** 2
