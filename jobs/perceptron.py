"""The network of `--problem split_mlp --hidden 16` in one piece, for --problem jobs.perceptron:Perceptron."""

from collections.abc import Sequence

from torch import Tensor, nn

from zofl_mpi.problems.split_images import SplitMLP


class Perceptron(nn.Module):
    """Sixteen tanh units and a linear layer: 458 parameters on 17 inputs."""

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        """For inputs of `shape` (features,)."""
        super().__init__()
        client, _, server = SplitMLP((16,)).parts(shape, classes)
        self.layers = nn.Sequential(client, server)

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, classes) logits."""
        return self.layers(inputs)  # type: ignore[no-any-return]
