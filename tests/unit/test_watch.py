"""Rounds that take too long, and which memories have changed: what lost and late ranks need, without ranks."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Hands, Patch
from zofl_mpi.engine import messages, processes, watch
from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.watch import Watch
from zofl_mpi.run.mpi.survival import changed

CLOCKED = watch


class Ends:
    """What ends a job: notes the text, and that it was called."""

    def __init__(self) -> None:
        self.called, self.text, self.stopped = threading.Event(), "", list[Any]()

    def __call__(self, text: str, stopped: Sequence[Any] = ()) -> None:
        self.text, self.stopped = text, [*stopped]
        self.called.set()


@pytest.mark.parametrize("rank", [0, 1, 5])
def test_a_round_that_never_ends_is_ended_by_every_rank_and_told_by_the_first(hands: Hands, rank: int) -> None:
    """Mutations: a client rank ends it without a word, or blames clients; all of a hundred ranks speak."""
    ends = Ends()
    others = {1: processes.Process(1, "never", "")} if rank == 5 else {}
    watched = Watch(rank, 3, 5, ends, ["a", "b", "c"], "nowhere.h5", others, begin="python -m a --force")
    watched.before = 4
    watched.begins()
    with watched.clock.time("solve", "wait"):
        hands.now += 5 + watch.GRACE + watch.NEXT + watch.LAST * watch.TURN + 1
        assert ends.called.wait(200)
    late = {
        0: "rank 1 on b, rank 2 on c, or some of them (none of 2 ranks beside 0 has said that it waits)",
        1: "rank 0 on a, the server, which does not answer (its process or its node may be held up)",
    }
    told = "zofl_mpi: round 5 takes longer than --round-timeout 5 s; late: {}; there is no checkpoint yet; "
    told += "begin again with: python -m a --force"
    assert ends.text == (told.format(late[rank]) if rank in late else "")


def test_a_late_rank_prints_where_it_is(hands: Hands, capsys: pytest.CaptureFixture[str]) -> None:
    """Mutations: it prints nothing; the stack of its own thread; that of a rank that waits."""

    def computes_for_ever() -> None:
        assert ends.called.wait(200)

    ends = Ends()
    watched = Watch(1, 3, 5, ends, ["a", "b", "c"])
    watched.begins()
    with watched.clock.time("solve", "compute"):
        hands.now += 5 + watch.GRACE + watch.NEXT + 1
        computes_for_ever()
    told = capsys.readouterr().err
    assert "rank 1 on b is late: computing step 'solve'" in told and "in computes_for_ever" in told


@pytest.fixture
def held() -> Iterator[processes.Process]:
    """A process that is stopped."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    os.kill(child.pid, signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    yield processes.Process(child.pid, processes.stat(child.pid)[19], "")
    child.kill()
    child.wait()


@pytest.mark.parametrize(
    ("rank", "late", "seconds"), [(0, 2, 0.0), (1, 2, watch.NEXT), (1, 0, watch.TURN), (2, 0, 2 * watch.TURN)]
)
def test_a_stopped_rank_of_this_node_is_named_and_given_to_be_ended(
    hands: Hands, held: processes.Process, rank: int, late: int, seconds: float
) -> None:
    """Mutations: the server blames who waits for nothing; a client rank waits for a server that is stopped."""
    ends = Ends()
    others = {other: processes.Process(1, "never", "") for other in {0, 1, 2} - {rank}} | {late: held}
    watched = Watch(rank, 3, 5, ends, ["a", "b", "c"], "nowhere.h5", others)
    watched.begins()
    hands.now += 5 + watch.GRACE + seconds + 0.1
    assert ends.called.wait(200)
    assert f"; late: rank {late} on {'abc'[late]}, stopped by a signal or a debugger; " in ends.text
    assert ends.stopped == [held]
    processes.kill(held._replace(started="another"))
    assert processes.is_stopped(held)
    processes.kill(held)
    assert not processes.is_stopped(held)


def test_the_time_for_which_a_rank_was_stopped_itself_is_not_the_rounds(hands: Hands, monkeypatch: Patch) -> None:
    """The launcher lets a stopped server go on before it ends it. Mutation: the server then blames its clients."""
    ends = Ends()
    watched = Watch(0, 3, 5, ends)
    monkeypatch.setattr(hands, "process_time", lambda: 0.0, raising=False)
    watched.begins()
    hands.now += 100
    time.sleep(0.2)
    assert not ends.called.is_set() and not watched.overdue
    monkeypatch.setattr(hands, "process_time", lambda: hands.now, raising=False)
    time.sleep(0.2)
    hands.now += 5 + watch.GRACE + 1
    assert ends.called.wait(200)


def test_a_rank_that_said_so_is_not_late_but_only_of_this_round(tmp_path: Path) -> None:
    out = tmp_path / "run.h5"
    (tmp_path / "run.ckpt.h5").touch()
    watched = Watch(0, 3, 100.0, Ends(), ["a", "b", "c"], str(out), resume="python -m a --resume b")
    watched.begins()
    watched.begins()
    watched.waits(1, 1)  # of the round before
    watched.waits(2, 2)
    with watched.clock.time("solve", "comm"):
        assert "late: rank 1 on b (1 of 2 ranks beside 0" in watched.sentence()
        assert watched.sentence().endswith("continue with: python -m a --resume b")
    assert "late: rank 0 on a, the server" in watched.sentence()
    watched.begins(following=False)
    with watched.clock.time("solve", "comm"):
        assert "round 2 " in watched.sentence()
        assert "rank 2 on c" in watched.sentence()


def test_a_round_that_is_over_ends_nothing(hands: Hands) -> None:
    """Mutations: `ends` without effect; a thread that goes on for ever."""
    ends, other = Ends(), Ends()
    watched, late = Watch(0, 1, 5, ends), Watch(0, 1, 5, other)
    for each in (watched, late):
        each.begins()
    watched.ends()
    hands.now += 100
    assert other.called.wait(200) and not ends.called.is_set()
    assert watched._thread is not None
    watched._thread.join(200)
    assert not watched._thread.is_alive()


def test_only_memories_that_changed_are_packed() -> None:
    """Fails if a checksum is of the packed form, whose gaps hold anything, or leaves out a dtype or a shape."""
    clients = {i: Client(i, None) for i in range(4)}
    known = dict[int, bytes]()

    def found(to: Any = range(4)) -> set[int]:
        packed, failed = changed(clients, to, known)
        assert failed is None
        for i, block in packed.items():
            np.testing.assert_equal(messages.unpack(block).entries, clients[i].memory)
        return set(packed)

    assert found() == set()
    clients[1].memory["y"] = np.arange(3.0)
    clients[2].memory["calls"] = 1
    assert found([0, 2]) == {2}
    assert found() == {1}
    for _ in range(5):
        assert found() == set()
    clients[1].memory["y"] = np.arange(3.0).reshape(3, 1)
    clients[2].memory["calls"] = 2
    assert found() == {1, 2}
    clients[1].memory["y"] = np.arange(3.0).reshape(3, 1).view(np.int64)
    del clients[2].memory["calls"]
    assert found() == {1, 2}
    clients[3].memory["thing"] = object()
    packed, failed = changed(clients, range(4), known)
    assert packed == {}
    assert failed[0] == 3
    assert "object" in failed[1].sentence
