"""A torch module that classifies, as a function of a flat vector, with the samples of a `Dataset` as its inputs."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, log_softmax

from zofl_mpi.data import Dataset
from zofl_mpi.errors import UserError
from zofl_mpi.problems import Array, Batch
from zofl_mpi.problems.device_cache import in_kind, samples_on
from zofl_mpi.problems.flat import Flat, gradients
from zofl_mpi.problems.saving import PLAIN, Saving, grouped
from zofl_mpi.problems.terms import check_positions

Named = dict[str, Tensor]  # by the names of a module's parameters, with a first axis for the models of many


@final
class Function:
    """A module that classifies, as a function of a flat vector on a device, and its samples there.

    Attributes:
        module: maps inputs (B, *input_shape) to logits (B, classes). Its buffers are constants.
        classes: C.
        n: length of the vector.
        input_dtype: of the module's inputs: `dtype`, or int64 for a module that takes no floats.
        obstacle: why many models cannot be computed at once, in torch's words; "" where they can, or it was not tried.
    """

    def __init__(
        self,
        module: nn.Module,
        input_shape: tuple[int, ...],
        classes: int,
        dtype: Any,
        device: str,
        many: bool = False,
        saving: Saving = PLAIN,
        examples: Array | None = None,
    ) -> None:
        """Tries the module.

        Args:
            many: try whether many models can be computed at once, see `obstacle`.
            saving: of backward passes.
            examples: (k, p) inputs of real samples to try the module with; None: numbers from -1 to 1.
        """
        self.module, self._saving, self._examples = module, saving, examples
        self._blocks = grouped(module) if saving.checkpoint else []
        saving.check(self._blocks, [module])
        self.input_shape, self.classes = input_shape, classes
        self._dtype = np.dtype(dtype).name
        self.dtype: torch.dtype = getattr(torch, self._dtype)
        self.input_dtype = self.dtype
        self.module.to(self.dtype)
        self._try()
        self.obstacle = self._obstacle() if many else ""
        self.device = torch.device(device)
        self.module.to(self.device)
        self._flat = Flat([self.module])
        self.n = self._flat.n
        if self.n == 0:
            raise UserError(f"{type(module).__name__} has no parameter with requires_grad: there is nothing to train")
        # Convolutions are a quarter faster on images whose channels lie side by side: 5.3 ms for 7.4 a step of `CNN`.
        is_image = len(input_shape) == 3 and any(isinstance(part, nn.Conv2d) for part in self.module.modules())
        self.channels_last = is_image and self.device.type == "cpu"

    def initial(self) -> Array:
        """(n,) the parameters that the module came with."""
        return self._flat.initial()[0].cpu().numpy()

    def vector(self, x: Array) -> Tensor:
        """(n,) a copy of x on the device."""
        return torch.tensor(x, dtype=self.dtype, device=self.device)

    @contextmanager
    def at(self, y: Tensor) -> Iterator[list[Tensor]]:
        """Context manager: the module computes with views of y (n,); yields these, without requires_grad."""
        with self._flat.at(y) as parameters:
            yield [parameter.data for parameter in parameters]

    def gradient(self, inputs: Tensor, labels: Tensor, reduction: str = "mean") -> tuple[Tensor, ...]:
        """The gradient of the cross-entropy with respect to each parameter, within `at`."""
        return self._saving.added(self._gradients(inputs, labels, reduction))

    def _gradients(self, inputs: Tensor, labels: Tensor, reduction: str) -> Iterator[tuple[float, tuple[Tensor, ...]]]:
        """Of each part of the mini-batch its weight, and its gradient."""
        for own, targets in self._saving.split(inputs, labels):
            with self._saving.forward(self._blocks):
                loss = cross_entropy(self.module(own), targets, reduction=reduction)
            weight = len(targets) / len(labels) if reduction == "mean" else 1.0
            yield weight, gradients(loss, self._flat.parameters)

    def slopes(self) -> Callable[[Named, Tensor, Tensor], Named]:
        """The gradients of the mean cross-entropies of R models, each on its own mini-batch, in one computation.

        A function of the parameters (R, *shape), inputs (R, B, *input_shape) and labels (R, B, C), 1 for the true class
        and else 0. By products: torch's own cross-entropy would gather and scatter, in a dozen operations more.
        """

        def loss(parameters: Named, inputs: Tensor, labels: Tensor) -> Tensor:
            logits: Tensor = functional_call(self.module, parameters, (inputs,))
            return -(labels * log_softmax(logits, dim=-1)).sum(dim=-1).mean()

        return vmap(grad(loss), randomness="different")  # no random number is drawn (`_try`), but of a dropout's 0

    def costs(self) -> Callable[[Named, Tensor, Tensor], Tensor]:
        """(R,) float64 the sums of the cross-entropies of R models, each on its own mini-batch; see `slopes`."""

        def cost(parameters: Named, inputs: Tensor, labels: Tensor) -> Tensor:
            logits: Tensor = functional_call(self.module, parameters, (inputs,))
            return -(labels * log_softmax(logits.to(torch.float64), dim=-1)).sum()

        return vmap(cost, randomness="different")

    def places(self) -> list[tuple[str, slice, torch.Size]]:
        """Of each parameter its name, where it lies in the vector, and its shape; in the vector's order."""
        known = self._flat.places()
        return [(name, *known[id(p)]) for name, p in self.module.named_parameters() if p.requires_grad]

    def step_bytes(self, batch_size: int) -> int:
        """Memory of a step, about: the point, its gradient, the step, the inputs, twice what a backward pass keeps."""
        kept = 0

        def noted(tensor: Tensor) -> Tensor:
            nonlocal kept
            kept += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(noted, lambda tensor: tensor), torch.enable_grad():
            inputs, point = self._step_of_zeros(batch_size)
        return 3 * point.nbytes + inputs.nbytes + 2 * kept

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """(B, C) float64."""
        logits = self.module(inputs)
        if not isinstance(logits, Tensor):
            raise TypeError(f"it returns a {type(logits).__name__}, not logits")
        return logits.double()

    def samples(self, data: Dataset, positions: Batch) -> tuple[Tensor, Tensor]:
        """Inputs (..., *input_shape) and labels (...) of the samples at `positions` (...), on the device."""
        check_positions(data, positions)
        inputs, labels = samples_on(str(self.device), data, positions.ravel(), self._dtype)
        layout = torch.channels_last if self.channels_last else torch.preserve_format
        # a copy in memory that torch allocated: NumPy's may begin anywhere, and products then round differently
        inputs = in_kind(inputs.view(-1, *self.input_shape), self.input_dtype, memory_format=layout)
        inputs = inputs.view((*positions.shape, *self.input_shape))
        if self.channels_last:  # for one channel torch itself writes strides that take slow paths
            channels, _, width = self.input_shape
            inner = (1, width * channels, channels)
            inputs = inputs.as_strided(inputs.shape, (*inputs.stride()[: positions.ndim], *inner))
        return inputs, labels.view(positions.shape)

    def flops(self, batch_size: int) -> float:
        """FLOPs of a forward and a backward pass on a batch of this size."""
        from zofl_mpi.problems.counting import Products  # 0.3 s

        with Products() as counted:
            self._step_of_zeros(batch_size)
        return float(counted.flops)

    def client_bytes(self, batch_size: int, gradient: bool) -> float:
        """Bytes live at once in a step at 0 on samples of zeros, both included; `gradient`: with a backward pass."""
        from zofl_mpi.problems.counting import Allocations

        with Allocations() as made:
            self._step_of_zeros(batch_size, gradient)
        return float(made.peak)

    def _step_of_zeros(self, batch_size: int, gradient: bool = True) -> tuple[Tensor, Tensor]:
        """Computes the gradient, or the logits, at 0 on samples of zeros; returns these inputs and that point."""
        inputs = torch.zeros((batch_size, *self.input_shape), dtype=self.input_dtype, device=self.device)
        point = torch.zeros(self.n, dtype=self.dtype, device=self.device)
        with self.at(point):
            if gradient:
                self.gradient(inputs, torch.zeros(batch_size, dtype=torch.int64, device=self.device))
            else:
                self.logits(inputs)
        return inputs, point

    def _obstacle(self) -> str:
        """See `obstacle`: from one computation of two models, on the CPU. A loop over the models is none."""
        trained = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        both = {name: torch.stack([p.detach()] * 2) for name, p in trained.items()}
        labels = torch.ones((2, 2, self.classes), dtype=self.dtype)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="There is a performance drop")
                self.slopes()(both, self._trial(4).view(2, 2, *self.input_shape), labels)
        except Exception as error:  # the user's code, or an operation that has no batched form
            return str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
        return ""

    def _trial(self, count: int) -> Tensor:
        """(count, *input_shape) inputs to try the module with."""
        if self._examples is None:
            numbers = torch.linspace(-1, 1, count * int(np.prod(self.input_shape)), dtype=self.dtype)
        else:
            chosen = np.resize(np.arange(len(self._examples)), count)
            numbers = torch.from_numpy(np.asarray(self._examples, self._dtype)[chosen])
        return numbers.view(count, *self.input_shape).to(self.input_dtype)

    def _first_logits(self) -> Tensor:
        """The logits of two inputs; of whole numbers as int64 where the module, as an embedding, takes no floats."""
        whole = self._examples is not None and bool((self._examples == np.floor(self._examples)).all())
        try:
            return self.logits(self._trial(2))
        except Exception:  # the user's code
            if not whole:
                raise
            self.input_dtype = torch.int64
            with suppress(Exception):
                return self.logits(self._trial(2))
            self.input_dtype = self.dtype
            raise

    def _try(self) -> None:
        """Refuses a module that takes no such inputs, returns no logits, changes its buffers or draws random numbers,
        and is then no function of its parameters: by a forward pass of two inputs on the CPU.
        """
        name = type(self.module).__name__
        before = [buffer.clone() for buffer in self.module.buffers()]
        versions = [p._version for p in self.module.parameters()]
        with torch.random.fork_rng(devices=()):
            state = torch.random.get_rng_state()
            try:
                logits = self._first_logits()
            except Exception as error:  # the user's code
                reason = str(error).partition("\n")[0]
                raise UserError(f"{name} does not take inputs of shape {self.input_shape}: {reason}") from error
            drew = not torch.equal(state, torch.random.get_rng_state())
        if logits.shape != (2, self.classes):
            got, want = tuple(logits.shape[1:]), f"{self.classes} logits, one a class"
            raise UserError(f"{name} maps an input to an output of shape {got}, not to {want}")
        if [p._version for p in self.module.parameters()] != versions:
            raise UserError(f"{name} changes its parameters in a forward pass (max_norm of an embedding?)")
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


def copy_of(module: nn.Module) -> nn.Module:
    """A copy on the CPU, or a UserError where the module has no sizes yet or cannot be copied."""
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
