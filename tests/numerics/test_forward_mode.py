"""--estimate jvp: derivatives along directions without a radius and without a graph."""

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
    gradient,
    local_of,
    method,
    resnet,
    run,
    same,
    setting,
    small,
    training,
)
from tests.numerics.test_per_sample import convolutions, groups, tokens
from zofl_mpi.errors import UserError
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.ho_sfl import HOSFL
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.rounds.split.estimates import ForwardMode

JVP: dict[str, Any] = {"estimate": "jvp"}


@pytest.mark.parametrize("freeze", ["none", "client", "auxiliary"])
@pytest.mark.parametrize("make", [resnet, groups, convolutions, tokens])
def test_the_derivative_is_that_of_the_gradient(make: Make, freeze: str) -> None:
    """<g, u>; statistics, parameters and graph as before. Mutations: tangents of another part; parameters left dual."""
    of = method(HERON, training(setting(make), freeze=freeze), distribution="gaussian", **JVP)
    local = local_of(of)
    modules = [m for own in local.problem.local.modules for m in own.modules()]
    held = [list(m._parameters.items()) for m in modules]
    for q, x, labels in local:
        before, theta = local.buffers.clone(), local.theta.clone()
        rule = of.rule
        (u,) = rule.directions(local.theta[rule.part], local.key(q))
        found = rule.derivative(local, x, labels, u)
        assert torch.equal(local.buffers, before) and torch.equal(local.theta, theta) and not found.requires_grad
        close(found, gradient(local, x, labels)[rule.part] @ u, 1e-10)
        assert abs(float(found)) > 1e-6
    for module, parameters in zip(modules, held, strict=True):
        assert all(module._parameters[name] is p for name, p in parameters)


def test_the_mean_over_a_frame_is_the_gradient_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations: mu or 2 in the scale; n_p or d missing."""
    of = method(HERON, training(setting(small)), mu=0.5, **JVP)
    local, d = local_of(of), of.setting.problem.local.n
    _, x, labels = next(iter(local))
    frame = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    monkeypatch.setattr(ForwardMode, "directions", lambda *_: iter(frame.T))
    rule = ForwardMode(slice(0, d), d, "sphere")
    close(estimate_of(rule, local, 0, x, labels), gradient(local, x, labels), 1e-11)


@pytest.mark.parametrize("cls", [HERON, HOSFL])
@pytest.mark.parametrize("flags", [{}, {"state": "average", "beta": 0.7}])
def test_it_is_the_limit_of_central_differences_and_comes_back_by_seeds(cls: Any, flags: dict[str, Any]) -> None:
    """Mutations: other directions than theirs; derivatives lost on their way up."""
    plan = training(setting(small), **{"rule": Optimiser("sgd"), **flags})
    jvp, seeds, central = (
        run(method(cls, plan, n_p=2, **own), 2)
        for own in (JVP, {**JVP, "uplink": "seeds"}, {"estimate": "central", "mu": 1e-4})
    )
    assert same(jvp, seeds) and apart(jvp.theta, method(cls, plan).start().theta)
    close(jvp.theta, central.theta, 1e-6)
    assert not torch.equal(jvp.theta, central.theta)


@pytest.mark.parametrize(("cls", "k"), [(HERON, 1), (HERON, 100), (HOSFL, 1)])
def test_a_client_has_no_graph_and_passes_as_told(monkeypatch: pytest.MonkeyPatch, cls: Any, k: int) -> None:
    """Mutations: autograd at the client; a pass for the loss that nothing asks for; costs of plain passes."""
    of = method(cls, training(setting(groups), SGD, k=k), n_p=2, **JVP)
    grad, calls, seen = torch.autograd.grad, list[int](), list[bool]()
    of.setting.problem.client.register_forward_hook(lambda *given: seen.append(given[2].requires_grad))
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **b: calls.append(1) or grad(*a, **b))
    state = run(of, 1)
    assert seen == [False] * (2 * sum(STEPS_OF) + (3 if k == 100 else sum(STEPS_OF)))
    assert len(calls) == state.server_steps
    memory = "peak bytes of a client's step, beyond its model"
    one = method(cls, training(setting(groups)), n_p=2).costs()[memory]
    assert 1.5 * one < of.costs()[memory] < 4 * one, "tangents beside values"


class Backward(torch.autograd.Function):
    """That has no derivative forwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        return slopes[0]


class Lacking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(SIDE * SIDE, 4)

    def forward(self, x: Tensor) -> Tensor:
        return Backward.apply(self.inner(x.flatten(1)))  # type: ignore[no-any-return,no-untyped-call]


def lacking() -> Parts:
    return Lacking(), nn.Linear(4, C), nn.Linear(4, C)


@pytest.mark.parametrize("cls", [HERON, HOSFL])
def test_a_network_without_forward_derivatives_is_refused_before_the_run(cls: Any) -> None:
    with pytest.raises(
        UserError, match=r"^--estimate jvp: this network has no forward-mode derivative \(.+\); take one"
    ):
        method(cls, training(setting(lacking)), **JVP)
    run(method(cls, training(setting(lacking))), 1)
