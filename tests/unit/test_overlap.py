"""The server trains while the clients compute: on each upload before it reads the next; ranks ahead: test_engine.py."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Patch
from tests.numerics.split_methods import LOCAL, method, setting, small, training
from zofl_mpi.rounds.split.messages import Smashed
from zofl_mpi.rounds.split.server import Server
from zofl_mpi.run.loop import local
from zofl_mpi.run.loop.local import LocalClients

H, M = 20, 2


@pytest.mark.parametrize("cls", LOCAL)
def test_an_upload_is_trained_on_before_the_next_one_is_read(cls: Any, monkeypatch: Patch) -> None:
    """In a round in which no head is aligned. Mutation: the server reads all uploads before it trains."""
    noted: list[str] = []
    step, round_robin = Server.step, local.round_robin

    def computed(*given: Any, **how: Any) -> Iterator[Any]:
        for item in round_robin(*given, **how):
            noted.extend(["computed"] * isinstance(item.content, Smashed))
            yield item

    monkeypatch.setattr(local, "round_robin", computed)
    monkeypatch.setattr(Server, "step", lambda own, i, item: (noted.append("trained"), step(own, i, item))[1])
    of = method(cls, training(setting(small, (0, 1)), h=H))
    of.round(of.start(), 1, LocalClients(list(of.setting.data)))
    assert noted == ["computed", "trained"] * (M * H)
