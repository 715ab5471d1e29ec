"""Any torch module that classifies: `Hierarchical` ([A]), `Smooth` (FedAvg's) and `Lipschitz` ([B]).

f_1(x) = CE(x; server's data)                       mean cross-entropy of the module with the parameters x
h_i(x, y) = CE(y; client i's data) + mu_i / 2 |x - y|^2      over Y_i(x) = R^n, or the ball |y - x| <= radius_i
f_{2,i}(x, y) = m rho_i lam / 2 |x - y|^2

With a module the clients' problems are not convex: the methods run, their theorems do not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeVar, final

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from zofl_mpi.data import Dataset
from zofl_mpi.errors import UserError
from zofl_mpi.problems import Array, Batch
from zofl_mpi.problems.kernels import fourier
from zofl_mpi.problems.module import Function, copy_of
from zofl_mpi.problems.terms import PerClient, check, dissimilarity, into_ball, of

T = TypeVar("T")
QUIET = np.errstate(all="ignore")  # values that are not finite are the caller's to find
BLOCK = 256  # samples that are looked at together when all data are
BLOCK_BYTES = 2**22  # of inputs made ready at once in a local solve


@final
@dataclass(frozen=True)
class Network:
    """A torch module as a `Hierarchical` and as a `Smooth` problem.

    x (n,) holds the parameters with requires_grad, flattened one after the other in the module's order; it is a NumPy
    array, on a GPU too. Parameters without requires_grad and all buffers are constants: they must be equal on all ranks
    (`seeded`) and no forward pass may change them. The module runs in the mode it comes in: after `.eval()` a BatchNorm
    is a constant scaling and a dropout idle; in training mode both are refused.

    Attributes:
        module: maps inputs (B, *input_shape) to logits (B, classes). A copy is computed with.
        input_shape: what an input (p,) is reshaped to, such as (1, 28, 28).
        classes: C.
        weights: (m,) rho_i = N_i / N_tr.
        lam: weight of the dissimilarity term f_2, >= 0.
        mu: proximal parameter, >= 0; a number, or one per client.
        radius: of the ball Y_i(x), >= 0; infinite for no constraint; a number, or one per client.
        dtype: float32 or float64, of all vectors and of the module.
        device: where the module computes, as torch calls it.
        convolution: "auto", on a CPU by spectra where that is faster (`fourier`), or "direct", always torch's own.
    """

    x0: ClassVar[str] = "random"  # at 0 most gradients of a network vanish
    module: nn.Module
    input_shape: tuple[int, ...]
    classes: int
    weights: NDArray[np.float64]
    lam: float = 1.0
    mu: PerClient = 1.0
    radius: PerClient = np.inf
    dtype: DTypeLike = np.float32
    device: str = "cpu"
    convolution: Literal["auto", "direct"] = "auto"
    _function: Function = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if np.dtype(self.dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise UserError(f"dtype {self.dtype!r}: networks run in float32 or float64")
        for name, value in (("lam", self.lam), ("mu", self.mu), ("radius", self.radius)):
            check(name, value, self.m)
        if self.convolution not in ("auto", "direct"):
            raise UserError(f"convolution {self.convolution!r}: allowed are auto, direct")
        module = copy_of(self.module)
        if self.convolution == "auto" and torch.device(self.device).type == "cpu":
            fourier.quicken(module)
        function = Function(module, self.input_shape, self.classes, np.dtype(self.dtype), self.device)
        object.__setattr__(self, "_function", function)

    @property
    def n(self) -> int:
        """Length of x."""
        return self._function.n

    @property
    def m(self) -> int:
        """Number of clients."""
        return len(self.weights)

    def kernel_name(self, batch_size: int) -> str:
        """torch, the kind of device and whether convolutions are computed by spectra: each rounds differently."""
        spectral = fourier.spectral(self._function.module, batch_size)
        return f"torch {torch.device(self.device).type}{' fourier' if spectral else ''}"

    def flops(self, batch_size: int) -> float:
        """Of a forward and a backward pass, counted by torch: matrix products and convolutions, these tap by tap."""
        return self._function.flops(batch_size)

    def initial(self, generator: np.random.Generator) -> Array:
        """(n,) what the module came with: its own initialisation (drawn under `seeded`), or trained parameters."""
        return self._function.initial()

    def loss(self, x: Array, data: Dataset) -> float:
        """Mean cross-entropy of x (n,) over all of `data`, summed in float64."""
        return self.score(x, data)["loss"]

    def gradient(self, x: Array, data: Dataset, batch: Batch | None = None) -> Array:
        """(n,) the gradient of the mean cross-entropy at x over the samples at positions `batch` (B,), or over all."""
        positions = np.arange(len(data)) if batch is None else batch
        total = np.zeros(self.n)
        function = self._function
        with function.at(function.vector(x)):
            for inputs, labels in self._blocks(data, positions):
                parts = function.gradient(inputs, labels, "sum")
                total += torch.cat([part.reshape(-1) for part in parts]).cpu().numpy()
        return np.asarray(total / len(positions), self.dtype)

    def f1(self, x: Array, data: Dataset) -> float:
        """f_1(x), the mean cross-entropy of x (n,) over the server's data."""
        return self.loss(x, data)

    def gradient_f1(self, x: Array, data: Dataset, batch: Batch) -> Array:
        """(n,) the gradient at x of f_1 on the samples at positions `batch` (B,)."""
        return self.gradient(x, data, batch)

    @QUIET
    def f2(self, i: int, x: Array, y: Array) -> float:
        """m rho_i lam / 2 |x - y|^2."""
        return dissimilarity(self.weights, self.lam, i, x, y)

    def lower(self, i: int, data: Dataset, x: Array, y: Array, batches: Batch, stepsizes: NDArray[np.float64]) -> Array:
        """[A] Algorithm 2 from y (k, n), the k points in turn on the same mini-batches; see `Hierarchical.lower`.

        Raises:
            IndexError: a position is not in 0..len(data) - 1.
        """
        return self._moved(data, x, y, batches, stepsizes, of(self.mu, i), of(self.radius, i))

    def descend(
        self,
        data: Dataset,
        y: Array,
        batches: Batch,
        stepsizes: NDArray[np.float64],
        *,
        mu: float = 0.0,
        shift: Array | None = None,
    ) -> Array:
        """See `Smooth.descend`; neither `self.mu` nor `self.radius` plays a part in it.

        Raises:
            IndexError: a position is not in 0..len(data) - 1.
        """
        return np.asarray(self._moved(data, y[None], y[None], batches, stepsizes, mu, np.inf, shift)[0])

    def _moved(
        self,
        data: Dataset,
        x: Array,
        y: Array,
        batches: Batch,
        stepsizes: NDArray[np.float64],
        mu: float,
        radius: float,
        shift: Array | None = None,
    ) -> Array:
        """The steps from the rows of y, with proximal terms and balls around the rows of x."""
        if len(stepsizes) == 0:
            return y.copy()
        function = self._function
        gammas = np.minimum(stepsizes, np.finfo(self.dtype).max).tolist()  # torch takes no larger one: let it diverge
        centres, points = [function.vector(row) for row in x], [function.vector(row) for row in y]
        against = None if shift is None else function.vector(shift)
        for t, inputs, labels in self._minibatches(data, batches):
            for centre, point in zip(centres, points, strict=True):
                with function.at(point) as parts:
                    for gamma, *batch in zip(gammas[t : t + len(inputs)], inputs, labels, strict=True):
                        gradient = function.gradient(*batch)
                        if mu:
                            point.lerp_(centre, gamma * mu)  # y <- y - gamma mu (y - x)
                        if against is not None:
                            point.sub_(against, alpha=gamma)
                        for part, slope in zip(parts, gradient, strict=True):
                            part.sub_(slope, alpha=gamma)
                        if radius < np.inf:
                            _project(point, centre, radius)
        return np.stack([point.cpu().numpy() for point in points])

    def losses(self, i: int, x: Array, data: Dataset, batch: Batch | None = None) -> NDArray[np.float64]:
        """(k,) mean cross-entropy at the rows of x (k, n), summed in float64; see `Lipschitz.losses`."""
        positions = np.arange(len(data)) if batch is None else batch
        function, found = self._function, np.zeros(len(x))
        blocks = list(self._blocks(data, positions)) if batch is not None else None
        for k, row in enumerate(x):
            with function.at(function.vector(row)):
                for inputs, labels in self._blocks(data, positions) if blocks is None else blocks:
                    loss = cross_entropy(function.logits(inputs), labels, reduction="sum")
                    found[k] += float(loss)
        return found / len(positions)

    def project(self, i: int, x: Array, y: Array | None = None) -> Array:
        """(k, n) the rows of y projected onto the balls around the rows of x; y itself where there is no constraint.

        As a `Lipschitz` problem, without y: x, since X_i is the whole space.
        """
        return x if y is None else into_ball(self.radius, i, x, y)

    def solution(self, i: int, data: Dataset, x: Array) -> None:
        """There is no closed form."""

    @QUIET
    def score(self, x: Array, data: Dataset, mix: NDArray[np.float64] | None = None) -> dict[str, float]:
        """Mean cross-entropy ("loss") and fraction classified correctly ("accuracy") of x (n,) on all of `data`.

        Args:
            mix: (C,) weights of the classes, in place of their shares in `data`; one that `data` lacks counts nothing.

        Returns:
            Not-a-number for both where no sample counts.
        """
        each = np.ones(self.classes) if mix is None else mix / np.maximum(data.counts(), 1)
        sums = np.zeros(3)  # of the weights, the losses, the hits
        function = self._function
        with function.at(function.vector(x)):
            for inputs, labels in self._blocks(data, np.arange(len(data))):
                logits = function.logits(inputs)
                loss = cross_entropy(logits, labels, reduction="none")
                hit = logits.argmax(dim=1) == labels
                told = torch.stack([torch.ones_like(loss), loss, hit]).cpu().numpy()
                sums += told @ each[labels.cpu().numpy()]
        return {"loss": float(sums[1] / sums[0]), "accuracy": float(sums[2] / sums[0])}

    def _blocks(self, data: Dataset, positions: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs (b, *input_shape) and labels (b,) of the samples at `positions`, in turn."""
        for start in range(0, len(positions), BLOCK):
            yield self._function.samples(data, positions[start : start + BLOCK])

    def _minibatches(self, data: Dataset, batches: Batch) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The number of the first step, inputs (S, B, *input_shape) and labels (S, B) of S steps, in turn."""
        steps = max(1, BLOCK_BYTES // max(1, batches.shape[1] * data.features * np.dtype(self.dtype).itemsize))
        for t in range(0, len(batches), steps):
            yield t, *self._function.samples(data, batches[t : t + steps])


def seeded(factory: Callable[[], T], generator: np.random.Generator) -> T:
    """What `factory` makes (on the CPU), its random numbers drawn from `generator`: the same module on every rank."""
    with _drawing_from(generator):
        return factory()


@contextmanager
def _drawing_from(generator: np.random.Generator) -> Iterator[None]:
    """Meanwhile torch's own draws on the CPU are a function of `generator`; afterwards its state is as before."""
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(int(generator.integers(2**63)))
        yield


def _project(point: Tensor, centre: Tensor, radius: float) -> None:
    """Move `point` (n,) to the nearest one in the ball around `centre`; the norm in float64, as in `projections`."""
    displacement = point - centre
    norm = torch.linalg.vector_norm(displacement, dtype=torch.float64).item()
    if norm > radius:
        torch.add(centre, displacement, alpha=radius / norm, out=point)
