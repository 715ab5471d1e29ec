"""Identities of the zeroth-order estimates. Each docstring names the mutations of zo.py that its test must catch."""

from itertools import combinations, product

import numpy as np
import pytest

from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.numerics import zo

STREAMS = Streams(20240607)
n, mu = 6, 0.3


def generator(t: int = 0) -> np.random.Generator:
    return STREAMS(Purpose.SYNTHETIC, t=t)


def quadratic(n: int = n):
    """A quadratic with an indefinite Hessian, its gradient, its Hessian."""
    B, c = generator().standard_normal((n, n)), generator(1).standard_normal(n)
    A = (B + B.T) / 2
    return lambda x: x @ A @ x / 2 + c @ x + 0.7, lambda x: A @ x + c, A


def frame(n: int = n):
    """Orthonormal directions, one per row."""
    return np.linalg.qr(generator(2).standard_normal((n, n)))[0].T


def cubic(x):
    return float(np.sum(x**3))


def directions(count: int, n: int, distribution: zo.Distribution = "sphere"):
    return [zo.direction(STREAMS(Purpose.DIRECTION, r=r), n, distribution=distribution) for r in range(count)]


def one_sided(F, x, v, mu, distribution="sphere"):
    """n / mu (F(x + mu v) - F(x)) v, as the methods of [B] and [C] form it."""
    return zo.estimate(F(x + mu * v) - F(x), v, mu, distribution)


def close(a, b, tolerance=1e-12):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def within_5_sigma(samples, mean):
    samples = np.asarray(samples)
    error = samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(axis=0) - mean) < 5 * error)
    assert np.all(error < 0.2 * np.maximum(1, np.abs(mean)))  # the bound above says something


def test_central_over_a_frame_is_the_gradient_of_a_quadratic():
    """Mutations: no factor n; span mu for 2 mu; the two points exchanged; x - mu v replaced by x."""
    F, gradient, _ = quadratic()
    x = generator(3).standard_normal(n)
    close(np.mean([zo.central(F, x, v, mu) for v in frame()], axis=0), gradient(x))


def test_one_sided_over_a_frame_and_its_negative_is_the_gradient_of_a_quadratic():
    """Mutations: no factor n; span 2 mu for mu; sign; F(x) replaced by F(x - mu v)."""
    F, gradient, _ = quadratic()
    x = generator(3).standard_normal(n)
    estimates = [one_sided(F, x, s * v, mu) for v in frame() for s in (1, -1)]
    close(np.mean(estimates, axis=0), gradient(x))


def test_one_sided_over_a_plain_frame_is_off_by_its_second_order_term():
    """Mutation: central in place of one-sided, which would be exact here."""
    F, gradient, A = quadratic()
    x = generator(3).standard_normal(n)
    bias = mu / 2 * sum((v @ A @ v) * v for v in frame())
    assert np.linalg.norm(bias) > 0.05
    close(np.mean([one_sided(F, x, v, mu) for v in frame()], axis=0), gradient(x) + bias)


@pytest.mark.parametrize("phase", [0.0, 0.1234])
@pytest.mark.parametrize("form", [one_sided, zo.central])
def test_cubic_over_an_octagon_is_the_gradient_smoothed_over_the_ball(form, phase):
    """Mutations: any change of factor or span; moving by a radius other than mu (sphere smoothing has 3 mu^2 / d)."""
    x = np.array([0.7, -1.1])
    angles = phase + np.arange(8) * np.pi / 4
    estimates = [form(cubic, x, np.array([np.cos(a), np.sin(a)]), mu) for a in angles]
    close(np.mean(estimates, axis=0), 3 * x**2 + 3 * mu**2 / 4, 1e-13)


@pytest.mark.parametrize("x", [-1.0, -0.2, 0.0, 0.05, 0.3, 2.0])
def test_in_one_dimension_central_has_no_randomness(x):
    """|x| gives clip(x / mu, -1, 1), the derivative of its smoothed form. Mutations: sign of v kept once; span."""
    for v in directions(4, 1):
        close(zo.central(lambda y: abs(float(y[0])), np.array([x]), v, mu), np.clip(x / mu, -1, 1))


@pytest.mark.parametrize("form", [one_sided, zo.central])
@pytest.mark.parametrize(("distribution", "smoothing"), [("sphere", 3 / 7), ("gaussian", 3.0)])
def test_estimates_are_unbiased_for_the_smoothed_cubic(form, distribution, smoothing):
    """d = 5: ball smoothing adds 3 mu^2 / (d + 2), Gaussian smoothing 3 mu^2.

    Mutations: factor n with normal directions or without it on the sphere; directions that are not uniform (uniform
    entries).
    """
    x = np.array([0.5, -0.3, 0.8, 0.0, -0.6])
    estimates = [form(cubic, x, v, 1.0, distribution) for v in directions(20_000, 5, distribution)]
    within_5_sigma(estimates, 3 * x**2 + smoothing)


def test_normal_form_with_sphere_directions_times_root_n_is_the_sphere_form():
    """Sample by sample, with a radius sqrt(n) times as large. Mutation: factor n in the normal form."""
    x = generator(3).standard_normal(n)
    for form, v in product((one_sided, zo.central), directions(5, n)):
        close(form(cubic, x, np.sqrt(n) * v, mu / np.sqrt(n), "gaussian"), form(cubic, x, v, mu))


@pytest.mark.parametrize(("distribution", "factor"), [("sphere", n), ("gaussian", n + 2)])
def test_second_moment_for_a_linear_loss(distribution, factor):
    """E |g|^2 = d |c|^2 on the sphere and (d + 2) |c|^2 for normal v.

    Mutations: directions not normalised; factor n.
    """
    c = generator(3).standard_normal(n)
    estimates = [
        zo.central(lambda x: float(c @ x), np.zeros(n), v, mu, distribution)
        for v in directions(20_000, n, distribution)
    ]
    within_5_sigma([g @ g / (c @ c) for g in estimates], factor)
    within_5_sigma(estimates, c)


def test_directions_are_isotropic_and_of_norm_one():
    """E v v' = I / n. Mutations: normalising by the largest entry; drawing from the cube."""
    vs = np.array(directions(20_000, n))
    close(np.linalg.norm(vs, axis=1), 1)
    within_5_sigma(vs, np.zeros(n))
    within_5_sigma(np.einsum("ri,rj->rij", vs, vs)[:, *np.triu_indices(n)], np.eye(n)[np.triu_indices(n)] / n)


@pytest.mark.parametrize(("form", "order"), [(one_sided, 1), (zo.central, 2)])
def test_estimates_tend_to_the_directional_derivative(form, order):
    """n <grad F, v> v, with the order in mu. Mutations: no factor n; central replaced by one-sided."""
    x, v = generator(3).standard_normal(n), directions(1, n)[0]
    radii = np.array([0.1, 0.05, 0.025, 0.0125])
    errors = [np.linalg.norm(form(cubic, x, v, radius) - n * (3 * x**2 @ v) * v) for radius in radii]
    slope = np.polyfit(np.log(radii), np.log(errors), 1)[0]
    assert abs(slope - order) < 0.1


def vertices_of_the_24_cell():
    """24 unit vectors in 4 dimensions over which polynomials of degree 5 have their mean over the sphere."""
    rows = np.zeros((24, 4))
    for row, ((i, j), (s, t)) in zip(rows, product(combinations(range(4), 2), product((1, -1), repeat=2)), strict=True):
        row[i], row[j] = s, t
    return rows / np.sqrt(2)


def test_sgd_on_the_central_estimate_is_mean_square_stable_up_to_the_predicted_step():
    """Stable iff sum_j g h_j / (2 (1 - g h_j)) < 1, g = gamma d / (d + 2). Mutations: factor n; span."""
    h = np.array([1.0, 0.5, 0.2, 0.1])
    vs = vertices_of_the_24_cell()

    def radius(gamma):
        steps = [
            np.eye(4) - gamma * np.stack([zo.central(lambda x: x @ (h * x) / 2, e, v, mu) for e in np.eye(4)], 1)
            for v in vs
        ]
        return max(abs(np.linalg.eigvals(np.mean([np.kron(S, S) for S in steps], axis=0))))

    low, high = 0.0, 1 / max(h)
    for _ in range(100):
        g = (low + high) / 2
        low, high = (g, high) if np.sum(g * h / (2 * (1 - g * h))) < 1 else (low, g)
    gamma = low * (4 + 2) / 4
    close(radius(gamma), 1, 1e-10)
    assert radius(0.99 * gamma) < 1 - 1e-4
    assert radius(1.01 * gamma) > 1 + 1e-4


def test_a_direction_depends_on_its_key_alone_and_is_cast_once():
    """Mutations: drawing or normalising in float32."""
    first = zo.direction(STREAMS(Purpose.DIRECTION, r=3, i=7), 1000)
    again = zo.direction(STREAMS(Purpose.DIRECTION, r=3, i=7), 1000, np.float32)
    z = STREAMS(Purpose.DIRECTION, r=3, i=7).standard_normal(1000)
    close(first, z / np.linalg.norm(z), 1e-15)
    assert again.dtype == np.float32
    assert np.array_equal(first.astype(np.float32), again)
    assert not np.array_equal(first, zo.direction(STREAMS(Purpose.DIRECTION, r=3, i=8), 1000))


def test_the_estimate_of_a_float32_direction_is_formed_in_float64():
    """Mutation: rounding the scale to float32 first."""
    v = zo.direction(generator(), 7840, np.float32)
    g = zo.estimate(1 / 3, v, 0.2)
    assert g.dtype == np.float64
    close(g, 7840 * (1 / 3) / 0.2 * v.astype(np.float64), 1e-15)


def test_the_estimate_of_a_tensor_is_a_tensor():
    torch = pytest.importorskip("torch")
    v = torch.tensor([0.6, 0.8])
    g = zo.estimate(0.5, v, 0.1)
    assert g.dtype == v.dtype
    close(g.numpy(), 10 * np.array([0.6, 0.8]), 1e-6)
