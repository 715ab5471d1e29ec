"""Seconds that --dry-run measures on the first rounds of a run."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from zofl_mpi import Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.run.command import trial


@dataclass(frozen=True)
class Slow:
    setting: Setting[Any]
    seconds: float

    def start(self) -> int:
        return 0

    def round(self, state: int, r: int, clients: Any) -> int:
        time.sleep(self.seconds if r else 0.0)  # the second round counts: the first one compiles, allocates, loads
        return state


def lines(seconds: float, rounds: int = 100) -> list[str]:
    setting = Setting(None, Streams(1), (np.zeros(1),), None)
    return list(trial.measured(Slow(setting, seconds), rounds).values())  # type: ignore[arg-type]


def test_the_second_round_is_measured_and_the_rest_follows() -> None:
    """Mutations: the first round's time; the sum of both."""
    each, whole = map(float, lines(0.2))
    assert 0.2 <= each < 1 and whole == pytest.approx(100 * each, rel=0.01)


def test_a_round_of_minutes_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: no alarm, and --dry-run takes as long as the round."""
    monkeypatch.setattr(trial, "TRIAL_SECONDS", 0.2)
    monkeypatch.setattr(Slow, "start", lambda self: time.sleep(30))
    since = time.perf_counter()
    each, whole = lines(0.0)
    assert each.startswith("more than ") and whole.startswith("more than ") and time.perf_counter() - since < 10
