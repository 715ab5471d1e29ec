"""Samples on which a network and its loss are tried before a run."""

from collections.abc import Callable
from typing import final

import numpy as np
import torch
from torch import Tensor

from zofl_mpi.problems import Array


@final
class Examples:
    """Inputs and targets to try a network with: real samples, or numbers from -1 to 1, of class 0.

    Attributes:
        count: how many, at least two.
        input_dtype: of the inputs: floats, or int64 for a network that takes no floats; see `taken_by`.
    """

    def __init__(self, given: tuple[Array, Array] | None, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """`given`: inputs (k, p), each of `shape`, and targets (k, ...)."""
        self._given, self._shape, self.input_dtype = given, shape, dtype
        self.count = 2 if given is None else max(2, len(given[0]))

    def inputs(self, count: int = 0) -> Tensor:
        """(count, *shape) inputs; all for 0."""
        size = (count or self.count, *self._shape)
        if self._given is None:
            return torch.linspace(-1, 1, int(np.prod(size)), dtype=self.input_dtype).view(size)
        return (
            torch.from_numpy(np.resize(self._given[0], (size[0], *self._given[0].shape[1:])))
            .to(self.input_dtype)
            .view(size)
        )

    def targets(self, count: int = 0) -> Tensor:
        """(count, ...) targets; all for 0."""
        count = count or self.count
        if self._given is None:
            return torch.zeros(count, dtype=torch.int64)
        return torch.from_numpy(_repeated(self._given[1], count))

    def zeros(self, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs (count, *shape) and targets (count, ...) of zeros."""
        own = torch.zeros(count, *self._shape, dtype=self.input_dtype, device=device)
        return own, torch.zeros_like(self.targets(count), device=device)

    def taken_by(self, network: Callable[[Tensor], Tensor]) -> Tensor:
        """The network's outputs; of whole inputs as int64 where it, as an embedding, takes no floats.

        Raises:
            Exception: the network's own, where it takes neither.
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
                if "index out of range" in str(exc):  # whole numbers are what it takes, and these are beyond its matrix
                    raise
            raise


def _repeated(rows: Array, count: int) -> Array:
    """The first `count` rows, from the beginning again where there are fewer."""
    return np.resize(rows, (count, *rows.shape[1:]))
