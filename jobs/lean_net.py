"""The networks of jobs/d_lean.toml in one piece, for --problem jobs.lean_net:Whole."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from zofl_mpi.problems.split_images import ConvNet


class Whole(nn.Module):
    """The client's and the server's part of `--problem split_cnn --channels 8 4 32 --strides 2 4 1 --cut 2`."""

    channels: ClassVar = (8, 4, 32)

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        """For images of `shape` (channels, height, width)."""
        super().__init__()
        client, _, server = ConvNet(self.channels, (2, 4, 1), 2).parts(shape, classes)
        self.layers = nn.Sequential(client, server)

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, classes) logits."""
        return self.layers(inputs)  # type: ignore[no-any-return]


class Wider(Whole):
    """That of `--channels 10 8 32`."""

    channels = (10, 8, 32)
