"""Torch modules as functions of flat vectors: their trainable parameters, and the statistics of their BatchNorms."""

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
"""Numbers of small layers, as norms, that a pass keeps beside its largest one."""


@final
class Flat:
    """Some modules, one after the other, as a function of theta (n,) and buffers (b,).

    theta holds their parameters with requires_grad in the modules' own order, buffers their floating-point buffers
    (running means and variances; not the constants that a module keeps out of its state). Within `bound_to` both are
    views of the caller's vectors: a step in place on theta moves the modules, a forward pass in training mode moves
    buffers. Outside `bound_to` the parameters are empty, so that several clients may share the modules.

    Vectors must lie in memory that torch allocated: a matrix product may round differently at an address that is not a
    multiple of 64, and NumPy's arrays start anywhere.
    """

    def __init__(
        self, modules: Sequence[nn.Module], strict: bool = False, tf32: bool = False, without: Iterable[Tensor] = ()
    ) -> None:
        """GPU reproducibility: see `device.reproducible`; attention is reproducible only if torch is `strict`.

        Parameters `without` which theta is are bound elsewhere.
        """
        self.modules, self._strict, self._tf32 = list(modules), strict, tf32
        for embedding in (m for own in self.modules for m in own.modules() if isinstance(m, EMBEDDINGS)):
            embedding.sparse = False  # its gradient would be no part of a vector
        others = set(map(id, without))
        own = {id(p): p for m in self.modules for p in m.parameters() if p.requires_grad and id(p) not in others}
        self.parameters = list(own.values())  # empty outside `bound_to`
        kept = {id(value) for m in self.modules for value in m.state_dict(keep_vars=True).values()}
        self._buffers = [b for m in self.modules for b in m.buffers() if b.is_floating_point() and id(b) in kept]
        self._layout, self._buffer_layout = _Layout(self.parameters), _Layout(self._buffers)
        self.n = sum(self._layout.sizes)  # length of theta
        self.b = sum(self._buffer_layout.sizes)  # and of buffers
        self.first = (_joined(self.parameters), _joined(self._buffers))  # what the modules came with
        self._empty = self.first[0].new_empty(0)
        self._release()

    def initial(self) -> tuple[Tensor, Tensor]:
        """(n,) and (b,) the values that the modules came with."""
        return self.first[0].clone(), self.first[1].clone()

    def sizes(self) -> list[int]:
        """Number of parameters of each module."""
        sizes = dict(zip(map(id, self.parameters), self._layout.sizes, strict=True))
        return [sum(sizes.pop(id(p), 0) for p in m.parameters()) for m in self.modules]

    def places(self) -> dict[int, tuple[slice, torch.Size]]:
        """{id of a parameter: where it lies in theta, and its shape}."""
        ends = itertools.accumulate(self._layout.sizes)
        layout = zip(self.parameters, self._layout.sizes, self._layout.shapes, ends, strict=True)
        return {id(p): (slice(end - size, end), shape) for p, size, shape, end in layout}

    def constants(self, modules: Sequence[nn.Module]) -> Iterator[Tensor]:
        """Tensors of these modules that lie in neither vector: frozen weights, masks."""
        own = {id(t) for t in (*self.parameters, *self._buffers)}
        return (t for m in modules for t in (*m.parameters(), *m.buffers()) if id(t) not in own)

    @contextmanager
    def bound_to(
        self, theta: Tensor, buffers: Tensor | None = None, running: bool = False
    ) -> Iterator[list[nn.Parameter]]:
        """Context manager: binds the modules to views of theta (n,) and buffers (b,); yields the parameters.

        Args:
            theta: may end with a module: those after it then hold nothing.
            buffers: None leaves the modules those that they have.
            running: BatchNorm normalises by its running statistics, and leaves them as they are.
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
        """(n,) the `gradients`, one after the other, of an output computed within `bound_to` the same theta; 0 where it
        depends on no parameter. Of some of the parameters alone where they are given.
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
    """Gives torch's functions other values in place of parameters, made when a function asks for them.

    A pass at a perturbed point then needs the memory of the largest layer, not of the model. Values are kept while,
    together with later ones, they take no more than the largest one so far. (Logits of a few positions at a time ask
    for one matrix again and again.) Of a matrix of which a function reads some rows (`Tensor.narrow`, an embedding on a
    CPU)
    these alone are made: a vocabulary's is most of a language model's memory.
    The modules may be bound to NaN meanwhile: a function that does not come by here, in compiled code, spoils the loss.
    """

    def __init__(
        self,
        sizes: Mapping[int, int],
        value: Callable[[Tensor], Tensor],
        some: Callable[[Tensor, slice], Tensor],
        rows: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        """`value` of a parameter is what takes its place, if its id is one of `sizes`: {id: numbers}.

        A function's parameters are asked for in the order of `sizes`, in which their values are made soonest.

        Args:
            some: (parameter, a slice of its rows) to the values of these.
            rows: (parameter, (k,) numbers of rows) to (k, width) their values.
        """
        super().__init__()
        self._sizes, self._value, self._some, self._rows, self._room = sizes, value, some, rows, 0
        self._order = {key: k for k, key in enumerate(sizes)}
        self._kept: dict[int, Tensor] = {}  # the oldest first

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "__get__":  # of a shape or a dtype, mostly
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
        """True if it is a parameter whose values are still to be made."""
        return id(asked) in self._order and id(asked) not in self._kept

    def _value_of(self, parameter: Tensor) -> Tensor:
        key, kept = id(parameter), self._kept
        self._room = max(self._room, self._sizes[key] + SMALL_LAYERS)
        if key not in kept:
            while kept and sum(map(self._sizes.__getitem__, [*kept, key])) > self._room:
                del kept[next(iter(kept))]
            kept[key] = self._value(parameter)
        kept[key] = value = kept.pop(key)  # now the newest
        return value


def gradients(output: Tensor, parameters: Sequence[Tensor], slope: Tensor | None = None) -> tuple[Tensor, ...]:
    """The gradient of an output's loss with respect to each of these parameters; 0 where it depends on one of them not.

    `slope` is that of the loss with respect to the output; None where the output is the loss. It takes the place of the
    gradient of a sum: given to `autograd.grad`, torch would import sympy (0.4 s), and use it in each step.
    """
    if slope is not None:
        output.register_hook(lambda _: slope)  # type: ignore[no-untyped-call]
        output = output.sum()
    return torch.autograd.grad(output, parameters, materialize_grads=True)


@final
class _Layout:
    """Positions of tensors in a vector, one after another.

    A vector's views are kept while it lives: to make them takes ten times as long as to bind the modules to them.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.sizes, self.shapes = [t.numel() for t in tensors], [t.shape for t in tensors]
        self._counts = {end: k for k, end in enumerate(itertools.accumulate(self.sizes, initial=0))}
        self._views: dict[int, tuple[weakref.ref[Tensor], list[Tensor]]] = {}

    def views(self, vector: Tensor) -> list[Tensor]:
        """The parts of a vector, in these shapes: of all tensors, or of the first ones."""
        key = id(vector)
        if key not in self._views:
            sizes = self.sizes[: self._counts[len(vector)]]
            parts = vector.data.split_with_sizes(sizes)  # of a tensor of their own: they do not keep `vector`
            views = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=False)]
            self._views[key] = weakref.ref(vector, lambda _: self._views.pop(key, None)), views
        return self._views[key][1]


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors]) if tensors else torch.empty(0)
