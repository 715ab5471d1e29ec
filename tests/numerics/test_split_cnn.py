"""`split_cnn`: the parts for every cut, and what is refused. Docstrings name the mutations to catch."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from zofl_mpi.errors import UserError
from zofl_mpi.problems.split import SplitNetwork
from zofl_mpi.problems.split_cnn import ConvNet

SHAPE, C = (3, 9, 9), 4
CONVOLUTIONS, NORMS = (3 * 16 * 9, 16 * 32 * 9, 32 * 32 * 9, 32 * 64 * 9), (32, 64, 64, 128)


def parts(cut: int = 3, **flags: object) -> tuple[nn.Module, nn.Module, nn.Module]:
    torch.manual_seed(1)
    return ConvNet(cut=cut, **flags).parts(SHAPE, C)  # type: ignore[arg-type]


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
@pytest.mark.parametrize("head", ["linear", "pooled"])
def test_the_cut_moves_stages_from_the_server_to_the_client(cut: int, head: str) -> None:
    """Mutations: a stage at both or at neither; a bias before a norm; the head for a map rounded down."""
    client, auxiliary, server = parts(cut, head=head)
    own = [a + b for a, b in zip(CONVOLUTIONS, NORMS, strict=True)]
    assert count(client) == sum(own[:cut])
    assert count(server) == sum(own[cut:]) + 64 * C + C
    side, channels = (5, 3, 3, 2)[cut - 1], (16, 32, 32, 64)[cut - 1]
    problem = SplitNetwork(client, auxiliary, server, SHAPE, C)
    assert problem.smashed_shape == (channels, side, side) and len(problem.blocks) == (cut if cut > 1 else 0)
    assert problem.local.sizes()[1] == (channels * (side * side if head == "linear" else 1) + 1) * C


def test_the_network_is_the_same_for_every_cut() -> None:
    """Mutation: a server that begins without the ReLU or the stride of its stage."""
    x, wholes = torch.rand(2, *SHAPE), []
    for cut in (1, 4):
        client, _, server = parts(cut)
        whole = nn.Sequential(client, server)
        with torch.no_grad():
            for k, p in enumerate(whole.parameters()):
                p.copy_(torch.linspace(-1, 1, p.numel()).reshape(p.shape) / (k + 1))
            wholes.append(whole(x))
    assert torch.allclose(*wholes, atol=1e-6)


@pytest.mark.parametrize(("norm", "alone"), [("group", True), ("batch", False)])
def test_samples_see_each_other_by_batch_norm_alone(norm: str, alone: bool) -> None:
    """Mutation: the other norm."""
    client, _, _ = parts(norm=norm)
    x = torch.rand(4, *SHAPE)
    with torch.no_grad():
        assert torch.allclose(client(x)[:2], client(x[:2]), atol=1e-5) == alone


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"channels": ()}, "--channels : must be whole numbers above 0"),
        ({"channels": (4, 0), "strides": (1, 1)}, "--channels 4 0: must be whole numbers above 0"),
        ({"channels": (4, 4)}, "--strides 2 2 1 2: must be a whole number above 0 for each of the 2 channels"),
        ({"strides": (2, 0, 1, 1)}, "must be a whole number above 0 for each of the 4 channels"),
        ({"cut": 0}, "--cut 0: must be from 1 to 4, the stages"),
        ({"cut": 5}, "--cut 5: must be from 1 to 4, the stages"),
    ],
)
def test_a_network_that_cannot_be_is_refused_in_one_sentence(flags: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        ConvNet(**flags)  # type: ignore[arg-type]


def test_inputs_that_are_no_images_are_refused() -> None:
    with pytest.raises(UserError, match="inputs of 64 numbers are no square images"):
        ConvNet().parts((64,), C)
