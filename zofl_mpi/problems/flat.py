"""Torch modules as functions of flat vectors of parameters and BatchNorm statistics."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from zofl_mpi.engine import device

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
EMBED = nn.functional.embedding
SMALL_LAYERS = 2**16
"""Numbers of small layers, such as norms, that a pass keeps besides its largest layer."""


@final
class Flat:
    """Torch modules as a function of theta (n,) and buffers (b,).

    theta holds the parameters with requires_grad in the modules' order. Buffers are the floating-point ones in the
    modules' state (running means and variances). Within `bound_to` both are views of the caller's vectors: an in-place
    step on theta changes the modules, a forward pass in training mode changes buffers. Outside `bound_to` the
    parameters are empty, so that clients can share the modules.

    torch must allocate the vectors: a matrix product may round differently at an address that is not a multiple of 64,
    and NumPy arrays start anywhere.
    """

    def __init__(
        self, modules: Sequence[nn.Module], strict: bool = False, tf32: bool = False, without: Iterable[Tensor] = ()
    ) -> None:
        """Collects the parameters and buffers of the modules.

        Args:
            strict, tf32: see `device.reproducible`; attention on a GPU is deterministic only if `strict`.
            without: parameters left out of theta, which another `Flat` binds.
        """
        self.modules, self._strict, self._tf32 = list(modules), strict, tf32
        for embedding in (m for own in self.modules for m in own.modules() if isinstance(m, EMBEDDINGS)):
            embedding.sparse = False  # a sparse gradient does not fit into a vector
        others = set(map(id, without))
        own = {id(p): p for m in self.modules for p in m.parameters() if p.requires_grad and id(p) not in others}
        self.parameters = list(own.values())  # empty outside `bound_to`
        kept = {id(value) for m in self.modules for value in m.state_dict(keep_vars=True).values()}
        self._buffers = [b for m in self.modules for b in m.buffers() if b.is_floating_point() and id(b) in kept]
        self._layout, self._buffer_layout = _Layout(self.parameters), _Layout(self._buffers)
        self.n = sum(self._layout.sizes)  # length of theta
        self.b = sum(self._buffer_layout.sizes)  # length of buffers
        self.first = (_joined(self.parameters), _joined(self._buffers))  # initial values
        self._empty = self.first[0].new_empty(0)
        self._release()

    def initial(self) -> tuple[Tensor, Tensor]:
        """Copies of the modules' initial theta (n,) and buffers (b,)."""
        return self.first[0].clone(), self.first[1].clone()

    def sizes(self) -> list[int]:
        """Number of parameters of each module."""
        sizes = dict(zip(map(id, self.parameters), self._layout.sizes, strict=True))
        return [sum(sizes.pop(id(p), 0) for p in m.parameters()) for m in self.modules]

    def places(self) -> dict[int, tuple[slice, torch.Size]]:
        """{id of a parameter: (its slice of theta, its shape)}"""
        ends = itertools.accumulate(self._layout.sizes)
        layout = zip(self.parameters, self._layout.sizes, self._layout.shapes, ends, strict=True)
        return {id(p): (slice(end - size, end), shape) for p, size, shape, end in layout}

    def constants(self, modules: Sequence[nn.Module]) -> Iterator[Tensor]:
        """Tensors of these modules outside both vectors: frozen weights, masks."""
        own = {id(t) for t in (*self.parameters, *self._buffers)}
        return (t for m in modules for t in (*m.parameters(), *m.buffers()) if id(t) not in own)

    @contextmanager
    def bound_to(
        self, theta: Tensor, buffers: Tensor | None = None, running: bool = False
    ) -> Iterator[list[nn.Parameter]]:
        """Context manager: binds the modules to views of theta (n,) and buffers (b,); yields the parameters.

        Args:
            theta: may cover only the first modules; the parameters of the others stay empty.
            buffers: None: the modules keep their current ones.
            running: BatchNorm normalises by its running statistics, without updating them.
        """
        for parameter, part in zip(self.parameters, self._layout.views(theta), strict=False):
            parameter.data = part
        if buffers is not None:
            self.swap(buffers)
        if running:
            for m in self.modules:
                m.eval()
        try:
            if theta.is_cuda:
                device.reproducible(self._strict, self._tf32)
            yield self.parameters
        finally:
            if running:
                for m in self.modules:
                    m.train()
            self._release()

    def swap(self, buffers: Tensor) -> None:
        """Binds the modules to other buffers (b,), within `bound_to`."""
        for buffer, part in zip(self._buffers, self._buffer_layout.views(buffers), strict=True):
            buffer.data = part

    def gradient(
        self, output: Tensor, slope: Tensor | None = None, parameters: Sequence[Tensor] | None = None
    ) -> Tensor:
        """Flat gradient (n,) of an output computed within `bound_to` the same theta; see `gradients`.

        Zeros if the output depends on no parameter. `parameters` restricts it to some of them.
        """
        if not (self.parameters and output.requires_grad):
            return self.first[0].new_zeros(self.n)
        parts = gradients(output, self.parameters if parameters is None else parameters, slope)
        return torch.cat([part.reshape(-1) for part in parts])

    def _release(self) -> None:
        for p in self.parameters:
            p.data = self._empty


@final
class Substituted(TorchFunctionMode):
    """Substitutes perturbed values for parameters when a torch function reads them.

    A pass at a perturbed point then needs the memory of the largest layer, not of the model. Values stay cached up to
    the size of the largest one so far: logits computed a few positions at a time read one matrix repeatedly. If a
    function reads only some rows of a matrix (`Tensor.narrow`, an embedding on a CPU), only these are computed; a
    vocabulary's matrix is most of a language model.

    Bind the modules to NaN meanwhile: compiled code that bypasses this class then yields a NaN loss.
    """

    def __init__(
        self,
        sizes: Mapping[int, int],
        value: Callable[[Tensor], Tensor],
        some: Callable[[Tensor, slice], Tensor],
        rows: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        """Substitutes the parameters whose id is in `sizes`.

        Args:
            sizes: {id of a parameter: its size}, in the order in which values are generated fastest.
            value: maps a parameter to its new value.
            some: maps (parameter, slice of rows) to the rows' new values.
            rows: maps (parameter, (k,) row numbers) to their new values (k, width).
        """
        super().__init__()
        self._sizes, self._value, self._some, self._rows, self._room = sizes, value, some, rows, 0
        self._order = {key: k for k, key in enumerate(sizes)}
        self._kept: dict[int, Tensor] = {}  # oldest first

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "__get__":  # mostly a shape or a dtype
            found = func(*args)
            if not isinstance(found, Tensor):
                return found
        if func is torch.Tensor.narrow and len(args) == 4 and args[1] == 0 and self._makes(args[0]):
            return self._some(args[0], slice(args[2], args[2] + args[3]))
        kwargs = kwargs or {}
        if func is EMBED and args[1].device.type == "cpu" and kwargs.get("max_norm") is None and self._makes(args[1]):
            return self._rows(args[1], args[0].flatten()).view(*args[0].shape, -1)
        leaves, form = tree_flatten((args, kwargs))
        asked = {id(p): p for p in leaves if id(p) in self._order}
        values = {key: self._value_of(asked[key]) for key in sorted(asked, key=self._order.__getitem__)}
        args, kwargs = tree_unflatten([values.get(id(leaf), leaf) for leaf in leaves], form)
        return func(*args, **kwargs)

    def _makes(self, asked: Any) -> bool:
        """True for a substituted parameter whose value is not cached."""
        return id(asked) in self._order and id(asked) not in self._kept

    def _value_of(self, parameter: Tensor) -> Tensor:
        key, kept = id(parameter), self._kept
        self._room = max(self._room, self._sizes[key] + SMALL_LAYERS)
        if key not in kept:
            while kept and sum(map(self._sizes.__getitem__, [*kept, key])) > self._room:
                del kept[next(iter(kept))]
            kept[key] = self._value(parameter)
        kept[key] = value = kept.pop(key)  # marks it as newest
        return value


def gradients(output: Tensor, parameters: Sequence[Tensor], slope: Tensor | None = None) -> tuple[Tensor, ...]:
    """Gradient of a loss with respect to each parameter; zeros for parameters that the output does not depend on.

    `slope` is the gradient of the loss with respect to the output; None: the output is the loss. A hook applies it:
    passed to `autograd.grad`, torch would import sympy (0.4 s) and use it in each step.
    """
    if slope is not None:
        output.register_hook(lambda _: slope)  # type: ignore[no-untyped-call]
        output = output.sum()
    return torch.autograd.grad(output, parameters, materialize_grads=True)


@final
class _Layout:
    """Layout of consecutive tensors in a vector.

    Caches a vector's views while it lives: creating them takes ten times as long as binding the modules to them.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.sizes, self.shapes = [t.numel() for t in tensors], [t.shape for t in tensors]
        self._counts = {end: k for k, end in enumerate(itertools.accumulate(self.sizes, initial=0))}
        self._views: dict[int, tuple[weakref.ref[Tensor], list[Tensor]]] = {}

    def views(self, vector: Tensor) -> list[Tensor]:
        """Views of a vector as all tensors, or as the first ones if it is shorter."""
        key = id(vector)
        if key not in self._views:
            sizes = self.sizes[: self._counts[len(vector)]]
            parts = vector.data.split_with_sizes(sizes)  # via .data: the views do not keep `vector` alive
            views = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=False)]
            self._views[key] = weakref.ref(vector, lambda _: self._views.pop(key, None)), views
        return self._views[key][1]


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors]) if tensors else torch.empty(0)
