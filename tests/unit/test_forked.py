"""Runs of a grid in processes forked from it."""

import fcntl
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from zofl_mpi.engine import device
from zofl_mpi.run.grid import forked
from zofl_mpi.run.grid.forked import Forked, forks

WORDS = ["python", "-m", "zofl_mpi.zo_hfl", "--seed", "3"]
Main = Callable[[str, Sequence[str]], Any]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Forked]:
    """begin(main): a run that is this function, with its log in tmp_path/log."""
    monkeypatch.setattr(forked, "USED", bytearray(len(forked.HEAVY)))

    def run(main: Main, others: Sequence[Any] = ()) -> Forked:
        monkeypatch.setattr(forked, "main", main)
        with (tmp_path / "log").open("ab") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            return Forked("zofl_mpi.zo_hfl", WORDS, log, others)

    return run


def fails(module: str, words: Sequence[str]) -> None:
    raise ValueError("a mistake")


def ends(by: int) -> Main:
    return lambda module, words: os.kill(os.getpid(), by)


@pytest.mark.parametrize(
    ("main", "status"),
    [(lambda *given: None, 0), (lambda *given: sys.exit(75), 75), (fails, 1)]
    + [(ends(number), -number) for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL)],
)
def test_statuses_are_those_of_a_process_of_its_own(begin: Callable[..., Forked], main: Main, status: int) -> None:
    """Mutation: signals stay blocked, or keep the grid's handlers."""
    before = [signal.signal(number, lambda *heard: None) for number in forked.SIGNALS]
    try:
        run = begin(main)
        assert run.wait() == run.poll() == status
        run.send_signal(signal.SIGTERM)  # to nobody
    finally:
        for number, handler in zip(forked.SIGNALS, before, strict=True):
            signal.signal(number, handler)


def test_it_speaks_to_its_log_and_knows_its_own_command(begin: Callable[..., Forked], tmp_path: Path) -> None:
    """Ctrl-C at the terminal is not for it. Mutations: the grid's output, command, input or session."""

    def main(module: str, words: Sequence[str]) -> None:
        print(module, *words, sys.orig_argv, sys.stdin.read(), os.getsid(0) == os.getpid())
        print("to stderr", file=sys.stderr)
        os.system("echo of a child")
        raise ValueError("with its traceback")

    assert begin(main).wait() == 1
    said = (tmp_path / "log").read_text()
    assert f"zofl_mpi.zo_hfl --seed 3 {WORDS}  True\n" in said
    assert {"to stderr\n", "of a child\n", "ValueError: with its traceback\n"} <= set(said.splitlines(keepends=True))


def test_it_holds_the_lock_of_its_own_log_alone(begin: Callable[..., Forked], tmp_path: Path) -> None:
    """Else the log of a run that has ended would be locked until its neighbours end."""
    with (tmp_path / "other").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        begun = begin(lambda *given: time.sleep(600), [other])
    try:
        with (tmp_path / "other").open("ab") as free:
            until = time.monotonic() + 60
            while True:
                try:
                    fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    assert time.monotonic() < until
                    time.sleep(0.01)
        with (tmp_path / "log").open("ab") as held, pytest.raises(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        begun.send_signal(signal.SIGKILL)
        begun.wait()


def test_what_a_run_has_imported_the_next_one_need_not(
    begin: Callable[..., Forked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only that: torch would cost each grid of small models a second."""
    monkeypatch.setattr(forked, "HEAVY", ("this", "colorsys", "is not there"))
    monkeypatch.setattr(forked, "USED", forked.mmap.mmap(-1, 3))
    for name in ("this", "colorsys"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert begin(lambda *given: sys.exit(importlib.import_module("colorsys") is None)).wait() == 0
    forked.USED[2] = 1  # and what has gone since is no failure
    assert begin(lambda *given: sys.exit(5 + ("colorsys" in sys.modules) + 2 * ("this" in sys.modules))).wait() == 6


def test_a_process_with_threads_or_a_gpu_is_not_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "NODES", (str(tmp_path / "none"),))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert forks() == (sys.platform == "linux")
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert not forks()
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(device, "NODES", (str(tmp_path),))
    assert not forks()
