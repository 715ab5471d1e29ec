"""The spectrum of a symmetric operator that is known by its products with vectors alone, such as a Hessian.

Stochastic Lanczos quadrature: Golub, Welsch, "Calculation of Gauss quadrature rules", Math. Comp. 23 (1969); Ubaru,
Chen, Saad, "Fast estimation of tr(f(A)) via stochastic Lanczos quadrature", SIAM J. Matrix Anal. Appl. 38 (2017).
Hutchinson, "A stochastic estimator of the trace of the influence matrix", Commun. Stat. 18 (1989). The effective rank
tr(H)/|H|_2 is what [C]'s Theorem 2 has in place of the number of parameters.

An operator maps flat vectors (n,) float64 to such; what precision it computes in is its own affair.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from shared.groups import Array
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError, demand
from zofl_mpi.numerics import zo
from zofl_mpi.numerics.zo import EstimateWithError
from zofl_mpi.problems import Split

Apply = Callable[[Tensor], Tensor]
SAMPLES, STARTS, PROBES = range(3)
"""What the generators of Purpose.SPECTRUM draw, by r; i counts the vectors."""
INVARIANT = 1e-13
"""A Krylov space is invariant if its next direction is below this share of the operator's size so far."""


class Ritz(NamedTuple):
    """Ritz values of an operator on a Krylov space of k dimensions, in ascending order."""

    values: Array  # (k,) its Ritz values: the nodes of a quadrature
    weights: Array  # (k,) summing to 1
    residuals: Array  # (k,) |H y - value y| of the Ritz vectors, or a little more: an eigenvalue is not further away


class Norm(NamedTuple):
    """|H|_2 from below: the size of the largest Ritz value."""

    value: float
    residual: float  # an eigenvalue of H is not further from that Ritz value
    sign: int  # of that Ritz value


@final
@dataclass(frozen=True)
class Spectrum:
    """Quadratures of the spectral density, one from each random start.

    Attributes:
        n: length of the vectors.
        ritz: of each start.
    """

    n: int
    ritz: tuple[Ritz, ...]

    def trace_of(self, f: Callable[[Array], Array]) -> EstimateWithError:
        """tr f(H) = sum_j f(lambda_j), with its standard error over the starts; nan for the error of one.

        Unbiased where f is a polynomial of degree below twice the number of steps.
        """
        return mean(np.array([self.n * (r.weights @ f(r.values)) for r in self.ritz]))

    def density(self, at: Array, width: float) -> Array:
        """(starts, points) the density of the eigenvalues, of integral 1, where each is a normal of standard deviation
        `width` around itself."""
        densities = np.empty((len(self.ritz), len(at)))
        for row, r in zip(densities, self.ritz, strict=True):
            z = (at[:, None] - r.values) / width
            row[:] = np.exp(-z * z / 2) @ r.weights / (width * math.sqrt(2 * math.pi))
        return densities

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest Ritz value of all starts: inside the spectrum, and next to its ends."""
        return min(r.values[0] for r in self.ritz), max(r.values[-1] for r in self.ritz)

    @property
    def norm(self) -> Norm:
        """|H|_2. Power iteration would need more products: its vectors lie in these Krylov spaces, too."""
        ends = [(abs(r.values[k]), r.residuals[k], int(np.sign(r.values[k]))) for r in self.ritz for k in (0, -1)]
        value, residual, sign = max(ends, key=lambda end: end[0])
        return Norm(float(value), float(residual), sign)


def spectrum(
    apply: Apply, n: int, streams: Streams, steps: int = 80, probes: int = 10, device: torch.device | str = "cpu"
) -> Spectrum:
    """Quadratures from `probes` starts, uniform on the sphere; `steps` products each, fewer where H has fewer
    eigenvalues.

    Raises:
        UserError: no step or no start, or a product that is not finite.
    """
    demand(steps >= 1, "steps", steps, "a whole number, at least 1")
    demand(probes >= 1, "probes", probes, "a whole number, at least 1")
    starts = (zo.direction(streams(Purpose.SPECTRUM, r=STARTS, i=i), n) for i in range(probes))
    return Spectrum(n, tuple(lanczos(apply, torch.from_numpy(start).to(device), steps) for start in starts))


def lanczos(apply: Apply, start: Tensor, steps: int) -> Ritz:
    """The Ritz values of the Krylov space of `start` (n,), whose size does not matter, with `steps` products.

    Each new vector is made orthogonal to all before it, twice: without that copies of the extreme eigenvalues appear.
    What that takes away beyond Lanczos's three terms is the products' rounding (or their asymmetry); the residuals
    count it. Holds steps x n numbers.

    Raises:
        UserError: a product is not finite.
    """
    n = start.numel()
    basis = start.new_empty(min(steps, n), n)
    diagonal: list[float] = []
    beside: list[float] = []
    lost: list[float] = []
    vector, left = start / torch.linalg.vector_norm(start), 0.0
    for k in range(len(basis)):
        basis[k] = vector
        product = apply(vector)
        diagonal.append(float(vector @ product))
        if not math.isfinite(diagonal[-1]):
            raise UserError("a product of the Hessian with a vector is not finite: the model or its loss has diverged")
        so_far = basis[: k + 1]
        along = so_far @ product
        expected = torch.zeros_like(along)  # what `along` is for a symmetric H, to rounding: the three-term recurrence
        expected[k] = diagonal[k]
        if k:
            expected[k - 1] = beside[k - 1]
        lost.append(float(torch.linalg.vector_norm(along - expected)))
        product = product - so_far.T @ along
        product = product - so_far.T @ (so_far @ product)
        left = float(torch.linalg.vector_norm(product))
        if left <= INVARIANT * max(map(abs, (*diagonal, *beside))):
            break
        beside.append(left)
        vector = product / left
    values, vectors = np.linalg.eigh(np.diag(diagonal) + _beside(beside[: len(diagonal) - 1]))
    return Ritz(values, vectors[0] ** 2, left * np.abs(vectors[-1]) + lost @ np.abs(vectors))


def _beside(entries: Sequence[float]) -> Array:
    """A symmetric matrix with these entries beside its diagonal."""
    return np.diag(entries, 1) + np.diag(entries, -1) if len(entries) else np.zeros((1, 1))


def trace(apply: Apply, n: int, streams: Streams, probes: int, device: torch.device | str = "cpu") -> EstimateWithError:
    """tr H = E z'Hz for entries z_j = +-1 (Hutchinson), unbiased, with its standard error; a product a probe."""
    values = np.empty(probes)
    for i in range(probes):
        signs = 2.0 * streams(Purpose.SPECTRUM, r=PROBES, i=i).integers(0, 2, n) - 1
        z = torch.from_numpy(signs).to(device)
        values[i] = float(z @ apply(z))
    return mean(values)


def mean(values: Array) -> EstimateWithError:
    """Mean of independent values, with its standard error; nan where there are too few."""
    if len(values) < 2:
        return EstimateWithError(float(values.mean()) if len(values) else math.nan, math.nan)
    return EstimateWithError(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))))


def effective_rank(trace: EstimateWithError, norm: Norm) -> EstimateWithError:
    """tr(H)/|H|_2, with the standard error that comes from the trace; nan for the operator 0."""
    if not norm.value:
        return EstimateWithError(math.nan, math.nan)
    return EstimateWithError(trace.value / norm.value, trace.error / norm.value)


# --- the Hessian of a client's local loss in split training


@contextmanager
def local_hessian(
    problem: Split, theta: Tensor, buffers: Tensor, x: Tensor, labels: Tensor, block: int = 128
) -> Iterator[Apply]:
    """Context manager: yields products with the Hessian of the local loss on x (B, ...), labels (B,) at theta (n_l,).

    BatchNorm uses its running statistics. A product takes `block` samples at a time, a graph each.
    """
    x = x.contiguous()  # with the channels last a product takes twice as long

    def losses() -> Iterator[Tensor]:
        for inputs, own in zip(torch.split(x, block), torch.split(labels, block), strict=True):
            yield problem.local_loss(problem.smash(inputs), own) * (len(own) / len(labels))

    with problem.evaluating(), torch.enable_grad(), problem.client_side.bound_to(theta, buffers) as parameters:
        yield lambda v: hessian_product(losses(), parameters, v)


def hessian_product(losses: Iterable[Tensor], parameters: Sequence[nn.Parameter], v: Tensor) -> Tensor:
    """(n,) the Hessian of the sum of `losses` with respect to `parameters`, times v (n,); summed in v's precision."""
    sizes = [p.numel() for p in parameters]
    pieces = [piece.view(p.shape).to(p) for piece, p in zip(torch.split(v, sizes), parameters, strict=True)]
    total = torch.zeros_like(v)
    for loss in losses:
        total += _along(loss, parameters, pieces).to(total)
        del loss  # and its graph, before the next one is made
    return total


def _along(loss: Tensor, parameters: Sequence[nn.Parameter], pieces: Sequence[Tensor]) -> Tensor:
    """(n,) the derivative of the gradient along `pieces`, which have the parameters' shapes: twice backwards."""
    slopes = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
    curved = [(slope, piece) for slope, piece in zip(slopes, pieces, strict=True) if slope.requires_grad]
    if not curved:  # the loss is linear
        return torch.cat([torch.zeros_like(piece).reshape(-1) for piece in pieces])
    outputs, along = zip(*curved, strict=True)
    parts = torch.autograd.grad(outputs, parameters, along, materialize_grads=True)
    return torch.cat([part.reshape(-1) for part in parts])
