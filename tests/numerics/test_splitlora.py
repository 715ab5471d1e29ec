"""SplitLoRA is SFLV2 of what adapters leave to train; with one client it is training of the unsplit network."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.numerics.split_methods import (
    SIDE,
    C,
    Parts,
    apart,
    batches,
    close,
    interleaved,
    method,
    run,
    same,
    seeded,
    setting,
    training,
)
from zofl_mpi.methods.splitfed import SFLV2, SplitLoRA
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.numerics.schedules import Pace
from zofl_mpi.rounds.split.training import Training
from zofl_mpi.run import flags

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


def whole() -> nn.Module:
    client, _, server = seeded(adapted)
    return nn.Sequential(client, server).double()


def moving(net: nn.Module) -> list[nn.Parameter]:
    return [p for p in net.parameters() if p.requires_grad]


def vector(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in moving(net)])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_splitlora_is_sflv2_with_the_same_flags_to_the_bit(dtype: str) -> None:
    """Three clients, one of which rests; what travels and is kept are entries of A and B. Mutation: another round."""
    own = setting(adapted, dtype=dtype)
    plan = planned(own, beta=0.6, h=3)
    lora, sfl = (run(method(cls, plan), 4) for cls in (SplitLoRA, SFLV2))
    assert same(lora, sfl) and (lora.server_steps, lora.server_loss) == (sfl.server_steps, sfl.server_loss)
    assert own.problem.n_client == RANK * (SIDE * SIDE + 5) and own.problem.top.n == RANK * (5 + 4)
    assert apart(lora.theta, method(SplitLoRA, plan).start().theta)


def test_its_defaults_are_those_of_its_code() -> None:
    """Mutations: another default moved; the other methods' defaults moved with them."""
    own = setting(adapted)
    roomy = replace(own, data=tuple(data.subset([0] * 8) for data in own.data))
    lora, sfl = (flags.built(cls, roomy, batch=4).training for cls in (SplitLoRA, SFLV2))
    assert flags.built(SplitLoRA, roomy).training.batch == 8
    assert (lora.h, lora.lr_client, lora.lr_server, lora.weights) == (100, 2e-4, 2e-4, "uniform")
    assert lora.rule == Optimiser("adamw_transformers", weight_decay=0.01) and lora.pace == Pace(warmup=500)
    usual = {"batch": 4, "h": 0, "lr_client": 1e-4, "lr_server": 1e-4, "weights": "size"}
    assert sfl == Training(roomy, **{**usual, "rule": Optimiser(), "pace": Pace()})  # type: ignore[arg-type]
    differing = {name for name in vars(lora) if not name.startswith("_") and vars(lora)[name] != vars(sfl)[name]}
    assert differing == {"h", "lr_client", "lr_server", "weights", "rule", "pace"}


def test_with_one_client_it_is_training_of_the_unsplit_network() -> None:
    """Three rounds by torch's AdamW and scheduler; the frozen W stay, without a decay.

    Mutations: moments or steps that begin anew in a round; the decay of a frozen weight; the server's gradient at the
    cut after its own step.
    """
    own = setting(adapted, clients=(2,))
    plan = planned(own)
    state = run(method(SplitLoRA, plan), 3)
    net = whole()
    rule = torch.optim.AdamW(moving(net), 0.05, weight_decay=0.1)
    sizes = torch.optim.lr_scheduler.LambdaLR(rule, lambda t: min(1.0, t / 3))
    for r in range(3):
        for x, labels in batches(plan, 0, r):
            rule.zero_grad()
            cross_entropy(net(x), labels).backward()
            rule.step()
            sizes.step()
    close(torch.cat([state.theta[: own.problem.n_client], state.theta_s]), vector(net), 1e-9)
    frozen = [(a, b) for a, b in zip(net.parameters(), whole().parameters(), strict=True) if not a.requires_grad]
    assert frozen and all(torch.equal(a, b) for a, b in frozen)


def test_the_average_is_that_of_a_and_that_of_b() -> None:
    """Of three clients, uniformly, one server part, in turns; theta_c is A, then B.

    Mutations: weights by size; a mean of the products B A; a snapshot before the last step.
    """
    own = setting(adapted)
    plan = planned(own, pace=Pace())
    found = run(method(SplitLoRA, plan), 1)
    net = whole()
    top, clients = net[1], [copy.deepcopy(net[0]) for _ in range(3)]
    rules = [torch.optim.AdamW(moving(part), 0.05, weight_decay=0.1) for part in (top, *clients)]
    turns = [list(batches(plan, i, 0)) for i in range(3)]
    for i, q in interleaved(0):
        x, labels = turns[i][q]
        for k in (0, 1 + i):
            rules[k].zero_grad()
        cross_entropy(top(clients[i](x)), labels).backward()
        for k in (0, 1 + i):
            rules[k].step()
    A, B = (sum(getattr(part[1], name).detach() for part in clients) / 3 for name in ("A", "B"))
    close(found.theta[: own.problem.n_client], torch.cat([A.reshape(-1), B.reshape(-1)]), 1e-9)
    close(found.theta_s, vector(top), 1e-9)
    products = sum((part[1].B @ part[1].A).detach() for part in clients) / 3
    assert float((B @ A - products).norm()) > 1e-3
