"""FedNest in one process, in float64, against closed forms. Docstrings name the mutations to catch."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import STREAMS, Array, clients_of, close, m, n, vector
from zofl_mpi.data.partition import as_dataset
from zofl_mpi.data.sources import Synthetic, make
from zofl_mpi.engine.fields import reported
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError
from zofl_mpi.methods.fednest import FedNest, SentVector
from zofl_mpi.numerics import projections
from zofl_mpi.problems.analytic.bilevel import BilevelBowls
from zofl_mpi.problems.hyperparameter import Hyperparameter
from zofl_mpi.rounds.report import GlobalModel
from zofl_mpi.run.command.flags import from_flags

ALL = {"batch": 0, "batch_lower": 0}


def known(cls: Any, noise: float = 0.0, clients: int = m, **more: Any) -> Setting[Any]:
    problem, server, data = cls.random(STREAMS, n, clients, noise=noise, **more)
    return Setting(problem, STREAMS, data, server, data, None, np.dtype(np.float64))


def logistic() -> Setting[Any]:
    streams = Streams(3)
    raw = make(Synthetic(90, 4, 3), streams)
    data = as_dataset(raw, "unit", np.arange(90))
    parts = tuple(data.subset(np.arange(k, 90, 3)) for k in range(3))
    problem = Hyperparameter.of(parts, dtype=np.float64)
    return Setting(problem, streams, parts, data, data, None, np.dtype(np.float64))


# --- the method


def test_a_long_series_at_the_exact_solution_gives_the_implicit_gradient() -> None:
    """Unequal clients. Mutations: the sign of the indirect part; 1/L_h forgotten or twice; N/L in place of the sum."""
    setting = known(BilevelBowls)
    problem = setting.problem
    of = from_flags(FedNest, setting, gamma=0.3, N=200, exact=True, **ALL)
    x, clients = vector(), clients_of(of)
    y = problem.solution(x, setting.data)
    state = of.round(replace(of.start(), x=x, y=y), 0, clients)
    gradient = problem.hessian @ (x - problem.minimiser)
    close(x - state.x, 0.3 * gradient, 1e-9)
    assert state.hypergradient_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-9)
    close(state.y, y)  # already solved
    found = reported(of.evaluate(state, 0, clients))
    assert found["objective_exact"] == pytest.approx(problem.implicit(state.x), rel=1e-9)
    assert found["lower_error"] == pytest.approx(np.linalg.norm(y - problem.solution(state.x, setting.data)), rel=1e-6)


def test_a_series_has_n_terms() -> None:
    """Mutations: N + 1 terms; N - 1; the mean Hessian by one client's."""
    setting = known(BilevelBowls)
    problem, x, y = setting.problem, vector(), vector(1)
    L = problem.curvature(x)[1]
    A = np.mean([link.lower.A for link in setting.data], axis=0)
    slope = np.mean([link.upper.gradient(y, np.arange(len(link.upper))) for link in setting.data], axis=0)
    for N in (1, 2, 5):
        of = from_flags(FedNest, setting, N=N, **ALL)
        clients = clients_of(of)
        list(clients.ask(of.place, GlobalModel(x, 0)))
        p, terms = of.inverse_product(clients, x, y, 0)
        expected = sum(np.linalg.matrix_power(np.eye(n) - A / L, k) @ slope for k in range(N)) / L
        close(p, expected)
        assert terms == N - 1


def test_the_random_series_is_the_sum_on_average() -> None:
    """Over the N equally likely lengths, exactly. Mutations: 1/L in place of N/L; lengths from 1."""
    setting, x, y = known(BilevelBowls), vector(), vector(1)
    whole = from_flags(FedNest, setting, N=4, **ALL)
    drawn = from_flags(FedNest, setting, N=4, series="random", **ALL)
    lengths, found = set(), {}
    for r in range(40):
        clients = clients_of(drawn)
        list(clients.ask(drawn.place, GlobalModel(x, 0)))
        p, terms = drawn.inverse_product(clients, x, y, r)
        lengths.add(terms)
        found[terms] = p
    assert lengths == {0, 1, 2, 3}
    clients = clients_of(whole)
    list(clients.ask(whole.place, GlobalModel(x, 0)))
    close(np.mean(list(found.values()), axis=0), whole.inverse_product(clients, x, y, 0)[0])


def test_inner_steps_are_their_formula() -> None:
    """Two inner rounds of two noisy local steps of each client. Mutations: one mini-batch for both points left out; q
    of its own client; the mini-batches of the first inner round for all."""
    setting = known(BilevelBowls, 1.0)
    of = from_flags(FedNest, setting, T=2, H_lower=2, N=1, gamma=0.0, gamma_lower=0.2, batch=0, batch_lower=2)
    x, y, problem = vector(), vector(1), setting.problem
    state = of.round(replace(of.start(), x=x, y=y), 0, clients_of(of))
    for t in range(2):
        q, ends = [], []
        for i, link in enumerate(setting.data):
            first = STREAMS(Purpose.LOWER_BATCH, r=0, i=i, t=t).integers(len(link.lower), size=(1, 2))[0]
            q.append(problem.gradient_h(i, x, y, link.lower, first))
        for i, link in enumerate(setting.data):
            z = y
            for batch in STREAMS(Purpose.LOWER_BATCH, r=0, i=i, t=t).integers(len(link.lower), size=(2, 2)):
                here, there = (problem.gradient_h(i, x, point, link.lower, batch) for point in (z, y))
                z = z - 0.1 * (here - there + np.mean(q, axis=0))
            ends.append(z)
        y = np.mean(ends, axis=0)
    close(state.y, y)


def test_without_a_size_lower_steps_are_one_over_the_curvature() -> None:
    """Mutation: the curvature itself."""
    setting = known(BilevelBowls)
    L = setting.problem.curvature(vector())[1]
    every = [from_flags(FedNest, setting, gamma_lower=size, **ALL) for size in (0.0, 1 / L)]
    first, second = (of.round(of.start(), 0, clients_of(of)).y for of in every)
    close(first, second)


def test_regularisers_are_learned_and_stay_in_their_set() -> None:
    """On logistic regression the objective falls, and x stays above mu. Mutation: no projection."""
    setting = logistic()
    of = from_flags(FedNest, setting, gamma=1.0, T=10, N=10, exact=True, **ALL)
    clients, state = clients_of(of), of.start()
    first = reported(of.evaluate(state, 0, clients))["objective_exact"]
    lowest = []
    for r in range(12):
        state = of.round(state, r, clients)
        lowest.append(state.x.min())
    assert reported(of.evaluate(state, 12, clients))["objective_exact"] < first - 1e-3
    assert min(lowest) == pytest.approx(setting.problem.mu)


# --- the sets


def within(monkeypatch: pytest.MonkeyPatch, *sets: Any) -> FedNest:
    """The method on bowls whose client i has X_i = sets[i % len(sets)], a projection."""
    monkeypatch.setattr(BilevelBowls, "project", lambda self, i, x: sets[i % len(sets)](x))
    of: FedNest = from_flags(FedNest, known(BilevelBowls), gamma=0.0, T=1, N=1, **ALL)
    return of


def below(c: float, k: Any = slice(None)) -> Any:
    """The projection onto {x: x_k <= c}."""

    def project(x: Array) -> Array:
        y = x.copy()
        y[k] = np.minimum(x[k], c)
        return y

    return project


@pytest.mark.parametrize("order", [1, -1])
def test_the_mean_is_projected_onto_all_of_unlike_sets(monkeypatch: pytest.MonkeyPatch, order: int) -> None:
    """{x <= 10} and {x <= 0}, whoever has which, at x = 3: 0, not client 0's 3. Mutations: client 0's set, or the last
    one's, for all; the nearest of the nearest points."""
    of = within(monkeypatch, *[below(10), below(0)][::order])
    new = of.round(replace(of.start(), x=np.full(n, 3.0)), 0, clients_of(of)).x
    np.testing.assert_array_equal(new, np.zeros(n))


def test_a_corner_of_unlike_sets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond both of two half-spaces no single projection is that onto their intersection; beyond one it is.

    Mutations: no look at the other sets; a refusal wherever two sets differ."""
    of = within(monkeypatch, below(0, 0), below(0, 1))
    np.testing.assert_array_equal(of.projected(np.array([-1.0, 2, 3, 4, 5])), [-1, 0, 3, 4, 5])
    with pytest.raises(UserError, match="client 0's is 2 away from client 1's: give all clients one X_i"):
        of.projected(np.array([3.0, 2, 3, 4, 5]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_alike_sets_are_taken_for_alike_in_spite_of_rounding(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    """Balls of 10^-3 to 10^3, where a projected point's projection differs by rounding. Mutation: no tolerance."""
    generator = STREAMS(Purpose.START, t=3)
    for k in range(300):
        x, radius = (10.0 ** generator.uniform(-2, 4) * generator.standard_normal(n)).astype(dtype), 10.0 ** (k % 7 - 3)
        of = within(monkeypatch, lambda x, R=radius: projections.ball(x[None], np.ones(n, x.dtype), R)[0])
        np.testing.assert_array_equal(of.projected(x), of.nearest(0, x))


# --- the costs


@pytest.mark.parametrize("series", ["sum", "random"])
def test_bytes_and_gradients_are_those_of_the_plan(series: Any) -> None:
    setting = known(BilevelBowls, n_lower=6)
    of = from_flags(FedNest, setting, T=2, N=4, H=2, H_lower=3, series=series, **ALL)
    clients, state, down, up = clients_of(of), of.start(), 0, 0
    for r in range(3):
        state = of.round(state, r, clients)
        row, _ = clients.account()
        down, up = down + int(row.bytes_down.sum()), up + int(row.bytes_up.sum())
        terms = of.products(r)
        assert state.communications == 2 * 2 + terms + 4
        assert state.gradients == 2 * (1 + 2 * 3) + 1 + terms + 2 + 2 * 2
    plan = of.plan(3)
    assert down == m * plan["bytes down, for each client, all rounds"]
    assert up == m * plan["bytes up, for each client, all rounds"]
    assert plan["exchanges with each client, all rounds"] == sum(2 * 2 + of.products(r) + 4 for r in range(3))


@pytest.mark.parametrize("H", [1, 3])
def test_outer_steps_are_their_formula(monkeypatch: pytest.MonkeyPatch, H: int) -> None:
    """FedOut: H steps x <- x - gamma / H (grad f_i(x; xi) - grad f_i(x_r; xi) + h) of each client, then their mean,
    with h the mean of the clients' hypergradients, here one that is given. Mutations: gamma in place of gamma / H; the
    correction's sign, or its point; H steps along the hypergradient alone; the first mini-batch in all steps."""
    setting, h = known(BilevelBowls, 1.0), vector(7)
    problem = setting.problem
    of = from_flags(FedNest, setting, T=1, H=H, N=1, gamma=0.3, gamma_lower=0.0, batch=2, batch_lower=2)
    state = replace(of.start(), x=vector(), y=vector(1))

    def hypergradient(self: FedNest, client: Any, message: Any) -> SentVector:
        return SentVector(h)

    monkeypatch.setattr(FedNest, "hypergradient", hypergradient)
    drawn, taken, of_all = [], list[bytes](), BilevelBowls.gradients_f

    def recorded(*values: Any) -> Any:
        taken.append(np.asarray(values[-1]).tobytes())
        return of_all(*values)

    ends = []
    for i, link in enumerate(setting.data):
        x = state.x
        for batch in STREAMS(Purpose.BATCH, r=0, i=i).integers(len(link.upper), size=(H, 2)):
            here, there = (problem.gradients_f(i, at, state.y, link.upper, batch)[0] for at in (x, state.x))
            x = x - 0.3 / H * (here - there + h)
            drawn += 2 * [batch.tobytes()]
        ends.append(x)
    monkeypatch.setattr(BilevelBowls, "gradients_f", recorded)
    close(of.round(state, 0, clients_of(of)).x, np.mean(ends, axis=0))
    assert taken[m:] == drawn  # both points of a step on its own mini-batch, whose noise cancels here


def test_each_product_of_the_series_has_a_mini_batch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """E prod_t (I - H_t / L) is the product of the means where the H_t are independent, of each other and of y, which
    the inner rounds made. Mini-batches of 20 samples from 40, T = 3, three products, then the cross derivative; two
    rounds: no two are equal but those that both points of a correction share. Mutations: mini-batches of the inner
    rounds for the products; one for all products; the last product's for the cross derivative; those of round 0, or of
    client 0, for all."""
    setting = known(BilevelBowls, 1.0)
    seen: dict[str, list[bytes]] = {"gradient_h": [], "hessian_h": [], "cross_h": []}
    for name, found in seen.items():
        of_all = getattr(BilevelBowls, name)

        def recorded(*values: Any, of_all: Any = of_all, found: list[bytes] = found) -> Any:
            found.append(np.asarray(values[-1]).tobytes())
            return of_all(*values)

        monkeypatch.setattr(BilevelBowls, name, recorded)
    of = from_flags(FedNest, setting, T=3, H_lower=2, N=4, gamma=0.1, batch=2, batch_lower=20)
    state, clients = of.start(), clients_of(of)
    for r in range(2):
        state = of.round(state, r, clients)
    count = 2 * len(setting.data)
    inner = set(seen["gradient_h"])
    assert len(inner) == count * 3 * 2 and len(seen["gradient_h"]) == count * 3 * (1 + 2 * 2)
    later = [*seen["hessian_h"], *seen["cross_h"]]
    assert len(later) == count * (3 + 1) == len(set(later)) and not inner & set(later)
