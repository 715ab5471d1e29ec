"""A torch module with a loss, as a function of a flat vector, on the samples of a `Dataset`."""

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from zofl_mpi.data import Dataset
from zofl_mpi.errors import UserError
from zofl_mpi.problems import Array, Batch
from zofl_mpi.problems.device_cache import in_kind, samples_on
from zofl_mpi.problems.examples import Examples
from zofl_mpi.problems.flat import Flat, gradients
from zofl_mpi.problems.objective import Objective
from zofl_mpi.problems.saving import PLAIN, Saving, grouped
from zofl_mpi.problems.terms import check_positions

LOCK = threading.RLock()
"""Held while torch computes with a module: ranks may be threads of one process."""


@final
class Function:
    """A module with a loss, as a function of a flat vector on a device.

    Attributes:
        module: maps inputs (B, *input_shape) to outputs (B, ...); its buffers are constants.
        objective: loss of outputs and targets.
        classes: C.
        n: length of the vector.
    """

    def __init__(
        self,
        module: nn.Module,
        input_shape: tuple[int, ...],
        classes: int,
        objective: Objective,
        dtype: Any,
        device: str,
        saving: Saving = PLAIN,
        examples: tuple[Array, Array] | None = None,
    ) -> None:
        """Prepares the module and tries it with its loss.

        Args:
            saving: memory saving of backward passes.
            examples: inputs (k, p) and targets (k, ...) of real samples for the trial; None: numbers from -1 to 1, of
                class 0.
        """
        self.module, self.objective, self._saving = module, objective, saving
        self._blocks = grouped(module) if saving.checkpoint else []
        saving.check(self._blocks, [module])
        self.input_shape, self.classes = input_shape, classes
        self._dtype = np.dtype(dtype).name
        self.dtype: torch.dtype = getattr(torch, self._dtype)
        self.examples = Examples(examples, input_shape, self.dtype)
        self.module.to(self.dtype)
        self._try()
        self.device = torch.device(device)
        self.module.to(self.device)
        self.objective.to(self.device)
        self.flat = Flat([self.module])
        self.n = self.flat.n
        if self.n == 0:
            raise UserError(f"{type(module).__name__} has no parameter with requires_grad: there is nothing to train")
        # channels-last convolutions are a quarter faster: 5.3 ms for 7.4 a step of `CNN`
        is_image = len(input_shape) == 3 and any(isinstance(part, nn.Conv2d) for part in self.module.modules())
        self.channels_last = is_image and self.device.type == "cpu"

    def initial(self) -> Array:
        """Initial parameters (n,) of the module."""
        return self.flat.initial()[0].cpu().numpy()

    def vector(self, x: Array) -> Tensor:
        """Copy of x (n,) on the device."""
        return torch.tensor(x, dtype=self.dtype, device=self.device)

    @contextmanager
    def bound_to(self, y: Tensor) -> Iterator[list[Tensor]]:
        """Context manager: binds the module to views of y (n,); yields them, without requires_grad."""
        with self.flat.bound_to(y) as parameters:
            yield [parameter.data for parameter in parameters]

    def gradient(self, inputs: Tensor, targets: Tensor, of_sum: bool = False) -> tuple[Tensor, ...]:
        """Gradient of the mean loss, or of the sum, in each parameter; call within `bound_to`."""
        return self._saving.added(self._gradients(inputs, targets, of_sum))

    def _gradients(self, inputs: Tensor, targets: Tensor, of_sum: bool) -> Iterator[tuple[float, tuple[Tensor, ...]]]:
        """Yields (weight, gradient) of each part of the mini-batch (UserError: the loss has no gradient)."""
        for own, wanted in self._saving.split(inputs, targets):
            with self._saving.forward(self._blocks):
                loss = (self.objective.sum if of_sum else self.objective.mean)(self.module(own), wanted, own)
            if not loss.requires_grad:
                fault = f"loss {self.objective.name} has no gradient: it leaves torch's operations"
                raise UserError(f"{fault}; use a method that needs only values, such as fedrzo_nn")
            yield 1.0 if of_sum else len(wanted) / len(targets), gradients(loss, self.flat.parameters)

    @torch.no_grad()
    def outputs(self, inputs: Tensor) -> Tensor:
        """Outputs (B, ...) without a graph."""
        outputs = self.module(inputs)
        if not isinstance(outputs, Tensor):
            raise TypeError(f"it returns a {type(outputs).__name__}, not one tensor")
        return outputs

    def samples(self, data: Dataset, positions: Batch) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the samples at `positions`, on the device; positions' axes come first."""
        check_positions(data, positions)
        inputs, targets = samples_on(str(self.device), data, positions.ravel(), self._dtype)
        layout = torch.channels_last if self.channels_last else torch.preserve_format
        # copies to memory allocated by torch: at unaligned addresses of NumPy's, products round differently
        inputs = in_kind(inputs.view(-1, *self.input_shape), self.examples.input_dtype, memory_format=layout)
        inputs = inputs.view((*positions.shape, *self.input_shape))
        if self.channels_last:  # for one channel torch's own strides take slow paths
            channels, _, width = self.input_shape
            inner = (1, width * channels, channels)
            inputs = inputs.as_strided(inputs.shape, (*inputs.stride()[: positions.ndim], *inner))
        return inputs, targets.view(*positions.shape, *targets.shape[1:])

    def flops(self, batch_size: int) -> float:
        """FLOPs of a forward and a backward pass on a batch of this size, even if the loss has no gradient."""
        from zofl_mpi.problems.counting import Products  # imports for 0.3 s

        with Products() as counted:
            self.step_of_zeros(batch_size)
        return float(counted.flops) * (1 if self.objective.differentiable else 3)

    def client_bytes(self, batch_size: int, gradient: bool) -> float:
        """Peak bytes of a step at 0 on zero samples, both included; `gradient`: with a backward pass."""
        from zofl_mpi.problems.counting import Allocations

        with Allocations() as made:
            self.step_of_zeros(batch_size, gradient)
        return float(made.peak)

    def step_of_zeros(self, batch_size: int, gradient: bool = True) -> tuple[Tensor, Tensor]:
        """Computes the gradient, or only the outputs, at 0 on zero samples; returns inputs and point."""
        inputs, targets = self.examples.zeros(batch_size, self.device)
        point = torch.zeros(self.n, dtype=self.dtype, device=self.device)
        with self.bound_to(point):
            if gradient and self.objective.differentiable:
                self.gradient(inputs, targets)
            else:
                self.outputs(inputs)
        return inputs, point

    def _try(self) -> None:
        """Tries a forward pass on the CPU, and the loss.

        Raises:
            UserError: the module does not take the inputs; the loss does not take its outputs; or the module changes
                parameters or buffers, or draws random numbers, and is thus no function of its parameters.
        """
        name, count = type(self.module).__name__, self.examples.count
        before = [buffer.clone() for buffer in self.module.buffers()]
        versions = [p._version for p in self.module.parameters()]
        with torch.random.fork_rng(devices=()):
            state = torch.random.get_rng_state()
            try:
                outputs = self.examples.taken_by(self.outputs)
            except Exception as error:  # the user's code
                reason = str(error).partition("\n")[0]
                raise UserError(f"{name} does not take inputs of shape {self.input_shape}: {reason}") from error
            drew = not torch.equal(state, torch.random.get_rng_state())
        targets = self.examples.targets()
        by_class = self.objective.by_class(targets)
        if outputs.shape[:1] != (count,) or (by_class and outputs.shape != (count, self.classes)):
            want = f"{self.classes} logits, one a class" if by_class else "one for each input"
            got = tuple(outputs.shape[1:])
            raise UserError(f"{name} maps an input to an output of shape {got}, not to {want}")
        if [p._version for p in self.module.parameters()] != versions:
            raise UserError(f"{name} changes its parameters in a forward pass (max_norm of an embedding?)")
        if not all(map(torch.equal, before, self.module.buffers())):
            raise UserError(
                f"{name} changes its buffers in a forward pass (BatchNorm's running statistics?), so it is no function "
                "of its parameters: use GroupNorm or LayerNorm, BatchNorm with track_running_stats=False, or .eval()"
            )
        if drew:
            raise UserError(
                f"{name} draws random numbers in a forward pass (dropout?), so it is no function of its parameters: "
                "set probability 0, or call .eval()"
            )
        self.objective.check(outputs, targets, self.examples.inputs())
        if self._saving.parts > 1 and not self.objective.separate:
            fault = f"loss {self.objective.name} is no mean over samples"
            raise UserError(f"--client-memory {self._saving}: {fault}, so parts have another gradient; use none")


def copy_of(module: Any) -> nn.Module:
    """Copies a module to the CPU (UserError: it is none, has lazy parameters or cannot be copied)."""
    if not isinstance(module, nn.Module):
        allowed = "a torch module, or a class or function that gives one"
        raise UserError(f"the network is a {type(module).__name__}; it must be {allowed}")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
        raise UserError(f"{type(module).__name__} has lazy modules, but x needs a fixed length: give each its sizes")
    try:
        return copy.deepcopy(module).to("cpu")
    except Exception as error:  # such as torch's old weight_norm
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{type(module).__name__} cannot be copied: {reason}; use torch.nn.utils.parametrizations"
        ) from error
