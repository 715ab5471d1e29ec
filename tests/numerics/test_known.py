"""Problems with known solutions: closed forms against central differences, optimality conditions and grids.

Each docstring names the mutations to catch.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.numerics.first_order import STREAMS, close, m, n, vector
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.numerics import zo
from zofl_mpi.problems.analytic.bilevel import BilevelBowls, Coupled
from zofl_mpi.problems.analytic.nonsmooth import MaxAffine
from zofl_mpi.problems.analytic.quadratic import Corner, Quadratic

eta, N = 0.3, 32


def basis(first=None, size=n):
    """(size, size) orthonormal rows, the first one along `first`."""
    columns = STREAMS(Purpose.START, r=1).standard_normal((size, size))
    if first is not None:
        columns[:, 0] = first
    return np.linalg.qr(columns)[0].T


def frame_mean(loss, x, frame, radius=eta):
    return np.mean([zo.central(loss, x, v, radius) for v in frame], axis=0)


# --- MaxAffine


def loss_of(data):
    problem = MaxAffine(np.zeros(n), 0.0, 1.0)
    return lambda x: float(problem.losses(0, x[None], data)[0])


def test_along_the_basis_the_estimate_is_known():
    """sum_g c_g clip(<q_g, x - a_i>/eta, -1, 1) q_g. Mutations: a basis that is not orthonormal or not shared."""
    _, _, clients = MaxAffine.random(STREAMS, n, m)
    axes = clients[0].slopes[:, 0] / np.linalg.norm(clients[0].slopes[:, 0], axis=1, keepdims=True)
    for data in clients:
        c = np.linalg.norm(data.slopes[:, 0], axis=1)
        centre = -data.offsets[:, 0] / c
        close(data.slopes[:, 0], c[:, None] * axes)
        x = axes.T @ (centre + eta * np.array([-2, -0.6, 0, 0.3, 5]))
        close(frame_mean(loss_of(data), x, axes), (c * np.array([-1, -0.6, 0, 0.3, 1])) @ axes, 1e-11)


def test_the_lipschitz_constant_is_attained():
    """By the steepest client, far from all kinks. Mutations: the largest weight in place of the norm, mean for max."""
    problem, _, clients = MaxAffine.random(STREAMS, n, m, noise=2.0)
    steepest = 0.0
    for data in clients:
        far = 1e3 * np.sum(data.slopes[:, 0] / np.linalg.norm(data.slopes[:, 0], axis=1, keepdims=True), axis=0)
        f, step = loss_of(data), np.sum(data.slopes[:, 0], axis=0)
        steepest = max(steepest, (f(far + step) - f(far)) / np.linalg.norm(step))
        for t in range(20):
            assert abs(f(vector(t)) - f(vector(t + 1))) <= problem.lipschitz * np.linalg.norm(vector(t) - vector(t + 1))
    close(steepest, problem.lipschitz, 1e-9)


# --- Bowls


def test_a_random_bowl_is_drawn_when_it_is_looked_at():
    """Mutations: drawn for its length; drawn anew for each of its parts."""
    bowl = Quadratic.random(STREAMS, n, m, samples=7, noise=1.0)[2][1]
    assert len(bowl) == 7 and "A" not in vars(bowl)
    noise = bowl.noise
    assert noise.shape == (7, n) and bowl.noise is noise and replace(bowl).noise is noise and len(replace(bowl)) == 7
    assert not hasattr(bowl, "drawn")


# --- BilevelBowls


def bilevel(**settings):
    return BilevelBowls.random(STREAMS, n, m, n_lower=3, rho=0.7, noise=1.0, noise_upper=1.0, **settings)


def test_the_upper_part_and_the_matrices_of_clients():
    """f adds <the mean of the batch's noise, y>. homogeneous: every client alone has the solution, but draws its own
    noise. Mutations: noise that acts on x or per row; the flag ignored; the upper and the lower part from one
    stream."""
    problem, server, clients = bilevel()
    xs, ys = np.stack([vector(1), vector(2)]), np.stack([vector(3, 3), vector(4, 3)])
    upper = clients[0].upper
    expected = [
        (y - upper.a) @ upper.A @ (y - upper.a) / 2 + 0.35 * x @ x + y @ upper.noise[6]
        for x, y in zip(xs, ys, strict=True)
    ]
    close(problem.f(0, xs, ys, upper, np.array([6])), expected)
    assert len(clients[0]) == 2 * N == len(server)
    assert problem.n == n and problem.n_lower == 3
    assert np.array_equal(problem.project(0, xs[0]), xs[0])
    problem, _, clients = bilevel(homogeneous=True)
    x = vector()
    assert problem.homogeneous and not bilevel()[0].homogeneous
    for i, data in enumerate(clients):
        close(problem.gradient_h(i, x, problem.solution(x, clients), data.lower), np.zeros(3))
    assert not np.allclose(clients[0].lower.noise, clients[1].lower.noise)
    assert not np.allclose(clients[0].upper.A, clients[1].upper.A)
    _, server, clients = bilevel()
    matrices = [A for data in (server, *clients) for A in (data.upper.A, data.lower.A)]
    assert all(not np.allclose(A, B) for k, A in enumerate(matrices) for B in matrices[:k])


# --- Coupled

GRID = np.linspace(-1, 1, 401)


@pytest.mark.parametrize(("order", "where", "value"), [("min-max", (0.5, -0.5), -0.25), ("max-min", (1, -1), -2)])
def test_the_solution_is_the_papers(order, where, value):
    """For max-min the outer variable is the printed y. Mutations: the two not exchanged; the other sign of the value;
    a solution that is the best of another set."""
    problem = Coupled(order)
    x, found = problem.truth()
    assert (x[0], problem.solution(x, None)[0], found) == (*where, value)
    for outer in GRID[:, None]:
        inner = GRID[GRID + outer[0] <= 1e-12]
        close(problem.implicit(outer), max(problem.f(0, np.tile(outer, (len(inner), 1)), inner[:, None], None)))


@pytest.mark.parametrize("x", [-3.0, -1.0, -0.4, 0.0, 0.7, 1.0, 2.5])
def test_the_inner_set_is_never_empty(x):
    """[-1, clip(-x, -1, 1)], also outside X. Mutation: -x not clipped."""
    problem, x = Coupled(), np.array([x])
    upper = min(1.0, max(-1.0, -x[0]))
    for y in np.linspace(-3, 3, 25):
        close(problem.project_lower(x, np.array([y])), min(max(y, -1.0), upper))
    close(problem.project(0, x), np.clip(x, -1, 1))


@pytest.mark.parametrize("order", ["min-max", "max-min"])
def test_the_curvature_is_a_quadratic_growth_on_the_inner_set(order):
    """h(y) - h(y(x)) >= mu_h/2 |y - y(x)|^2, with equality somewhere. Mutation: any larger mu_h."""
    problem = Coupled(order)
    ratios = []
    for x in GRID[:, None]:
        best = problem.solution(x, None)
        for y in GRID[::10]:
            if y <= -x[0] and y != best[0]:
                growth = problem.implicit(x) - problem.f(0, x[None], np.array([[y]]), None)[0]
                ratios.append(2 * growth / (y - best[0]) ** 2)
    close(min(ratios), problem.curvature(np.zeros(1))[0], 1e-9)


def test_the_penalty_in_place_of_the_set_moves_the_solution_by_eta():
    """F + dist^2/(2 eta) is least at 1 + eta for max-min, at 1/2 for min-max. Mutation: F's extension beyond X."""
    for order, expected in (("max-min", 1 + eta), ("min-max", 0.5)):
        problem = Coupled(order)
        xs = np.linspace(-2, 2, 4001)
        penalised = [problem.implicit(np.array([x])) + (x - np.clip(x, -1, 1)) ** 2 / (2 * eta) for x in xs]
        close(xs[np.argmin(penalised)], expected, 1e-9)


# --- the quadratic and the corner of [A]


@pytest.mark.parametrize("i", range(3))
def test_the_lower_solution_minimises_h_and_gives_the_implicit_gradient(i):
    """grad = m rho_i lam K'K (x - a), K = (A + mu I)^{-1} A. Mutations: m, rho_i, 1/2 in f_2; mu's sign in y_i."""
    problem, _, clients = Quadratic.random(STREAMS, n, m, lam=1.7, noise=2.0)
    x, data = vector(), clients[i]
    y = problem.solution(i, data, x)
    close(problem.gradient_h(i, data, x, y, np.arange(N)), 0 * x)
    K = np.linalg.inv(data.A + problem.mu[i] * np.eye(n)) @ data.A
    expected = m * problem.weights[i] * 1.7 * K.T @ K @ (x - data.a)
    close(frame_mean(lambda z: problem.f2(i, z, problem.solution(i, data, z)), x, basis()), expected)


def test_the_corner_is_separable_with_a_plateau():
    """f_j = 1/2 for x_j >= 0, else (x_j + 1)^2 / 2; one projected step is max(x, 0). Mutations: min for max; x - 1."""
    x = np.array([-3.0, -1.0, -0.25, 0.0, 0.5, 2.0])
    problem = Corner(len(x))
    expected = np.where(x >= 0, 0.5, (x + 1) ** 2 / 2)
    close(problem.f2(0, x, problem.solution(0, None, x)), expected.sum())
    close([Corner(1).score(x[j : j + 1], None)["loss"] for j in range(6)], expected)
