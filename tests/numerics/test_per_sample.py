"""One direction a sample: the passes of each layer, the estimate behind them, its mean and its variance."""

from __future__ import annotations

import itertools
from dataclasses import replace
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
    estimate_of,
    forward,
    gradient,
    local_of,
    method,
    resnet,
    run,
    setting,
    small,
    training,
)
from tests.numerics.test_split_texts import setting as texts
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.ho_sfl import HOSFL
from zofl_mpi.problems.signs import SignedLayers, Signs
from zofl_mpi.problems.split_resnet import ResNet
from zofl_mpi.rounds.split import estimates
from zofl_mpi.rounds.split.client import LocalSteps, generator_of
from zofl_mpi.rounds.split.estimates import PerSample, TwoPoint
from zofl_mpi.rounds.split.rules import Tail

EACH: dict[str, Any] = {"directions": "per-sample"}


class Sevens(nn.Module):
    """(B, 7, 5) numbers as 7 tokens, for layers that have more than a row a sample."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :35].reshape(-1, 7, 5)


def convolutions() -> Parts:
    """Strides, groups, dilations, with biases and without."""
    client = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.GroupNorm(2, 4),
        nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2, bias=False),
        nn.Tanh(),
        nn.Conv2d(6, 2, 1),
    )
    server = nn.Sequential(nn.Flatten(), nn.Linear(2 * 16, C))
    return client, nn.Sequential(nn.Flatten(), nn.Linear(2 * 16, C, bias=False)), server


def tokens() -> Parts:
    client = nn.Sequential(Sevens(), nn.Linear(5, 4), nn.LayerNorm((7, 4)), nn.Tanh(), nn.LayerNorm(4, bias=False))
    return client, nn.Sequential(nn.Flatten(), nn.Linear(28, C)), nn.Sequential(nn.Flatten(), nn.Linear(28, C))


def groups() -> Parts:
    return ResNet(2, (1, 1), 1, "pooled", "group").parts((1, SIDE, SIDE), C)


def started(make: Make, cls: Any = HERON, **flags: Any) -> tuple[LocalSteps, PerSample, Tensor, Tensor]:
    """A client's model, its rule, inputs and labels."""
    own = {name: flags.pop(name) for name in ("batchnorm", "freeze") if name in flags}
    of = method(cls, training(setting(make), **own), **EACH, **flags)
    local = local_of(of)
    _, x, labels = next(iter(local))
    moved = torch.randn(len(local.theta), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    local.theta.add_(moved, alpha=0.1)  # norms whose scales are not all 1
    rule = of.rule.rest if isinstance(of.rule, Tail) else of.rule
    assert isinstance(rule, PerSample)
    return local, rule, x, labels


@pytest.mark.parametrize(
    ("make", "flags"),
    [
        (small, {}),
        (convolutions, {}),
        (tokens, {}),
        (groups, {}),
        (resnet, {"batchnorm": "running"}),
        (convolutions, {"freeze": "auxiliary"}),
        (groups, {"freeze": "client"}),
        (convolutions, {"head_gradient": "exact"}),
    ],
)
def test_each_sample_goes_through_at_its_own_point(make: Make, flags: dict[str, Any]) -> None:
    """Sample j alone at theta + mu sigma_j u has the loss that it has in the batch, for every kind of layer.

    sigma_j u is what one sample with weight 1 gives; its entries are u's but for signs. Mutations: signs of inputs for
    those of outputs; a neighbour's signs; a bias without its sign; groups that mix; strides, dilations or eps left out;
    scale or shift of a norm left out; the perturbation of a layer that does not train.
    """
    local, rule, x, labels = started(make, **flags)
    layers, problem = rule.layers, local.problem
    assert rule.part.stop == (problem.n_client if "head_gradient" in flags else rule.part.stop)
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(layers.d, generator=generator, dtype=torch.float64)
    assert layers.d == rule.part.stop - rule.part.start
    signs, mu, count = layers.draw(generator, len(x), u), 0.3, len(x)
    found = rule._each(local, lambda: problem.smash(x), labels, layers.perturbed(u, signs, mu))
    smashed, points = forward(local, x, labels)[0], []
    base = rule._each(local, lambda: smashed, labels)
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


def tiny() -> Parts:
    client = nn.Sequential(nn.AdaptiveAvgPool2d((1, 2)), nn.Flatten(), nn.Linear(2, 2), nn.Tanh())
    return client, nn.Linear(2, C), nn.Linear(2, C)


def pattern(k: int, count: int) -> Signs:
    """The k-th of the 16 patterns of a layer 2 -> 2, for each of so many samples."""
    bits = torch.tensor([1.0 if k >> b & 1 else -1.0 for b in range(4)], dtype=torch.float64)
    return Signs(bits[:2].expand(count, 2), bits[2:].expand(count, 2))


@pytest.mark.parametrize("central", [False, True])
def test_its_mean_over_all_signs_is_that_of_the_global_estimate(monkeypatch: pytest.MonkeyPatch, central: bool) -> None:
    """All 256 patterns of two samples beside the 16 directions that they turn one into, of a loss that is not linear.

    Mutations: the mean over samples for their sum; mu, n_p or 2 missing; the estimate of a neighbour's signs.
    """
    local, rule, x, labels = started(tiny, freeze="auxiliary")
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


def gradients(local: LocalSteps, x: Tensor, labels: Tensor) -> Tensor:
    """(B, d) of each sample's loss, without the mean's 1/B."""
    return torch.stack([gradient(local, x[j : j + 1], labels[j : j + 1]) for j in range(len(x))])


@pytest.mark.slow
def test_its_mean_is_the_gradient_and_its_variance_that_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """4000 gaussian directions at a small radius; errors of five standard errors, and of a tenth.

    With g_j the gradient of sample j, g their mean and d entries, the mean squared error is (d - 1)/B^2 sum |g_j|^2 +
    2 |g|^2, where one direction for all has (d + 1) |g|^2. Mutations: signs that samples share; a sign for each entry
    of x instead of each sample's; a scale of sqrt(B).
    """
    local, rule, x, labels = started(small, mu=1e-4, distribution="gaussian")
    g_j, n_p = gradients(local, x, labels), 4000
    g, d, b = g_j.mean(dim=0), rule.layers.d, len(x)
    one, signs = TwoPoint(rule.part, 1, "gaussian", mu=1e-4), generator_of(local.key(0)(Purpose.SIGNS), g, "device")
    monkeypatch.setattr(estimates, "generator_of", lambda *_: signs)
    squares: dict[str, float] = {"global": 0.0, "per-sample": 0.0}
    mean = torch.zeros_like(g)
    for u in list(replace(one, n_p=n_p).directions(g, local.key(0))):
        own = along(monkeypatch, rule, u, local, x, labels)
        mean += own / n_p
        squares["per-sample"] += float((own - g).square().sum()) / n_p
        squares["global"] += float((along(monkeypatch, one, u, local, x, labels) - g).square().sum()) / n_p
    expected = {
        "global": (d + 1) * float(g.square().sum()),
        "per-sample": (d - 1) / b**2 * float(g_j.square().sum()) + 2 * float(g.square().sum()),
    }
    assert squares == pytest.approx(expected, rel=0.1) and squares["per-sample"] != pytest.approx(squares["global"])
    assert float((mean - g).norm()) < 5 * (squares["per-sample"] / n_p) ** 0.5


@pytest.mark.parametrize("estimate", ["one-sided", "central"])
@pytest.mark.parametrize(("cls", "flags"), [(HERON, {}), (HERON, {"head_gradient": "exact"}), (HOSFL, {})])
def test_a_round_has_passes_as_told_and_no_backward_one(
    monkeypatch: pytest.MonkeyPatch, cls: Any, flags: dict[str, Any], estimate: str
) -> None:
    """Mutations: the global estimate; the same signs each step; a graph; hooks that stay."""
    plan = training(setting(groups), SGD)
    of = method(cls, plan, n_p=2, estimate=estimate, **flags, **EACH)
    count, grad, calls = [], torch.autograd.grad, []
    of.setting.problem.client.register_forward_hook(lambda *_: count.append(torch.is_grad_enabled()))
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **b: calls.append(1) or grad(*a, **b))
    state = run(of, 1)
    told = of.plan(1)
    passes = 3 if estimate == "one-sided" else 5
    assert count[: passes * sum(STEPS_OF)] == [False] * passes * sum(STEPS_OF) and len(calls) == state.server_steps
    assert told["of these, with twice the products"] == passes - 1
    other = run(method(cls, plan, n_p=2, estimate=estimate, **flags), 1)
    assert apart(state.theta, other.theta) and apart(state.theta, of.start().theta)
    for part in (of.setting.problem.client, of.setting.problem.auxiliary):
        assert all(not m._forward_hooks for m in part.modules() if m is not of.setting.problem.client)


def test_each_step_draws_signs_of_its_own() -> None:
    """Mutations: one stream for all steps, clients or rounds, or that of the directions."""
    of, seen = method(HERON, training(setting(small)), **EACH), []
    for i, r, q in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)):
        local = local_of(of, i, r)
        generators = (generator_of(local.key(q)(Purpose.SIGNS), local.theta, "device") for _ in range(2))
        (signs, _), twice = (of.rule.layers.draw(generator, 50, local.theta) for generator in generators)
        assert torch.equal(signs.r, twice[0].r) and set(signs.r.unique().tolist()) == {-1.0, 1.0}
        seen.append(signs.r)
    assert all(abs(float((a * b).mean())) < 0.5 for a, b in itertools.combinations(seen, 2))


def memory(of: Any) -> float:
    return float(of.costs()["peak bytes of a client's step, beyond its model"])


def test_a_signed_pass_costs_its_products_twice_and_a_copy_of_its_maps() -> None:
    """Mutations: products counted once; memory of a pass without signs."""
    name = "multiply-accumulates of a client's step"
    for cls, heads in ((HERON, 1), (HOSFL, 0)):
        one, each = (method(cls, training(setting(groups)), **flags) for flags in ({}, EACH))
        plain, signed = one.costs(), each.costs()
        head = 4 * signed["multiply-accumulates of a sample in the head"]
        assert signed[name] == pytest.approx(1.5 * plain[name] + heads * head)
        assert memory(one) < memory(each) < 3 * memory(one)


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


@pytest.mark.parametrize("cls", [HERON, HOSFL])
@pytest.mark.parametrize(
    ("make", "flags", "words"),
    [
        (resnet, {}, r"BatchNorm2d \(0\.1\) normalises by the statistics of the batch, so a sample's loss depends on"),
        (of_client(Own, 64), {}, r"Own \(the whole part\) is no layer whose perturbation takes signs: Linear, Conv2d"),
        (of_client(Uncalled, 4), {}, r"Linear \(inner\) is not called in a forward pass"),
        (of_client(Merged, 32), {}, r"Linear \(inner\) takes 16 rows of a batch of 2 samples"),
        (small, {"estimate": "exact"}, "--estimate exact has no differences"),
        (small, {"estimate": "jvp"}, "--estimate jvp has no differences"),
        (small, {"uplink": "seeds"}, "--uplink seeds sends a number a step and direction, not a number a sample"),
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
