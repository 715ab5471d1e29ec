"""The server trains while the clients compute: each is made to wait for what the other does meanwhile."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.numerics.split_methods import method, setting, small, training
from tests.threads import run_ranks, serve_or_ask
from zofl_mpi.methods.fsl_sage import FSLSAGE
from zofl_mpi.methods.heron import HERON
from zofl_mpi.rounds.split.messages import Smashed
from zofl_mpi.rounds.split.server import Server
from zofl_mpi.run.mpi import client

H, M = 20, 2
"""Uploads of each client, and clients, each on a rank of its own."""


class Course:
    """How many uploads each client rank has computed, and on how many the server has trained.

    They wait for each other: the server before it trains on the clients' uploads number j until each rank has computed
    the one AHEAD of it; a rank that has computed its upload number j until the server has trained on all those SLACK
    before it.
    """

    AHEAD, SLACK = 2, 4

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made, self.trained = Counter({"rank 1": 0, "rank 2": 0}), 0
        self._changed = threading.Condition()
        step, in_turn = Server.step, client.in_turn

        def trains(server: Server, i: int, item: Smashed) -> Any:
            self._trains()
            found = step(server, i, item)
            with self._changed:
                self.trained += 1
                self._changed.notify_all()
            return found

        def computed(*given: Any) -> Iterator[Any]:
            for item in in_turn(*given):
                if isinstance(item.content, Smashed):
                    self._computed(threading.current_thread().name)
                yield item

        monkeypatch.setattr(Server, "step", trains)
        monkeypatch.setattr(client, "in_turn", computed)

    def _trains(self) -> None:
        """The server has an upload, and goes on when it may."""
        j = self.trained // M
        with self._changed:
            self._wait(lambda: min(self.made.values()) > min(j + self.AHEAD, H - 1))

    def _computed(self, rank: str) -> None:
        """A client has computed an upload, and goes on when it may."""
        j = self.made[rank]
        with self._changed:
            self.made[rank] += 1
            self._changed.notify_all()
            self._wait(lambda: self.trained >= M * (j - self.SLACK + 1))

    def _wait(self, holds: Callable[[], bool]) -> None:
        assert self._changed.wait_for(holds, 60), f"each waits for the other: {self.made}, {self.trained} trained on"


def performed(cls: Any) -> Any:
    """The state after a round in which no head is aligned, on three ranks."""
    own = [method(cls, training(setting(small, (0, 1)), h=H)) for _ in range(M + 1)]

    def program(world: Any) -> Any:
        mine = own[world.rank]
        return serve_or_ask(world, mine, list(mine.setting.data), lambda clients: mine.round(mine.start(), 1, clients))

    return run_ranks(M + 1, program)[0]


@pytest.mark.parametrize("cls", [HERON, FSLSAGE])
def test_server_and_clients_compute_at_once_all_the_time(monkeypatch: pytest.MonkeyPatch, cls: Any) -> None:
    """So a round takes no longer than the slower side and the filling of the pipe, whatever both take. Mutations: the
    server reads all uploads before it trains; a client rank computes all items before it sends the first; the next
    upload is asked for when the server has trained on the one before."""
    course = Course(monkeypatch)
    performed(cls)
    assert (course.trained, min(course.made.values())) == (M * H, H)
