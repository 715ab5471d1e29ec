"""Small torch modules to go with `Network`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import cast, final

from torch import Tensor, nn

from zofl_mpi.errors import UserError


@final
class MLP(nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, inputs: int, classes: int, hidden: Sequence[int] = (200,)) -> None:
        """Layers of the widths inputs, *hidden, classes, each with a bias; inputs of any shape are flattened."""
        super().__init__()
        widths = [inputs, *hidden, classes]
        if min(widths) < 1:
            raise UserError(f"--hidden {' '.join(map(str, hidden))}: each width must be at least 1")
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, C) logits."""
        return cast(Tensor, self.layers(inputs))


@final
class CNN(nn.Module):
    """Two convolutions 5 x 5 with 16 and 32 channels, each pooled to half the size, and a hidden layer of 128.

    A quarter to a half of the widths of McMahan et al., Communication-efficient learning of deep networks from
    decentralized data (2017): 215,370 parameters for (1, 28, 28), 277,610 for (3, 32, 32). The maximum is taken before
    the ReLU: the same function with a quarter of the work.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, channels: tuple[int, int] = (16, 32)) -> None:
        """Images of `shape` (channels, height, width), at least 4 x 4."""
        super().__init__()
        depth, height, width = shape
        if min(height, width) < 4:
            raise UserError(f"--problem cnn: images of {height} x {width} pixels; they must be at least 4 x 4")
        first, second = channels
        self.layers = nn.Sequential(
            nn.Conv2d(depth, first, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(first, second, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(prod((second, height // 4, width // 4)), 128),
            nn.ReLU(),
            nn.Linear(128, classes),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, C) logits."""
        return cast(Tensor, self.layers(inputs))
