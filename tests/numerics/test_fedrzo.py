"""FedRZO in one process: [B] Algorithms 1 and 2, sections 3 and 4.

Exact where the mathematics is, in float64. Directions are the run's own, or (`framed`) those of an orthonormal frame
and its negative, which make the estimate of a quadratic's gradient exact. Docstrings name the mutations to catch.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from zofl_mpi.engine.clients import ClientError
from zofl_mpi.engine.fields import described, reported
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError
from zofl_mpi.methods.fedrzo_bl import FedRZOBL
from zofl_mpi.methods.fedrzo_nn import FedRZONN
from zofl_mpi.numerics import zo
from zofl_mpi.problems.analytic.bilevel import BilevelBowls, Coupled
from zofl_mpi.problems.analytic.nonsmooth import Bowls, MaxAffine
from zofl_mpi.problems.base import Problem
from zofl_mpi.rounds.lower import Lower
from zofl_mpi.rounds.zeroth_order import Local, Report
from zofl_mpi.run.flags import built
from zofl_mpi.run.local import LocalClients

Array = np.ndarray[Any, Any]
STREAMS = Streams(11)
n, m, eta, SAMPLES = 4, 3, 0.5, 12
SIZES = (3, 6, 12)
ONE_OR_MORE = pytest.mark.parametrize("clients", [1, m])


def close(a: Any, b: Any, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def point(t: int = 9, size: int = n) -> Array:
    return STREAMS(Purpose.START, t=t).standard_normal(size)


def bowls(clients: int = m, size: int = n, noise: float = 1.0, streams: Streams = STREAMS) -> Setting:
    """Clients of unequal sizes, whose noise does not sum to 0."""
    _, server, found = Bowls.random(streams, size, clients, samples=SAMPLES, noise=noise)
    data = tuple(replace(bowl, noise=bowl.noise[:count]) for bowl, count in zip(found, SIZES, strict=False))
    return Setting(Bowls.of(data), streams, data, server, data, None, np.float64)


def nn(setting: Setting, n_p: int = 1, estimate: Any = "one-sided", beta: float = 1.0, **flags: Any) -> FedRZONN:
    usual = {"H": 1, "gamma": 0.05, "eta": eta, "batch": 2}
    return built(FedRZONN, setting, **{**usual, "n_p": n_p, "estimate": estimate, "beta": beta, **flags})


def clients_of(of: Any) -> LocalClients:
    return LocalClients(list(of.setting.data), method=of)


def run(of: Any, rounds: int, x: Array | None = None, first: int = 0, evaluates: bool = False) -> Any:
    state, clients = of.start(), clients_of(of)
    state = replace(state, x=point(size=len(state.x)) if x is None else x)
    for r in range(first, first + rounds):
        state = of.round(state, r, clients)
        if evaluates:
            of.evaluate(state, r, clients)
    return state


@pytest.fixture
def framed(monkeypatch: pytest.MonkeyPatch) -> Array:
    """All directions come in turn from an orthonormal frame and its negative, (2 n, n)."""
    frame = np.linalg.qr(STREAMS(Purpose.START, r=1).standard_normal((n, n)))[0]
    both = np.concatenate([frame, -frame])
    drawn = Counter[int]()

    def direction(generator: Any, size: int, dtype: Any = np.float64) -> Array:
        drawn[0] += 1
        return both[(drawn[0] - 1) % (2 * n)].astype(dtype)

    monkeypatch.setattr(zo, "direction", direction)
    return both


# --- Algorithm 1


def one_sided(F: Any, x: Array, v: Array, mu: float) -> Array:
    """n / mu (F(x + mu v) - F(x)) v."""
    return zo.estimate(F(x + mu * v) - F(x), v, mu)


def estimates(setting: Setting, i: int, r: int, H: int, x: Array, central: bool, n_p: int = 1, batch: int = 2) -> Any:
    """(x, k) -> client i's estimate in step k of round r, which must be asked for in order."""
    generator, data = setting.streams(Purpose.DIRECTION, r=r, i=i), setting.data[i]
    batches = setting.streams(Purpose.BATCH, r=r, i=i).integers(len(data), size=(H, batch))
    one = zo.central if central else one_sided

    def estimate(x: Array, k: int) -> Array:
        def loss(z: Array) -> float:
            d = z - data.a
            return float(d @ data.A @ d / 2 + data.noise[batches[k]].mean(axis=0) @ z)

        return np.mean([one(loss, x, zo.direction(generator, n), eta) for _ in range(n_p)], axis=0)

    return estimate


@pytest.mark.parametrize("central", [False, True])
@pytest.mark.parametrize(("H", "n_p"), [(1, 1), (1, 3), (4, 1), (4, 3)])
@ONE_OR_MORE
def test_it_is_zo_sgd_and_the_mean_of_the_clients(clients: int, H: int, n_p: int, central: bool) -> None:
    """Step for step; with H = 1 one process that steps with the average of the estimates.

    Mutations: n left out or n_p in its place; eta for 2 eta; one direction or one batch for all steps or clients; a sum
    over the directions; a base value at another point or on another batch.
    """
    setting = bowls(clients)
    of = nn(setting, n_p, "central" if central else "one-sided", H=H)
    x = point()
    for r in range(3):
        own = [estimates(setting, i, r, H, x, central, n_p) for i in range(clients)]
        if H == 1:
            x = x - 0.05 * np.mean([estimate(x, 0) for estimate in own], axis=0)
        else:
            ends = []
            for estimate in own:
                y = x
                for k in range(H):
                    y = y - 0.05 * estimate(y, k)
                ends.append(y)
            x = np.mean(ends, axis=0)
    close(run(of, 3).x, x)


SETS = ("box:-0.3:0.2", "ball:0.5:1,0,0,0", "all")
CENTRE = np.array([1.0, 0, 0, 0])


def pulls(x: Array) -> list[Array]:
    """(x - P_i(x))/eta of SETS, written out."""
    d = x - CENTRE
    ball = CENTRE + d * min(1.0, 0.5 / np.linalg.norm(d))
    return [(x - np.clip(x, -0.3, 0.2)) / eta, (x - ball) / eta, np.zeros(n)]


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_a_step_is_pulled_towards_the_clients_own_set(framed: Array, weights: Any) -> None:
    """Exactly, since the frame makes the estimate exact. Mutations: a projection in place of the penalty; 1/eta^2,
    2/eta; another client's set; the pull at the round's start in place of the iterate; weights of the wrong kind."""
    setting = bowls()
    with pytest.raises(UserError, match="--x-set"):
        nn(setting, x_set=("box:-0.3:0.2", "ball:0.5:3,0,0,0", "all"))
    of = nn(setting, 2 * n, H=3, batch=0, x_set=("box:-0.3:0.6", "ball:0.5:1,0,0,0", "all"), weights=weights)
    x = point() + 2
    shares = np.array(SIZES) / sum(SIZES) if weights == "size" else np.full(m, 1 / 3)
    ends = []
    for i, data in enumerate(setting.data):
        y = x
        for _ in range(3):
            pull = pulls(y)[i] if i else (y - np.clip(y, -0.3, 0.6)) / eta
            y = y - 0.05 * (data.A @ (y - data.a) + data.drift + pull)
        ends.append(y)
    close(run(of, 1, x).x, shares @ ends)


@pytest.mark.parametrize("radius", [0.01, 1.0])
def test_the_limit_is_that_of_the_penalty(radius: float) -> None:
    """n = 1, central: the estimate is the gradient. f + mean dist^2/(2 eta) with two clients, a box and a half-space:
    sum A_i (x - a_i) + (x - b_i)/eta = 0 while x lies beyond both. Not the constrained minimiser.

    Mutations: a projection; the distance itself; 1/(2 eta).
    """
    setting = bowls(2, size=1, noise=0.0)
    A = np.array([float(d.A[0, 0]) for d in setting.data])
    a = np.array([float(d.a[0]) for d in setting.data])
    b = a.min() - np.array([1.0, 1.001])
    sets = (f"box:-inf:{b[0]}", f"half-space:{b[1]}")
    of = nn(setting, estimate="central", eta=radius, gamma=min(0.3, radius / 3), batch=0, x_set=sets)
    limit = (A @ a + b.sum() / radius) / (A.sum() + 2 / radius)
    x = run(of, 300, a[:1]).x
    close(x, [limit], 1e-11)
    assert x[0] > b.max()


@pytest.mark.parametrize("beta", [0.3, 0.67, 1.0])
def test_participants_alone_count(beta: float) -> None:
    """Mutations: a mean over all m; participants of another round; weights of size that are not normalised."""
    setting = bowls()
    of, r, x = nn(setting, beta=beta, weights="size"), 2, point()
    to = sorted(STREAMS(Purpose.PARTICIPANTS, r=r).permutation(m)[: math.floor(beta * m + 0.5)].tolist())
    shares = np.array([SIZES[i] for i in to]) / sum(SIZES[i] for i in to)
    ends = [x - 0.05 * estimates(setting, i, r, 1, x, central=False)(x, 0) for i in to]
    state, clients = replace(of.start(), x=x), clients_of(of)
    close(of.round(state, r, clients).x, shares @ ends)
    row = clients.account()[0]
    step = row.steps.index("step")
    assert np.flatnonzero(row.messages[step]).tolist() == to
    assert set(row.bytes_down[step][to].tolist()) == {8 * n + 8} and set(row.bytes_up[step][to].tolist()) == {8 * n}


def test_theorem_1s_schedule() -> None:
    """gamma = sqrt(m/K), H = ceil((K/m^3)^(1/4)): K = 16 m^3 makes H = 2 and not 3. Mutations: K/m; m^3 left out."""
    setting = bowls()
    for K, H in ((16 * 27, 2), (16 * 27 + 1, 3), (1, 1), (100_000, 8)):
        local = Local(setting, K=K, H=50, gamma=9.0)
        assert local.steps() == H and local.stepsize(5) == pytest.approx(math.sqrt(m / K))
    of = nn(setting, K=16 * 27)
    assert run(of, 3).steps == 6
    plan = of.plan(3)
    assert plan["rounds that K takes"] == 216 and plan["local steps of a round, H"] == 2


def test_the_step_size_may_decrease_over_rounds() -> None:
    """Mutation: over the local steps."""
    setting = bowls()
    for r in (0, 3):
        steps = [run(nn(setting, H=1, schedule=s), 1, first=r).x - point() for s in ("constant", "sqrt")]
        close(steps[1], steps[0] / math.sqrt(r + 1))


def test_the_mean_of_the_estimate_does_not_depend_on_eta(framed: Array) -> None:
    """For quadratics: over a frame and its negative one-sided, over any directions central, it is the gradient itself,
    as first-order local steps are. Mutations: eta in the factor; central without the 2."""
    setting, ends = bowls(), []
    for radius in (0.01, 1.0, 7.0):
        for estimate in ("one-sided", "central"):
            ends.append(run(nn(setting, 2 * n, estimate, eta=radius, H=3, batch=0), 2).x)
    y = point()
    for _ in range(2):
        starts = []
        for data in setting.data:
            z = y
            for _ in range(3):
                z = z - 0.05 * (data.A @ (z - data.a) + data.drift)
            starts.append(z)
        y = np.mean(starts, axis=0)
    for end in ends:
        close(end, y, 1e-10)


def test_nothing_draws_on_the_order_of_rounds() -> None:
    """A round is a function of its number and the state. Mutation: a generator that lives on."""
    of = nn(bowls(), H=3)
    assert run(of, 1, first=4).x.tobytes() == run(of, 1, first=4).x.tobytes()
    assert run(of, 1, first=4).x.tobytes() != run(of, 1, first=5).x.tobytes()


# --- the iterate that is drawn


def test_the_printed_bounds_are_those_of_the_paper() -> None:
    """[B] Proposition 1 for Algorithm 1, Theorem 1 for Algorithm 2. Mutations: a factor; one for the other; no H."""
    problem, _, data = MaxAffine.random(STREAMS, n, m)
    of = nn(Setting(problem, STREAMS, data, None, data, None, np.float64), H=7)
    L0, head = problem.lipschitz, "Proposition 1 asks for gamma at most "
    lines = {name.removeprefix(head): line for name, line in of.plan(1).items() if " asks for " in name}
    assert lines == {
        "1/(4H)": pytest.approx(1 / 28),
        "eta/(4 L_0 n)": pytest.approx(eta / (4 * L0 * n)),
        "eta/(12 sqrt(3) B_2 (L_0 n + 1) H), B_2 = 1": pytest.approx(eta / (12 * 3**0.5 * (L0 * n + 1) * 7)),
    }
    of = links(H=7)
    object.__setattr__(of.problem, "lipschitz", 3.0)
    head = "Theorem 1 asks for gamma at most "
    lines = {name.removeprefix(head): line for name, line in of.plan(1).items() if " asks for " in name}
    assert lines == {"1/(8H)": pytest.approx(1 / 56), "eta/(24 (L_0 n + 1))": pytest.approx(eta / (24 * (3 * n + 1)))}


def test_every_iterate_is_drawn_alike() -> None:
    """Rounds of 3 local steps, 4 of them: 12 iterates, chi-square over 3000 seeds (99.9 %: 31.3), whenever it ends.

    Mutations: the last round's iterates more often (probability H/m); place H or 0 never; K counted in rounds.
    """
    problem, counts = bowls().problem, np.zeros((2, 12))
    for seed in range(3000):
        local, kept = Local(Setting(problem, Streams(seed), (None,) * m), H=3), -1
        for r in range(4):
            place = local.keeps(3 * r, r)
            kept = kept if place is None else 3 * r + place
            if r == 1:
                counts[0, kept] += 1
        counts[1, kept] += 1
    for row, places in zip(counts, (6, 12), strict=True):
        assert row[places:].sum() == 0
        assert np.sum((row[:places] - 3000 / places) ** 2) / (3000 / places) < (20.5 if places == 6 else 31.3)


@pytest.mark.parametrize("bilevel", [False, True])
def test_the_drawn_iterate_is_the_mean_of_the_local_ones(bilevel: bool) -> None:
    """The same round with fewer local steps ends there, bit for bit. Mutations: place + 1; the wrong round's start;
    other batches or directions; drawn is x."""
    H, seen = 4, set()
    for seed in range(12):
        streams = Streams(seed)
        of: Any = links(streams=streams, H=H, noise=1.0) if bilevel else nn(bowls(streams=streams), H=H, beta=0.67)
        state, clients = of.start(), clients_of(of)
        expected = state.x
        for r in range(4):
            place = of.local.keeps(H * r, r)
            before = state
            state = of.round(state, r, clients)
            if place == 0:
                expected = before.x
            elif place is not None:
                short = replace(of, local=replace(of.local, H=place))
                expected = short.round(before, r, clients_of(short)).x
            seen.add(place)
            close(state.drawn, expected, 1e-15)
            assert state.steps == H * (r + 1)
    assert seen == {None, 0, 1, 2, 3}


def test_drawing_costs_no_bytes() -> None:
    """Mutation: counted."""
    of = nn(bowls(), H=2)
    clients = clients_of(of)
    of.round(of.start(), 0, clients)  # the first round always draws
    row = clients.account()[0]
    assert row.bytes_down[row.steps.index("partial")].sum() == 0 and row.bytes_up[row.steps.index("step")].sum() > 0


# --- the report


def mean_gradient(setting: Setting, x: Array, shares: Any) -> Array:
    return np.sum([w * (d.A @ (x - d.a) + d.drift) for w, d in zip(shares, setting.data, strict=True)], axis=0)


@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("x_set", [("problem",), ("box:-0.3:0.2",)], ids=["free", "box"])
def test_the_gradients_square_is_estimated(weights: Any, x_set: Any) -> None:
    """Within 5 standard errors of the closed form, for which these are small enough.

    Mutations: no n or no 2; the penalty left out or of the wrong sign; equal weights for sizes.
    """
    setting = bowls()
    of = nn(setting, probe=3000, weights=weights, x_set=x_set)
    x = 2 * point()
    told = reported(of.evaluate(replace(of.start(), x=x), 7, clients_of(of)))
    shares = np.array(SIZES) / sum(SIZES) if weights == "size" else np.full(m, 1 / 3)
    pull = (x - np.clip(x, -0.3, 0.2)) / eta if x_set[0] != "problem" else np.zeros(n)
    truth = float(np.sum((mean_gradient(setting, x, shares) + pull) ** 2))
    assert abs(told["gradient_squared"] - truth) < 5 * told["gradient_squared_error"] < 0.3 * truth
    assert told["set_distance"] == pytest.approx(eta * np.linalg.norm(pull))
    values = [float((x - d.a) @ d.A @ (x - d.a) / 2 + d.drift @ x) for d in setting.data]
    assert told["objective"] == pytest.approx(float(shares @ values), rel=1e-12)


@pytest.mark.parametrize("probe", [0, 3])
def test_without_directions_nothing_is_told(probe: int) -> None:
    of = nn(bowls(), probe=probe)
    told = reported(of.evaluate(of.start(), 0, clients_of(of)))
    assert math.isfinite(told["gradient_squared"]) == math.isfinite(told["gradient_squared_error"]) == (probe > 0)
    assert set(told) <= set(described(Report))


@pytest.mark.parametrize("flags", [{"gamma": 1e200, "H": 5}, {"gamma": 1.7e308, "H": 1}], ids=str)
def test_divergence_names_gamma(flags: Any) -> None:
    """A round or two later at the latest. Mutations: infinite numbers travel on, or a bare FloatingPointError."""
    for of in (nn(bowls(), **flags), links(**flags), links(lower="local_sgd", T_lower="3", batch_lower=0, **flags)):
        with np.errstate(all="raise"), pytest.raises(ClientError, match=r"not finite.*smaller --gamma may help"):
            run(of, 3)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"H": 0}, "--H 0: must be a whole number of local steps, at least 1"),
        ({"eta": 0.0}, "--eta 0.0: must be a smoothing radius above 0"),
        ({"eta": math.inf}, "--eta inf: must be"),
        ({"gamma": -1.0}, "--gamma -1.0: must be a step size, at least 0"),
        ({"gamma": math.nan}, "--gamma nan: must be"),
        ({"batch": -1}, "--batch -1: must be"),
        ({"probe": 2}, "--probe 2: must be a number of directions, at least 3, or 0"),
        ({"K": -1}, "--K -1: must be"),
        ({"schedule": "linear"}, "--schedule 'linear': allowed are"),
        ({"n_p": 0}, "--n-p 0: must be a whole number of directions, at least 1"),
        ({"beta": 0.0}, "--beta 0.0: must be a fraction of the clients"),
        ({"beta": 1.5}, "--beta 1.5: must be"),
        ({"x_set": ("sphere:1",)}, "convex, and a sphere is not"),
        ({"x_set": ("all", "all")}, "one set for all, or one for each of the 3 clients, not 2"),
        ({"x_set": ("box:1:0",)}, "this one is empty"),
        ({"x_set": ("box:0:1", "box:2:3", "all")}, "sets with a common point"),
    ],
    ids=str,
)
def test_values_out_of_range_are_refused_when_the_method_is_made(flags: Any, words: str) -> None:
    with pytest.raises(UserError) as caught:
        nn(bowls(), **flags)
    assert words in str(caught.value)


# --- Algorithm 2


def links(
    clients: int = m,
    noise: float = 0.0,
    homogeneous: bool = False,
    rho: float = 1.0,
    streams: Streams = STREAMS,
    exact: bool = False,
    lower: Any = "exact",
    **flags: Any,
) -> FedRZOBL:
    problem, server, data = BilevelBowls.random(
        streams, n, clients, noise=noise, noise_upper=noise, homogeneous=homogeneous, rho=rho, samples=SAMPLES
    )
    setting = Setting(problem, streams, data, server, data, None, np.float64)
    usual = {"H": 1, "gamma": 0.05, "eta": eta, "batch": 2}
    return built(FedRZOBL, setting, **{**usual, **flags, "lower": lower, "exact": exact})


@dataclass(frozen=True)
class Implicit(Problem):
    """F of a `BilevelBowls` as a `Lipschitz` problem of one client."""

    problem: Any

    @property
    def n(self) -> int:
        return int(self.problem.n)

    def losses(self, i: int, x: Array, data: Any, batch: Any = None) -> Array:
        return np.array([self.problem.implicit(z) for z in x])

    def project(self, i: int, x: Array) -> Array:
        return x


def test_with_an_exact_lower_level_it_is_algorithm_1_on_the_implicit_function() -> None:
    """One client, H = 1; the two draw the same directions. Mutations: y_0 and y_v exchanged or equal; f at x_r in place
    of x + v; no n; the sign."""
    of = links(1, batch=0, x_set=("ball:0.5",))
    setting = of.setting
    other = nn(replace(setting, problem=Implicit(setting.problem)), batch=0, x_set=("ball:0.5",))
    close(run(of, 10).x, run(other, 10).x)
    assert np.linalg.norm(run(of, 10).x - point()) > 0.1


def test_one_direction_is_shared(monkeypatch: pytest.MonkeyPatch, framed: Array) -> None:
    """Rounds from one x, each with v from a frame or its negative: their mean step is the exact gradient of F, and each
    step is along v. Mutations: a direction per client; f_i differenced at one y only."""
    of, x, steps = links(batch=0), point(), []
    for v in framed:
        monkeypatch.setattr(zo, "direction", lambda generator, size, dtype, v=v: v)
        steps.append((x - of.round(replace(of.start(), x=x), 0, clients_of(of)).x) / 0.05)
        assert abs(abs(steps[-1] @ v) - np.linalg.norm(steps[-1])) < 1e-10
    close(np.mean(steps, axis=0), of.problem.implicit_gradient(x), 1e-11)  # type: ignore[attr-defined]


def test_it_is_algorithm_2_written_out() -> None:
    """Three clients, noise, 3 local steps, Local SGD below with 2 local steps, y_0 = last, a set, unequal everything.

    Mutations: a direction per client or step; lower solutions recomputed; y_v kept for the next start; batches of the
    lower level in the upper one; the pull at x_r; b of the wrong round; x_i's sent without the mean.
    """
    rounds, H = 3, 3
    of = links(noise=1.0, H=H, lower="local_sgd", T_lower="5", H_lower="2", batch_lower=3, gamma_lower=0.3,
               x_set=("ball:0.5",))  # fmt: skip
    data, x, y = of.setting.data, point(), np.zeros(n)
    for r in range(rounds):
        v = zo.direction(STREAMS(Purpose.DIRECTION, r=r), n)
        found = []
        for at in (x, x + eta * v):
            z = y
            for t, count in enumerate((2, 2, 1)):
                ends = []
                for i, link in enumerate(data):
                    w = z
                    for b in STREAMS(Purpose.LOWER_BATCH, r=r, i=i, t=t).integers(SAMPLES, size=(count, 3)):
                        bowl = link.lower.bowl
                        w = w - 0.3 * (bowl.A @ (w - link.lower.B @ at) + bowl.noise[b].mean(axis=0))
                    ends.append(w)
                z = np.mean(ends, axis=0)
            found.append(z)
        y, yv = found
        ends = []
        for i, link in enumerate(data):
            up, z = link.upper, x
            for b in STREAMS(Purpose.BATCH, r=r, i=i).integers(SAMPLES, size=(H, 2)):
                drift = up.noise[b].mean(axis=0)
                f = [(w - up.a) @ up.A @ (w - up.a) / 2 + drift @ w + s @ s / 2 for w, s in ((yv, z + eta * v), (y, z))]
                pull = z * max(0.0, 1 - 0.5 / np.linalg.norm(z)) / eta
                z = z - 0.05 * (n / eta * (f[0] - f[1]) * v + pull)
            ends.append(z)
        x = np.mean(ends, axis=0)
    state = run(of, rounds)
    close(state.x, x)
    close(state.y, y)
    assert (state.lower_rounds, state.lower_steps, state.steps) == (6, 10, rounds * H)


@pytest.mark.parametrize("H", [1, 7])
@pytest.mark.parametrize("which", ["local_sgd", "fedac1", "exact"])
def test_the_lower_level_is_solved_twice_a_round(monkeypatch: pytest.MonkeyPatch, H: int, which: Any) -> None:
    """Whatever H, and whether or not an iterate is drawn. Mutation: solved at each local step."""
    calls, solve = [], Lower.solve

    def counted(self: Lower, *args: Any, **kwargs: Any) -> Any:
        calls.append((kwargs.get("shifted", False), kwargs.get("counted", True)))
        return solve(self, *args, **kwargs)

    monkeypatch.setattr(Lower, "solve", counted)
    run(links(H=H, lower=which, **({} if which == "exact" else {"T_lower": "2"})), 4)
    assert sorted(calls) == [(False, True)] * 4 + [(True, True)] * 4


@pytest.mark.parametrize("y0", ["last", "fixed"])
def test_both_calls_start_alike(monkeypatch: pytest.MonkeyPatch, y0: Any) -> None:
    """From the y_0 of the round before, or the first point. Mutations: y_v; a second call from the first's end."""
    starts, ends, solve = [], [], Lower.solve

    def spied(self: Lower, *args: Any, **kwargs: Any) -> Any:
        found = solve(self, *args, **kwargs)
        starts.append(args[3].copy())
        ends.append((kwargs.get("shifted", False), found[0]))
        return found

    monkeypatch.setattr(Lower, "solve", spied)
    run(links(lower="local_sgd", T_lower="3", y0=y0, batch_lower=0), 3)
    at_x = [y for shifted, y in ends if not shifted]
    expected = [np.zeros(n)] + (at_x[:2] if y0 == "last" else 2 * [np.zeros(n)])
    for r in range(3):
        assert starts[2 * r].tobytes() == starts[2 * r + 1].tobytes() == expected[r].tobytes()
    assert not np.array_equal(at_x[0], ends[0][1])


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_residual_is_the_gradient_on_all_samples(noise: float) -> None:
    """|A (y - P x)| at x, |A (y_v - P (x + eta v))| there, and |y - P x| at an evaluation; nothing for exact y.

    Mutations: the mean of the norms; a mini-batch; x after the round; the shifted point for the other.
    """
    of = links(noise=noise, lower="local_sgd", T_lower="3", batch_lower=2, exact=True)
    x, clients = point(), clients_of(of)
    state = of.round(replace(of.start(), x=x), 0, clients)
    A = np.mean([link.lower.bowl.A for link in of.setting.data], axis=0)
    P = of.problem.P  # type: ignore[attr-defined]
    assert state.lower_residual == pytest.approx(np.linalg.norm(A @ (state.y - P @ x)), rel=1e-10)
    yv, _ = of.solver.solve(clients, of.lower, of.shifted(x, 0), np.zeros(n), 0, shifted=True)
    assert state.lower_residual_shifted == pytest.approx(np.linalg.norm(A @ (yv - P @ of.shifted(x, 0))), rel=1e-10)
    told = reported(of.evaluate(state, 0, clients))
    y, _ = of.solver.solve(clients, of.lower, state.x, state.y, 1)
    assert told["lower_error"] == pytest.approx(np.linalg.norm(y - P @ state.x), rel=1e-10)
    assert told["objective_exact"] == pytest.approx(of.problem.implicit(state.x), rel=1e-10)  # type: ignore[attr-defined]
    assert set(told) <= set(described(Report))
    right = run(links(noise=noise), 1)
    assert max(right.lower_residual, right.lower_residual_shifted) < 1e-12


def test_without_a_direct_x_h_steps_are_one_long_one() -> None:
    """As in [B] 5.2: f_i sees x through y alone, so g is the same at every local step on all samples.

    Mutations: y recomputed; a batch in spite of 0.
    """
    for which in ({}, {"lower": "fedac1", "T_lower": "4", "batch_lower": 2}):
        many = run(links(rho=0.0, H=5, gamma=0.02, batch=0, noise=1.0, **which), 3)
        one = run(links(rho=0.0, H=1, gamma=0.1, batch=0, noise=1.0, **which), 3)
        close(many.x, one.x)
    other = run(links(rho=1.0, H=5, gamma=0.02, batch=0), 3)
    assert np.linalg.norm(other.x - run(links(rho=1.0, H=1, gamma=0.1, batch=0), 3).x) > 1e-3


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_the_clients_shares_are_those_of_the_upper_level(weights: Any) -> None:
    """Mutation: sizes of the lower parts alone, or equal shares."""
    of = links(batch=0, weights=weights)
    data = list(of.setting.data)
    data[2] = replace(data[2], upper=replace(data[2].upper, noise=np.zeros((100, n))))
    setting = replace(of.setting, data=tuple(data))
    of = replace(of, setting=setting, local=replace(of.local, setting=setting))
    x, v = point(), zo.direction(STREAMS(Purpose.DIRECTION), n)
    P = of.problem.P  # type: ignore[attr-defined]
    shares = np.array([len(link) for link in data]) if weights == "size" else np.ones(m)
    differences = []
    for link in data:
        f = [(y - link.upper.a) @ link.upper.A @ (y - link.upper.a) / 2 for y in (P @ (x + eta * v), P @ x)]
        differences.append(f[0] - f[1] + ((x + eta * v) @ (x + eta * v) - x @ x) / 2)
    close(run(of, 1).x, x - 0.05 * n / eta * (shares @ differences / shares.sum()) * v)


@pytest.mark.parametrize("which", [{}, {"lower": "local_sgd"}, {"lower": "fedac2"}], ids=str)
def test_it_finds_the_solution(which: Any) -> None:
    """Equal lower parts, so that the paper's own H will do. Mutations: anything that biases the estimate."""
    flags = {"batch_lower": 0, "T_lower": "20", "H_lower": "10"}
    of = links(2, homogeneous=True, batch=0, eta=1e-3, gamma=0.15, exact=True, **flags, **which)
    state = run(of, 100)
    x, value = of.problem.truth()  # type: ignore[attr-defined]
    assert np.linalg.norm(state.x - x) < 2e-3
    told = reported(of.evaluate(state, 99, clients_of(of)))
    assert told["objective_exact"] == pytest.approx(value, abs=1e-5) and told["lower_error"] < 1e-3


def test_a_biased_lower_level_does_not() -> None:
    """What the test above would not see if the clients' lower parts did not matter."""
    of = links(2, batch=0, eta=1e-3, gamma=0.15, lower="local_sgd", T_lower="20", H_lower="10", batch_lower=0)
    assert np.linalg.norm(run(of, 100).x - of.problem.truth()[0]) > 0.02  # type: ignore[attr-defined]


@pytest.mark.parametrize("which", ["local_sgd", "exact"])
@pytest.mark.parametrize(
    ("order", "flags", "rounds"),
    [("min-max", {"gamma": 1e-3, "eta": 1e-3, "H": 50}, 150), ("max-min", {"gamma": 4e-4, "eta": 4e-4, "H": 50}, 150)],
)
def test_minimax_with_coupled_constraints(order: Any, flags: Any, rounds: int, which: Any) -> None:
    """[B] Remark 1: (x, y) = (1/2, -1/2), and with min and max exchanged (-1, 1), both within 1e-3 (x leaves [-1, 1]
    by eta). Mutations: h = f; y not projected at x + v; X left out (the second then runs away)."""
    setting = Setting(Coupled(order), STREAMS, (range(1),) * 2, test=range(1), dtype=np.float64)
    lower = {"lower": which, "T_lower": "9", "gamma_lower": 0.25}
    of = built(FedRZOBL, setting, exact=True, **{"H": 1, "x0": "random", **flags, **lower})
    state = run(of, rounds, of.start().x)
    x, y = of.problem.printed(state.x, state.y)  # type: ignore[attr-defined]
    close((x, y), (0.5, -0.5) if order == "min-max" else (-1.0, 1.0), 1e-3)
    told = reported(of.evaluate(state, rounds, clients_of(of)))
    assert told["objective"] == pytest.approx(of.problem.truth()[1], abs=2e-3)  # type: ignore[attr-defined]


# --- evaluations


@pytest.mark.parametrize("which", ["nn", "local_sgd", "fedac1", "lfd", "exact"])
def test_an_evaluation_leaves_no_trace(which: Any) -> None:
    """Bit for bit, and not a byte counted. Mutations: the clients' x of the evaluation used in the next round; a
    generator shared with the training."""
    flags = {} if which == "exact" else {"T_lower": "4"}
    of: Any = (
        nn(bowls(), H=3, probe=4) if which == "nn" else links(lower=which, noise=1.0, exact=True, probe=3, **flags)
    )
    states = [run(of, 4, evaluates=evaluates) for evaluates in (False, True)]
    for name, value in vars(states[0]).items():
        assert np.asarray(value).tobytes() == np.asarray(vars(states[1])[name]).tobytes(), name
    rows = []
    for evaluates in (False, True):
        clients = clients_of(of)
        state = of.round(of.start(), 0, clients)
        if evaluates:
            of.evaluate(state, 0, clients)
        rows.append(clients.account()[0])
    assert (rows[0].bytes_down.sum(), rows[0].bytes_up.sum()) == (rows[1].bytes_down.sum(), rows[1].bytes_up.sum())


@pytest.mark.parametrize("r", [0, 39])
def test_an_evaluation_solves_the_lower_level_with_the_next_rounds_numbers(r: int) -> None:
    """Its batches, and Algorithm 3's a = max(m, 4 L_h/mu_h, r) + 1, T = 2 a ln a and step size, written out.

    So that the solution that is reported is the one that round r + 1 begins with. Mutations: those of round r, in
    `place` or in the schedule; of round 0; a start elsewhere.
    """
    of = links(noise=1.0, lower="local_sgd", batch_lower=2, exact=True)
    x, start, data = point(), point(3), of.setting.data
    mu, L = of.problem.curvature(x)

    def solution(number: int) -> Array:
        a = max(m, 4 * L / mu, number) + 1
        y = start
        for t in range(math.ceil(2 * a * math.log(a))):  # H = 1: the h_i are not equal
            ends = []
            for i, link in enumerate(data):
                (b,) = STREAMS(Purpose.LOWER_BATCH, r=number, i=i, t=t).integers(SAMPLES, size=(1, 2))
                bowl = link.lower.bowl
                ends.append(y - (bowl.A @ (y - link.lower.B @ x) + bowl.noise[b].mean(axis=0)) / (mu * a))
            y = np.mean(ends, axis=0)
        return y

    clients = clients_of(of)
    state = replace(of.start(), x=x, y=start)
    told = reported(of.evaluate(state, r, clients))
    exact = of.problem.P @ x  # type: ignore[attr-defined]
    errors = [float(np.linalg.norm(solution(number) - exact)) for number in (r, r + 1)]
    assert told["lower_error"] == pytest.approx(errors[1], rel=1e-10)
    assert abs(errors[0] - errors[1]) > 0.01 * errors[1]
    close(of.round(state, r + 1, clients).y, solution(r + 1))


def test_the_bilevel_gradient_is_estimated_with_exact_lower_solutions() -> None:
    """Within 5 standard errors of |M (x - x*) + pull|^2. Mutations: plus and minus exchanged with the point itself."""
    of = links(exact=True, probe=2000, lower="local_sgd", T_lower="1", x_set=("ball:0.5",))
    x = 2 * point()
    told = reported(of.evaluate(replace(of.start(), x=x), 3, clients_of(of)))
    pull = x * (1 - 0.5 / np.linalg.norm(x)) / eta
    truth = float(np.sum((of.problem.implicit_gradient(x) + pull) ** 2))  # type: ignore[attr-defined]
    assert abs(told["gradient_squared"] - truth) < 5 * told["gradient_squared_error"] < 0.3 * truth


def test_directions_need_exact_solutions() -> None:
    """Mutation: a traceback at the first evaluation, after the first round."""
    with pytest.raises(UserError, match="--exact"):
        links(probe=3)
