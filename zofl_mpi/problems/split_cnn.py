"""A small convolutional network cut in two: stages of a 3x3 convolution, a normalisation and a ReLU; a linear layer.

For studies of what clients learn: the client's part can be as deep as the network, and cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

from zofl_mpi.errors import UserError, demand

if TYPE_CHECKING:
    from torch import nn


@final
@dataclass(frozen=True)
class ConvNet:
    """The network before it is cut.

    Attributes:
        channels: of each stage's convolution.
        strides: of each stage's convolution.
        cut: stages at the client; the others and the linear layer are the server's.
        head: auxiliary head: linear (on all smashed numbers) or pooled (on each channel's mean).
        norm: group (GroupNorm of 16 channels a group: no statistics of other samples) or batch (BatchNorm).
    """

    channels: tuple[int, ...] = (16, 32, 32, 64)
    strides: tuple[int, ...] = (2, 2, 1, 2)
    cut: int = 3
    head: Literal["linear", "pooled"] = "linear"
    norm: Literal["group", "batch"] = "group"

    def __post_init__(self) -> None:
        demand(len(self.channels) >= 1 and min(self.channels) >= 1, "channels", self.channels, "whole numbers above 0")
        alike = len(self.strides) == len(self.channels) and min(self.strides) >= 1
        demand(alike, "strides", self.strides, f"a whole number above 0 for each of the {len(self.channels)} channels")
        demand(1 <= self.cut <= len(self.channels), "cut", self.cut, f"from 1 to {len(self.channels)}, the stages")

    def parts(self, shape: Sequence[int], classes: int) -> tuple[nn.Module, nn.Module, nn.Module]:
        """The client's, the auxiliary and the server's part for images of `shape` (channels, height, width).

        Raises:
            UserError: inputs that are no images.
        """
        from torch import nn

        from zofl_mpi.problems.models import NORMS, auxiliary_head, pooled

        if len(shape) != 3:
            raise UserError(f"--problem split_cnn: inputs of {shape[0]} numbers are no square images")
        norm, stages = NORMS[self.norm], list[nn.Module]()
        smashed = now, *side = list(shape)
        for channels, stride in zip(self.channels, self.strides, strict=True):
            convolution = nn.Conv2d(now, channels, 3, stride, 1, bias=False)
            stages.append(nn.Sequential(convolution, norm(channels), nn.ReLU(inplace=True)))
            now, side = channels, [-(-s // stride) for s in side]
            if len(stages) == self.cut:
                smashed = [now, *side]
        client, server = stages[: self.cut], [*stages[self.cut :], pooled(now, classes)]
        return nn.Sequential(*client), auxiliary_head(self.head, smashed, classes), nn.Sequential(*server)
