"""Identities that hold for split methods whatever their implementation: estimates in one dimension, two radii, MeZO."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.numerics.split_methods import (
    SGD,
    C,
    Parts,
    apart,
    batches,
    close,
    flat,
    method,
    mlp,
    put,
    run,
    setting,
    training,
    vectors,
    whole_of,
)
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.methods.decomfl import DeComFL
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.ho_sfl import HOSFL
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.numerics.schedules import Pace
from zofl_mpi.problems.signs import SignedLayers
from zofl_mpi.rounds.split.client import drawn

ADAMW = Optimiser("adamw", weight_decay=0.1)
KINDS = [
    {"estimate": "one-sided"},
    {"estimate": "central"},
    {"estimate": "jvp"},
    {"estimate": "one-sided", "directions": "per-sample"},
    {"estimate": "central", "directions": "per-sample"},
]


def scalar() -> Parts:
    """A client of one parameter, the mean pixel's weight, and three smashed numbers a sample."""
    spread = nn.Linear(1, 3).requires_grad_(False)
    client = nn.Sequential(nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(1, 1, bias=False), spread)
    return client, nn.Linear(3, C), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, C))


def name_of(flags: dict[str, Any]) -> str:
    return "-".join(map(str, flags.values()))


@pytest.mark.parametrize("distribution", ["sphere", "sqrt_d_sphere"])
@pytest.mark.parametrize("flags", KINDS, ids=name_of)
@pytest.mark.parametrize("cls", [HERON, HOSFL])
def test_in_one_dimension_an_estimate_is_the_derivative(cls: Any, flags: dict[str, Any], distribution: str) -> None:
    """The sphere of one dimension is {-1, 1}, so (L(x + mu u) - L(x)) / mu u is L'(x), for each sample, too, as mu -> 0
    (HO-SFL's product with lambda is linear: for all mu). Three rounds beside backpropagation.

    Mutations: a mean for a sum over samples or smashed numbers, at the cut or behind the head; mu, 2 or n_p missing;
    losses summed over directions; lambda of another batch; a sign of a difference that its direction has not.
    """
    plan = training(setting(scalar), SGD, **({"freeze": "auxiliary"} if cls is HERON else {}))
    mu = 1e-6 if cls is HERON else 0.5
    found = run(method(cls, plan, n_p=3, mu=mu, distribution=distribution, **flags), 3)
    exact = run(method(cls, plan, estimate="exact"), 3)
    start = method(cls, plan).start()
    for name, tensor in vectors(found).items():
        close(tensor, vectors(exact)[name], 1e-5 if cls is HERON else 1e-10)
    n = plan.setting.problem.n_client
    assert n == 1 and abs(float(exact.theta[0] - start.theta[0])) > 1e-3


@pytest.mark.parametrize("central", ["one-sided", "central"])
@pytest.mark.parametrize(
    ("cls", "flags"),
    [(HERON, {}), (HERON, {"directions": "per-sample"}), (HOSFL, {"directions": "per-sample"}), (DeComFL, {})],
    ids=["heron", "heron-each", "ho_sfl-each", "decomfl"],
)
def test_the_sphere_with_mu_is_the_larger_sphere_with_mu_over_its_radius(
    cls: Any, flags: dict[str, Any], central: str
) -> None:
    """d / mu (L(x + mu w) - L(x)) w, |w| = 1, is 1 / nu (L(x + nu u) - L(x)) u with u = sqrt(d) w, nu = mu / sqrt(d).

    Mutations: the factor d forgotten, in an estimate or where steps are taken from differences; mu of the other unit.
    """
    own = setting(mlp)
    plan = training(own, SGD, **({"h": 2} if cls is DeComFL else {}))
    n = own.problem.n_client
    d = {HERON: own.problem.local.n, HOSFL: n, DeComFL: n + own.problem.top.n}[cls]
    found = [
        run(method(cls, plan, n_p=2, mu=mu, distribution=distribution, estimate=central, **flags), 2)
        for distribution, mu in (("sphere", 0.1), ("sqrt_d_sphere", 0.1 / d**0.5))
    ]
    for name, tensor in vectors(found[0]).items():
        close(tensor, vectors(found[1])[name], 1e-8)
    assert apart(found[0].theta, method(cls, plan).start().theta)


@pytest.mark.parametrize("cls", [HERON, HOSFL])
def test_each_direction_of_each_step_has_signs_of_its_own(monkeypatch: pytest.MonkeyPatch, cls: Any) -> None:
    """Steps of three clients in two rounds, three directions each: all signs differ, within a batch and between them.

    Else the estimates of two steps, or of two samples, share what should make their errors independent. Mutations:
    signs of step 0 for all; of the first direction; of the first round; of the first client; of the first sample.
    """
    plan = training(setting(mlp), SGD)
    of = method(cls, plan, n_p=3, directions="per-sample")
    first = run(of, 1)  # what a method draws but once is drawn now
    patterns: list[bytes] = []
    draw = SignedLayers.draw

    def recorded(self: SignedLayers, generator: Any, count: int, like: Tensor) -> Any:
        signs = draw(self, generator, count, like)
        ones, each = torch.ones_like(like), torch.eye(count).to(like)
        patterns.extend(self.weighted(ones, signs, one).numpy().tobytes() for one in each)
        return signs

    monkeypatch.setattr(SignedLayers, "draw", recorded)
    run(of, 2, start=1, state=first)
    assert len(patterns) == 2 * 3 * sum(len(data) for data in plan.setting.data)
    assert len(set(patterns)) == len(patterns)


@pytest.mark.parametrize("rule", [SGD, ADAMW, Optimiser("adamw_transformers", weight_decay=0.1)], ids=str)
def test_several_local_steps_of_decomfl_are_two_loops(rule: Optimiser) -> None:
    """One client, three steps a round, three rounds, sizes that warm up and fall. A loop by hand: the client steps on a
    copy of model and moments, from which the losses come; the server steps along the same differences.

    Mutations: empty moments at local steps; moments of the local steps that stay; one direction for the steps of a
    round; the size of step r + q, or of q alone.
    """
    pace = Pace("linear", warmup=3, decay_steps=11)
    plan = training(setting(mlp, clients=(2,)), rule, h=3, pace=pace)
    of = method(DeComFL, plan, n_p=2, mu=1e-3)
    found = run(of, 3)
    net = whole_of(mlp)
    x, memory = flat(net), dict[str, Any]()

    def loss(at: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        put(net, at, torch.zeros(0))
        with torch.no_grad():
            return cross_entropy(net(inputs), labels)

    def lr(t: int) -> float:
        return 0.05 * (t / 3 if t < 3 else max(0, 11 - t) / 8)

    seen = []
    for r in range(3):
        y, copy = x.clone(), {k: v.clone() if isinstance(v, Tensor) else v for k, v in memory.items()}
        steps = []
        for q, (inputs, labels) in enumerate(batches(plan, 0, r)):
            us = list(drawn(of.key(r, q)(Purpose.DIRECTION), x, 2, of.distribution))
            seen += [u.numpy().tobytes() for u in us]
            g = sum((loss(y + 1e-3 * u, inputs, labels) - loss(y, inputs, labels)) / 2e-3 * u for u in us)
            steps.append(torch.as_tensor(g))
            rule.step(y, steps[-1], copy, lr(3 * r + q))
        for q, g in enumerate(steps):
            rule.step(x, g, memory, lr(3 * r + q))
    close(torch.cat([found.theta[: plan.setting.problem.n_client], found.theta_s]), x, 1e-9)
    assert len(seen) == len(set(seen)) == 3 * 3 * 2 and apart(x, flat(whole_of(mlp)))
