"""Split network of torch modules: client part, auxiliary head, server part ([C], SplitFed, CSE-FSL); see `Split`.

Losses are means over a batch, by default cross-entropies. Images may be augmented: padded by 4, cropped back, mirrored.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zofl_mpi.arrays import Array
from zofl_mpi.data import Dataset
from zofl_mpi.errors import UserError
from zofl_mpi.problems import Split, device_cache
from zofl_mpi.problems.examples import Examples
from zofl_mpi.problems.flat import Flat
from zofl_mpi.problems.layers import head_gradient, linear_of
from zofl_mpi.problems.objective import Metric, Objective
from zofl_mpi.problems.sensors import SENSORS


@dataclass(frozen=True, kw_only=True)
class TorchSplit(Split):
    """Base class of split networks of torch modules."""

    dtype: str = "float32"  # or "float64", of all vectors
    device: str = "cpu"  # torch's name of the device
    bf16: bool = False  # forward passes in bfloat16 by torch's autocast; losses in float32
    tf32: bool = False  # on a GPU, float32 products with 10-bit mantissas
    client_side: Flat = field(init=False, repr=False, compare=False)  # client part with auxiliary head
    server_side: Flat = field(init=False, repr=False, compare=False)  # server part

    @property
    def n_client(self) -> int:
        return self.client_side.sizes()[0]

    def kernel_name(self, batch_size: int) -> str:
        """Kernel name: "torch", device type and precision; each combination rounds differently."""
        kind = torch.device(self.device).type
        return f"torch {kind}{' bf16' if self.bf16 else ''}{' tf32' if self.tf32 and kind != 'cpu' else ''}"

    @property
    def arithmetic(self) -> str:
        place = torch.device(self.device)
        if place.type == "cpu":
            return f"cpu with {torch.backends.cpu.get_cpu_capability()}"
        return str(torch.get_device_module(place).get_device_name(place))

    def precision(self, device: str = "") -> AbstractContextManager[Any]:
        """Context manager: bfloat16 forward passes if `bf16`, on `device` or by default on its own."""
        return torch.autocast(torch.device(device or self.device).type, torch.bfloat16) if self.bf16 else nullcontext()

    def narrowed(self, smashed: Tensor) -> Tensor:
        """Smashed samples in the message's dtype: CUDA's autocast leaves a GroupNorm's output in float32."""
        return smashed.bfloat16() if self.bf16 else smashed


PARTS = ("client", "auxiliary", "server")
TRIED = 64
"""Held-out samples on which metrics are tried before a run."""


@final
@dataclass(frozen=True)
class SplitNetwork(TorchSplit):
    """A `Split` problem of three torch modules with a loss; methods hold its vectors."""

    equal_sizes: ClassVar[bool] = True
    client: nn.Module
    auxiliary: nn.Module
    server: nn.Module
    input_shape: tuple[int, ...]  # shape for inputs (p,)
    classes: int  # C, of the data
    loss: Any = None  # mean over samples of outputs (B, ...) and targets (B, ...); None: cross-entropy
    metrics: Mapping[str, Metric] | None = None  # of the server part's outputs, as `TorchProblem.metrics`
    # inputs (k, p) and targets (k, ...) of real samples for trying the parts; None: numbers from -1 to 1, of class 0
    examples: tuple[Array, Array] | None = None
    sensors: tuple[str, ...] = ()  # of the clients, in turn (`problems.sensors`); (): images are unchanged
    smashed_shape: tuple[int, ...] = field(init=False, compare=False)
    smashed_bytes: int = field(init=False, compare=False)  # message bytes of a smashed sample
    allows_batch_of_one: bool = field(init=False, compare=False)
    _objective: Objective = field(init=False, repr=False, compare=False)
    _examples: Examples = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check()
        kind = getattr(torch, self.dtype)
        examples = Examples(self.examples, self.input_shape, kind)
        vars(self).update(_objective=Objective(self.loss, self.metrics), _examples=examples)
        for part in self._parts():
            part.to("cpu", kind, memory_format=torch.channels_last)  # type: ignore[call-overload]
            part.train()
        self._try()
        for part in self._parts():
            part.to(torch.device(self.device))
        self._objective.to(torch.device(self.device))
        client_side, server_side = (Flat(own, tf32=self.tf32) for own in ([self.client, self.auxiliary], [self.server]))
        vars(self).update(client_side=client_side, server_side=server_side)

    def _check(self) -> None:
        """Raises UserError if parts share parameters, have nothing to train, or depend on a count of batches."""
        held = [id(value) for part in self._parts() for value in (*part.parameters(), *part.buffers())]
        if len(set(held)) < len(held):
            raise UserError("the client, auxiliary and server parts share parameters; give each its own")
        if not any(p.requires_grad for p in self.server.parameters()):
            raise UserError("the server part has no parameters to train")
        modules = (m for part in self._parts() for m in part.modules())
        norms = (m for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm))
        if any(m.track_running_stats and m.momentum is None for m in norms):
            raise UserError("a BatchNorm with momentum=None depends on a count of batches; give it a number")

    def _try(self) -> None:
        """Tries all parts on the examples on the CPU and sets the smashed shape; the parts stay unchanged.

        Raises:
            UserError: a part does not take its inputs, draws random numbers, or changes its parameters.
        """
        buffers = [b for part in self._parts() for b in part.buffers()]
        kept = [b.clone() for b in buffers]
        versions = [[p._version for p in part.parameters()] for part in self._parts()]
        targets = self._examples.targets()
        with torch.no_grad(), self.precision("cpu"), torch.random.fork_rng(devices=()):
            state = torch.random.get_rng_state()
            smashed = self.narrowed(self._examples.taken_by(partial(self._through, "client", self.client)))
            inputs = self._examples.inputs()
            for name, part in (("auxiliary", self.auxiliary), ("server", self.server)):
                outputs = self._through(name, part, smashed)
                if self._objective.by_class(targets) and outputs.shape != (len(targets), self.classes):
                    raise UserError(
                        f"the {name} part maps smashed samples of shape {tuple(smashed.shape[1:])} to "
                        f"{tuple(outputs.shape[1:])}; it must give {self.classes} logits"
                    )
                self._objective.check(widened(outputs), targets, inputs)
            if not torch.equal(state, torch.random.get_rng_state()):
                raise UserError(
                    "a part draws random numbers in a forward pass (dropout?), which no seed of the run reaches: "
                    "set probability 0"
                )
            try:
                one = self.client(inputs[:1])
                self.auxiliary(one), self.server(one)
                allows_batch_of_one = True
            except ValueError:  # BatchNorm with a single number per channel
                allows_batch_of_one = False
        for name, part, before in zip(PARTS, self._parts(), versions, strict=True):
            if [p._version for p in part.parameters()] != before:
                raise UserError(f"the {name} part changes its parameters in a forward pass (max_norm of an embedding?)")
        for b, value in zip(buffers, kept, strict=True):
            b.copy_(value)
        sizes = {"smashed_shape": tuple(smashed.shape[1:]), "smashed_bytes": smashed[0].nbytes}
        vars(self).update(sizes, allows_batch_of_one=allows_batch_of_one)

    def _through(self, name: str, part: nn.Module, x: Tensor) -> Tensor:
        version = x._version
        try:
            output = part(x)
        except Exception as exc:  # the user's code, and torch's many exceptions for shapes
            wants = next((m.in_features for m in part.modules() if isinstance(m, nn.Linear)), None)
            advice = f" (its first linear layer takes {wants} numbers)" if wants else ""
            reason = f"the {name} part does not take samples of shape {tuple(x.shape[1:])}{advice}: {exc}"
            raise UserError(reason.splitlines()[0]) from exc
        if not isinstance(output, Tensor):
            raise UserError(f"the {name} part returns a {type(output).__name__}, not a tensor")
        if x._version != version:
            raise UserError(f"the {name} part changes its inputs in place, which others use too (inplace=True?)")
        return output

    def _parts(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        return self.client, self.auxiliary, self.server

    # --- sizes

    @property
    def blocks(self) -> list[nn.Module]:
        parts = list(self.client) if isinstance(self.client, nn.Sequential) else []
        return parts if len(parts) > 1 else []

    def upload_bytes(self, data: Dataset, positions: NDArray[np.int64]) -> int:
        return len(positions) * self.smashed_bytes

    def label_bytes(self, data: Dataset, positions: NDArray[np.int64]) -> int:
        one = data.answers(positions[:1], np.dtype(self.dtype))
        return one.nbytes * len(positions)

    # --- batches

    def samples(self, data: Dataset, positions: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        inputs, targets = device_cache.samples_on(self.device, data, positions, self.dtype)
        if not self._examples.input_dtype.is_floating_point:
            inputs = device_cache.in_kind(inputs, self._examples.input_dtype)
        return _channels_last(inputs.reshape(-1, *self.input_shape)), targets

    def sensed(self, inputs: Tensor, i: int) -> Tensor:
        return SENSORS[self.sensors[i % len(self.sensors)]](inputs) if self.sensors else inputs

    def example(self, count: int) -> tuple[Tensor, Tensor]:
        """Zero inputs (count, *input_shape) and zero targets (count, ...), as class 0."""
        x, targets = self._examples.zeros(count, torch.device(self.device))
        return _channels_last(x), targets

    def augmentation(self, kind: str) -> Callable[[Tensor, np.random.Generator], Tensor]:
        """`crop_flip`, the only kind (UserError: inputs are no images)."""
        if len(self.input_shape) != 3:
            raise UserError(f"--augment {kind}: inputs of shape {self.input_shape} are no images")
        return crop_flip

    def to_device(self, value: Tensor) -> Tensor:
        """Moves a received tensor to the device; on a GPU restores the channels-last layout."""
        there = device_cache.to_device(value, self.device)
        return there if device_cache.is_host(self.device) else _channels_last(there)

    # --- computing

    def smash(self, inputs: Tensor) -> Tensor:
        return self.narrowed(self._output(self.client, inputs))

    def local_loss(self, smashed: Tensor, labels: Tensor) -> Tensor:
        return self._loss(self._output(self.auxiliary, smashed), labels)

    @property
    def local_losses(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """In float64, without a graph; None if the loss is no mean over samples."""
        return self._local_losses if self._objective.separate else None

    def _local_losses(self, smashed: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            outputs = self._output(self.auxiliary, smashed)
        return self._objective.each(outputs, labels, smashed) / len(labels)

    @property
    def head_gradient(self) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
        """None unless the loss is the cross-entropy and the head has no parameters but a final linear layer's."""
        linear = linear_of(self.auxiliary) if self._objective.plain else None
        return None if linear is None else partial(self._head_gradient, linear)

    def _head_gradient(self, linear: nn.Linear, smashed: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad(), self.precision():
            logits, g = head_gradient(self.auxiliary, linear, smashed, labels)
        return self._loss(logits, labels), g

    def server_loss(self, smashed: Tensor, labels: Tensor) -> Tensor:
        return self._loss(self._output(self.server, smashed), labels)

    def _loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Mean loss: with a graph in the outputs' own precision (at least float32), else summed in float64."""
        if not outputs.requires_grad:
            outputs = self._objective.wide(outputs)
        return self._objective.mean(widened(outputs), labels, outputs)

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits (B, classes) of the whole network; both sides must be bound."""
        return self._output(self.server, self.smash(inputs))

    def _output(self, part: nn.Module, x: Tensor) -> Tensor:
        with self.precision():
            return part(x)  # type: ignore[no-any-return]

    # --- reports

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        for part in self._parts():
            part.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for part in self._parts():
                part.train()

    def score(
        self, inputs: Tensor, labels: Tensor, seen: list[tuple[Tensor, Tensor]] | None = None
    ) -> dict[str, float | Tensor]:
        """Number of samples, sum () of their losses and, for classes, number () of hits; on the device."""
        outputs = widened(self.logits(inputs))
        if seen is not None:
            seen.append((outputs, labels))
        loss = self._objective.total(outputs, labels, inputs)
        sums: dict[str, float | Tensor] = {"samples": len(labels), "loss": loss}
        if self._objective.classifies:
            sums["hits"] = self._objective.hits(outputs, labels).sum()
        return sums

    def quality(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Mean "loss" of the samples and, for classes, "accuracy"."""
        accuracy = {"accuracy": sums["hits"] / sums["samples"]} if "hits" in sums else {}
        return {**accuracy, "loss": sums["loss"] / sums["samples"]}

    @property
    def metric_names(self) -> tuple[str, ...]:
        return tuple(self.metrics or ())

    def measured(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """The user's metrics of all outputs and targets."""
        return self._objective.measured(outputs, targets, known=False)

    def check_metrics(self, data: Dataset) -> None:
        """Tries the metrics on held-out samples at the initial model (UserError: one gives no number)."""
        if self.metrics and len(data):
            inputs, targets = self.samples(data, np.arange(min(len(data), TRIED)))
            with (
                self.evaluating(),
                self.client_side.bound_to(*self.client_side.initial()),
                self.server_side.bound_to(*self.server_side.initial()),
            ):
                outputs = self.logits(inputs)
            self._objective.measured(widened(outputs), targets, known=True)

    def module_of(self, final: Mapping[str, Any]) -> nn.Module:
        """Copy of client part and server part in sequence; reports do not use the auxiliary head."""
        theta, buffers, theta_s, buffers_s = (
            self.to_device(torch.from_numpy(np.array(final[name])))
            for name in ("theta", "buffers", "theta_s", "buffers_s")
        )
        with self.client_side.bound_to(theta, buffers), self.server_side.bound_to(theta_s, buffers_s):
            whole = nn.Sequential(OrderedDict(client=self.client, server=self.server))
            return copy.deepcopy(whole).to("cpu")


def widened(x: Tensor) -> Tensor:
    """Converts to float32 unless the dtype is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def crop_flip(x: Tensor, generator: np.random.Generator) -> Tensor:
    """Augments images (B, channels, height, width): zero padding by 4, random crop, mirroring with probability 1/2."""
    count, _, height, width = x.shape
    places, mirrored = generator.integers(0, 9, (2, count)), generator.random(count) < 0.5
    up, left, flip = device_cache.to_device(torch.from_numpy(np.stack([*places, mirrored])), x.device)
    padded = nn.functional.pad(x, (4, 4, 4, 4))
    rows = up[:, None] + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device).expand(count, width)
    columns = left[:, None] + torch.where(flip[:, None].bool(), columns.flip(1), columns)
    which = torch.arange(count, device=x.device)[:, None, None]
    cropped = padded.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]]
    return cropped.permute(0, 3, 1, 2)  # channels last in memory, like the input


def _channels_last(x: Tensor) -> Tensor:
    """Converts images to channels-last layout; other tensors stay unchanged."""
    return x.to(memory_format=torch.channels_last) if x.dim() == 4 else x
