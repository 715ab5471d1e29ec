"""HO-SFL is SFLV2 whose clients estimate, by forward passes, the gradient that continues what the server returns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.numerics.split_methods import (
    RULES,
    SGD,
    STEPS_OF,
    C,
    Parts,
    apart,
    batches,
    close,
    method,
    run,
    same,
    setting,
    small,
    training,
    whole_of,
)
from tests.numerics.test_split_texts import setting as texts
from zofl_mpi.engine.clients import Client
from zofl_mpi.errors import UserError
from zofl_mpi.methods.ho_sfl import HOSFL
from zofl_mpi.methods.splitfed import SFLV2
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.rounds.split.client import LocalSteps
from zofl_mpi.rounds.split.estimates import TwoPoint
from zofl_mpi.rounds.split.losses import inner
from zofl_mpi.rounds.split.messages import Model, Smashed
from zofl_mpi.rounds.split.method import Cut
from zofl_mpi.rounds.split.server import Server


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@RULES
def test_with_the_exact_gradient_it_is_sflv2_to_the_bit(rule: Optimiser, dtype: str) -> None:
    """Mutations: the server's gradient after its step; a server part each; other moments; a head that moves."""
    ho, sfl = (
        run(method(cls, training(setting(dtype=dtype), rule, beta=0.6, augment="crop-flip"), **flags), 3)
        for cls, flags in ((HOSFL, {"estimate": "exact"}), (SFLV2, {}))
    )
    assert same(ho, sfl) and (ho.server_steps, ho.server_loss) == (sfl.server_steps, sfl.server_loss)


@pytest.mark.parametrize("estimate", ["one-sided", "central"])
def test_clients_that_do_not_step_are_sflv2s_to_the_bit(estimate: str) -> None:
    """Running statistics too. Mutations: a perturbed pass moves the statistics, or leaves its perturbation behind."""
    plan = training(setting(), lr_client=0.0)
    ho = run(method(HOSFL, plan, estimate=estimate, mu=1.0, n_p=2), 2)
    sfl = run(method(SFLV2, plan), 2)
    assert same(ho, sfl) and ho.server_loss == sfl.server_loss


def errors(monkeypatch: pytest.MonkeyPatch, frame: Tensor, n_p: int, **flags: Any) -> float:
    """|estimate - gradient of the whole network's loss| at client 1, where the directions are the frame's columns."""
    of = method(HOSFL, training(setting(small)), n_p=n_p, distribution="sphere", **flags)
    net = whole_of(small)
    x, labels = next(batches(of.training, 1, 0))
    cross_entropy(net(x), labels).backward()
    exact = torch.cat([p.grad.reshape(-1) for p in net[0].parameters() if p.grad is not None])
    client, start, steps = Client(1, of.setting.data[1]), of.start(), list[Tensor]()
    monkeypatch.setattr(TwoPoint, "directions", lambda *_: iter(frame.T))
    monkeypatch.setattr(LocalSteps, "step", lambda _, found: steps.append(found.parts[0]))
    upload = of.begin(client, Model(start.theta[: of.setting.problem.n_client], start.buffers, 0))
    assert isinstance(upload, Smashed)
    of.proceed(client, Cut(Server.of(of.training, start, 0).exchange(upload)))
    assert len(steps) == 1 and float(exact.norm()) > 0.01
    return float((steps[0] - exact).norm() / exact.norm())


@pytest.mark.parametrize("estimate", ["one-sided", "central"])
def test_the_mean_estimate_over_a_frame_is_sflv2s_gradient(monkeypatch: pytest.MonkeyPatch, estimate: str) -> None:
    """To O(mu^2): a tenth of mu, a hundredth of the error. One-sided: a frame and its negative.

    Mutations: lambda divided by B again; the head's loss; d, n_p, 2 or mu missing; lambda of another mini-batch.
    """
    d = setting(small).problem.n_client
    frame = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    frame = torch.cat([frame, -frame], 1) if estimate == "one-sided" else frame
    rough, fine = (errors(monkeypatch, frame, frame.shape[1], mu=mu, estimate=estimate) for mu in (1e-1, 1e-2))
    assert fine < 1e-4 and 80 < rough / fine < 120


def linear() -> Parts:
    client = nn.Sequential(nn.AdaptiveAvgPool2d((1, 2)), nn.Flatten(), nn.Linear(2, 2))
    return client, nn.Linear(2, C), nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, C))


@pytest.mark.parametrize("estimate", ["one-sided", "central"])
def test_any_radius_does_for_a_client_that_is_linear(estimate: str) -> None:
    """<lambda, s> is then linear, as the server's loss is not. Mutation: lambda of the perturbed samples."""
    near, far = (
        run(method(HOSFL, training(setting(linear)), mu=mu, n_p=2, estimate=estimate), 2) for mu in (1e-2, 10.0)
    )
    close(near.theta, far.theta, 1e-10)
    close(near.theta_s, far.theta_s, 1e-10)
    assert apart(near.theta, method(HOSFL, training(setting(linear))).start().theta)


SEEDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"rule": Optimiser("sgd", momentum=0.9, weight_decay=0.01)}, {"n_p": 3, "estimate": "central"}),
    ({"state": "reset"}, {"distribution": "gaussian"}),
    ({"state": "average", "beta": 0.7}, {"n_p": 2}),
    ({"beta": 0.7, "weights": "uniform"}, {"n_p": 2, "distribution": "sphere", "mu": 0.01}),
    ({"freeze": "client", "order": "client_major"}, {}),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("flags", "estimate"), SEEDS)
def test_scalars_and_seeds_give_the_dense_uplinks_bits(
    flags: dict[str, Any], estimate: dict[str, Any], dtype: str
) -> None:
    """Mutations: directions as long as theta_l; moments begun anew, or kept where they are to be reset; a head."""
    plan = training(setting(dtype=dtype), **{"rule": Optimiser(), **flags})
    dense, seeds = (run(method(HOSFL, plan, **estimate, uplink=uplink), 4) for uplink in ("dense", "seeds"))
    start = method(HOSFL, plan).start()
    assert same(seeds, dense) and seeds.server_loss == dense.server_loss
    assert bool(seeds.replayed) == (plan.state == "keep") and not dense.replayed
    assert apart(seeds.theta, start.theta) == (plan.freeze == "none")
    n = plan.problem.n_client
    assert torch.equal(seeds.theta[n:], start.theta[n:])


@pytest.mark.parametrize(("estimate", "passes"), [("one-sided", 3), ("central", 5)])
def test_a_client_runs_forward_only_as_often_as_it_says(
    monkeypatch: pytest.MonkeyPatch, estimate: str, passes: int
) -> None:
    """Of its part alone, without a graph; autograd is the server's. Mutations: a second base; grad mode; the head."""
    of = method(HOSFL, training(setting(), SGD), n_p=2, estimate=estimate)
    seen: dict[str, list[bool]] = {"client": [], "auxiliary": []}
    for name, own in seen.items():
        part: nn.Module = getattr(of.setting.problem, name)
        part.register_forward_hook(lambda *_, own=own: own.append(torch.is_grad_enabled()))
    grad, calls = torch.autograd.grad, list[int]()
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **b: calls.append(1) or grad(*a, **b))
    state = run(of, 1)
    assert seen == {"client": [False] * passes * sum(STEPS_OF), "auxiliary": []}
    assert len(calls) == state.server_steps == sum(STEPS_OF)
    assert of.plan(1)["forward passes of a local step"] == passes
    assert math.isnan(state.local_loss)


def test_lambda_along_s_is_summed_in_float64() -> None:
    """Mutations: bfloat16 products; a float32 sum, which loses the small ones of many."""
    one = torch.full((2**20,), 1 / 3)
    assert abs(float(inner(one, one)) / 2**20 - float(one[0] * one[0])) < 1e-15
    half = torch.full((4,), 1 + 2**-7, dtype=torch.bfloat16)
    assert float(inner(half, half)) == 4 * (1 + 2**-7) ** 2


@pytest.mark.parametrize("estimate", ["one-sided", "central", "jvp"])
def test_it_runs_on_texts_of_differing_length(estimate: str) -> None:
    """Clients that do not step are SFLV2's to the bit there too. Mutation: shapes of the longest sample."""
    plan = training(texts(), batch=3)
    ho, again, sfl = (
        run(method(cls, replace(plan, lr_client=lr), **own), 2)
        for cls, lr, own in (
            (HOSFL, 0.0, {"estimate": estimate}),
            (HOSFL, 0.05, {"estimate": estimate}),
            (SFLV2, 0.0, {}),
        )
    )
    assert same(ho, sfl) and apart(again.theta, sfl.theta)


def test_what_cannot_be_is_refused() -> None:
    plan = training(setting(small))
    with pytest.raises(UserError, match="--uplink seeds: --estimate exact"):
        method(HOSFL, plan, uplink="seeds", estimate="exact")
    with pytest.raises(UserError, match="--n-p 0: must be"):
        method(HOSFL, plan, n_p=0)
    with pytest.raises(UserError, match="--k 2: must be 1: the server answers"):
        method(HOSFL, training(setting(small), k=2))
