"""[C] VI-B: ResNet-18 in its CIFAR form (3x3 stem of stride 1, no max-pool), cut after a basic block.

He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016. With 64 channels and the cut after the
first block these are the parts that [C]'s Table II describes: 75,840 parameters at a client, 655,370 in the auxiliary
head Linear(65536, 10), 11,173,962 in the whole network, a smashed sample of 64 x 32 x 32.
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
class ResNet:
    """The network before it is cut; with width 64 it is ResNet-18. A stage has twice the channels of the one before.

    Attributes:
        width: channels of the first stage.
        stages: basic blocks of each stage.
        cut: basic blocks at the client: 1 is the paper's Client Size 1, 3 its Client Size 2.
        head: auxiliary head: linear (on all smashed numbers) or pooled (on each channel's mean).
        norm: batch (BatchNorm), or group (GroupNorm of 16 channels a group: no statistics of other samples).
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
        allowed = f"from 0 to {blocks - 1}: the network has {blocks} basic blocks"
        demand(0 <= self.cut < blocks, "cut", self.cut, allowed)

    def parts(self, shape: Sequence[int], classes: int) -> tuple[nn.Module, nn.Module, nn.Module]:
        """The client's, the auxiliary and the server's part for images of `shape` (channels, height, width).

        Raises:
            UserError: inputs that are no images, or too small for so many stages.
        """
        from torch import nn

        from zofl_mpi.problems.models import NORMS, BasicBlock, auxiliary_head, pooled

        if len(shape) != 3:
            raise UserError(f"--problem split_resnet: inputs of {shape[0]} numbers are no square images")
        channels, height, width = shape
        least = 2 ** (len(self.stages) - 1)
        if min(height, width) < least:
            raise UserError(
                f"--stages: {len(self.stages)} stages need images of at least {least} pixels a side, not {height}"
            )
        norm, stem = NORMS[self.norm], nn.Conv2d(channels, self.width, 3, 1, 1, bias=False)
        blocks: list[nn.Module] = [nn.Sequential(stem, norm(self.width), nn.ReLU(inplace=True))]
        smashed = now, *side = [self.width, height, width]
        for stage, count in enumerate(self.stages):
            for k in range(count):
                stride = 2 if stage > 0 and k == 0 else 1
                blocks.append(BasicBlock(now, self.width * 2**stage, stride, norm))
                now, side = self.width * 2**stage, [-(-s // stride) for s in side]
                if len(blocks) == self.cut + 1:
                    smashed = [now, *side]
        client, server = blocks[: self.cut + 1], [*blocks[self.cut + 1 :], pooled(now, classes)]
        return nn.Sequential(*client), auxiliary_head(self.head, smashed, classes), nn.Sequential(*server)
