"""HERON with the exact gradient of its head, in closed form; --exact-layers: from forward passes to first order."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.numerics.split_methods import (
    ESTIMATING,
    LOCKSTEP,
    RULES,
    SIDE,
    C,
    Make,
    Parts,
    apart,
    close,
    convolutions,
    estimate_of,
    forward,
    gradient,
    groups,
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
from zofl_mpi.methods.cse_fsl import CSEFSL
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.ho_sfl import HOSFL
from zofl_mpi.methods.splitfed import SFLV2
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.rounds.split.costs import HEADS, PARTS, Traffic

HEAD: dict[str, Any] = {"head_gradient": "exact"}
PLAIN = Optimiser("sgd")


def nested() -> Parts:
    """A head of parts in parts, without biases."""
    head = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Sequential(nn.Flatten(), nn.Linear(16, C, bias=False)))
    return nn.Conv2d(1, 1, 3, bias=False), head, nn.Sequential(nn.Flatten(), nn.Linear((SIDE - 2) ** 2, C))


@pytest.mark.parametrize("make", [resnet, small, nested])
def test_the_closed_form_is_autograds_gradient(make: Make) -> None:
    """Mutations: y left out; a sum for the mean; s^T (softmax - y) untransposed; no biases; another loss."""
    of = method(HERON, training(setting(make)), **HEAD)
    local = local_of(of)
    n = local.problem.n_client
    for _, x, labels in local:
        before = local.buffers.clone()
        point = of.rule.forward(local, x, labels)
        local.buffers.copy_(before)
        close(point.gradient, gradient(local, x, labels)[n:])
        assert float(point.gradient.norm()) > 1e-2 and not point.loss.requires_grad
        local.buffers.copy_(before)
        assert torch.equal(forward(local, x, labels)[1], point.loss)


def test_a_step_moves_the_head_exactly_and_estimates_for_the_rest_alone() -> None:
    """Mutations: directions as long as theta_l; the head perturbed too; a gradient after the step."""
    of = method(HERON, training(setting(small), PLAIN, h=1), n_p=3, mu=0.01, **HEAD)
    local, n = local_of(of), of.setting.problem.n_client
    ((q, x, labels),) = local
    theta, lr = local.theta.clone(), of.training.lr_client
    g = gradient(local, x, labels)
    assert len(g) == len(theta)
    own = method(HERON, training(setting(small), PLAIN, h=1, freeze="auxiliary"), n_p=3, mu=0.01)
    expected = estimate_of(own.rule, local_of(own), q, x, labels)
    assert len(expected) == n
    found = run(method(HERON, training(setting(small, (0,)), PLAIN, h=1), n_p=3, mu=0.01, **HEAD), 1).theta
    close(found[:n], theta[:n] - lr * expected)
    close(found[n:], theta[n:] - lr * g[n:])


def test_the_heads_gradient_costs_as_much_as_its_forward_pass() -> None:
    """And goes up as the head's bytes, beside seeds. Mutations: as the client's; the layers before it as the head's; a
    head's bytes where it stays."""
    plain, exact = (method(HERON, training(setting()), **flags).costs() for flags in ({}, HEAD))
    head = plain["multiply-accumulates of a sample in the head"]
    name = "multiply-accumulates of a client's step"
    assert exact[name] == plain[name] + 4 * head > plain[name]
    for last, travels, up in ((4, True, (0, 4)), (11, True, (2, 9)), (11, False, (11, 0))):  # of 6 + 9 parameters
        sent = Traffic(training(setting(small)), travels, scalars=1, last=last).of(0, 0)
        assert [sent[kind][1] for kind in (PARTS, HEADS)] == [8 * count for count in up]


EXACT: dict[Any, dict[str, Any]] = {cls: {} if cls in LOCKSTEP else HEAD for cls in ESTIMATING}
BOTH = pytest.mark.parametrize("cls", ESTIMATING)
LAYERS = {small: 1, convolutions: 4, groups: 6, resnet: 6}
"""Layers with parameters of their own: convolutions, norms, linear ones."""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@RULES
@pytest.mark.parametrize(("cls", "first", "flags"), [(HERON, CSEFSL, {"k": 2}), (HOSFL, SFLV2, {})])
def test_exact_gradients_are_first_order_to_the_bit(
    cls: Any, first: Any, flags: Any, rule: Optimiser, dtype: str
) -> None:
    """In place of the estimate, or of all layers, so that the rest is nothing. Mutations: another order or upload;
    other moments, or lost ones; the server's gradient after its step; a server part each; a head that moves; a layer
    too few; statistics moved twice."""
    plan = training(setting(dtype=dtype), rule, beta=0.6, augment="crop-flip", **flags)
    expected, layers = run(method(first, plan), 3), {"exact_layers": LAYERS[resnet], **EXACT[cls]}
    for own in ({"estimate": "exact"}, {**layers, "rest": "estimated"}, {**layers, "rest": "frozen"}):
        found = run(method(cls, plan, **own), 3)
        assert same(found, expected)
        assert (found.server_steps, found.server_loss) == (expected.server_steps, expected.server_loss)
        assert found.local_loss == expected.local_loss or cls is HOSFL


@BOTH
@pytest.mark.parametrize(("make", "count"), [(convolutions, 1), (convolutions, 3), (groups, 2), (resnet, 4)])
def test_the_last_layers_step_along_the_gradient_and_the_rest_as_told(cls: Any, make: Make, count: int) -> None:
    """One step of SGD. Mutations: the first layers for the last; the rest exact too; directions as long as theta_c."""
    plan = training(setting(make, (0,)), PLAIN, h=1)
    first = run(method(CSEFSL if cls is HERON else SFLV2, plan), 1).theta
    start, n = method(cls, plan).start().theta, plan.problem.n_client
    own = {"exact_layers": count, "mu": 1e-3, **EXACT[cls]}
    frozen, estimated = (run(method(cls, plan, rest=rest, **own), 1).theta for rest in ("frozen", "estimated"))
    split = method(cls, plan, **own).rule.parts[1].start
    assert 0 < split < n
    assert torch.equal(frozen[:split], start[:split])
    for found in (frozen, estimated):
        close(found[split:], first[split:], 1e-11)
    assert apart(frozen[split:n], start[split:n])
    assert apart(estimated[:split], start[:split]) and apart(estimated[:split], first[:split])


@BOTH
def test_the_rests_estimate_has_its_gradient_as_its_mean(cls: Any) -> None:
    """4000 directions, five standard errors. Mutations: the exact layers perturbed too; a wrong base."""
    plan = training(setting(convolutions, (0,)), PLAIN, h=1, lr_client=1.0)
    first = run(method(CSEFSL if cls is HERON else SFLV2, plan), 1).theta
    start = method(cls, plan).start().theta
    of = method(cls, plan, exact_layers=3, n_p=4000, mu=1e-4, distribution="gaussian", **EXACT[cls])
    split = of.rule.parts[1].start
    g, found = (start - first)[:split], (start - run(of, 1).theta)[:split]
    assert float((found - g).norm()) < 5 * float(g.norm()) * ((split + 1) / 4000) ** 0.5 < 3 * float(g.norm())


@BOTH
@pytest.mark.parametrize("more", [{"directions": "per-sample"}, {"estimate": "jvp"}, {"estimate": "central"}])
def test_it_goes_with_every_estimate(cls: Any, more: dict[str, Any]) -> None:
    """The last layers are the same after one step. Mutation: signs or tangents of the exact layers."""
    plan = training(setting(groups, (0,)), PLAIN, h=1)
    one, other = (run(method(cls, plan, exact_layers=2, **own, **EXACT[cls]), 1).theta for own in ({}, more))
    split = method(cls, plan, exact_layers=2, **EXACT[cls]).rule.parts[1].start
    close(one[split:], other[split:], 1e-11)
    assert apart(one[:split], other[:split])


def test_the_rests_estimate_has_no_graph() -> None:
    """HO-SFL's base is a product with the smashed samples, whose graph is the exact layers'. Mutation: it stays,
    and the base is summed in float32 where the perturbed losses are in float64."""
    local = local_of(of := method(HOSFL, training(setting(convolutions)), exact_layers=1))
    q, x, labels = next(iter(local))
    point = of.rule.forward(local, x, labels)
    found = of.rule(local, point, torch.ones_like(point.smashed), local.key(q))
    assert not any(value.requires_grad for value in (*found.parts, *found.differences))


def numbers(of: Any) -> tuple[float, float]:
    costs = of.costs()
    return float(costs["peak bytes of a client's step, beyond its model"]), float(
        costs["multiply-accumulates of a client's step"]
    )


@BOTH
def test_memory_and_products_grow_from_forward_only_to_first_order(cls: Any) -> None:
    """Mutations: a graph of all layers; the backward pass not counted, or counted whole."""
    plan = training(setting(groups))
    found = [numbers(method(cls, plan, exact_layers=k, rest="frozen", **EXACT[cls])) for k in range(1, 7)]
    none = numbers(method(cls, plan, **EXACT[cls]))
    whole = numbers(method(CSEFSL if cls is HERON else SFLV2, plan))
    memory, products = zip(*found, strict=True)
    assert list(memory) == sorted(memory) and list(products) == sorted(products)
    assert none[0] <= memory[0] < memory[-1] and products[0] < products[-1]
    assert memory[-1] == pytest.approx(whole[0], rel=0.1)
    told = method(cls, plan, exact_layers=2, **EXACT[cls]).plan(1)
    assert told["the client's layers with a backward pass"] == 2
    assert told["backward passes of a local step"] == 0


def test_a_backward_pass_ends_where_the_exact_layers_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """And all parameters ask for gradients again after it. Mutation: autograd through all of theta_l."""
    of = method(HERON, training(setting(convolutions)), exact_layers=1, **EXACT[HERON])
    seen: list[list[bool]] = []
    grad = torch.autograd.grad

    def watched(output: Any, inputs: Any, *more: Any, **flags: Any) -> Any:
        seen.append([p.requires_grad for p in of.setting.problem.client_side.parameters])
        return grad(output, inputs, *more, **flags)

    local = local_of(of)
    _, x, labels = next(iter(local))
    monkeypatch.setattr(torch.autograd, "grad", watched)
    of.rule.forward(local, x, labels)
    (asked,) = seen
    assert asked == [False] * 5 + [True] * 3
    assert all(p.requires_grad for p in of.setting.problem.client_side.parameters)


ONE: dict[str, Any] = {"exact_layers": 1}


@pytest.mark.parametrize(
    ("classes", "make", "flags", "own", "words"),
    [
        ((HERON,), lambda: mlp(twins=True), {}, {}, "--head-gradient exact: this auxiliary head is not a linear layer"),
        ((HERON,), twins, {}, {}, "--head-gradient exact: this auxiliary head is not a linear layer"),
        ((HERON,), small, {}, {"estimate": "exact"}, "--head-gradient exact: --estimate exact has the gradient itself"),
        ((HERON,), small, {"freeze": "auxiliary"}, {}, "--head-gradient exact: --freeze auxiliary contradicts it"),
        ((HERON,), small, {"state": "average"}, {}, "--head-gradient exact: --state average has one optimiser for"),
        (EXACT, resnet, {}, {"exact_layers": 7}, "--exact-layers 7: must be from 0 to 6, the client's layers with"),
        (EXACT, resnet, {}, {"rest": "frozen"}, "--rest frozen: with --exact-layers 0 nothing of the client would"),
        (EXACT, small, {}, {**ONE, "uplink": "seeds"}, "--uplink seeds: it sends the scalars of estimates"),
        (EXACT, resnet, {}, {**ONE, "rest": "frozen", "uplink": "seeds"}, "--uplink seeds: it sends the scalars"),
        ((HOSFL,), resnet, {"freeze": "client"}, ONE, "--exact-layers 1: --freeze client"),
        ((HOSFL,), resnet, {"state": "average"}, ONE, "--exact-layers 1: --state average"),
    ],
)
def test_what_has_no_closed_form_or_no_meaning_is_refused(
    classes: Any, make: Make, flags: Any, own: dict[str, Any], words: str
) -> None:
    for cls in classes:
        with pytest.raises(UserError, match=f"^{words}"):
            method(cls, training(setting(make), **flags), **own, **EXACT[cls])


def test_the_head_is_exact_too_or_it_is_refused() -> None:
    with pytest.raises(UserError, match=r"--exact-layers 1: a backward pass to them has the head's gradient too; give"):
        method(HERON, training(setting()), exact_layers=1)
    run(method(HERON, training(setting(lambda: mlp(twins=True))), exact_layers=1, **EXACT[HERON]), 1)
