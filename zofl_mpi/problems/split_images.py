"""Split networks for images: a small CNN, ResNet-18 for CIFAR, and a multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal, final

from zofl_mpi.engine.fields import at_least
from zofl_mpi.engine.lazy import torch
from zofl_mpi.errors import UserError, demand

SplitModules = tuple["torch.nn.Module", "torch.nn.Module", "torch.nn.Module"]
"""The client's, the auxiliary, the server's part."""


@final
@dataclass(frozen=True)
class ConvNet:
    """Small split CNN: stages of 3x3 convolution, normalisation and ReLU, then a linear layer.

    Even a client with many stages is cheap.

    Attributes:
        channels: output channels of each stage's convolution.
        strides: stride of each stage's convolution.
        cut: number of stages at the client; the server has the others and the linear layer.
        head: auxiliary head: linear (on all smashed numbers) or pooled (on each channel's mean).
        norm: normalisation: group (GroupNorm with 16 channels per group, independent of other samples) or batch
            (BatchNorm).
    """

    channels: tuple[int, ...] = at_least(1, (16, 32, 32, 64), "whole numbers")
    strides: tuple[int, ...] = (2, 2, 1, 2)
    cut: int = 3
    head: Literal["linear", "pooled"] = "linear"
    norm: Literal["group", "batch"] = "group"

    def __post_init__(self) -> None:
        alike = len(self.strides) == len(self.channels) and min(self.strides) >= 1
        demand(alike, "strides", self.strides, f"a whole number above 0 for each of the {len(self.channels)} channels")
        demand(1 <= self.cut <= len(self.channels), "cut", self.cut, f"from 1 to {len(self.channels)}, the stages")

    def parts(self, shape: Sequence[int], classes: int) -> SplitModules:
        """Client part, auxiliary head and server part for `shape` (channels, height, width) (UserError: no images)."""
        from zofl_mpi.problems.models import NORMS, cut_after

        demand_images(shape, "split_cnn")
        nn, norm = torch.nn, NORMS[self.norm]
        steps = zip(pairwise((shape[0], *self.channels)), self.strides, strict=True)
        stages = [
            nn.Sequential(nn.Conv2d(before, now, 3, stride, 1, bias=False), norm(now), nn.ReLU(inplace=True))
            for (before, now), stride in steps
        ]
        return cut_after(stages, self.channels, self.strides, self.cut, self.head, shape, classes)


@final
@dataclass(frozen=True)
class ResNet:
    """Split ResNet, [C] VI-B: at width 64 ResNet-18 for CIFAR; each stage has twice the channels of the previous one.

    He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016. Width 64 with the cut after the
    first block matches [C]'s Table II. It has 75,840 parameters at a client, 655,370 in the auxiliary head
    Linear(65536, 10) and 11,173,962 in the whole network. Smashed samples are 64 x 32 x 32.

    Attributes:
        width: channels of the first stage.
        stages: number of basic blocks of each stage.
        cut: number of basic blocks at the client: 1 is the paper's Client Size 1, 3 its Client Size 2.
        head: auxiliary head: linear (on all smashed numbers) or pooled (on each channel's mean).
        norm: batch (BatchNorm) or group (GroupNorm with 16 channels per group, independent of other samples).
    """

    width: int = at_least(1, 64)
    stages: tuple[int, ...] = at_least(1, (2, 2, 2, 2), "whole numbers")
    cut: int = 1
    head: Literal["linear", "pooled"] = "linear"
    norm: Literal["batch", "group"] = "batch"

    def __post_init__(self) -> None:
        blocks = sum(self.stages)
        allowed = f"from 0 to {blocks - 1}: the network has {blocks} basic blocks"
        demand(0 <= self.cut < blocks, "cut", self.cut, allowed)

    def parts(self, shape: Sequence[int], classes: int) -> SplitModules:
        """Client part, auxiliary head and server part for `shape` (UserError: no images, or too small ones)."""
        from zofl_mpi.problems.models import NORMS, BasicBlock, cut_after

        demand_images(shape, "split_resnet")
        least = 2 ** (len(self.stages) - 1)
        if min(shape[1:]) < least:
            raise UserError(
                f"--stages: {len(self.stages)} stages need images of at least {least} pixels a side, not {shape[1]}"
            )
        nn, norm = torch.nn, NORMS[self.norm]
        stages = [(stage, k) for stage, count in enumerate(self.stages) for k in range(count)]
        widths = [self.width, *(self.width * 2**stage for stage, _ in stages)]
        strides = [1, *(2 if stage > 0 and k == 0 else 1 for stage, k in stages)]
        stem = nn.Conv2d(shape[0], self.width, 3, 1, 1, bias=False)
        steps = zip(pairwise(widths), strides[1:], strict=True)
        basic = [BasicBlock(before, now, stride, norm) for (before, now), stride in steps]
        blocks = [nn.Sequential(stem, norm(self.width), nn.ReLU(inplace=True)), *basic]
        return cut_after(blocks, widths, strides, self.cut + 1, self.head, shape, classes)


@final
@dataclass(frozen=True)
class SplitMLP:
    """Multilayer perceptron cut after its first layer, which compresses inputs to k features.

    Attributes:
        hidden: widths of the client's layer (tanh; the k smashed features), then of the server's hidden layers (ReLU).
    """

    hidden: tuple[int, ...] = at_least(1, (4, 100), "whole numbers")

    def parts(self, shape: Sequence[int], classes: int) -> SplitModules:
        """Client part, auxiliary head (a linear layer) and server part for inputs of `shape`."""
        from zofl_mpi.problems.models import MLP

        nn, (k, *server) = torch.nn, self.hidden
        client = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), k), nn.Tanh())
        return client, nn.Linear(k, classes), MLP(k, classes, server)


def demand_images(shape: Sequence[int], problem: str) -> None:
    """Raises UserError for inputs that are no images (channels, height, width)."""
    if len(shape) != 3:
        stored = "an .npz has images in x (samples, channels, height, width)"
        raise UserError(f"--problem {problem}: inputs of {shape[0]} numbers are no square images; {stored}")
