"""[A] Algorithms 1 and 2 and Proposition 1 on problems with closed forms.

They need the problem, the estimate and the descent, not the method. Each docstring names the mutations to catch.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.numerics import zo
from zofl_mpi.numerics.schedules import stepsizes
from zofl_mpi.problems.analytic.quadratic import Bowl, Corner, Quadratic

STREAMS = Streams(7)
n, m, eta, H, B = 5, 3, 0.4, 12, 4


def random(noise=0.0, **settings):
    problem, _, clients = Quadratic.random(STREAMS, n, m, lam=1.7, noise=noise, **settings)
    return problem, clients


def point(t=9, n=n):
    return STREAMS(Purpose.START, t=t).standard_normal(n)


def frame():
    return np.linalg.qr(STREAMS(Purpose.START).standard_normal((n, n)))[0].T


def batches(purpose=Purpose.BATCH, H=H, N=32):
    return STREAMS(purpose).integers(0, N, (H, B))


def frame_mean(loss, x):
    """What step 5 of Algorithm 1 gives on the average over an orthonormal frame."""
    return np.mean([zo.central(loss, x, v, eta) for v in frame()], axis=0)


def close(a, b, tolerance=1e-12):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("i", range(m))
def test_a_exact_lower_solution_gives_the_implicit_gradient(i):
    """(a) grad = m rho_i lam K'K (x - a), K = (A + mu I)^{-1} A.

    Mutations: factor m, rho_i, 1/2 in f_2; mu's sign in y_i.
    """
    problem, clients = random()
    x, data = point(), clients[i]
    K = np.linalg.inv(data.A + problem.mu[i] * np.eye(n)) @ data.A
    expected = m * problem.weights[i] * 1.7 * K.T @ K @ (x - data.a)
    close(frame_mean(lambda z: problem.f2(i, z, problem.solution(i, data, z)), x), expected)
    close(problem.implicit_gradient(i, data, x), expected)


def test_a_exact_solution_minimises_h():
    """grad_y h_i(x, y_i(x)) = 0 on all samples, and y -> A y + mu (y - x) has no drift.

    Mutation: sign of the proximal term.
    """
    problem, clients = random(noise=2.0)
    x = point()
    y = problem.solution(1, clients[1], x)
    close(problem.gradient_h(1, clients[1], x, y, np.arange(32)), 0 * x)
    assert np.linalg.norm(y - x) > 0.1


def lower(problem, data, i, z, samples, H=H):
    """LOCAL(z) with y_0 = z."""
    return problem.lower(i, data, z[None], z[None], samples, stepsizes("harmonic", 0.3, H))[0]


def test_b_steps_of_local_give_the_gradient_through_the_steps():
    """(a') x -> y_H = M x + c is affine, so the frame average is m rho_i lam (I - M)'(x - y_H), noise included.

    Mutations: noise that depends on the point or on the call; the proximal term left out; f_2 at y_i(x) in place of
    y_H.
    """
    problem, clients = random(noise=1.0)
    x, data, samples = point(), clients[2], batches()
    c = lower(problem, data, 2, np.zeros(n), samples)
    M = np.stack([lower(problem, data, 2, e, samples) - c for e in np.eye(n)], axis=1)
    expected = m * problem.weights[2] * 1.7 * (np.eye(n) - M).T @ (x - lower(problem, data, 2, x, samples))
    close(frame_mean(lambda z: problem.f2(2, z, lower(problem, data, 2, z, samples)), x), expected)
    assert np.linalg.norm(expected - problem.implicit_gradient(2, data, x)) > 0.01


def test_other_samples_in_the_second_solve_spoil_the_estimate():
    """With other mini-batches at x - eta v the frame average misses (a') by a third: the previous test can fail."""
    problem, clients = random(noise=1.0)
    x, data = point(), clients[2]

    def loss(z, samples):
        return problem.f2(2, z, lower(problem, data, 2, z, samples))

    def mean(minus):
        pairs = [(loss(x + eta * v, batches()) - loss(x - eta * v, batches(minus)), v) for v in frame()]
        return np.mean([zo.estimate(difference, v, 2 * eta) for difference, v in pairs], axis=0)

    shared = mean(Purpose.BATCH)
    assert np.linalg.norm(mean(Purpose.BATCH_MINUS) - shared) > 0.1 * np.linalg.norm(shared)


def test_points_that_are_solved_together_see_the_same_samples():
    """Two points in one call are the two points in two calls. Mutation: noise drawn per row of y."""
    problem, clients = random(noise=1.0)
    xs = np.stack([point(1), point(2)])
    together = problem.lower(0, clients[0], xs, xs, batches(), stepsizes("harmonic", 0.3, H))
    close(together, [lower(problem, clients[0], 0, x, batches()) for x in xs])


@pytest.mark.parametrize("mu", [1e2, 1e4, 1e6])
def test_d_a_large_mu_ties_y_to_x_and_removes_the_gradient(mu):
    """(d) mu |y - x| -> |A (x - a)|; also with LOCAL's steps below 1 / (L + mu). Mutation: mu on the wrong side."""
    problem, clients = random()
    problem, data, x = replace(problem, mu=np.full(m, mu)), clients[0], point()
    force = np.linalg.norm(data.A @ (x - data.a))
    assert abs(mu * np.linalg.norm(problem.solution(0, data, x) - x) / force - 1) < 3 / mu
    assert np.linalg.norm(problem.implicit_gradient(0, data, x)) < 10 * force / mu
    steps = np.full(50, 1 / (2 + mu))
    y = problem.lower(0, data, x[None], x[None], batches(H=50), steps)[0]
    close(y, problem.solution(0, data, x), 1e-10)


def test_e_corner_is_separable_with_a_plateau():
    """(e) f_j = 1/2 for x_j >= 0, else (x_j + 1)^2 / 2. Mutations: min for max; x - 1."""
    x = np.array([-3.0, -1.0, -0.25, 0.0, 0.5, 2.0])
    problem = Corner(len(x))
    expected = np.where(x >= 0, 0.5, (x + 1) ** 2 / 2)
    close(problem.f2(0, x, problem.solution(0, None, x)), expected.sum())
    close([Corner(1).score(x[j : j + 1], None)["loss"] for j in range(6)], expected)
    close(problem.implicit_gradient(np.array([-3.0, -0.25, 0.5])), [-2, 0.75, 0])


def test_e_local_steps_reach_the_corner_solution():
    """One step of size 1 on h = 1/2 |y - x|^2, projected, is max(x, 0). Mutation: no projection."""
    xs = np.array([[-1.0, 2.0], [0.5, -0.1]])
    y = Corner(2).lower(0, None, xs, np.ones((2, 2)), np.zeros((1, 1), int), np.ones(1))
    close(y, np.maximum(xs, 0))


def descend_f2(problem, clients, rounds=4000):
    """Gradient descent on (1/m) sum_i f_{2,i}(x, y_i(x)) by exact frame averages."""
    x = point()
    for _ in range(rounds):
        parts = [frame_mean(lambda z, i=i: problem.f2(i, z, problem.solution(i, clients[i], z)), x) for i in range(m)]
        x = x - 0.5 * np.sum(parts, axis=0) / m
        if np.linalg.norm(parts) < 1e-13:
            break
    return x


def test_f_minimising_the_coupling_of_equal_clients_agrees_with_all():
    """(f) grad L_i(x) -> 0 and x = y_i(x). Mutation: f_2 without the difference x - y."""
    problem, clients = random(spectrum=(1.0, 2.0))
    problem = replace(problem, mu=np.full(m, 1.0))
    x = descend_f2(problem, [clients[0]] * m, rounds=400)
    close(x, clients[0].a, 1e-9)
    close(x, problem.solution(0, clients[0], x), 1e-9)


def test_f_minimising_the_coupling_of_unequal_clients_is_a_weighted_least_squares():
    """(f) x = (sum rho_i K_i'K_i)^{-1} sum rho_i K_i'K_i a_i, f_2 > 0. Mutations: rho_i left out or taken twice."""
    problem, clients = random(spectrum=(1.0, 2.0))
    squares = []
    for i, data in enumerate(clients):
        K = np.linalg.solve(data.A + problem.mu[i] * np.eye(n), data.A)
        squares.append(problem.weights[i] * K.T @ K)
    expected = np.linalg.solve(sum(squares), sum(S @ data.a for S, data in zip(squares, clients, strict=True)))
    x = descend_f2(problem, clients, rounds=400)
    close(x, expected, 1e-9)
    assert sum(problem.f2(i, x, problem.solution(i, clients[i], x)) for i in range(m)) > 0.01


def test_g_every_iterate_stays_in_the_ball():
    """(g) |y_t - x| <= radius for t >= 1, and the bound is reached.

    Mutations: projecting once at the end or onto a ball around 0.
    """
    problem, clients = random(noise=1.0, radius=0.05)
    x = 3 + point()
    distances = [np.linalg.norm(lower(problem, clients[0], 0, x, batches()[:t], t) - x) for t in range(1, H + 1)]
    assert max(distances) <= 0.05 * (1 + 1e-14)
    assert max(distances) > 0.049


def test_g_a_ball_of_radius_zero_leaves_x():
    """(g) y = x, bit for bit, and the estimate is 0."""
    problem, clients = random(noise=1.0, radius=0.0)
    x, v = point(), frame()[0]
    assert np.array_equal(lower(problem, clients[0], 0, x, batches()), x)
    assert np.all(zo.central(lambda z: problem.f2(0, z, lower(problem, clients[0], 0, z, batches())), x, v, eta) == 0)


def test_the_server_gradient_belongs_to_f1():
    """Over all samples it is the slope of f_1 (central differences are exact); a batch has its samples' noise.

    Mutation: sum for mean.
    """
    problem, server, _ = Quadratic.random(STREAMS, n, m, noise=1.0)
    x = point()
    close(problem.gradient_f1(x, server, np.arange(32)), frame_mean(lambda z: problem.f1(z, server), x))
    batch = np.array([3, 3, 5])
    noise = (2 * server.noise[3] + server.noise[5]) / 3
    close(problem.gradient_f1(x, server, batch) - problem.gradient_f1(x, server, np.arange(32)), noise)


def test_random_problems_depend_on_the_seed_alone():
    first, again, other = (Quadratic.random(Streams(s), n, m, noise=1.0)[2] for s in (1, 1, 2))
    assert np.array_equal(first[1].noise, again[1].noise)
    assert np.array_equal(first[1].A, again[1].A)
    assert not np.allclose(first[1].A, other[1].A)
    assert not np.allclose(first[1].A, first[2].A)


def proximal_only(noise):
    """h with mu_h = 1 in many independent coordinates: A = 0.5 I, mu = 0.5."""
    size = 300
    generator = STREAMS(Purpose.NOISE, t=5)
    table = noise * generator.standard_normal((512, size))
    problem = Quadratic(size, np.ones(1), np.full(1, 0.5))
    return problem, Bowl(0.5 * np.eye(size), point(3, size), table - table.mean(axis=0))


def mean_square_errors(c, noise, lengths):
    problem, data = proximal_only(noise)
    x = np.zeros(problem.n)
    samples = STREAMS(Purpose.BATCH, t=5).integers(0, 512, (max(lengths), 1))
    y, error, start = x[None], {}, 0
    for length in lengths:
        part = slice(start, length)
        y = problem.lower(0, data, x[None], y, samples[part], stepsizes("harmonic", c, length)[part])
        error[length] = np.mean((y[0] - problem.solution(0, data, x)) ** 2)
        start = length
    return np.log(lengths), np.log([error[length] for length in lengths])


def test_proposition_1_holds_for_steps_with_c_mu_at_2():
    """E |y_H - y*|^2 = O(1/H) with gt_t = 2/(t+1), mu_h = 1.

    Mutations: constant or 1/sqrt(t+1) steps; steps that start at t = 1.
    """
    logs, errors = mean_square_errors(2.0, 1.0, [50, 100, 200, 400, 800, 1600, 3200])
    assert abs(np.polyfit(logs, errors, 1)[0] + 1) < 0.1


def test_the_printed_steps_forget_the_start_only_as_H_to_the_minus_a_fifth():
    """0.1/(t+1), mu_h = 1: error = prod (1 - 0.1/(t+1)) = Gamma(H + 0.9) / (Gamma(0.9) Gamma(H + 1)).

    Squared about H^-0.2. Mutation: any other step size.
    """
    lengths = [10, 100, 1000]
    logs, errors = mean_square_errors(0.1, 0.0, lengths)
    assert abs(np.polyfit(logs, errors, 1)[0] + 0.2) < 0.005
    for before, after in ((0, 1), (1, 2)):
        gammas = [math.lgamma(lengths[j] + 0.9) - math.lgamma(lengths[j] + 1) for j in (before, after)]
        close(errors[after] - errors[before], 2 * (gammas[1] - gammas[0]), 1e-10)
