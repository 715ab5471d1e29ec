"""The lower level's federated solvers: [B] Algorithm 3, FedAC, LFD.

`Line` has one number per client, so that schedules can be followed by hand; `BilevelBowls` knows y(x) in closed form.
Docstrings name the mutations to catch.
"""

import math
import re
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import Array, clients_of, close
from tests.numerics.test_fednest import known
from tests.numerics.test_fedrzo import SAMPLES, STREAMS, eta, links, m, n, point
from tests.numerics.test_zo_hfl import toy
from zofl_mpi.engine.clients import ClientError
from zofl_mpi.engine.fields import reported
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.methods.fednest import FedNest
from zofl_mpi.methods.fedrzo_bl import FedRZOBL
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.problems.analytic.bilevel import BilevelBowls, Coupled
from zofl_mpi.problems.analytic.quadratic import Quadratic
from zofl_mpi.problems.base import BilevelProblem
from zofl_mpi.rounds import lower
from zofl_mpi.rounds.lower import LowerSchedule, LowerSolver, acceleration
from zofl_mpi.rounds.report import GlobalModel
from zofl_mpi.run.command.flags import from_flags
from zofl_mpi.run.loop.local import LocalClients

SOLVERS = ["local_sgd", "fedac1", "fedac2", "lfd"]


@dataclass(frozen=True)
class Part:
    """h_i(x, y) = c/2 (y - a - x)^2 over `size` samples that are all alike."""

    c: float
    a: float = 0.0
    size: int = 10

    def __len__(self) -> int:
        return self.size


@dataclass(frozen=True)
class Line(BilevelProblem):
    """`Bilevel` in one dimension; it keeps the mini-batches that it was asked for."""

    curved: tuple[float, float] = (1.0, 4.0)
    homogeneous: bool = False
    n: int = 1
    n_lower: int = 1
    asked: list[tuple[int, float, Any]] = field(default_factory=list)

    def f(self, i: int, x: Array, y: Array, data: Part, batch: Any = None) -> Array:
        return np.asarray(y[:, 0])

    def gradient_h(self, i: int, x: Array, y: Array, data: Part, batch: Any = None) -> Array:
        self.asked.append((i, float(x[0]), batch))
        return np.asarray(data.c * (y - data.a - x))

    def curvature(self, x: Array) -> tuple[float, float]:
        return self.curved

    def project(self, i: int, x: Array) -> Array:
        return x

    def initial_lower(self) -> Array:
        return np.ones(1)


def line(*parts: Part, curved: tuple[float, float] = (1.0, 4.0), **flags: Any) -> FedRZOBL:
    setting = Setting(Line(curved), STREAMS, parts, dtype=np.float64)
    return from_flags(FedRZOBL, setting, eta=eta, **flags)


def solver(problem: Any, clients: int, parts: tuple[Part, ...] = (), **flags: Any) -> LowerSolver:
    """The lower solver for so many clients."""
    setting = Setting(problem, STREAMS, parts or (Part(0.0),) * clients, dtype=np.float64)
    return from_flags(LowerSolver, setting, **flags)


def scheduled(problem: Any, clients: int, r: int = 0, **flags: Any) -> LowerSchedule:
    return solver(problem, clients, **flags).schedule(np.zeros(1), r)


def solve(
    of: FedRZOBL, x: Array, r: int = 0, y: Array | None = None, shifted: bool = False
) -> tuple[Array, LowerSchedule, LocalClients]:
    """A call of the solver as the method makes it, at x or x + eta v."""
    clients = clients_of(of)
    list(clients.ask(of.place, GlobalModel(x, r)))
    at = of.shifted(x, r) if shifted else x
    found, schedule = of.solver.solve(clients, of.lower, at, of.first_lower() if y is None else y, r, shifted=shifted)
    return found, schedule, clients


# --- FedAC


def steps_of(c: float, start: tuple[float, float], count: int, gamma: float, *rest: float) -> Array:
    """FedAC's recursion on c/2 y^2."""
    w = np.array(start)[:, None]
    return lower._accelerated(w, lambda y, k: c * y, lambda y: y, count, (gamma, *rest))[:, 0]


def test_three_steps_by_hand() -> None:
    """h = y^2, mu = 1, L = 4, eta_l = 1/4, K_l = 1, from 1: alpha = 2 and beta = 3 for I, 5/2 and 23/3 for II.
    Mutations: beta = alpha or alpha + 2 for I; the authors' code's 2 alpha^2/(alpha - 1) for II; w returned for
    w_ag."""
    for which, ends in (
        ("fedac1", [(0, "1/2"), ("-1/6", "1/6"), ("-1/9", "1/36")]),
        ("fedac2", [(0, "1/2"), ("-6/23", "5/23"), ("-132/529", "41/529")]),
    ):
        alpha, beta, gamma_l = acceleration(which, 0.25, 1.0, 4.0, 1)
        for count, end in enumerate(ends, 1):
            close(steps_of(2.0, (1.0, 1.0), count, 0.25, alpha, beta, gamma_l), [float(Fraction(str(e))) for e in end])
        found, _, _ = solve(line(Part(2.0), lower=which, T_lower="3"), np.zeros(1))
        close(found, [float(Fraction(ends[2][1]))])


def test_the_parameters_are_the_papers() -> None:
    """Mutations: gamma_l without its floor, without K_l; the code's beta (20.22 for 20.10 at kappa = 8)."""
    assert acceleration("fedac1", 0.25, 1.0, 4.0, 1) == (2.0, 3.0, 0.5)
    assert acceleration("fedac2", 0.25, 1.0, 4.0, 1) == (2.5, pytest.approx(23 / 3, rel=1e-15), 0.5)
    assert acceleration("fedac1", 0.01, 1.0, 4.0, 4)[2] == pytest.approx(0.05)  # sqrt(0.01/4)
    assert acceleration("fedac1", 0.25, 1.0, 4.0, 100) == (4.0, 5.0, 0.25)  # sqrt(1/400) is below eta_l
    alpha, beta, _ = acceleration("fedac2", 1 / 8, 1.0, 8.0, 2)
    assert (alpha, beta) == (pytest.approx(5.5), pytest.approx((2 * 5.5**2 - 1) / 4.5))
    alpha, beta, gamma_l = acceleration("fedac2", 0.1, 0.5, 4.0, 3)
    assert gamma_l == pytest.approx(math.sqrt(0.1 / 1.5)) and alpha == pytest.approx(1.5 / (gamma_l * 0.5) - 0.5)


def test_conditions_that_do_not_hold_are_refused() -> None:
    """Mutations: eta_l > 1/L let through; beta infinite or negative. The last digit of 1/L_h is no reason to refuse."""
    with pytest.raises(UserError, match=r"--gamma-lower 0.3: FedAC needs at most 1/L_h = 0.25"):
        acceleration("fedac1", 0.3, 1.0, 4.0, 1)
    with pytest.raises(UserError, match=r"--lower fedac2: gamma_l mu_h = 1, it must be below 1 .* take --lower fedac1"):
        acceleration("fedac2", 0.25, 4.0, 4.0, 1)
    for L in np.linspace(1, 3, 101):
        assert acceleration("fedac1", 1 / L, L, L, 3)[0] >= 1
    with pytest.raises(UserError, match=r"0.3: FedAC needs at most"):  # before a client is asked
        solve(line(Part(2.0), lower="fedac1", gamma_lower=0.3), np.zeros(1))


@pytest.mark.parametrize("which", ["fedac1", "fedac2"])
def test_both_sequences_are_averaged_and_continued(which: str) -> None:
    """Three clients, K_l = 2, T = 5 (2 + 2 + 1 steps), noise, written out. Mutations: one sequence averaged, or w
    started anew; K_l left out of gamma_l; a last round of full length."""
    of = links(noise=1.0, lower=which, T_lower="5", H_lower="2", batch_lower=3)
    x, (mu, L) = point(), of.problem.spectrum
    found, schedule, _ = solve(of, x, 4)
    alpha, beta, gamma_l = acceleration(which, 1 / L, mu, L, 2)
    pair = np.zeros((2, n))
    for t, count in enumerate((2, 2, 1)):
        ends = []
        for i, link in enumerate(of.setting.data):
            w, ag = pair
            batches = STREAMS(Purpose.LOWER_BATCH, r=4, i=i, t=t).integers(SAMPLES, size=(count, 3))
            for batch in batches:
                md = w / beta + (1 - 1 / beta) * ag
                g = link.lower.A @ (md - link.lower.B @ x) + link.lower.noise[batch].mean(axis=0)
                ag, w = md - g / L, (1 - 1 / alpha) * w + md / alpha - gamma_l * g
            ends.append((w, ag))
        pair = np.mean(ends, axis=0)
    close(found, pair[1])
    assert (schedule.rounds, schedule.T) == (3, 5)


# --- schedules


@pytest.mark.parametrize(
    ("curved", "r", "clients", "a"),
    [((1.0, 4.0), 0, 5, 17), ((1.0, 4.0), 30, 5, 31), ((1.0, 1.0), 2, 9, 10), ((0.5, 1.0), 0, 3, 9)],
)
def test_algorithm_3s_schedule(curved: tuple[float, float], r: int, clients: int, a: int) -> None:
    """gamma = 1/(mu a), a = max(m, 4 kappa, r) + 1, T = ceil(2 a ln a), H = ceil(T/m), rounds <= m, the rest in the
    last one. Mutations: kappa = L; the + 1; L for mu; floor; T/m^(1/3); a last round as long as the others."""
    for T_lower in ("alg3", "auto"):
        found = scheduled(Line(curved), clients, r, T_lower=T_lower, H_lower="paper")
        T = math.ceil(2 * a * math.log(a))
        assert (found.T, found.H, found.gamma) == (T, math.ceil(T / clients), pytest.approx(1 / (curved[0] * a)))
        steps = [found.steps(t) for t in range(found.rounds)]
        assert found.rounds <= clients and sum(steps) == T and set(steps[:-1]) <= {found.H} and 0 < steps[-1] <= found.H


def test_the_length_of_theorem_1() -> None:
    """Mutations: r for r + 1 (T = 0 in the first round); the exponent; m left out."""
    thm1 = solver(Line(), 2, T_lower="thm1")
    lengths = [thm1.schedule(np.zeros(1), r).T for r in (0, 7, 26)]
    assert lengths == [math.ceil(4 * s * math.log(r + 2) / 2) for r, s in ((0, 1), (7, 4), (26, 9))]
    assert thm1.schedule(np.zeros(1), 7).gamma == pytest.approx(min(1 / 4, 2 * math.log(lengths[1] + 1) / lengths[1]))


@pytest.mark.parametrize(("lower", "paper"), [("local_sgd", 9), ("fedac1", 9), ("lfd", 3)])
def test_the_papers_steps_between_averagings(lower: Any, paper: int) -> None:
    """T/m (m = 3, T = 27), T/m^(1/3) (m = 27) and T^(2/3)/m^(1/3) (m = 27): whole numbers as they stand. Mutations: one
    method's for another's; 27^(1/3) = 3.0000000000000004 or 2.9999999999999996 rounded up."""

    own, same = {"lower": lower, "T_lower": "27"}, Line(homogeneous=True)
    assert paper == scheduled(Line(), 3 if lower == "local_sgd" else 27, H_lower="paper", **own).H
    assert scheduled(Line(), 27, H_lower="auto", **own).H == 1
    assert scheduled(same, 27, H_lower="auto", **own) == scheduled(same, 27, H_lower="paper", **own)
    assert scheduled(same, 27, H_lower="4", **own).H == 4
    if lower == "fedac1":
        assert 64 / 64 ** (1 / 3) > 16 == scheduled(Line(), 64, lower=lower, T_lower="64", H_lower="paper").H


def test_fedacs_own_length() -> None:
    """2 ln a sqrt(kappa H), at most 2 ln a kappa: a^-2 as Algorithm 3's. Mutations: kappa for its root; without H."""
    for kappa in (4.0, 25.0):
        curved, a = Line((1.0, kappa)), 4 * kappa + 1
        one, three, paper = (scheduled(curved, 3, lower="fedac1", H_lower=H) for H in ("auto", "3", "paper"))
        assert math.ceil(2 * math.sqrt(kappa) * math.log(a)) == one.T and one.gamma == pytest.approx(1 / kappa)
        assert math.ceil(2 * math.sqrt(3 * kappa) * math.log(a)) == three.T
        slow = math.ceil(2 * kappa * math.log(a))
        assert (slow, math.ceil(slow / 3 ** (1 / 3))) == (paper.T, paper.H)
    assert math.ceil(34 * math.log(17)) == scheduled(Line(), 3, lower="fedac1", T_lower="alg3").T


def test_lfd_counts_its_steps_over_the_whole_call() -> None:
    """c/(k + a), c = 4/mu, a = max(E + 4, 4 kappa), k = 0, ..., T - 1. Mutations: k from 0 in every communication
    round; a without E; c = 1/mu."""
    for H, offset in ((2, 16.0), (15, 19.0)):
        found, schedule, _ = solve(line(Part(2.0), lower="lfd", T_lower="31", H_lower=str(H)), np.zeros(1))
        y = np.ones(1)
        for k in range(31):
            y = y - 4 / (k + offset) * 2 * y
        close(found, y)
        assert schedule.rounds == -(-31 // H)
        assert schedule.stepsize(0) <= 1 / 4 + 1e-15  # 1/L
    with_own, *_ = solve(line(Part(2.0), lower="lfd", T_lower="1", gamma_lower=1.6), np.zeros(1))
    close(with_own, [1 - 1.6 / 16 * 2])


def test_no_steps_leave_the_start_and_gamma_lower_takes_the_place_of_the_theorys() -> None:
    """Mutation: at least one communication round, or a division by T = 0."""
    for which in ("local_sgd", "fedac1"):
        found, schedule, _ = solve(line(Part(2.0), lower=which, T_lower="0"), np.zeros(1))
        assert found.tolist() == [1.0] and (schedule.T, schedule.rounds) == (0, 0)
    found, *_ = solve(line(Part(2.0), T_lower="3", gamma_lower=0.1), np.zeros(1))
    close(found, [0.8**3])


# --- what the calls have in common


@pytest.mark.parametrize("which", SOLVERS)
def test_both_calls_see_the_same_batches(which: Any) -> None:
    """And another round others. Mutations: the call in the key; the round left out of it."""
    of = line(Part(2.0, size=1000), Part(2.0, size=1000), lower=which, T_lower="6", H_lower="2", batch_lower=3)
    seen = []
    for r, shifted in ((0, False), (0, True), (1, False)):
        of.problem.asked.clear()  # type: ignore[attr-defined]
        solve(of, np.zeros(1), r, shifted=shifted)
        seen.append([(i, batch.tolist()) for i, _, batch in of.problem.asked])  # type: ignore[attr-defined]
        assert {x for _, x, _ in of.problem.asked} == {of.shifted(np.zeros(1), r)[0] if shifted else 0.0}  # type: ignore[attr-defined]
    assert seen[0] == seen[1] and len(seen[0]) == 12 and seen[0] != seen[2]
    assert len({str(batch) for _, batch in seen[0]}) == 12  # no batch twice


# --- how near they come


def test_the_exact_solution_is_exact_where_it_is_offered() -> None:
    found, schedule, clients = solve(links(), point())
    close(found, links().problem.P @ point(), 1e-15)  # type: ignore[attr-defined]
    assert (schedule.T, schedule.rounds) == (0, 0)
    assert "lower" not in clients.account()[0].steps
    with pytest.raises(UserError, match="--lower exact: this problem does not know its lower solution"):
        solve(line(Part(1.0), lower="exact"), np.zeros(1))


@pytest.mark.parametrize("x", [-0.7, 0.3, 0.9])
def test_steps_are_projected(x: float) -> None:
    """Local SGD on the coupled example ends in y(x) exactly. Mutations: no projection; only after the last step or the
    average (the same here: so x + eta v outside X too)."""
    for order in ("min-max", "max-min"):
        setting = Setting(Coupled(order), STREAMS, (range(1),) * m, dtype=np.float64)  # type: ignore[arg-type]
        of = from_flags(FedRZOBL, setting, eta=eta)
        for shifted in (False, True):
            at = of.shifted(np.array([x]), 1) if shifted else np.array([x])
            found, *_ = solve(of, np.array([x]), 1, np.array([-1.0]), shifted)
            close(found, of.problem.solution(at, None), 1e-15 if order == "min-max" else 1 / 25)  # type: ignore[attr-defined]


@pytest.mark.parametrize("which", ["local_sgd", "fedac1"])
def test_every_step_is_projected_at_its_own_point(monkeypatch: pytest.MonkeyPatch, which: Any) -> None:
    """A slope of -1 and Y = [-1, u(x)]: y never exceeds u(x) in between. Mutation: one projection at the end."""
    seen, gradient = list[float](), Coupled.gradient_h
    monkeypatch.setattr(Coupled, "gradient_h", lambda *given: seen.append(float(given[3][0])) or gradient(*given))
    setting = Setting(Coupled(), STREAMS, (range(1),), dtype=np.float64)
    of = from_flags(FedRZOBL, setting, eta=eta, lower=which, T_lower="9", H_lower="9")
    found, *_ = solve(of, np.array([0.5]), 0, np.array([-1.0]))
    assert max(seen[1:]) <= -0.5 and found.tolist() == [-0.5] and len(seen) == 9


@pytest.mark.parametrize("x", [-0.3, 0.4])
def test_the_residual_of_a_lower_level_with_a_set_is_that_of_the_projected_step(x: float) -> None:
    """0 at the solution, where the gradient is -1, and the way to it nearby; in the column of an evaluation
    too. Mutations: no projection; onto Y of another x; y - g in place of y - P(y - g)."""
    setting = Setting(Coupled(), STREAMS, (range(1),) * m, dtype=np.float64)
    of, at = from_flags(FedRZOBL, setting, eta=eta, gamma=0.0, H=1, lower="exact"), np.array([x])
    clients = clients_of(of)
    state = of.round(replace(of.start(), x=at), 0, clients)
    close(reported(of.evaluate(state, 0, clients))["lower_residual"], 0.0)
    for end in (at, of.shifted(at, 0)):
        of.send(clients, end, 0)
        solution = of.solver.exact(end)
        assert abs(float(solution[0]) + float(end[0])) < 1e-12, "the constraint x + y <= 0 binds"
        for way in (0.0, 0.25, 0.5):
            close(of.residual(clients, end, solution - way), way)


def test_all_count_alike_otherwise() -> None:
    """By the paper's (1/m) sum, whatever the sizes. Mutation: weights by size."""
    parts = (Part(1.0, 1.0, 2), Part(1.0, -3.0, 10), Part(1.0, 8.0, 28))
    for which in SOLVERS:
        found, *_ = solve(line(*parts, curved=(1.0, 1.1), lower=which, T_lower="40"), np.zeros(1))
        close(found, [2.0], 0.02)


# --- sentences


@pytest.mark.parametrize("curved", [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (2.0, 1.0), (1.0, math.inf)], ids=str)
def test_a_lower_level_that_is_not_strongly_convex_is_refused(curved: tuple[float, float]) -> None:
    """Mutation: a comparison that nan passes."""
    words = "the solvers need 0 < mu_h <= L_h: move x or regularise the lower level"
    with pytest.raises(UserError, match=words):
        solver(Line(curved), 3).schedule(np.zeros(1), 0)


@pytest.mark.parametrize("which", ["local_sgd", "fedac1", "lfd"])
def test_divergence_names_the_step_size(which: Any) -> None:
    """Curvature promised too small. Mutation: infinite numbers travel on."""
    of = line(Part(1e200), lower=which, T_lower="4", gamma_lower=0.25 if which == "fedac1" else 10.0)
    with pytest.raises(ClientError, match="iterate is not finite; a smaller --gamma-lower or --gamma"):
        solve(of, np.zeros(1))


class Sloping(Line):
    """L_h/mu_h is 4 at x = 0 and grows by 10 |x|."""

    def curvature(self, x: Array) -> tuple[float, float]:
        return 1.0, 4.0 + 10.0 * abs(float(x[0]))


def test_steps_that_curvature_multiplies_are_told_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutations: the growth with r is told, too; each round; a fixed number of steps; x_0's schedule for now's."""
    monkeypatch.setattr(lower, "_warned", [])
    for flags, x, r, kappa in (({}, 0.0, 1000, 4), ({}, 0.1, 0, 5), ({"T_lower": "40"}, 90.0, 0, 904)):
        of = solver(Sloping(), 3, **flags)
        now = of.schedule(np.full(1, x), r)
        assert now.condition == kappa
        of.watch_growth(of.schedule(np.zeros(1), 0), now, r)
        assert capsys.readouterr().err == ""
    whole = from_flags(
        FedRZOBL,
        Setting(Sloping(), STREAMS, (Part(1.0),) * 3, dtype=np.float64),
        eta=eta,
        batch_lower=0,
        T_lower="auto",
    )
    state = replace(whole.start(), x=np.ones(1))
    clients = clients_of(whole)
    for r in (5, 6):
        state = whole.round(replace(state, x=np.ones(1)), r, clients)
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "x of round 6 " in told and ", at x_0 4: --T-lower auto takes " in told
    a = {k: 4 * k + 1 for k in (4, 14 + 10 * abs(eta))}  # 1 + eta v, v = 1 or -1
    usual, most = (math.ceil(2 * each * math.log(each)) for each in a.values())
    (steps, other) = map(int, re.findall(r"takes (\d+) local steps a call now, not (\d+),", told)[0])
    assert 4 * usual < steps <= most and other == usual


def one_line() -> FedRZOBL:
    return line(Part(1.0))


def fednest() -> FedNest:
    return from_flags(FedNest, known(BilevelBowls), batch=0, batch_lower=0)


def zo_hfl(**flags: Any) -> ZOHFL:
    return from_flags(ZOHFL, toy(), **flags)


@pytest.mark.parametrize(
    ("make", "cls", "member", "value", "told"),
    [
        (one_line, Line, "gradient_h", 0.0, r"gradient_h\(i, x, y, data, batch\) must .* shape \(1,\); it has \(\)"),
        (one_line, Line, "project", np.zeros((1, 1)), r"project\(i, x\) must have the shape \(1,\); it has \(1, 1\)"),
        (one_line, Line, "curvature", (1.0, 2.0, 3.0), r"curvature\(x\) must have the shape \(2,\); it has \(3,\)"),
        (one_line, Line, "initial_lower", np.ones(2), r"initial_lower\(\) must have the shape \(1,\); it has \(2,\)"),
        (one_line, Line, "f", np.ones(3), r"losses at 2 points must have the shape \(2,\); it has \(3,\)"),
        (fednest, BilevelBowls, "hessian_h", 1.0, r"hessian_h\(i, x, y, u, data, batch\) must .* \(5,\); it has \(\)"),
        (fednest, BilevelBowls, "cross_h", np.ones((5, 1)), r"cross_h\(.*, u, data, batch\) must .* it has \(5, 1\)"),
        (fednest, BilevelBowls, "gradients_f", (np.ones(1), np.ones(5)), r"gradients_f\(.*\)\[0\] must .* has \(1,\)"),
        (fednest, BilevelBowls, "gradients_f", (np.ones(5), 0.0), r"gradients_f\(.*\)\[1\] must .* it has \(\)"),
        (fednest, BilevelBowls, "curvature", (1.0, 2.0, 3.0), r"curvature\(x\) must .* shape \(2,\); it has \(3,\)"),
        (
            zo_hfl,
            Quadratic,
            "solve_client",
            np.ones(5),
            r"solve_client\(i, .*\) must .* shape \(2, 5\); it has \(5,\)",
        ),
        (zo_hfl, Quadratic, "gradient_f1", np.ones(1), r"gradient_f1\(x, data, batch\) must .* \(5,\); it has \(1,\)"),
        (zo_hfl, Quadratic, "f2", np.ones(5), r"f2\(i, x, y\) must have the shape \(\); it has \(5,\)"),
        (partial(zo_hfl, exchange="solutions"), Quadratic, "f2", np.ones(5), r"f2\(i, x, y\) must .* it has \(5,\)"),
    ],
)
def test_a_member_of_another_shape_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, make: Any, cls: Any, member: str, value: Any, told: str
) -> None:
    """Also one that NumPy would stretch. Mutation: the member's own value, unchecked; np.asarray alone, with which a
    number is every gradient."""
    monkeypatch.setattr(cls, member, lambda self, *given: value)
    with pytest.raises((ClientError, TypeError), match=f"the problem's {told}"):
        of = make()
        of.round(of.start(), 0, clients_of(of))
