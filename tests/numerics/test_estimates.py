"""One direction a sample: the passes of each layer and the estimate behind them; --estimate jvp: no radius."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.numerics.split_methods import (
    ESTIMATING,
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
    resnet,
    run,
    same,
    setting,
    small,
    tokens,
    training,
)
from tests.numerics.test_exact_parts import numbers
from tests.numerics.test_split_texts import texts_setting as texts
from zofl_mpi.errors import UserError
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.ho_sfl import HOSFL
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.problems.signs import SignedLayers, Signs
from zofl_mpi.rounds.split.client import LocalSteps
from zofl_mpi.rounds.split.estimates import PerSample, TwoPoint
from zofl_mpi.rounds.split.rules import Tail

EACH: dict[str, Any] = {"directions": "per-sample"}


def started(make: Make, cls: Any = HERON, **flags: Any) -> tuple[LocalSteps, PerSample, Tensor, Tensor]:
    """A client's model, its rule, inputs and labels."""
    own = {name: flags.pop(name) for name in ("batchnorm", "freeze") if name in flags}
    of = method(cls, training(setting(make), **own), **EACH, **flags)
    local = local_of(of)
    _, x, labels = next(iter(local))
    moved = torch.randn(len(local.theta), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    local.theta.add_(moved, alpha=0.1)  # norms whose scales are not all 1
    rule = of.rule.first if isinstance(of.rule, Tail) else of.rule
    assert isinstance(rule, PerSample)
    return local, rule, x, labels


@pytest.mark.parametrize(
    ("make", "flags"),
    [
        (tokens, {}),
        (resnet, {"batchnorm": "running"}),
        (convolutions, {"freeze": "auxiliary"}),
        (groups, {"freeze": "client"}),
        (convolutions, {"head_gradient": "exact"}),
    ],
)
def test_each_sample_goes_through_at_its_own_point(make: Make, flags: dict[str, Any]) -> None:
    """Sample j alone at theta + mu sigma_j u has the loss that it has in the batch, for every kind of layer. sigma_j u
    is what one sample with weight 1 gives; its entries are u's but for signs. Mutations: signs of inputs for those of
    outputs; a neighbour's signs; a bias without its sign; groups that mix; strides, dilations or eps left out; scale or
    shift of a norm left out; the perturbation of a layer that does not train."""
    local, rule, x, labels = started(make, **flags)
    layers, problem = rule.layers, local.problem
    assert rule.part.stop == (problem.n_client if "head_gradient" in flags else rule.part.stop)
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(layers.d, generator=generator, dtype=torch.float64)
    assert layers.d == rule.part.stop - rule.part.start
    signs, mu, count = layers.draw(generator, len(x), u), 0.3, len(x)
    with torch.no_grad(), local.bound_to(local.buffers), layers.perturbed(u, signs, mu):
        found = rule.losses(problem.smash(x), labels)
    smashed, points = forward(local, x, labels)[0], []
    with torch.no_grad(), local.bound_to(local.buffers):
        base = rule.losses(smashed, labels)
    for j in range(count):
        v = layers.weighted(u, signs, torch.eye(count, dtype=torch.float64)[j])
        assert torch.equal(v.abs(), u.abs())
        points.append(v)
        alone = local.perturbed(x[j : j + 1], labels[j : j + 1], v, mu) / count
        assert abs(float(alone - found[j])) < 1e-12
    assert float((found - base).abs().min()) > 1e-6
    assert any(not torch.equal(points[0], other) for other in points)
    weights = torch.arange(1.0, count + 1, dtype=torch.float64)
    sums = torch.einsum("j,jd->d", weights, torch.stack(points))
    assert torch.allclose(layers.weighted(u, signs, weights), sums, rtol=1e-12, atol=1e-12)


def pattern(k: int, count: int) -> Signs:
    """The k-th of the 16 patterns of a layer 2 -> 2, for each of so many samples."""
    bits = torch.tensor([1.0 if k >> b & 1 else -1.0 for b in range(4)], dtype=torch.float64)
    return Signs(bits[:2].expand(count, 2), bits[2:].expand(count, 2))


@pytest.mark.parametrize("central", [False, True])
def test_its_mean_over_all_signs_is_that_of_the_global_estimate(monkeypatch: pytest.MonkeyPatch, central: bool) -> None:
    """All 256 patterns of two samples beside the 16 directions that they turn one into, of a loss that is not linear.
    Mutations: the mean over samples for their sum; mu, n_p or 2 missing; the estimate of a neighbour's signs."""
    local, rule, x, labels = started(small, freeze="auxiliary")
    x, labels, layers = x[:2], labels[:2], rule.layers
    u = torch.randn(layers.d, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    rule = replace(rule, mu=0.5, central=central)
    turned = [layers.weighted(u, [pattern(k, 1)], torch.ones(1)) for k in range(16)]
    one = TwoPoint(rule.part, 1, "sqrt_d_sphere", mu=0.5, central=central)
    expected = sum(along(monkeypatch, one, v, local, x, labels) for v in turned) / 16
    total = torch.zeros_like(u)
    for a, b in itertools.product(range(16), repeat=2):
        both = [Signs(*(torch.stack([p[0], q[0]]) for p, q in zip(pattern(a, 1), pattern(b, 1), strict=True)))]
        monkeypatch.setattr(SignedLayers, "draw", lambda *_, both=both: both)
        total += along(monkeypatch, rule, u, local, x, labels) / 256
    assert float((total - expected).norm()) < 1e-12 < 1e-3 < float(expected.norm())
    assert float((turned[0] - turned[1]).norm()) > 0.1


def along(monkeypatch: pytest.MonkeyPatch, rule: TwoPoint, u: Tensor, *given: Any) -> Tensor:
    """(d,) the rule's estimate from one direction u."""
    monkeypatch.setattr(TwoPoint, "directions", lambda *_: iter([u]))
    local, x, labels = given
    return estimate_of(rule, local, 0, x, labels)


def test_a_signed_pass_costs_its_products_twice_and_a_copy_of_its_maps() -> None:
    """Mutations: products counted once; memory of a pass without signs."""
    name = "multiply-accumulates of a client's step"
    for cls, heads in ((HERON, 1), (HOSFL, 0)):
        one, each = (method(cls, training(setting(groups)), **flags) for flags in ({}, EACH))
        plain, signed = one.costs(), each.costs()
        head = 4 * signed["multiply-accumulates of a sample in the head"]
        assert signed[name] == pytest.approx(1.5 * plain[name] + heads * head)
        (least, _), (more, _) = numbers(one), numbers(each)
        assert least < more < 3 * least


class Own(nn.Module):
    """A layer of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(SIDE * SIDE))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) * self.scale


class Uncalled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(SIDE * SIDE, 4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.flatten(1), self.inner.weight, self.inner.bias)


class Merged(nn.Module):
    """Rows that are no samples."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(SIDE, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.reshape(-1, SIDE)).reshape(len(x), -1)


def of_client(cls: type[nn.Module], width: int) -> Make:
    return lambda: (cls(), nn.Linear(width, C), nn.Linear(width, C))


@pytest.mark.parametrize("cls", ESTIMATING)
@pytest.mark.parametrize(
    ("make", "flags", "words"),
    [
        (resnet, {}, r"BatchNorm2d \(0\.1\) normalises by the statistics of the batch, so a sample's loss depends on"),
        (of_client(Own, 64), {}, r"Own \(the whole part\) does not support signs; layers must be Linear, Conv2d"),
        (of_client(Uncalled, 4), {}, r"Linear \(inner\) is not called in a forward pass"),
        (of_client(Merged, 32), {}, r"Linear \(inner\) takes 16 rows of a batch of 2 samples"),
        (small, {"estimate": "exact"}, "--estimate exact has the gradient itself"),
        (small, {"estimate": "jvp"}, "--estimate jvp has no differences"),
    ],
)
def test_what_takes_no_signs_is_refused(cls: Any, make: Make, flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=f"^--directions per-sample: {words}"):
        method(cls, training(setting(make)), **flags, **EACH)


def test_a_problem_without_a_loss_for_each_sample_is_refused() -> None:
    """Such as one of texts; it has no head in closed form either."""
    plan = training(texts())
    with pytest.raises(UserError, match=r"^--directions per-sample: this problem does not tell what each sample adds"):
        method(HERON, plan, **EACH)
    with pytest.raises(UserError, match=r"^--head-gradient exact: this auxiliary head is not a linear layer"):
        method(HERON, plan, head_gradient="exact")


JVP: dict[str, Any] = {"estimate": "jvp"}


@pytest.mark.parametrize("freeze", ["none", "client", "auxiliary"])
@pytest.mark.parametrize("make", [resnet, groups, convolutions, tokens])
def test_the_derivative_is_that_of_the_gradient(make: Make, freeze: str) -> None:
    """<g, u>; statistics, parameters and graph as before. Mutations: tangents of another part; parameters left dual."""
    of = method(HERON, training(setting(make), freeze=freeze), distribution="gaussian", **JVP)
    local = local_of(of)
    modules = [m for own in local.problem.client_side.modules for m in own.modules()]
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


@pytest.mark.parametrize("cls", ESTIMATING)
@pytest.mark.parametrize("flags", [{}, {"state": "average", "beta": 0.7}])
def test_it_is_the_limit_of_central_differences_and_comes_back_by_seeds(cls: Any, flags: dict[str, Any]) -> None:
    """Mutations: other directions than theirs; derivatives lost on their way up."""
    plan = training(setting(small), **{"optimiser": Optimiser("sgd"), **flags})
    jvp, seeds, central = (
        run(method(cls, plan, n_p=2, **own), 2)
        for own in (JVP, {**JVP, "uplink": "seeds"}, {"estimate": "central", "mu": 1e-4})
    )
    assert same(jvp, seeds) and apart(jvp.theta, method(cls, plan).start().theta)
    close(jvp.theta, central.theta, 1e-6)
    assert not torch.equal(jvp.theta, central.theta)


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


@pytest.mark.parametrize("cls", ESTIMATING)
def test_a_network_without_forward_derivatives_is_refused_before_the_run(cls: Any) -> None:
    with pytest.raises(
        UserError, match=r"^--estimate jvp: this network has no forward-mode derivative \(.+\); take one"
    ):
        method(cls, training(setting(lacking)), **JVP)
    run(method(cls, training(setting(lacking))), 1)
