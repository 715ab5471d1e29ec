"""Example samples for trying a network and its loss before a run."""

from collections.abc import Callable
from typing import final

import numpy as np
import torch
from torch import Tensor

from zofl_mpi.problems import Array


@final
class Examples:
    """Inputs and targets for trying a network: real samples, or numbers from -1 to 1 of class 0.

    Attributes:
        count: number of samples, at least two.
        input_dtype: of the inputs: a float dtype, or int64 for a network that takes only integers; see `taken_by`.
    """

    def __init__(self, given: tuple[Array, Array] | None, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """`given`: inputs (k, p), each of `shape`, and targets (k, ...)."""
        self._given, self._shape, self.input_dtype = given, shape, dtype
        self.count = 2 if given is None else max(2, len(given[0]))

    def inputs(self, count: int = 0) -> Tensor:
        """Inputs (count, *shape); 0: all."""
        size = (count or self.count, *self._shape)
        if self._given is None:
            return torch.linspace(-1, 1, int(np.prod(size)), dtype=self.input_dtype).view(size)
        return torch.from_numpy(_repeated(self._given[0], size[0])).to(self.input_dtype).view(size)

    def targets(self, count: int = 0) -> Tensor:
        """Targets (count, ...); 0: all."""
        count = count or self.count
        if self._given is None:
            return torch.zeros(count, dtype=torch.int64)
        return torch.from_numpy(_repeated(self._given[1], count))

    def zeros(self, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Zero inputs (count, *shape) and zero targets (count, ...)."""
        own = torch.zeros(count, *self._shape, dtype=self.input_dtype, device=device)
        return own, torch.zeros_like(self.targets(count), device=device)

    def taken_by(self, network: Callable[[Tensor], Tensor]) -> Tensor:
        """The network's outputs; tries whole-number inputs as int64 if it takes no floats, like an embedding.

        Raises:
            Exception: the network's own, if it takes neither.
        """
        try:
            return network(self.inputs())
        except Exception:  # the user's code
            if self._given is None or not np.array_equal(self._given[0], np.floor(self._given[0])):
                raise
            floats, self.input_dtype = self.input_dtype, torch.int64
            try:
                return network(self.inputs())
            except Exception as exc:
                self.input_dtype = floats
                if "index out of range" in str(exc):  # it takes integers, but these exceed its matrix
                    raise
            raise


def _repeated(rows: Array, count: int) -> Array:
    """The first `count` rows, repeated from the beginning if there are fewer."""
    return np.resize(rows, (count, *rows.shape[1:]))
