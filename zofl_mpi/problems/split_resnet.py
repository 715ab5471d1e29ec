"""[C] VI-B: ResNet-18 in its CIFAR form (3x3 stem of stride 1, no max-pool), cut after a basic block.

He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016. With 64 channels and the cut after the
first block these are the parts that [C]'s Table II describes: 75,840 parameters at a client, 655,370 in the auxiliary
head Linear(65536, 10), 11,173,962 in the whole network, a smashed sample of 64 x 32 x 32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final

from torch import Tensor, nn

from zofl_mpi.errors import UserError, demand

Norm = Callable[[int], nn.Module]
"""A normalising module, from the number of channels."""


def _groups(channels: int) -> nn.Module:
    """GroupNorm of 16 channels a group. Wu, He, "Group Normalization", ECCV 2018."""
    return nn.GroupNorm(math.gcd(channels, max(1, channels // 16)), channels)


@final
class BasicBlock(nn.Module):
    """Two normalised 3x3 convolutions, and a shortcut: a 1x1 convolution where the shape changes."""

    def __init__(self, channels: int, out: int, stride: int, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm1 = norm(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = norm(out)
        self.relu = nn.ReLU(inplace=True)  # a map less in memory
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), norm(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += self.shortcut(x)
        return self.relu(y)  # type: ignore[no-any-return]


@final
@dataclass(frozen=True)
class ResNet:
    """The network before it is cut.

    Attributes:
        width: channels of the first stage; 64 is ResNet-18.
        stages: basic blocks of each stage, of width, 2 width, 4 width, ... channels.
        cut: basic blocks at the client: 1 is [C]'s "Client Size 1", 3 its "Client Size 2".
        head: auxiliary head: linear (on all of the smashed numbers) or pooled (on each channel's mean).
        norm: batch, or group: GroupNorm of 16 channels a group, where samples and clients share nothing.
    """

    width: int = 64
    stages: tuple[int, ...] = (2, 2, 2, 2)
    cut: int = 1
    head: Literal["linear", "pooled"] = "linear"
    norm: Literal["batch", "group"] = "batch"

    def __post_init__(self) -> None:
        demand(self.width >= 1, "width", self.width, "a whole number, at least 1")
        demand(len(self.stages) >= 1 and min(self.stages) >= 1, "stages", self.stages, "whole numbers, each at least 1")
        blocks = sum(self.stages)
        demand(
            0 <= self.cut < blocks, "cut", self.cut, f"from 0 to {blocks - 1}: the network has {blocks} basic blocks"
        )

    def parts(self, shape: Sequence[int], classes: int) -> tuple[nn.Module, nn.Module, nn.Module]:
        """The client's, the auxiliary and the server's part for images of `shape` (channels, height, width).

        Raises:
            UserError: inputs that are no images, or too small for so many stages.
        """
        if len(shape) != 3:
            raise UserError(f"--problem split_resnet: inputs of {shape[0]} numbers are no square images")
        channels, height, width = shape
        least = 2 ** (len(self.stages) - 1)
        if min(height, width) < least:
            raise UserError(
                f"--stages: {len(self.stages)} stages need images of at least {least} pixels a side, not {height}"
            )
        norm: Norm = nn.BatchNorm2d if self.norm == "batch" else _groups
        stem = nn.Sequential(
            nn.Conv2d(channels, self.width, 3, 1, 1, bias=False), norm(self.width), nn.ReLU(inplace=True)
        )
        blocks, now, side = [], self.width, [height, width]
        smashed = (self.width, height, width)
        for stage, count in enumerate(self.stages):
            for k in range(count):
                stride = 2 if stage > 0 and k == 0 else 1
                blocks.append(BasicBlock(now, self.width * 2**stage, stride, norm))
                now, side = self.width * 2**stage, [-(-s // stride) for s in side]
                if len(blocks) == self.cut:
                    smashed = (now, side[0], side[1])
        client = nn.Sequential(stem, *blocks[: self.cut])
        top = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(now, classes))
        server = nn.Sequential(*blocks[self.cut :], top)
        if self.head == "pooled":
            auxiliary = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(smashed[0], classes))
        else:
            auxiliary = nn.Sequential(nn.Flatten(), nn.Linear(smashed[0] * smashed[1] * smashed[2], classes))
        return client, auxiliary, server
