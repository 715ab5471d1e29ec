"""The network of DeComFL's published curves on MNIST, cut in two for --problem jobs.decomfl_mnist:Network."""

from collections.abc import Sequence

from torch import Tensor, nn


class Network:
    """28,938 parameters: two convolutions of 5 x 5 with ReLU and max-pooling, and a linear layer.

    The cut and the auxiliary head have no meaning for --method decomfl, which trains the client's and the server's part
    as one network.
    """

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        """For images of `shape` (1, 28, 28)."""
        self.client = nn.Sequential(nn.Conv2d(shape[0], 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
        self.auxiliary = nn.Sequential(nn.Flatten(), nn.Linear(16 * 14 * 14, classes))
        self.server = nn.Sequential(
            nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 7 * 7, classes)
        )


class Whole(nn.Module):
    """The same network in one piece, for the methods of zofl_mpi.zo_hfl."""

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        """For images of `shape` (1, 28, 28)."""
        super().__init__()
        cut = Network(shape, classes)
        self.layers = nn.Sequential(cut.client, cut.server)

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, classes) logits."""
        return self.layers(inputs)  # type: ignore[no-any-return]
