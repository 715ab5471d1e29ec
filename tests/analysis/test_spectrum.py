"""Lanczos quadrature, Hutchinson's trace and Hessian-vector products, against matrices whose spectrum is known.

Tolerances: float64, sizes of at most 60, so 1e-10 of the largest eigenvalue is far above rounding and far below any
mistake; statistical ones are 5 standard errors, from seeds that are written here. Docstrings name the mutations to
catch.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from shared.spectrum import (
    Apply,
    Norm,
    Ritz,
    Spectrum,
    effective_rank,
    hessian_product,
    lanczos,
    local_hessian,
    mean,
    spectrum,
    trace,
)
from torch import Tensor, nn

from tests.analysis.made import explicit_hessian
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError
from zofl_mpi.numerics.zo import EstimateWithError
from zofl_mpi.problems.network import seeded
from zofl_mpi.problems.split import SplitNetwork
from zofl_mpi.problems.split_images import ResNet

STREAMS = Streams(5)


def diagonal(values: Any) -> Apply:
    """The operator v -> values * v, the Hessian of a diagonal quadratic."""
    h = torch.as_tensor(np.asarray(values, dtype=np.float64))
    return lambda v: h * v


def rotated(values: Any, seed: int = 1) -> tuple[Apply, np.ndarray]:
    """An operator with these eigenvalues in a random frame, and its matrix."""
    n = len(values)
    q, _ = np.linalg.qr(Streams(seed)(Purpose.SYNTHETIC).standard_normal((n, n)))
    matrix = q @ np.diag(values) @ q.T
    matrix = (matrix + matrix.T) / 2
    tensor = torch.from_numpy(matrix)
    return lambda v: tensor @ v, matrix


def start(n: int, seed: int = 2) -> Tensor:
    return torch.from_numpy(Streams(seed)(Purpose.SYNTHETIC).standard_normal(n))


def counted(apply: Apply) -> tuple[Apply, list[int]]:
    """The operator, and a list that grows with its products."""
    calls: list[int] = []

    def other(v: Tensor) -> Tensor:
        calls.append(1)
        return apply(v)

    return other, calls


# --- Lanczos


def shares(v: Tensor, vectors: np.ndarray | None = None) -> np.ndarray:
    """The squares of a start's entries along the vectors (the axes), of sum 1."""
    entries = v.numpy() if vectors is None else vectors.T @ v.numpy()
    return (entries / np.linalg.norm(entries)) ** 2


def test_as_many_steps_as_numbers_give_a_spectrum_exactly() -> None:
    """The Ritz values are the eigenvalues, the weights the squares of the start's entries, whatever its size. Of a
    dense matrix they are those of LAPACK, over 8 decades. Mutations: the weights of another row of the eigenvectors,
    not squared; a coefficient of T left out or shifted; one pass of orthogonalisation against the last two vectors
    only, or none: copies of the extreme eigenvalues appear."""
    values = np.array([-3.0, -1.0, 0.0, 0.5, 2.0, 4.0, 7.0, 7.5, 20.0])
    v = start(len(values))
    for scale in (1.0, 1e-20):
        found = lanczos(diagonal(values), scale * v, len(values))
        np.testing.assert_allclose(found.values, values, atol=1e-10)
        np.testing.assert_allclose(found.weights, shares(v), atol=1e-10)
        assert found.residuals.max() < 1e-10
    apply, matrix = rotated(np.geomspace(1e-6, 100, 60) * np.resize([1, -1, 1], 60))
    np.testing.assert_allclose(lanczos(apply, start(60), 60).values, np.linalg.eigvalsh(matrix), atol=1e-9)


@pytest.mark.parametrize("values", [[2.0] * 30, [0.0] * 30, [1.0] * 10 + [5.0] * 19 + [-4.0], [0.0] * 29 + [3.0]])
@pytest.mark.parametrize("frame", ["axes", "random"])
def test_multiplicities_end_it_early_with_their_shares(values: list[float], frame: str) -> None:
    """As many nodes as different eigenvalues, whatever the steps; each weight the start's share in that eigenspace.
    Mutations: no end at an invariant space (it then divides by nothing: not-a-number); an end only at exactly 0."""
    n, v = len(values), start(len(values))
    apply, matrix = (diagonal(values), np.diag(values)) if frame == "axes" else rotated(values)
    eigenvalues, vectors = np.linalg.eigh(matrix)
    apply, calls = counted(apply)
    found = lanczos(apply, v, 25)
    there = found.weights > 1e-12  # in a random frame the operator itself is rounded: further nodes may have no weight
    expected, place = np.unique(np.round(eigenvalues, 8), return_inverse=True)
    np.testing.assert_allclose(found.values[there], expected, atol=1e-10)
    np.testing.assert_allclose(found.weights[there], np.bincount(place, shares(v, vectors)), atol=1e-10)
    assert found.residuals[there].max() < 1e-9 and len(calls) == len(found.values) < n
    assert frame == "random" or len(found.values) == len(expected)


def test_k_steps_integrate_polynomials_below_degree_2k_exactly() -> None:
    """Gauss's quadrature; two clusters are two lumps of the right weights. Mutation: fewer products than steps."""
    values, v = np.linspace(-1, 1, 40), start(40)
    apply, calls = counted(diagonal(values))
    found = lanczos(apply, v, 5)
    assert len(calls) == len(found.values) == 5
    for degree in range(10):
        assert found.weights @ found.values**degree == pytest.approx(shares(v) @ values**degree, abs=1e-13)
    assert abs(found.weights @ found.values**10 - shares(v) @ values**10) > 1e-6
    near = 1e-6 * STREAMS(Purpose.SYNTHETIC).standard_normal(50)
    lumps = lanczos(diagonal(near + np.repeat([1, 1000], [40, 10])), start(50), 6)
    assert np.all((abs(lumps.values - 1) < 1e-4) | (abs(lumps.values - 1000) < 1e-4))
    assert lumps.weights[lumps.values < 500].sum() == pytest.approx(shares(start(50))[:40].sum(), abs=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 5, 12])
def test_a_residual_is_that_of_the_ritz_vector(steps: int) -> None:
    """Against Rayleigh and Ritz by hand: an orthonormal basis of the Krylov space by QR. Mutations: the residual of
    another start vector's row; of the step before."""
    values = np.concatenate([np.linspace(-1, 1, 30), [3.0, -2.5]])
    v = start(32).numpy()
    found = lanczos(diagonal(values), torch.from_numpy(v), steps)
    krylov = [v / np.linalg.norm(v)]
    for _ in range(steps - 1):
        krylov.append(values * krylov[-1] / np.linalg.norm(values * krylov[-1]))
    q, _ = np.linalg.qr(np.stack(krylov, axis=1))
    ritz, y = np.linalg.eigh(q.T @ (values[:, None] * q))
    np.testing.assert_allclose(found.values, ritz, atol=1e-7)
    residuals = np.linalg.norm(values[:, None] * (q @ y) - q @ y * ritz, axis=0)
    np.testing.assert_allclose(found.residuals, residuals, atol=1e-7)
    assert np.all(abs(values[:, None] - found.values).min(axis=0) <= found.residuals + 1e-12)


def test_residuals_count_the_rounding_of_the_products() -> None:
    """With products in float32 they are neither 0 nor large, and cover the eigenvalues' errors. Mutations: the residual
    of exact products, 1e-20 for an eigenvalue that is known to 1e-7; coefficients that are themselves rounded to
    float32; more steps than numbers."""
    apply, matrix = rotated(np.append(np.linspace(-1, 1, 39), 50.0))
    single = torch.from_numpy(matrix).float()
    found = lanczos(lambda v: (single @ v.float()).double(), start(40), 60)
    errors = abs(found.values - np.linalg.eigvalsh(matrix))
    assert len(errors) == 40 and errors.max() > 1e-8
    assert np.all(errors <= found.residuals) and found.residuals.max() < 1e-4
    assert lanczos(apply, start(40), 40).residuals.max() < 1e-11


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_product_that_is_not_finite_is_refused(bad: float) -> None:
    """Mutation: LAPACK's own error, or not-a-number as a result."""
    with pytest.raises(UserError, match="not finite: the model or its loss has diverged"):
        lanczos(diagonal([1.0, bad, 2.0]), start(3), 3)


# --- the quadratures of several starts


def test_a_spectrum_has_its_starts_from_the_streams() -> None:
    """The same seed the same bits, another seed others; the starts differ; more of them leave the first as they are. n
    v'Hv is Hutchinson's estimate with the same vectors. Mutation: one generator for all."""
    apply, matrix = rotated(np.linspace(-1, 5, 50))
    one, same, few, other = (
        spectrum(apply, 50, Streams(s), steps=8, probes=p).ritz for s, p in ((1, 3), (1, 3), (1, 2), (2, 3))
    )
    assert len(one) == 3 and all(np.array_equal(a, b) for k in range(3) for a, b in zip(one[k], same[k], strict=True))
    assert all(np.array_equal(a.values, b.values) for a, b in zip(few, one[:2], strict=True))
    assert not np.array_equal(one[0].values, other[0].values) and not np.array_equal(one[0].values, one[1].values)
    for i, ritz in enumerate(one):
        z = Streams(1)(Purpose.SPECTRUM, r=1, i=i).standard_normal(50)
        assert ritz.weights @ ritz.values == pytest.approx((z @ matrix @ z) / (z @ z), abs=1e-12)


def test_the_norm_is_the_largest_size_of_an_eigenvalue_of_any_sign() -> None:
    """From below after few steps, as its residual says; that of the start that knows it best. Mutations: the largest
    eigenvalue in its place; the smallest or the mean over the starts; another end's or start's residual."""
    values = np.concatenate([np.linspace(-1, 1, 200), [-6.0, 5.0]])
    found = spectrum(diagonal(values), 202, STREAMS, steps=40, probes=3)
    assert found.norm.value == pytest.approx(6, abs=1e-9) and found.norm.sign == -1 and found.norm.residual < 1e-4
    assert found.ends == pytest.approx((-6, 5), abs=1e-9)
    assert spectrum(diagonal(-values), 202, STREAMS, steps=40, probes=3).norm.sign == 1
    near = Ritz(np.array([-1.0, 4.0]), np.array([0.5, 0.5]), np.array([0.3, 0.2]))
    far = Ritz(np.array([-1.5, 3.0]), np.array([0.5, 0.5]), np.array([0.7, 0.6]))
    assert Spectrum(2, (far, near)).norm == Norm(4.0, 0.2, 1) and Spectrum(2, (far, near)).ends == (-1.5, 4.0)
    short = spectrum(diagonal(np.linspace(0, 1, 500)), 500, STREAMS, steps=4, probes=5).norm
    assert short.value < 1 and short.residual > 1 - short.value > 1e-3


@pytest.mark.parametrize("width", [0.05, 0.5])
def test_the_density_is_the_mean_of_normals_and_integrates_to_1(width: float) -> None:
    """With all eigenvalues and all weights known: the sum by hand. Mutations: the factor of the normal; width for its
    square; weights left out; n in it."""
    values = np.array([-1.0, 0.0, 0.5, 2.0])
    found = spectrum(diagonal(values), 4, STREAMS, steps=4, probes=3)
    at = np.linspace(-8, 9, 20_001)
    normals = np.exp(-((at - values[:, None]) ** 2) / (2 * width**2)) / np.sqrt(2 * np.pi * width**2)
    np.testing.assert_allclose(found.density(at, width), [ritz.weights @ normals for ritz in found.ritz], atol=1e-9)
    assert np.trapezoid(found.density(at, width), at) == pytest.approx([1, 1, 1], abs=1e-9)


def test_densities_and_traces_of_many_starts_are_those_of_the_eigenvalues() -> None:
    """Within 5 standard errors, which are not too large. Mutations: starts that are not uniform in direction; n left
    out; the sum over starts."""
    values = np.concatenate([np.zeros(25), np.linspace(1, 2, 10), [8.0, 8.0, -3.0]])
    found = spectrum(diagonal(values), len(values), STREAMS, steps=len(values), probes=400)
    at = np.linspace(-4, 9, 60)
    rows = found.density(at, 0.3)
    exact = np.exp(-(((at[:, None] - values) / 0.3) ** 2) / 2).mean(axis=1) / (0.3 * math.sqrt(2 * math.pi))
    errors = rows.std(axis=0, ddof=1) / math.sqrt(len(rows))
    assert np.all(abs(rows.mean(axis=0) - exact) <= 5 * errors + 1e-9) and errors.max() < 0.1 * exact.max()
    for f in (lambda t: t, np.square, lambda t: np.maximum(t, 0)):
        told, known = found.trace_of(f), float(np.sum(f(values)))
        assert abs(told.value - known) <= 5 * told.error + 1e-9 and told.error <= 0.2 * abs(known)
    assert found.trace_of(np.ones_like) == pytest.approx((38, 0), abs=1e-9)


@pytest.mark.parametrize(("steps", "probes", "flag"), [(0, 1, "steps"), (1, 0, "probes")])
def test_nothing_to_do_is_refused(steps: int, probes: int, flag: str) -> None:
    with pytest.raises(UserError, match=f"--{flag} 0: must be a whole number, at least 1"):
        spectrum(diagonal([1.0]), 1, STREAMS, steps, probes)


# --- the trace


def test_hutchinsons_trace_is_exact_for_a_diagonal_and_unbiased_for_any() -> None:
    """2,000 probes: within 5 standard errors, which have the size that theory gives, 2 (|H|_F^2 - sum H_ii^2) a probe.
    Mutations: normal entries (no longer exact for a diagonal); entries 0 and 1; the variance for the error; n in it."""
    values = np.linspace(-2, 7, 30)
    told = trace(diagonal(values), 30, STREAMS, 5)
    assert told.value == pytest.approx(values.sum(), abs=1e-12) and told.error < 1e-12
    apply, matrix = rotated(values)
    told = trace(apply, 30, STREAMS, 2000)
    theory = math.sqrt(2 * (np.sum(matrix**2) - np.sum(np.diag(matrix) ** 2)) / 2000)
    assert abs(told.value - values.sum()) <= 5 * told.error
    assert told.error == pytest.approx(theory, rel=0.1)
    assert told == trace(apply, 30, STREAMS, 2000) != trace(apply, 30, Streams(6), 2000)


def test_a_mean_has_its_standard_error() -> None:
    """Mutations: division by n in place of n - 1; no square root of n."""
    assert mean(np.array([1.0, 2.0, 3.0, 6.0])) == pytest.approx((3.0, math.sqrt(14 / 3 / 4)))
    assert mean(np.array([4.0])).value == 4 and math.isnan(mean(np.array([4.0])).error)
    assert all(map(math.isnan, mean(np.array([]))))


def test_the_effective_rank_is_the_trace_over_the_norm() -> None:
    """Of a projection it is the rank. Mutation: the largest eigenvalue where the norm is that of a negative one."""
    values = np.array([1.0] * 7 + [0.0] * 20)
    norm = spectrum(diagonal(values), 27, STREAMS).norm
    assert effective_rank(trace(diagonal(values), 27, STREAMS, 3), norm) == pytest.approx((7, 0), abs=1e-9)
    assert effective_rank(EstimateWithError(6.0, 0.5), Norm(2.0, 0.1, -1)) == (3.0, 0.25)
    assert all(map(math.isnan, effective_rank(EstimateWithError(0.0, 0.0), Norm(0.0, 0.0, 0))))


# --- Hessians

SIDE, C = 6, 3
GENERATOR = STREAMS(Purpose.SYNTHETIC)
X = torch.from_numpy(GENERATOR.standard_normal((7, 1, SIDE, SIDE)))
LABELS = torch.from_numpy(GENERATOR.integers(0, C, 7))


def network(dtype: str = "float64") -> SplitNetwork:
    """A ResNet of two blocks, cut after the first one."""
    parts = seeded(lambda: ResNet(2, (1, 1), 1, "pooled").parts((1, SIDE, SIDE), C), STREAMS(Purpose.MODULE))
    return SplitNetwork(*parts, (1, SIDE, SIDE), C, dtype=dtype)


def point(problem: SplitNetwork) -> tuple[Tensor, Tensor]:
    """A model that is not a start: random parameters and positive statistics."""
    theta, buffers = problem.client_side.initial()
    generator = STREAMS(Purpose.START)
    theta += 0.3 * torch.from_numpy(generator.standard_normal(len(theta))).to(theta)
    buffers = torch.from_numpy(0.5 + generator.random(len(buffers))).to(buffers)
    return theta, buffers


@pytest.mark.parametrize("block", [2, 3, 100])
def test_products_are_those_of_the_explicit_hessian(block: int) -> None:
    """Of a ResNet's first block and head in eval mode, whatever the samples of a block. Mutations: BatchNorm in train
    mode; a mean of blocks without their sizes; the gradient's square in place of its derivative; the parts of v in
    another order; the blocks' last one only."""
    problem = network()
    theta, buffers = point(problem)
    before = theta.clone(), buffers.clone()
    matrix = explicit_hessian(problem, theta, buffers, X, LABELS)
    with local_hessian(problem, theta, buffers, X, LABELS, block) as apply:
        found = torch.stack([apply(row) for row in torch.eye(len(theta), dtype=torch.float64)])
    assert float(matrix.norm()) > 0.5
    torch.testing.assert_close(found, matrix, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found, found.T, rtol=1e-9, atol=1e-10)
    assert torch.equal(theta, before[0]) and torch.equal(buffers, before[1])
    assert problem.client.training and torch.is_grad_enabled()


def test_single_precision_is_near_double() -> None:
    """A product in float32 within 1e-4 of the norm; it is returned in the precision of v."""
    single, double = network("float32"), network()
    theta, buffers = point(double)
    v = start(len(theta))
    with local_hessian(double, theta, buffers, X, LABELS) as apply:
        right = apply(v)
    with local_hessian(single, theta.float(), buffers.float(), X.float(), LABELS) as apply:
        found = apply(v)
    assert found.dtype == torch.float64
    assert 0 < float((found - right).norm()) < 1e-4 * float(right.norm())


def test_the_modules_are_as_before_after_a_failure() -> None:
    """Mutation: eval mode or the model stays."""
    problem = network()
    theta, buffers = point(problem)

    def fail(apply: Apply) -> None:
        raise ArithmeticError

    with pytest.raises(ArithmeticError), local_hessian(problem, theta, buffers, X, LABELS) as apply:
        fail(apply)
    assert problem.client.training and all(p.numel() == 0 for p in problem.client.parameters())


def test_a_loss_without_curvature_has_products_of_zeros() -> None:
    """Linear in all parameters, or in some. Mutation: torch's error where a slope does not depend on anything."""
    a, b = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([3.0]))
    v = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    assert hessian_product([(2 * a).sum() + 5 * b.sum()], [a, b], v).tolist() == [0, 0, 0]
    assert hessian_product([(a**2).sum() / 2 + 5 * b.sum()], [a, b], v).tolist() == [1, 1, 0]
    assert hessian_product([(a**2).sum() / 2], [a, b], v).tolist() == [1, 1, 0]
    terms = [(a[0] * b[0]) * 1.0, (a**2).sum() / 2]
    assert hessian_product(terms, [a, b], v).tolist() == [2, 1, 1]
