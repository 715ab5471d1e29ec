"""Any torch module with any loss, for `Hierarchical` ([A]), `Smooth` (FedAvg) and `Lipschitz` ([B]) methods.

F(x) is the mean loss of the module with parameters x; `ProximalLoss` adds [A]'s terms. The clients' problems are in
general not convex: methods run, but their theorems do not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from hashlib import blake2b
from typing import Any, ClassVar, Literal, TypeVar, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zofl_mpi.data import Dataset
from zofl_mpi.engine.batching import BATCHED_CLIENTS, batched_call
from zofl_mpi.engine.fields import injected
from zofl_mpi.engine.roles import KernelChoice
from zofl_mpi.engine.setting import Work
from zofl_mpi.engine.streams import Purpose, Streams, seed_torch
from zofl_mpi.errors import UserError, mistake
from zofl_mpi.problems import Array, Batch, Vector
from zofl_mpi.problems.device_cache import fits
from zofl_mpi.problems.module import LOCK, Function, copy_of
from zofl_mpi.problems.objective import Metric, Objective, Weight
from zofl_mpi.problems.saving import PLAIN, saving_of
from zofl_mpi.problems.sums import blocks, class_weights, positions_of
from zofl_mpi.problems.terms import ProximalLoss, ProximalSteps, check_positions, weighted_means

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Labels = NDArray[np.int64]
Augment = Callable[[Tensor, np.random.Generator], Tensor]
EVALUATION_SAMPLES = 256  # samples of one evaluation block; losses of mini-batches up to this size are batched
BLOCK_BYTES = 2**22  # of inputs prepared at once in a local solve
TRIED = 1024  # held-out samples on which metrics are tried
BATCHED = "batched"
"""Last word of the kernel's name, also in results, if local steps of many clients are batched."""


def serialized(method: F) -> F:
    """Decorator: runs calls one after the other on one thread, even if clients' steps run as coroutines.

    GPU libraries allocate memory for each calling thread, and the module can be bound to one model at a time.
    """

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        request: Callable[[], Any] = partial(method, *args, **kwargs)
        return batched_call(_call_all, request)

    return cast(F, call)


def _call_all(calls: list[Callable[[], Any]]) -> list[Any]:
    with LOCK:
        return [call() for call in calls]


@final
@dataclass(frozen=True)
class Network(ProximalLoss):
    """A torch module as a `Hierarchical`, a `Smooth` and a `Lipschitz` problem.

    x (n,) is a NumPy array of the parameters with requires_grad, in the module's order. Other parameters and all
    buffers are constants: they must be equal on all ranks (`seeded`), and no forward pass may change them. The module's
    mode is kept: BatchNorm and dropout need `.eval()`.
    """

    x0: ClassVar[str] = "random"  # at 0 most gradients of a network vanish
    # maps inputs (B, *input_shape) to outputs (B, ...); copied in this `dtype`
    module: nn.Module = injected()
    input_shape: tuple[int, ...] = injected()  # shape for inputs (p,), such as (1, 28, 28)
    classes: int = injected()  # C, of the data
    device: str = injected("cpu")  # torch's name of the device
    # code for local steps and for losses on mini-batches: serial (one client after the other), torch (many clients at
    # once), auto (torch on a GPU, if the module can be batched; else serial)
    kernel: Literal["auto", "serial", "torch"] = "auto"
    # storage of activations in backward passes (`problems.saving`)
    client_memory: str = injected("none")
    # sizes of mini-batches for which all ranks found a client's bits independent of the other clients in the batch;
    # other sizes are computed one client after the other. None: each size is tried at first use
    batched_sizes: tuple[int, ...] | None = injected(None)
    # inputs (k, p) and targets (k, ...) of real samples for trying the module; None: numbers from -1 to 1, of class 0
    examples: tuple[Array, Array] | None = injected(None)
    # mean over samples of outputs (B, ...) and targets (B, ...); None: cross-entropy
    loss_function: Any = injected(None)
    metrics: Mapping[str, Metric] | None = injected(None)  # {name: function of all outputs and targets}
    weight: Weight | None = injected(None)  # (inputs, targets) -> (B,) factors of the samples' losses
    # changes the inputs (B, *input_shape) of a training step, with a generator keyed by the samples; None: unchanged
    augment: Augment | None = injected(None)
    streams: Streams | None = injected(None)  # of the run, for `augment`
    # reason why many clients cannot be batched, in torch's words; "": they can
    why_not_batchable: str = field(default="", init=False, repr=False, compare=False)
    _function: Function = field(init=False, repr=False, compare=False)
    _verdicts: dict[int, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.terms.fit(self.m)
        module, saving = copy_of(self.module), saving_of(self.client_memory)
        if saving != PLAIN and self.kernel == "torch":
            raise UserError(f"--client-memory {saving}: --kernel torch computes many clients at once; use serial")
        one, dtype = (self.input_shape, self.classes), np.dtype(self.dtype)
        objective = Objective(self.loss_function, self.metrics, self.weight)
        function = Function(module, *one, objective, dtype, self.device, saving, self.examples)
        reason = "" if self.augment is None else "augment changes clients' inputs one by one"
        if self.uses_torch and not reason:
            from zofl_mpi.problems.kernels.functional import why_not_batchable

            reason = why_not_batchable(function)
        vars(self).update(_function=function, why_not_batchable=reason)
        if self.augment is not None:
            self._check_augment(function)
        if reason and self.kernel == "torch":
            fault = f"{type(module).__name__} cannot be computed for many clients at once: {reason}"
            raise UserError(f"--kernel torch: {fault}; use --kernel serial")

    @property
    def n(self) -> int:
        return self._function.n

    @property
    def uses_torch(self) -> bool:
        """True if many clients are batched: with --kernel torch, or "auto" on a GPU."""
        chosen = self.device != "cpu" and not self.why_not_batchable and saving_of(self.client_memory) == PLAIN
        return self.kernel == "torch" or (self.kernel == "auto" and chosen)

    @property
    def batched_clients(self) -> int:
        return BATCHED_CLIENTS if self.uses_torch else 1

    def kernel_name(self, batch_size: int) -> str:
        """Kernel name: "torch", the device type, and "batched" if clients are; each combination rounds differently."""
        return f"torch {self.device.partition(':')[0]}{f' {BATCHED}' * self.uses_torch}"

    def kernel_for(self, work: Work, data: Dataset, before: str = "") -> KernelChoice:
        """Chooses a run's kernel; "auto": the resumed run's kernel `before`, else torch on a GPU."""
        is_auto = self.kernel == "auto"
        batched = before.endswith(BATCHED) if is_auto and before else self.uses_torch
        return KernelChoice("torch" if batched else "serial", fallback="serial" if is_auto else "")

    def with_kernel(self, name: str, work: Work) -> Network:
        return replace(self, kernel=cast(Any, name), batched_sizes=(work.batch,) if name == "torch" else None)

    def kernel_obstacle(self, name: str, work: Work, data: Dataset) -> str:
        if name == "torch" and not fits(data):
            return f"the inputs take {data.inputs.nbytes / 2**30:.3g} GiB, too much to cache on a device"
        own = self if name == self.kernel else replace(self, kernel=cast(Any, name))
        fault = "on this machine a client's bits depend on which clients are computed with it"
        batched = name == "serial" or own.batches(data, work.batch)
        return "" if batched else f"{fault} (mini-batches of {work.batch})"

    def batches(self, data: Dataset, size: int) -> bool:
        """True if mini-batches of this size are batched over clients; needs bits independent of the other clients."""
        if not self.uses_torch or self.batched_sizes is not None:
            return self.uses_torch and size in (self.batched_sizes or ())
        from zofl_mpi.problems.kernels.module_torch import equal_bits

        if size not in self._verdicts:
            self._verdicts[size] = fits(data) and equal_bits(self._function, data, size, np.dtype(self.dtype).name)
        return self._verdicts[size]

    def flops(self, batch_size: int) -> float:
        """FLOPs of products and convolutions in a step, recomputations of `client_memory` included."""
        return self._function.flops(batch_size)

    def flops_evaluation(self, batch_size: int) -> float:
        """Approximate FLOPs of a forward pass: a third, since the backward pass takes twice as many."""
        return self.flops(batch_size) / 3

    def client_bytes(self, batch_size: int, gradient: bool) -> float:
        """Peak bytes of torch's tensors in a step, model and inputs included."""
        return self._function.client_bytes(batch_size, gradient)

    def initial(self, generator: np.random.Generator) -> Array:
        return self._function.initial()

    @property
    def metric_names(self) -> tuple[str, ...]:
        return tuple(self.metrics or ())

    @serialized
    def module_of(self, final: Mapping[str, Any]) -> nn.Module:
        """Copy of the module on the CPU with the final parameters `x`."""
        with self._function.bound_to(self._function.vector(final["x"])):
            return copy_of(self._function.module)

    @serialized
    def gradient(self, x: Array, data: Dataset, batch: Batch | None = None) -> Array:
        positions = positions_of(data, batch)
        total = np.zeros(self.n)
        function = self._function
        with function.bound_to(function.vector(x)):
            for inputs, targets in self._blocks(data, positions, augmented=batch is not None):
                parts = function.gradient(inputs, targets, of_sum=True)
                total += torch.cat([part.reshape(-1) for part in parts]).cpu().numpy()
        return np.asarray(total / len(positions), self.dtype)

    def after_steps(self, x: Array, y: Array, steps: ProximalSteps) -> Array:
        """See `ProximalLoss.after_steps`; computes the k points in turn, or batched."""
        gammas = np.minimum(steps.stepsizes, np.finfo(self.dtype).max)  # torch rejects inf; the run diverges anyway
        finite = steps._replace(stepsizes=gammas)
        if not self.batches(steps.data, steps.batches.shape[1]):
            return self._moved(x, y, finite)
        from zofl_mpi.problems.kernels.module_torch import StepsRequest, take_steps

        a, b = (np.asarray(each, self.dtype) for each in (x, y))
        return batched_call(take_steps, StepsRequest(self._function, a, b, finite))

    @serialized
    def _moved(self, x: Array, y: Array, steps: ProximalSteps) -> Array:
        function, gammas = self._function, steps.stepsizes.tolist()
        centres, points = [function.vector(row) for row in x], [function.vector(row) for row in y]
        shift = None if steps.shift is None else function.vector(steps.shift)
        for t, inputs, targets in self._minibatches(steps.data, steps.batches, y[0]):
            for centre, point in zip(centres, points, strict=True):
                with function.bound_to(point) as parts:
                    for gamma, *batch in zip(gammas[t : t + len(inputs)], inputs, targets, strict=True):
                        gradient = function.gradient(*batch)
                        if steps.mu:
                            point.lerp_(centre, gamma * steps.mu)  # y <- y - gamma mu (y - x)
                        if shift is not None:
                            point.sub_(shift, alpha=gamma)
                        for part, slope in zip(parts, gradient, strict=True):
                            part.sub_(slope, alpha=gamma)
                        if steps.radius < np.inf:
                            _project(point, centre, steps.radius)
        return np.stack([point.cpu().numpy() for point in points])

    def losses(self, i: int, x: Array, data: Dataset, batch: Batch | None = None) -> Vector:
        """Mean losses (k,) at the rows of x (k, n), summed in float64 (IndexError: invalid position)."""
        if batch is not None and len(batch) <= EVALUATION_SAMPLES and self.batches(data, len(batch)):
            from zofl_mpi.problems.kernels.module_torch import LossRequest, loss_sums

            check_positions(data, batch)
            request = LossRequest(self._function, np.asarray(x, self.dtype), data, batch)
            return batched_call(loss_sums, request) / len(batch)
        return self._losses(x, data, batch)

    @serialized
    def _losses(self, x: Array, data: Dataset, batch: Batch | None) -> Vector:
        positions = positions_of(data, batch)
        function, sums = self._function, np.zeros(len(x))
        # a mini-batch's blocks serve all k points
        kept = [] if batch is None else list(self._blocks(data, positions, augmented=True))
        for k, row in enumerate(x):
            with function.bound_to(function.vector(row)):
                for inputs, targets in kept or self._blocks(data, positions):
                    sums[k] += float(function.objective.total(function.outputs(inputs), targets, inputs))
        return sums / len(positions)

    def check_metrics(self, data: Dataset) -> None:
        """Tries the metrics on held-out samples at the initial model (UserError: one gives no number)."""
        if self.metrics and len(data):
            self.score(self._function.initial(), data.subset(np.arange(min(len(data), TRIED))), known=True)

    def score(self, x: Array, data: Dataset, mix: Vector | None = None, known: bool = False) -> dict[str, float]:
        """Mean loss, for classes the accuracy, and the metrics; `mix` does not apply to metrics.

        `known`: a metric that is nan is refused, too.
        """
        objective, seen = self._function.objective, list[tuple[Tensor, Tensor]]()
        found = weighted_means(self.evaluated(x, data, seen), class_weights(data, mix))
        if not objective.classifies:
            del found["accuracy"]
        if seen:
            outputs, targets = (torch.cat(each) for each in zip(*seen, strict=True))
            found |= objective.measured(outputs, targets, known)
        return found

    @serialized
    def evaluated(
        self, x: Array, data: Dataset, seen: list[tuple[Tensor, Tensor]] | None = None
    ) -> list[tuple[Labels, Vector, Vector]]:
        """Outputs in `dtype`, losses in float64; see `ProximalLoss.evaluated`.

        If there are metrics, appends (outputs, targets) to `seen`.
        """
        evaluated, function, positions = list[Any](), self._function, np.arange(len(data))
        objective = function.objective
        with function.bound_to(function.vector(x)):
            for block, (inputs, targets) in zip(
                blocks(positions, EVALUATION_SAMPLES), self._blocks(data, positions), strict=True
            ):
                outputs = function.outputs(inputs)
                values = objective.each(outputs, targets, inputs, exact=False), objective.hits(outputs, targets)
                labels = data.labels[data.rows_of(block)].astype(np.int64, copy=False)
                evaluated.append((labels, *(value.cpu().numpy() for value in values)))
                if self.metrics and seen is not None:
                    seen.append((outputs.cpu(), targets.cpu()))
        return evaluated

    @property
    def hits(self) -> Callable[[Array, Dataset], Vector] | None:
        """hits(x, data): correct samples of each class (C,), with shares for samples of several classes.

        None if the loss has no classes, or if a metric is called accuracy.
        """
        return self._hits if "accuracy" not in self.metric_names and self._function.objective.classifies else None

    def _hits(self, x: Array, data: Dataset) -> Vector:
        labels, _, hits = (np.concatenate(each) for each in zip(*self.evaluated(x, data), strict=True))
        return np.asarray(np.bincount(labels, weights=hits, minlength=self.classes), np.float64)

    def _blocks(self, data: Dataset, positions: Batch, augmented: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields inputs (b, *input_shape) and targets (b, ...) of the samples at `positions`, block by block."""
        generator = self._generator(data, positions) if augmented else None
        for block in blocks(positions, EVALUATION_SAMPLES):
            inputs, targets = self._function.samples(data, block)
            yield inputs if generator is None else self._augmented(inputs, generator), targets

    def _minibatches(self, data: Dataset, batches: Batch, y: Array) -> Iterator[tuple[int, Any, Tensor]]:
        """Yields (first step, inputs (S, B, *input_shape), targets (S, B, ...)) of S steps each."""
        generator = self._generator(data, batches, y)
        steps = max(1, BLOCK_BYTES // max(1, batches.shape[1] * data.features * np.dtype(self.dtype).itemsize))
        for t in range(0, len(batches), steps):
            inputs, targets = self._function.samples(data, batches[t : t + steps])
            yield t, inputs if generator is None else [self._augmented(x, generator) for x in inputs], targets

    def _generator(self, data: Dataset, positions: Batch, *start: Array) -> np.random.Generator | None:
        """Random generator for `augment`, keyed by the seed, the samples and the steps' initial model.

        Round and client determine the samples: the generator does not depend on ranks or the order of calls.
        """
        if self.augment is None:
            return None
        rows = np.asarray(data.rows_of(positions), np.int64)
        digest = blake2b(b"".join(np.ascontiguousarray(a).tobytes() for a in (rows, *start)), digest_size=24).digest()
        r, i, t = (int.from_bytes(digest[k : k + 8], "little") for k in (0, 8, 16))
        return (self.streams or Streams(0))(Purpose.AUGMENT, r=r, i=i, t=t)

    def _augmented(self, inputs: Tensor, generator: np.random.Generator) -> Tensor:
        """Augments the inputs of a training step (UserError: shape or dtype changes)."""
        needs = "a function (inputs, generator) -> inputs of the same shape and dtype"
        try:
            changed = self.augment(inputs, generator)  # type: ignore[misc]
            same = changed.shape == inputs.shape and changed.dtype == inputs.dtype
        except Exception as exc:  # the user's code
            raise UserError(f"augment must be {needs}: {mistake(exc)}") from exc
        if not same:
            raise UserError(f"augment gives {changed.dtype} of shape {tuple(changed.shape)}; it must be {needs}")
        return changed

    def _check_augment(self, function: Function) -> None:
        """Raises UserError if `augment` changes inputs in place, shape or dtype, or uses torch's random numbers."""
        inputs = function.examples.inputs(2).to(function.device)
        version, state = inputs._version, torch.random.get_rng_state()
        self._augmented(inputs, Streams(0)(Purpose.AUGMENT))
        if not torch.equal(state, torch.random.get_rng_state()):
            raise UserError("augment draws torch's own random numbers, which no seed reaches; use its generator's")
        if inputs._version != version:
            raise UserError("augment changes its inputs in place, which other points use too; return new ones")


def seeded(factory: Callable[[], T], generator: np.random.Generator) -> T:
    """Calls `factory` with torch seeded from `generator`; restores torch's own generator."""
    with torch.random.fork_rng(devices=()):
        seed_torch(torch.default_generator, generator)
        return factory()


def _project(point: Tensor, centre: Tensor, radius: float) -> None:
    """Projects `point` (n,) in place onto the ball around `centre`; norm in float64, as in `projections`."""
    displacement = point - centre
    norm = torch.linalg.vector_norm(displacement, dtype=torch.float64).item()
    if norm > radius:
        torch.add(centre, displacement, alpha=radius / norm, out=point)
