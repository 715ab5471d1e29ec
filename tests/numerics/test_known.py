"""Problems with known solutions: closed forms against central differences, optimality conditions and grids.

Each docstring names the mutations to catch.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.numerics.first_order import STREAMS, close, m, n, vector
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.numerics import zo
from zofl_mpi.problems.analytic.bilevel import BilevelBowls, Coupled
from zofl_mpi.problems.analytic.nonsmooth import Bowls, MaxAffine
from zofl_mpi.problems.analytic.quadratic import Corner, Quadratic, QuadraticData

eta, N = 0.3, 32


def basis(first=None, size=n):
    """(size, size) orthonormal rows, the first one along `first`."""
    columns = STREAMS(Purpose.START, r=1).standard_normal((size, size))
    if first is not None:
        columns[:, 0] = first
    return np.linalg.qr(columns)[0].T


def frame_mean(loss, x, frame, radius=eta):
    return np.mean([zo.central(loss, x, v, radius) for v in frame], axis=0)


def mean_loss(problem, clients, batch=None):
    return lambda x: float(np.mean([problem.losses(i, x[None], data, batch)[0] for i, data in enumerate(clients)]))


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


@pytest.mark.parametrize("clients_count", [1, 4, 5])
def test_the_weighted_median_is_the_minimiser(clients_count):
    """No slope out of x* along the basis is negative, where f is a sum of functions of one variable each; the value is
    f(x*). Mutations: the median without weights, the mean, a coordinate system mixed up, a value without 1/m."""
    problem, _, clients = MaxAffine.random(STREAMS, n, clients_count)
    f, (x, value) = mean_loss(problem, clients), problem.truth()
    axes = clients[0].slopes[:, 0] / np.linalg.norm(clients[0].slopes[:, 0], axis=1, keepdims=True)
    close(f(x), value)
    close(problem.score(x, clients)["loss"], value)
    slopes = [(f(x + s * q) - value) / 1e-3 for q in axes for s in (1e-3, -1e-3)]
    assert min(slopes) > 1e-3  # sharp
    for t in range(100):
        assert f(x + 10.0 ** (1 - t % 5) * vector(t)) > value


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


# --- both with samples


@pytest.mark.parametrize("make", [MaxAffine.random, Bowls.random])
def test_losses_of_a_batch_share_their_samples(make):
    """A batch adds <the mean of its samples' noise, x> to every row; all samples add nothing. Mutations: noise per row,
    a sum over the batch, noise that does not sum to 0, a noise the server shares with a client."""
    problem, server, clients = make(STREAMS, n, m, noise=1.5)
    xs = np.stack([vector(1), vector(2), vector(3)])
    batch = np.array([3, 3, 7])
    for i, data in enumerate(clients):
        plain = problem.losses(i, xs, replace(data, noise=0 * data.noise))
        noise = (2 * data.noise[3] + data.noise[7]) / 3
        close(problem.losses(i, xs, data, batch), plain + xs @ noise)
        close(problem.losses(i, xs, data), plain)
        close([problem.losses(i, x[None], data, batch)[0] for x in xs], problem.losses(i, xs, data, batch))
        assert len(data) == N == len(data.noise) and np.std(data.noise) == pytest.approx(1.5, rel=0.2)
        assert not np.allclose(data.noise, server.noise)
        assert np.array_equal(problem.project(i, xs[0]), xs[0])


@pytest.mark.parametrize("cls", [MaxAffine, Bowls, BilevelBowls])
def test_random_problems_depend_on_the_seed_alone(cls):
    first, again, other = (cls.random(Streams(s), n, m, noise=1.0)[0].truth() for s in (1, 1, 2))
    assert np.array_equal(first[0], again[0]) and first[1] == again[1]
    assert not np.allclose(first[0], other[0])


# --- Bowls


def test_a_random_bowl_is_drawn_when_it_is_looked_at():
    """Mutations: drawn for its length; drawn anew for each of its parts."""
    bowl = Quadratic.random(STREAMS, n, m, samples=7, noise=1.0)[2][1]
    assert len(bowl) == 7 and "A" not in vars(bowl)
    noise = bowl.noise
    assert noise.shape == (7, n) and bowl.noise is noise and replace(bowl).noise is noise and len(replace(bowl)) == 7
    assert not hasattr(bowl, "drawn")


def test_the_mean_of_the_bowls_is_flat_at_the_truth():
    """Also where the noise does not sum to 0. Mutations: mean of the a_i, the drift's sign, a value without 1/m."""
    problem, _, clients = Bowls.random(STREAMS, n, m, noise=1.0)
    tilted = [replace(data, noise=data.noise + vector(i)) for i, data in enumerate(clients)]
    for one, data in ((problem, clients), (Bowls.of(tilted), tilted)):
        x, value = one.truth()
        close(np.mean([one.gradient(x, bowl) for bowl in data], axis=0), 0 * x)
        close(mean_loss(one, data)(x), value)
        close(one.score(x, data)["loss"], value)
        assert min(mean_loss(one, data)(x + 1e-2 * vector(t)) for t in range(20)) > value
        assert np.linalg.norm(x - np.mean([bowl.a for bowl in data], axis=0)) > 0.05
    data = QuadraticData(np.eye(2), np.ones(2), np.zeros((1, 2)))
    problem = Bowls.of([data])
    assert problem.score(np.zeros(2), data) == problem.score(np.zeros(2), [data, data]) == {"loss": 1.0}


# --- BilevelBowls


def bilevel(**settings):
    return BilevelBowls.random(STREAMS, n, m, n_lower=3, rho=0.7, noise=1.0, noise_upper=1.0, **settings)


def f(problem, clients, x, y):
    values = [problem.f(i, x[None], y[None], problem.parts(data)[0])[0] for i, data in enumerate(clients)]
    return float(np.mean(values))


def test_the_implicit_function_and_its_minimiser():
    """F(x) = f(x, y(x)), its gradient by central differences, zero at the truth. Mutations: rho, P', the c_i left out
    of M x*, the mean of the C_i's minimisers."""
    problem, _, clients = bilevel()

    def F(x):
        return f(problem, clients, x, problem.solution(x, clients))

    for t in range(3):
        close(problem.implicit(vector(t)), F(vector(t)))
        close(problem.hessian @ (vector(t) - problem.minimiser), frame_mean(F, vector(t), basis()), 1e-11)
    x, value = problem.truth()
    close(frame_mean(F, x, basis()), 0 * x, 1e-11)
    close(F(x), value)
    close(problem.score(x, problem.solution(x, clients), clients)["loss"], value)
    assert min(F(x + 1e-2 * vector(t)) for t in range(20)) > value
    assert np.linalg.norm(problem.hessian @ problem.minimiser) > 0.01


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


@pytest.mark.parametrize(("order", "where"), [("min-max", (0.5, -0.5)), ("max-min", (-1, 1))])
def test_the_solution_by_a_grid(order, where):
    """For max-min the outer variable is the printed y. Mutations: y(x) = x, the constraint's sign, a value with the
    other sign; the two not exchanged, h = f, min(0, .) left out."""
    problem, values, inner = Coupled(order), [], []
    sign = 1 if order == "min-max" else -1
    for outer in GRID:
        points = GRID[GRID + outer <= 1e-12]
        of = sign * (outer**2 + points if sign == 1 else points**2 + outer)  # x^2 + y
        inner.append(points[np.argmax(of)])
        values.append(of.max())
        close(problem.solution(np.array([outer]), None), inner[-1])
        close(problem.implicit(np.array([outer])), values[-1])
    best = int(np.argmin(values))
    assert (GRID[best], inner[best])[::sign] == pytest.approx(where)
    x, value = problem.truth()
    close(x, GRID[best])
    close(value, values[best])
    assert (x[0], problem.solution(x, None)[0])[::sign] == pytest.approx(where)


@pytest.mark.parametrize("order", ["min-max", "max-min"])
def test_h_is_minus_f(order):
    """Mutation: the sign of the gradient."""
    problem = Coupled(order)
    for x, y in ((0.3, -0.6), (-0.9, 0.2)):
        x, y = np.array([x]), np.array([y])
        slope = zo.central(lambda z, x=x: -problem.f(0, x[None], z[None], None)[0], y, np.ones(1), 1e-3)
        close(problem.gradient_h(0, x, y, None), slope, 1e-9)
    rows = problem.f(0, np.array([[0.1], [0.2]]), np.array([[0.5], [-0.5]]), None)
    assert rows.shape == (2,)
    close(problem.score(np.array([0.2]), np.array([-0.5]), None)["loss"], rows[1])


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
    xs = np.array([[-1.0, 2.0], [0.5, -0.1]])
    close(Corner(2).solve_client(0, None, xs, np.ones((2, 2)), np.zeros((1, 1), int), np.ones(1)), np.maximum(xs, 0))
