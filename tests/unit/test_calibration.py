"""Times of kernels: measured once, kept as data in the user's cache, whatever state it is in."""

import json
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Patch
from zofl_mpi.data.cache import keep_note
from zofl_mpi.problems.kernels import softmax as calibration

SIZE = {"batch": 8, "models": 2}


class Kernels:
    """Two kernels that count their steps; the clock is theirs."""

    def __init__(self, monkeypatch: Patch, **seconds: float) -> None:
        self.seconds, self.now, self.taken = seconds, 0.0, dict.fromkeys(seconds, 0)
        monkeypatch.setattr(time, "thread_time", lambda: self.now)

    def __call__(self) -> dict[str, Callable[[int], None]]:
        def take(name: str, steps: int) -> None:
            self.taken[name] += steps
            self.now += steps * self.seconds[name]

        return {name: lambda steps, name=name: take(name, steps) for name in self.seconds}  # type: ignore[misc]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.setattr(calibration, "_folder", lambda: tmp_path / "new" / "kernels")
    return tmp_path / "new" / "kernels"


def test_times_are_measured_in_turn_and_within_their_time(monkeypatch: Patch) -> None:
    """Mutations: the sum of a call's steps for one; loading counted; no end; a step that is too slow called often."""
    kernels = Kernels(monkeypatch, numpy=3e-5, numba=2e-5)
    assert calibration.measured(kernels()) == pytest.approx({"numpy": 3e-5, "numba": 2e-5})
    assert kernels.now <= 0.3 and min(kernels.taken.values()) > 1000
    slow = Kernels(monkeypatch, numpy=0.05, numba=0.04)
    assert calibration.measured(slow())["numba"] == pytest.approx(0.04)
    assert slow.now <= 2 * (0.05 + 0.04) + 0.3


def test_they_are_kept_for_the_machine_and_the_size(monkeypatch: Patch, cache: Path) -> None:
    """Mutations: measured anew; another size or another version of a library served by the same file."""
    kernels = Kernels(monkeypatch, numpy=3e-5, numba=2e-5)
    first = calibration.step_times(SIZE, kernels())
    taken = dict(kernels.taken)
    assert calibration.step_times(SIZE, kernels()) == first and kernels.taken == taken
    assert calibration.step_times({**SIZE, "batch": 9}, kernels()) and kernels.taken != taken
    machine = calibration.machine()
    assert {"processor", "blas", "numpy", "numba", "zofl_mpi"} <= set(machine)
    monkeypatch.setattr(calibration, "machine", lambda: {**machine, "numpy": "0"})
    calibration.step_times(SIZE, kernels())
    assert len(list(cache.iterdir())) == 3


DAMAGES: dict[str, Any] = {
    "no JSON object": lambda stored: "[1, 2]",
    "a word for a number": lambda stored: json.dumps({**stored, "seconds": {"numpy": "fast", "numba": 1.0}}),
    "a kernel missing": lambda stored: json.dumps({**stored, "seconds": {"numpy": 1.0}}),
    "not finite": lambda stored: json.dumps({**stored, "seconds": {"numpy": math.nan, "numba": 1.0}}),
    "of another machine": lambda stored: json.dumps({"key": {}, "seconds": {"numpy": 1.0, "numba": 2.0}}),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_costs_a_measurement(damage: Any, monkeypatch: Patch, cache: Path) -> None:
    """Mutations: a traceback; what is in it is taken, or stays."""
    kernels = Kernels(monkeypatch, numpy=3e-5, numba=2e-5)
    right = calibration.step_times(SIZE, kernels())
    [file] = cache.iterdir()
    whole = file.read_text()
    file.write_text(damage(json.loads(whole)), errors="surrogateescape")
    assert calibration.step_times(SIZE, kernels()) == pytest.approx(right)
    assert json.loads(file.read_text())["seconds"] == pytest.approx(right)


@pytest.mark.parametrize("obstacle", ["a file in its place", "nobody may write"])
def test_a_cache_that_cannot_be_used_does_no_harm(obstacle: str, monkeypatch: Patch, tmp_path: Path) -> None:
    """Mutation: a run that ends since its times cannot be kept."""
    if obstacle == "a file in its place":
        (tmp_path / "new").write_text("")
    else:
        refused = lambda *_, **__: (_ for _ in ()).throw(PermissionError("no"))  # noqa: E731
        monkeypatch.setattr(os, "replace", refused)
    kernels = Kernels(monkeypatch, numpy=3e-5, numba=2e-5)
    assert calibration.step_times(SIZE, kernels()) == pytest.approx({"numpy": 3e-5, "numba": 2e-5})


def test_many_who_write_at_once_leave_a_whole_file_and_nothing_else(cache: Path) -> None:
    """Mutation: written in place, so that another reads a part of it."""
    file, seen = cache / "x.json", list[Any]()
    times = {"numpy": 1.0, "numba": 2.0}

    def write() -> None:
        for _ in range(50):
            keep_note(file, json.dumps({"key": SIZE, "seconds": times, "long": "x" * 10**5}))
            seen.append(json.loads(file.read_text())["seconds"])

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [times] * 200
    assert list(cache.iterdir()) == [file]
