"""A multilayer perceptron cut after its first layer, of k features: small networks whose clients must compress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, final

from zofl_mpi.errors import demand

if TYPE_CHECKING:
    from torch import nn


@final
@dataclass(frozen=True)
class SplitMLP:
    """The network before it is cut.

    Attributes:
        hidden: widths: of the client's layer (tanh; the smashed features), then of the server's hidden layers (ReLU).
    """

    hidden: tuple[int, ...] = (4, 100)

    def __post_init__(self) -> None:
        demand(len(self.hidden) >= 1 and min(self.hidden) >= 1, "hidden", self.hidden, "whole numbers above 0")

    def parts(self, shape: Sequence[int], classes: int) -> tuple[nn.Module, nn.Module, nn.Module]:
        """The client's, the auxiliary (a linear layer) and the server's part for inputs of `shape`."""
        from torch import nn

        from zofl_mpi.problems.models import MLP

        k, *server = self.hidden
        client = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), k), nn.Tanh())
        return client, nn.Linear(k, classes), MLP(k, classes, server)
