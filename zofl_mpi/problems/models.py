"""Torch modules for problems: an MLP, a small CNN, blocks of a ResNet."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import gcd, prod
from typing import cast, final

from torch import Tensor, nn

from zofl_mpi.errors import UserError


@final
class MLP(nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, inputs: int, classes: int, hidden: Sequence[int] = (200,)) -> None:
        """Layers with biases and the widths inputs, *hidden, classes; inputs of any shape are flattened."""
        super().__init__()
        widths = [inputs, *hidden, classes]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.layers(inputs))


@final
class CNN(nn.Module):
    """Two 5 x 5 convolutions with 16 and 32 channels, each pooled to half the size, and a hidden layer of 128.

    A quarter to a half of the widths of McMahan et al., Communication-efficient learning of deep networks from
    decentralized data (2017). Pooling precedes ReLU: the same function with a quarter of ReLU's work.
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
        return cast(Tensor, self.layers(inputs))


Norm = Callable[[int], nn.Module]  # number of channels -> normalising module


def group_norm(channels: int) -> nn.Module:
    """GroupNorm with 16 channels per group. Wu, He, "Group Normalization", ECCV 2018."""
    return nn.GroupNorm(gcd(channels, max(1, channels // 16)), channels)


NORMS: dict[str, Norm] = {"batch": nn.BatchNorm2d, "group": group_norm}


def pooled(channels: int, classes: int) -> nn.Sequential:
    """Average pooling to one number per channel, then a linear layer."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


@final
class BasicBlock(nn.Module):
    """Residual block: two normalised 3x3 convolutions and a shortcut, a 1x1 convolution if the shape changes."""

    def __init__(self, channels: int, out: int, stride: int, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm1 = norm(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = norm(out)
        self.relu = nn.ReLU(inplace=True)  # saves one map of memory
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), norm(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += self.shortcut(x)
        return self.relu(y)  # type: ignore[no-any-return]


def cut_after(
    blocks: Sequence[nn.Module],
    widths: Sequence[int],
    strides: Sequence[int],
    count: int,
    head: str,
    shape: Sequence[int],
    classes: int,
) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Cuts a network after `count` blocks: client part, auxiliary head, and server part with a final linear layer.

    Args:
        widths, strides: output channels and stride of each block.
        head: linear (on all numbers of a smashed sample) or pooled.
        shape: of an input.
    """
    server = nn.Sequential(*blocks[count:], pooled(widths[-1], classes))
    channels = widths[count - 1]
    if head == "pooled":
        auxiliary = pooled(channels, classes)
    else:
        sides = (-(-side // prod(strides[:count])) for side in shape[1:])
        auxiliary = nn.Sequential(nn.Flatten(), nn.Linear(prod((channels, *sides)), classes))
    return nn.Sequential(*blocks[:count]), auxiliary, server
