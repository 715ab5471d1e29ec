"""Frozen weights once a node."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.threads import run_ranks
from zofl_mpi.engine.world import World
from zofl_mpi.problems import frozen
from zofl_mpi.problems.frozen import once_a_node


def model(world: World) -> nn.Module:
    """The same on each rank: a frozen layer in bfloat16, one that trains, and a frozen one off the lines of memory."""
    last = nn.Linear(3, 3, bias=False)
    own = nn.Sequential(nn.Linear(5, 7).bfloat16(), nn.Linear(7, 3), last)
    for k, p in enumerate(own.parameters()):
        p.data = torch.arange(p.numel() + 1)[1:].view(p.shape).to(p.dtype) + k
        p.requires_grad_(k in (2, 3))
    last.weight.data = torch.arange(10.0)[1:].view(3, 3)
    assert last.weight.data_ptr() % 64
    return own


def shared(world: World) -> list[nn.Parameter]:
    own = model(world)
    once_a_node(world, [*own.parameters(), *own.parameters()])
    return list(own.parameters())


def test_ranks_of_a_node_hold_frozen_weights_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their values, and nothing is left in the folder. Mutations: two that overlap; one that trains; one that lies
    in a mapped file; a kind of number, or a shape, that is lost; a file that stays."""
    monkeypatch.setattr(frozen, "MEMORY", str(tmp_path))
    ranks = run_ranks(3, shared)
    for found in ranks:
        for p, begun in zip(found, model(None).parameters(), strict=True):  # type: ignore[arg-type]
            assert torch.equal(p, begun) and p.dtype == begun.dtype
    assert len({p.data_ptr() % 64 for p in ranks[1][:2]}) == 1
    for p in ranks[0]:
        p.data.zero_()
    seen = [[not p.any() for p in found] for found in ranks]
    assert seen == [[True] * 5, *[[True, True, False, False, False]] * 2]
    assert os.listdir(tmp_path) == []


def test_where_memory_has_no_room_each_rank_keeps_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such folder, or a full one. Mutations: weights of a file that is not there; a file that stays."""

    def full(*_: object) -> None:
        raise OSError

    for place, fault in ((tmp_path / "none", os.posix_fallocate), (tmp_path, full)):
        monkeypatch.setattr(frozen, "MEMORY", str(place))
        monkeypatch.setattr(os, "posix_fallocate", fault)
        first, *others = run_ranks(3, shared)
        for p in first:
            p.data.zero_()
        assert all(bool(p.any()) for found in others for p in found)
        assert os.listdir(tmp_path) == []
