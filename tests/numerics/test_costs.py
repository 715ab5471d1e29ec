"""The accounts of [C]'s Table II: multiply-accumulates exactly, memory by counting the tensors that torch makes."""

from __future__ import annotations

import gc

import pytest
import torch

from zofl_mpi.costs import Allocations, macs, peak_bytes
from zofl_mpi.problems.split import Split
from zofl_mpi.problems.split_resnet import ResNet

BATCH = 8
MAP = BATCH * 64 * 32 * 32 * 4
"""Bytes of one feature map of the client's part."""


@pytest.fixture(scope="module")
def resnet() -> Split:
    return Split(*ResNet().parts((3, 32, 32), 10), (3, 32, 32), 10)


def test_the_macs_are_those_of_the_papers_table(resnet: Split) -> None:
    """39.90, 59.85 (59.844 before the paper's rounding) and 59.51 G at batch 256. Mutation: FLOPs for MACs."""
    client, auxiliary, server = macs(resnet)
    assert (client, auxiliary) == (77_266_944, 655_360)
    assert 256 * 2 * (client + auxiliary) / 1e9 == pytest.approx(39.896, abs=5e-4)
    assert 256 * 3 * (client + auxiliary) / 1e9 == pytest.approx(59.844, abs=5e-4)
    assert 256 * (3 * client + auxiliary) / 1e9 == pytest.approx(59.509, abs=5e-4)
    assert client + server == pytest.approx(555.4e6, rel=1e-3)


def test_a_forward_pass_holds_three_maps(resnet: Split) -> None:
    """The block's input, a convolution's result and its normalised copy; the activations work in place."""
    inputs = BATCH * 3 * 32 * 32 * 4
    peak = peak_bytes(resnet, BATCH, "forward")
    assert 3 * MAP + inputs <= peak < 3.1 * MAP + inputs


def test_a_client_of_forward_passes_needs_at_most_two_fifths_of_split_learnings_memory(resnet: Split) -> None:
    """[C]: 259.44 of 709.93 MB, 0.365. Mutation: a graph kept in the forward pass."""
    assert peak_bytes(resnet, BATCH, "forward") / peak_bytes(resnet, BATCH, "cut") < 0.40
    assert peak_bytes(resnet, BATCH, "forward") / peak_bytes(resnet, BATCH, "auxiliary") < 0.40


def test_allocations_are_counted_once_and_given_back() -> None:
    """Mutations: views counted; freed storage kept."""
    gc.collect()
    with Allocations() as counted:
        a = torch.zeros(1000)
        b = a.view(10, 100)
        assert counted.live == 4000
        a.add_(1)
        assert counted.live == 4000
        c = a + b.reshape(-1)
        assert counted.live == counted.peak == 8000
        del c
        assert counted.live == 4000
        del a
        assert counted.live == 4000, "the view still holds it"
        del b
        assert counted.live == 0 and counted.peak == 8000
