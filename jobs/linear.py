r"""Softmax regression as a network cut in two, for --problem jobs.linear:Linear of zofl_mpi.heron_sfl.

The control of jobs/p_privacy.toml, with seeds 1, 2 and 3, each a minute and a half on one core:

    python -m zofl_mpi.heron_sfl --problem jobs.linear:Linear --method decomfl --data fashion-mnist --data-dir data \
        --split official --features server-pca:16 --server-fraction 0.01 --validation 0.1 --m 1000 --min-samples 10 \
        --alpha inf --beta 0.1 --participation poisson --clip 0.2828 --noise-multiplier 2.952 --n-p 8 --lr-client 3 \
        --batch 48 --rounds 100 --eval-every 100 --eval-clients 10 --checkpoint-every 0 --seed 1
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Some(nn.Module):
    """The scores of some of the classes, appended to what came."""

    def __init__(self, inputs: int, classes: int) -> None:
        """From the first `inputs` numbers, beginning at 0."""
        super().__init__()
        self.inputs = inputs
        self.layer = nn.Linear(inputs, classes, bias=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, given: Tensor) -> Tensor:
        """(B, numbers + classes)."""
        return torch.cat([given, self.layer(given[:, : self.inputs])], dim=1)


class Scores(nn.Module):
    """All scores, without the inputs before them."""

    def __init__(self, inputs: int) -> None:
        """For so many inputs."""
        super().__init__()
        self.inputs = inputs

    def forward(self, given: Tensor) -> Tensor:
        """(B, classes) logits."""
        return given[:, self.inputs :]


class Linear:
    """The model of --problem softmax, from 0: half of the classes at the client, the others at the server.

    For --method decomfl, which trains both parts as one and to which cut and auxiliary head mean nothing.
    """

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        """For inputs of `shape` (features,), or images."""
        n, first = math.prod(shape), classes // 2
        self.client = nn.Sequential(nn.Flatten(), Some(n, first))
        self.auxiliary = nn.Linear(n + first, classes)
        self.server = nn.Sequential(Some(n, classes - first), Scores(n))
