"""Any torch module that classifies: `Hierarchical` ([A]), `Smooth` (FedAvg's) and `Lipschitz` ([B]).

f_1(x) = CE(x; server's data)                       mean cross-entropy of the module with the parameters x
h_i(x, y) = CE(y; client i's data) + mu_i / 2 |x - y|^2      over Y_i(x) = R^n, or the ball |y - x| <= radius_i
f_{2,i}(x, y) = m rho_i lam / 2 |x - y|^2

With a module the clients' problems are not convex: the methods run, their theorems do not apply.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar, final

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from zofl_mpi.data import Dataset
from zofl_mpi.errors import UserError
from zofl_mpi.problems import Array, Batch, fourier
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
    _function: _Function = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if np.dtype(self.dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise UserError(f"dtype {self.dtype!r}: networks run in float32 or float64")
        for name, value in (("lam", self.lam), ("mu", self.mu), ("radius", self.radius)):
            check(name, value, self.m)
        if self.convolution not in ("auto", "direct"):
            raise UserError(f"convolution {self.convolution!r}: allowed are auto, direct")
        module = _copied(self.module)
        if self.convolution == "auto" and torch.device(self.device).type == "cpu":
            fourier.quicken(module)
        function = _Function(module, self.input_shape, self.classes, np.dtype(self.dtype), self.device)
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
        x = torch.cat([p.detach().reshape(-1) for p in self.module.parameters() if p.requires_grad])
        return np.asarray(x.cpu().numpy(), self.dtype)

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


@final
class _Function:
    """A module as a function of a flat vector. Its parameters are views of that vector while it computes, else empty.

    Vectors and inputs lie in memory that torch allocated: a matrix product may round differently at an address that is
    not a multiple of 64, and NumPy's arrays start anywhere.
    """

    def __init__(
        self, module: nn.Module, input_shape: tuple[int, ...], classes: int, dtype: np.dtype[Any], device: str
    ) -> None:
        self.module = module
        self.input_shape = input_shape
        self.dtype = torch.from_numpy(np.empty(0, dtype)).dtype
        self.device = torch.device("cpu")
        self.module.to(self.dtype)
        self._try(classes)
        self.device = torch.device(device)
        self.module.to(self.device)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.shapes = [p.shape for p in self.parameters]
        self.sizes = [p.numel() for p in self.parameters]
        self.n = sum(self.sizes)
        if self.n == 0:
            raise UserError(f"{type(module).__name__} has no parameter with requires_grad: there is nothing to train")
        # Convolutions are a quarter faster on images whose channels lie side by side: 5.3 ms for 7.4 a step of `CNN`.
        is_image = len(input_shape) == 3 and any(isinstance(part, nn.Conv2d) for part in self.module.modules())
        self.channels_last = is_image and self.device.type == "cpu"
        self._release()

    def vector(self, x: Array) -> Tensor:
        """(n,) a copy of x on the device."""
        return torch.tensor(x, dtype=self.dtype, device=self.device)

    @contextmanager
    def at(self, y: Tensor) -> Iterator[list[Tensor]]:
        """Meanwhile the module's parameters are views of y (n,); yields these, without requires_grad."""
        parts = [part.view(shape) for part, shape in zip(y.split_with_sizes(self.sizes), self.shapes, strict=True)]
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.data = part
        try:
            with self._deterministic():
                yield parts
        finally:
            self._release()

    def gradient(self, inputs: Tensor, labels: Tensor, reduction: str = "mean") -> tuple[Tensor, ...]:
        """The gradient of the cross-entropy with respect to each parameter."""
        loss = cross_entropy(self.module(inputs), labels, reduction=reduction)
        return torch.autograd.grad(loss, self.parameters, materialize_grads=True)

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """(B, C) float64."""
        found = self.module(inputs)
        if not isinstance(found, Tensor):
            raise TypeError(f"it returns a {type(found).__name__}, not logits")
        return found.to(torch.float64)

    def samples(self, data: Dataset, positions: Batch) -> tuple[Tensor, Tensor]:
        """Inputs (..., *input_shape) and labels (...) of the samples at `positions` (...), on the device.

        Raises:
            IndexError: a position is not in 0..len(data) - 1.
        """
        if positions.size and (positions.min() < 0 or positions.max() >= len(data)):
            raise IndexError(f"a batch has a position outside 0..{len(data) - 1}")
        rows = (positions if data.rows is None else data.rows[positions]).ravel()
        stored = np.asarray(data.inputs)  # a memory map's own indexing is several times slower
        raw = torch.empty((len(rows), *self.input_shape), dtype=torch.from_numpy(stored[:0].copy()).dtype)
        np.take(stored, rows, axis=0, out=raw.numpy().reshape(len(rows), -1), mode="clip")  # "raise" would copy again
        raw = raw.to(self.device)
        inputs = raw.to(self.dtype, memory_format=torch.channels_last) if self.channels_last else raw.to(self.dtype)
        for combine, value, neutral in ((inputs.mul_, data.scale, 1.0), (inputs.add_, data.shift, 0.0)):
            if np.ndim(value):
                combine(self.vector(np.asarray(value)).view(self.input_shape))
            elif value != neutral:
                combine(float(value))
        labels = torch.from_numpy(data.labels[rows].astype(np.int64)).to(self.device)
        return self._shaped(inputs, positions.shape), labels.view(positions.shape)

    def flops(self, batch_size: int) -> float:
        """Of a forward and a backward pass on a batch of this size."""
        from zofl_mpi.costs import Products  # 0.3 s

        inputs, point = self._zeros(batch_size, *self.input_shape), self._zeros(self.n)
        labels = torch.zeros(batch_size, dtype=torch.int64, device=self.device)
        with self.at(point), fourier.direct(self.module), Products() as told:
            self.gradient(inputs, labels)
        return float(told.flops)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def _shaped(self, inputs: Tensor, shape: tuple[int, ...]) -> Tensor:
        """(*shape, *input_shape) of (N, *input_shape)."""
        inputs = inputs.view((*shape, *self.input_shape))
        if not self.channels_last:
            return inputs
        channels, _, width = self.input_shape  # for one channel torch itself writes strides that take slow paths
        inner = (1, width * channels, channels)
        return inputs.as_strided(inputs.shape, (*inputs.stride()[: len(shape)], *inner))

    def _release(self) -> None:
        for parameter in self.parameters:
            parameter.data = torch.empty(0, dtype=self.dtype, device=self.device)

    def _deterministic(self) -> AbstractContextManager[None]:
        """On a GPU cuDNN may else choose by speed, and round to 10 bits."""
        if self.device.type == "cpu":
            return nullcontext()
        return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)

    def _try(self, classes: int) -> None:
        """Refuse what is no function of the parameters and the inputs, by one forward pass of two inputs."""
        name = type(self.module).__name__
        inputs = torch.linspace(-1, 1, 2 * int(np.prod(self.input_shape)), dtype=self.dtype)
        before = [buffer.clone() for buffer in self.module.buffers()]
        with torch.random.fork_rng(devices=()):
            state = torch.random.get_rng_state()
            try:
                logits = self.logits(inputs.view(2, *self.input_shape))
            except Exception as error:  # the user's code
                reason = str(error).partition("\n")[0]
                raise UserError(f"{name} does not take inputs of shape {self.input_shape}: {reason}") from error
            drew = not torch.equal(state, torch.random.get_rng_state())
        if logits.shape != (2, classes):
            got = tuple(logits.shape[1:])
            raise UserError(f"{name} maps an input to an output of shape {got}, not to {classes} logits, one a class")
        if not all(map(torch.equal, before, self.module.buffers())):
            raise UserError(
                f"{name} changes its buffers in a forward pass (BatchNorm's running statistics?), so it is no function "
                "of its parameters: take GroupNorm or LayerNorm, BatchNorm with track_running_stats=False, or .eval()"
            )
        if drew:
            raise UserError(
                f"{name} draws random numbers in a forward pass (dropout?), so it is no function of its parameters: "
                "take probability 0, or .eval()"
            )


def _copied(module: nn.Module) -> nn.Module:
    """A copy on the CPU that nobody else computes with."""
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
        raise UserError(
            f"{type(module).__name__} has lazy modules: give each its sizes, x has one length from the start"
        )
    try:
        return copy.deepcopy(module).to("cpu")
    except Exception as error:  # weight_norm as it was, lazy modules
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{type(module).__name__} cannot be copied: {reason}; torch.nn.utils.parametrizations can"
        ) from error


def _project(point: Tensor, centre: Tensor, radius: float) -> None:
    """Move `point` (n,) to the nearest one in the ball around `centre`; the norm in float64, as in `projections`."""
    displacement = point - centre
    norm = torch.linalg.vector_norm(displacement, dtype=torch.float64).item()
    if norm > radius:
        torch.add(centre, displacement, alpha=radius / norm, out=point)
