"""HERON with the exact gradient of its head: closed form, forward only, out of the directions and of the seeds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.numerics.split_methods import (
    SGD,
    SIDE,
    STEPS_OF,
    C,
    Make,
    Parts,
    apart,
    close,
    estimate_of,
    forward,
    gradient,
    local_of,
    method,
    mlp,
    resnet,
    run,
    same,
    setting,
    small,
    training,
    twins,
)
from zofl_mpi.errors import UserError
from zofl_mpi.methods.heron import HERON
from zofl_mpi.numerics.optimisers import Optimiser

EXACT: dict[str, Any] = {"head_gradient": "exact"}
PLAIN = Optimiser("sgd")


def nested() -> Parts:
    """A head of parts in parts, without biases."""
    head = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Sequential(nn.Flatten(), nn.Linear(16, C, bias=False)))
    return nn.Conv2d(1, 1, 3, bias=False), head, nn.Sequential(nn.Flatten(), nn.Linear((SIDE - 2) ** 2, C))


@pytest.mark.parametrize("make", [resnet, small, nested])
def test_the_closed_form_is_autograds_gradient(make: Make) -> None:
    """Mutations: y left out; a sum for the mean; s^T (softmax - y) untransposed; no biases; another loss."""
    of = method(HERON, training(setting(make)), **EXACT)
    local = local_of(of)
    n = local.problem.n_client
    for _, x, labels in local:
        before = local.buffers.clone()
        point = of.rule.forward(local, 0, x, labels)
        local.buffers.copy_(before)
        close(point.gradient, gradient(local, x, labels)[n:])
        assert float(point.gradient.norm()) > 1e-2 and not point.loss.requires_grad
        local.buffers.copy_(before)
        assert torch.equal(forward(local, x, labels)[1], point.loss)


def test_a_step_moves_the_head_exactly_and_estimates_for_the_rest_alone() -> None:
    """Mutations: directions as long as theta_l; the head perturbed too; a gradient after the step."""
    of = method(HERON, training(setting(small), PLAIN, h=1), n_p=3, mu=0.01, **EXACT)
    local, n = local_of(of), of.setting.problem.n_client
    ((q, x, labels),) = local
    theta, lr = local.theta.clone(), of.training.lr_client
    g = gradient(local, x, labels)
    assert len(g) == len(theta)
    own = method(HERON, training(setting(small), PLAIN, h=1, freeze="auxiliary"), n_p=3, mu=0.01)
    expected = estimate_of(own.rule, local_of(own), q, x, labels)
    assert len(expected) == n
    found = run(method(HERON, training(setting(small, (0,)), PLAIN, h=1), n_p=3, mu=0.01, **EXACT), 1).theta
    close(found[:n], theta[:n] - lr * expected)
    close(found[n:], theta[n:] - lr * g[n:])


SEEDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"rule": Optimiser("sgd", momentum=0.9, weight_decay=0.01)}, {"n_p": 3, "estimate": "central"}),
    ({"state": "reset", "k": 2}, {"distribution": "gaussian"}),
    ({"beta": 0.7, "weights": "uniform"}, {"n_p": 2, "distribution": "sphere", "mu": 0.01}),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("flags", "estimate"), SEEDS)
def test_scalars_and_the_head_give_the_dense_uplinks_bits(
    flags: dict[str, Any], estimate: dict[str, Any], dtype: str
) -> None:
    """Mutations: one optimiser over client and head; the head of the round before; moments of the head replayed."""
    plan = training(setting(dtype=dtype), **{"rule": Optimiser(), **flags})
    dense, seeds = (run(method(HERON, plan, **estimate, **EXACT, uplink=uplink), 4) for uplink in ("dense", "seeds"))
    start, n = method(HERON, plan).start(), plan.problem.n_client
    assert same(seeds, dense) and (seeds.server_loss, seeds.local_loss) == (dense.server_loss, dense.local_loss)
    assert apart(seeds.theta[:n], start.theta[:n]) and apart(seeds.theta[n:], start.theta[n:])
    assert bool(seeds.replayed) == (plan.state == "keep")


@pytest.mark.parametrize(("estimate", "passes"), [("one-sided", 3), ("central", 5)])
def test_it_takes_no_backward_pass_and_no_further_one_forward(
    monkeypatch: pytest.MonkeyPatch, estimate: str, passes: int
) -> None:
    """Mutations: autograd for the head; a second forward pass for its gradient."""
    of = method(HERON, training(setting(), SGD, k=100), n_p=2, estimate=estimate, **EXACT)
    problem, seen, calls = of.setting.problem, [], []

    def hook(module: nn.Module, given: Any, output: Tensor) -> None:
        seen.append(torch.is_grad_enabled())

    for part in (problem.client, problem.auxiliary):
        part.register_forward_hook(hook)
    grad = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **b: calls.append(1) or grad(*a, **b))
    run(of, 1)
    assert seen == [False] * 2 * passes * sum(STEPS_OF) and len(calls) == 3
    assert of.plan(1)["forward passes of a local step"] == passes


def test_the_heads_gradient_costs_as_much_as_its_forward_pass() -> None:
    plain, exact = (method(HERON, training(setting()), **flags).costs() for flags in ({}, EXACT))
    head = plain["multiply-accumulates of a sample in the head"]
    name = "multiply-accumulates of a client's step"
    assert exact[name] == plain[name] + 4 * head > plain[name]


@pytest.mark.parametrize(
    ("make", "flags", "own", "words"),
    [
        (lambda: mlp(twins=True), {}, {}, "this auxiliary head is not a linear layer with nothing to train before it"),
        (twins, {}, {}, "this auxiliary head is not a linear layer"),
        (small, {}, {"estimate": "exact"}, "--estimate exact has it already"),
        (small, {"freeze": "auxiliary"}, {}, "--freeze auxiliary leaves no client or no head to train"),
        (small, {"state": "average"}, {}, "--state average has one optimiser for client and head"),
    ],
)
def test_what_has_no_closed_form_or_no_meaning_is_refused(make: Make, flags: Any, own: Any, words: str) -> None:
    with pytest.raises(UserError, match=f"^--head-gradient exact: {words}"):
        method(HERON, training(setting(make), **flags), **own, **EXACT)
