"""FedRZO in one process: [B] Algorithms 1 and 2, sections 3 and 4.

Exact where the mathematics is, in float64. Directions are the run's own, or (`framed`) those of an orthonormal frame
and its negative, which make the estimate of a quadratic's gradient exact. Docstrings name the mutations to catch.
"""

import math
from collections import Counter
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from tests.numerics.first_order import Array, clients_of, close
from zofl_mpi.engine.clients import ClientError
from zofl_mpi.engine.fields import described, reported, scalar_fields
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError
from zofl_mpi.methods.fedrzo_bl import FedRZOBL
from zofl_mpi.methods.fedrzo_nn import FedRZONN
from zofl_mpi.numerics import zo
from zofl_mpi.problems.analytic.bilevel import BilevelBowls
from zofl_mpi.problems.analytic.nonsmooth import Bowls, MaxAffine
from zofl_mpi.rounds.zeroth_order import FedRZOReport, Local, directions
from zofl_mpi.run.command.flags import from_flags

STREAMS = Streams(11)
n, m, eta, SAMPLES = 4, 3, 0.5, 12
SIZES = (3, 6, 12)


def point(t: int = 9, size: int = n) -> Array:
    return STREAMS(Purpose.START, t=t).standard_normal(size)


def bowls(clients: int = m, size: int = n, noise: float = 1.0, streams: Streams = STREAMS) -> Setting:
    """Clients of unequal sizes, whose noise does not sum to 0."""
    _, server, found = Bowls.random(streams, size, clients, samples=SAMPLES, noise=noise)
    data = tuple(replace(bowl, noise=bowl.noise[:count]) for bowl, count in zip(found, SIZES, strict=False))
    return Setting(Bowls.of(data), streams, data, server, data, None, np.float64)


def nn(setting: Setting, n_p: int = 1, estimate: Any = "one-sided", beta: float = 1.0, **flags: Any) -> FedRZONN:
    usual = {"H": 1, "gamma": 0.05, "eta": eta, "batch": 2}
    return from_flags(FedRZONN, setting, **{**usual, "n_p": n_p, "estimate": estimate, "beta": beta, **flags})


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
@pytest.mark.parametrize(
    ("clients", "H", "n_p", "beta"), [(1, 1, 1, 1.0), (m, 1, 3, 0.67), (m, 4, 1, 0.3), (m, 4, 3, 1.0)]
)
def test_it_is_zo_sgd_and_the_mean_of_the_participants(
    clients: int, H: int, n_p: int, beta: float, central: bool
) -> None:
    """Step for step, with steps that decrease over the rounds. Mutations: n left out or n_p in its place; eta for 2
    eta; one direction or one batch for all steps or clients; a sum over the directions; a base value at another point
    or on another batch; a schedule over the local steps; a mean over all m; participants of another round; weights of
    size that are not normalised."""
    setting, x = bowls(clients), point()
    of = nn(setting, n_p, "central" if central else "one-sided", beta, H=H, schedule="sqrt", weights="size")
    state, asked = replace(of.start(), x=x), clients_of(of)
    for r in range(3):
        count, ends = math.floor(beta * clients + 0.5), []
        to = sorted(STREAMS(Purpose.PARTICIPANTS, r=r).permutation(clients)[:count].tolist())
        for i in to:
            estimate, y = estimates(setting, i, r, H, x, central, n_p), x
            for k in range(H):
                y = y - 0.05 / math.sqrt(r + 1) * estimate(y, k)
            ends.append(y)
        x = np.average(ends, axis=0, weights=[SIZES[i] for i in to])
        state = of.round(state, r, asked)
        row = asked.account()[0]
        step = row.steps.index("step")
        assert np.flatnonzero(row.messages[step]).tolist() == to
        assert set(row.bytes_down[step][to].tolist()) == {8 * n + 8} and set(row.bytes_up[step][to].tolist()) == {8 * n}
    close(state.x, x)


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
    of = nn(setting, 2 * n, H=3, batch=0, x_set=("box:-0.3:0.6", "ball:0.5:1,0,0,0", "all"), weights=weights)
    x = point() + 2
    shares = np.array(SIZES) / sum(SIZES) if weights == "size" else np.full(m, 1 / 3)
    ends = []
    for i, data in enumerate(setting.data):
        y = x
        for _ in range(3):
            pull = pulls(y)[i] if i else (y - np.clip(y, -0.3, 0.6)) / eta
            y = y - 0.05 * (data.A @ (y - data.a) + data.mean_noise() + pull)
        ends.append(y)
    close(run(of, 1, x).x, shares @ ends)


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
    linked = links(H=7)
    object.__setattr__(linked.problem, "lipschitz", 3.0)
    head = "Theorem 1 asks for gamma at most "
    lines = {name.removeprefix(head): line for name, line in linked.plan(1).items() if " asks for " in name}
    assert lines == {"1/(8H)": pytest.approx(1 / 56), "eta/(24 (L_0 n + 1))": pytest.approx(eta / (24 * (3 * n + 1)))}


def test_every_iterate_is_drawn_alike() -> None:
    """Rounds of 3 local steps, 4 of them: 12 iterates, chi-square over 3000 seeds (99.9 %: 31.3), whenever it ends.
    Mutations: the last round's iterates more often (probability H/m); place H or 0 never; K counted in rounds."""
    problem, counts = bowls().problem, np.zeros((2, 12))
    for seed in range(3000):
        local, kept = Local(Setting(problem, Streams(seed), (None,) * m), H=3), -1
        for r in range(4):
            place = local.drawn_step(3 * r, r)
            kept = kept if place is None else 3 * r + place
            if r == 1:
                counts[0, kept] += 1
        counts[1, kept] += 1
    for row, places in zip(counts, (6, 12), strict=True):
        assert row[places:].sum() == 0
        assert np.sum((row[:places] - 3000 / places) ** 2) / (3000 / places) < (20.5 if places == 6 else 31.3)


@pytest.mark.parametrize("bilevel", [False, True])
def test_the_drawn_iterate_is_the_mean_of_the_local_ones(monkeypatch: pytest.MonkeyPatch, bilevel: bool) -> None:
    """The same round with fewer local steps ends there, bit for bit. Mutations: place + 1; the wrong round's start;
    other batches or directions; drawn is x; counted bytes; equal weights for those of the clients."""
    monkeypatch.setattr(Local, "client_weights", lambda self: {0: 0.5, 1: 0.3, 2: 0.2})
    H, seen = 4, set()
    for seed in range(12):
        streams = Streams(seed)
        of: Any = links(streams=streams, H=H, noise=1.0) if bilevel else nn(bowls(streams=streams), H=H, beta=0.67)
        state, clients = of.start(), clients_of(of)
        expected = state.x
        for r in range(4):
            place = of.local.drawn_step(H * r, r)
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
            row = clients.account()[0]
            assert "partial" not in row.steps or not row.bytes_down[row.steps.index("partial")].any()
    assert seen == {None, 0, 1, 2, 3}


# --- the report


def mean_gradient(setting: Setting, x: Array, shares: Any) -> Array:
    return np.sum([w * (d.A @ (x - d.a) + d.mean_noise()) for w, d in zip(shares, setting.data, strict=True)], axis=0)


@pytest.mark.parametrize(("weights", "x_set"), [("uniform", ("box:-0.3:0.2",)), ("size", ("problem",))])
def test_the_gradients_square_is_estimated(weights: Any, x_set: Any) -> None:
    """Within 5 standard errors of the closed form, for which these are small enough. Mutations: no n or no 2; the
    penalty left out or of the wrong sign; equal weights for sizes."""
    setting = bowls()
    of = nn(setting, probe=3000, weights=weights, x_set=x_set)
    x = 2 * point()
    told = reported(of.evaluate(replace(of.start(), x=x), 7, clients_of(of)))
    shares = np.array(SIZES) / sum(SIZES) if weights == "size" else np.full(m, 1 / 3)
    pull = (x - np.clip(x, -0.3, 0.2)) / eta if x_set[0] != "problem" else np.zeros(n)
    truth = float(np.sum((mean_gradient(setting, x, shares) + pull) ** 2))
    assert abs(told["gradient_squared"] - truth) < 5 * told["gradient_squared_error"] < 0.3 * truth
    assert told["set_distance"] == pytest.approx(eta * np.linalg.norm(pull))
    values = [float((x - d.a) @ d.A @ (x - d.a) / 2 + d.mean_noise() @ x) for d in setting.data]
    assert told["objective"] == pytest.approx(float(shares @ values), rel=1e-12)


def test_without_directions_nothing_is_told() -> None:
    for probe in (0, 3):
        of = nn(bowls(), probe=probe)
        told = reported(of.evaluate(of.start(), 0, clients_of(of)))
        assert math.isfinite(told["gradient_squared"]) == math.isfinite(told["gradient_squared_error"]) == (probe > 0)
        assert len({v.tobytes() for r in range(2) for v in directions(of.local, r)}) == 2 * probe  # anew in each report


@pytest.mark.parametrize("flags", [{"gamma": 1e200, "H": 5}, {"gamma": 1.7e308}], ids=str)
def test_divergence_names_gamma(flags: Any) -> None:
    """A round or two later at the latest. Mutations: infinite numbers travel on, or a bare FloatingPointError."""
    for of in (nn(bowls(), **flags), links(**flags), links(lower="local_sgd", T_lower="3", batch_lower=0, **flags)):
        with np.errstate(all="raise"), pytest.raises(ClientError, match=r"not finite.*smaller --gamma may help"):
            run(of, 3)


@pytest.mark.parametrize(
    ("cls", "flags", "words"),
    [
        (FedRZONN, {"probe": 2}, "--probe 2: must be a number of directions, at least 3, or 0"),
        (FedRZONN, {"schedule": "linear"}, "--schedule 'linear': allowed are"),
        (FedRZONN, {"gamma": 0.2, "x_set": ("ball:1",)}, "--gamma 0.2: with sets it must be below 2 eta = 0.2: a step"),
        (FedRZOBL, {"T_lower": "abc"}, "--T-lower abc: must be auto, alg3, thm1 or a whole number"),
        (FedRZOBL, {"T_lower": "-1"}, "--T-lower -1: must be auto, alg3, thm1 or a whole number"),
        (FedRZOBL, {"H_lower": "alg3"}, "--H-lower alg3: must be auto, paper or a whole number"),
        (FedRZOBL, {"H_lower": "0"}, "--H-lower 0: must be auto, paper or a whole number"),
    ],
)
def test_values_out_of_range_are_refused_when_the_method_is_made(cls: Any, flags: Any, words: str) -> None:
    with pytest.raises(UserError) as caught:
        from_flags(cls, bowls() if cls is FedRZONN else links().setting, **flags)
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
    return from_flags(FedRZOBL, setting, **{**usual, **flags, "lower": lower, "exact": exact})


@pytest.mark.parametrize("y0", ["last", "fixed"])
def test_it_is_algorithm_2_written_out(y0: Any) -> None:
    """Three clients, noise, 3 local steps, Local SGD below with 2 local steps, a set, unequal everything. Mutations: a
    direction per client or step; lower solutions recomputed; y_v kept for the next start; batches of the lower level in
    the upper one; the pull at x_r; b of the wrong round; x_i's sent without the mean."""
    rounds, H = 3, 3
    of = links(noise=1.0, H=H, lower="local_sgd", T_lower="5", H_lower="2", batch_lower=3, gamma_lower=0.3,
               x_set=("ball:0.5",), y0=y0)  # fmt: skip
    data, x, y = of.setting.data, point(), np.zeros(n)
    for r in range(rounds):
        v = zo.direction(STREAMS(Purpose.DIRECTION, r=r), n)
        found = []
        for at in (x, x + eta * v):
            z = y if y0 == "last" else np.zeros(n)
            for t, count in enumerate((2, 2, 1)):
                ends = []
                for i, link in enumerate(data):
                    w = z
                    for b in STREAMS(Purpose.LOWER_BATCH, r=r, i=i, t=t).integers(SAMPLES, size=(count, 3)):
                        bowl = link.lower
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
                pull = z * max(0.0, 1 - 0.5 / float(np.linalg.norm(z))) / eta
                z = z - 0.05 * (n / eta * (f[0] - f[1]) * v + pull)
            ends.append(z)
        before, x = x, np.mean(ends, axis=0)
    state = run(of, rounds)
    close(state.x, x)
    assert state.step_distance == pytest.approx(np.linalg.norm(x - before), rel=1e-9)
    close(state.y, y)
    assert (state.lower_rounds, state.lower_steps, state.steps) == (6, 10, rounds * H)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_residual_is_the_gradient_on_all_samples(noise: float) -> None:
    """|A (y - P x)| and |y - P x| at an evaluation, whose call is at its x; nothing for exact y.
    Mutations: the mean of the norms; a mini-batch; x before the round; the y of the round."""
    of = links(noise=noise, lower="local_sgd", T_lower="3", batch_lower=2, exact=True)
    x, clients = point(), clients_of(of)
    state = of.round(replace(of.start(), x=x), 0, clients)
    A = np.mean([link.lower.A for link in of.setting.data], axis=0)
    P = of.problem.P  # type: ignore[attr-defined]
    told = reported(of.evaluate(state, 0, clients))
    y, _ = of.solver.solve(clients, of.lower, state.x, state.y, 1)
    assert told["lower_residual"] == pytest.approx(np.linalg.norm(A @ (y - P @ state.x)), rel=1e-10)
    assert told["lower_error"] == pytest.approx(np.linalg.norm(y - P @ state.x), rel=1e-10)
    assert told["objective_exact"] == pytest.approx(of.problem.implicit(state.x), rel=1e-10)  # type: ignore[attr-defined]
    assert set(told) <= set(described(FedRZOReport))
    right = links(noise=noise)
    clients = clients_of(right)
    report = right.evaluate(right.round(right.start(), 0, clients), 0, clients)
    assert reported(report)["lower_residual"] < 1e-12


def test_a_round_asks_for_a_schedule_once_a_call_and_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """And reads no client's samples whole. Mutations: once a communication round; the residual of each round; the
    schedule of an earlier x of the same round's number."""
    of, asked = links(lower="local_sgd", T_lower="40", H_lower="2", batch_lower=2), list[float]()
    kind, curvature = type(of.problem), type(of.problem).curvature
    monkeypatch.setattr(kind, "curvature", lambda self, x: asked.append(float(x[0])) or curvature(self, x))
    monkeypatch.setattr(FedRZOBL, "slope", lambda *_: pytest.fail("all samples are read"))
    clients = clients_of(of)
    state = of.round(of.start(), 0, clients)
    assert len(asked) <= 2 * (of.setting.m + 1) + 1
    del asked[:]
    of.round(replace(state, x=state.x + 1), 0, clients)
    assert asked.count(float(state.x[0] + 1)) == of.setting.m + 1


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


# --- evaluations


@pytest.mark.parametrize("which", ["nn", "local_sgd", "exact"])
def test_an_evaluation_leaves_no_trace(which: Any) -> None:
    """Bit for bit. Mutations: the clients' x of the evaluation used in the next round; a generator shared with the
    training."""
    flags = {} if which == "exact" else {"T_lower": "4"}
    of: Any = (
        nn(bowls(), H=3, probe=4) if which == "nn" else links(lower=which, noise=1.0, exact=True, probe=3, **flags)
    )
    states = [run(of, 4, evaluates=evaluates) for evaluates in (False, True)]
    for name, value in vars(states[0]).items():
        assert np.asarray(value).tobytes() == np.asarray(vars(states[1])[name]).tobytes(), name


@pytest.mark.parametrize("which", ["nn", "bilevel"])
def test_an_evaluation_is_counted_nowhere_and_a_start_has_counted_nothing(which: str) -> None:
    """Mutations: exchanges of an evaluation's lower level counted; a column that begins at 1."""
    levels = {"lower": "local_sgd", "T_lower": "4", "exact": True}
    of: Any = nn(bowls(), probe=4) if which == "nn" else links(**levels, probe=3)
    state, clients = of.start(), clients_of(of)
    of.evaluate(state, 0, clients)
    row, _ = clients.account()
    assert not row.messages.any() and not row.bytes_down.any() and not row.bytes_up.any()
    assert all(value == 0 or math.isnan(value) for _, value in scalar_fields(state))


def test_a_pass_over_all_samples_holds_those_of_the_largest_client() -> None:
    """Mutation: of the smallest."""
    of = links()
    data = [
        replace(each, upper=replace(each.upper, noise=each.upper.noise[:k]))
        for k, each in enumerate(of.setting.data, 2)
    ]
    of = replace(of, setting=replace(of.setting, data=tuple(data)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BilevelBowls, "client_bytes", lambda self, batch, gradient: 1000.0 * batch)
        assert of.held(0, True) == 1000 * (m + 1) == of.held(m + 1, True)


@pytest.mark.parametrize("r", [0, 39])
def test_an_evaluation_solves_the_lower_level_with_the_next_rounds_numbers(r: int) -> None:
    """Its batches, and Algorithm 3's a = max(m, 4 L_h/mu_h, r) + 1, T = 2 a ln a and step size, written out. So that
    the solution that is reported is the one that round r + 1 begins with. Mutations: those of round r, in `place` or in
    the schedule; of round 0; a start elsewhere."""
    of = links(noise=1.0, lower="local_sgd", T_lower="auto", batch_lower=2, exact=True)
    x, start, data = point(), point(3), of.setting.data
    mu, L = of.problem.curvature(x)

    def solution(number: int) -> Array:
        a = max(m, 4 * L / mu, number) + 1
        y = start
        for t in range(math.ceil(2 * a * math.log(a))):  # H = 1: the h_i are not equal
            ends = []
            for i, link in enumerate(data):
                (b,) = STREAMS(Purpose.LOWER_BATCH, r=number, i=i, t=t).integers(SAMPLES, size=(1, 2))
                bowl = link.lower
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
    x, problem = 2 * point(), cast(BilevelBowls, of.problem)
    told = reported(of.evaluate(replace(of.start(), x=x), 3, clients_of(of)))
    pull = x * (1 - 0.5 / np.linalg.norm(x)) / eta
    truth = float(np.sum((problem.hessian @ (x - problem.minimiser) + pull) ** 2))
    assert abs(told["gradient_squared"] - truth) < 5 * told["gradient_squared_error"] < 0.3 * truth
    with pytest.raises(UserError, match="--exact"):
        links(probe=3)
