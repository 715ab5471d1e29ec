"""Totals of a session for its screen and closing lines: times, bytes, latest measures."""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.ledger import Row, overlap
from zofl_mpi.engine.setting import Directions, Method
from zofl_mpi.errors import mistake, warn
from zofl_mpi.run.records.rows import Loss

NOTED = ("test_accuracy", "objective")
"""Columns shown in a run's progress."""


@final
@dataclass
class Totals:
    """Sums over this session's rounds, for the closing lines."""

    round: int  # the last finished round of the run, 1..R
    seconds: NDArray[np.float64] = field(default_factory=lambda: np.zeros((1, 3)))  # (P + 1, 3) by TIME_KINDS
    both: float = 0.0  # seconds in which clients and server computed at once, see `Overlap`
    start: float = 0.0  # seconds from the process's start to this session's first round
    wall: float = 0.0
    evaluating: float = 0.0  # seconds of `wall` spent in evaluations
    bytes_down: int = 0
    bytes_up: int = 0
    transport: int = 0  # bytes that ranks received from others
    rounds: int = 0
    last: dict[str, float] = field(default_factory=dict)  # the latest value of each column
    measured: int = 0  # round of the latest value of the columns in `note`
    course: list[tuple[int, float]] = field(default_factory=list)  # (round, objective, else test loss) of evaluations
    losses: list[Loss] = field(default_factory=list)  # survived losses of client ranks
    servers: int = 1  # S, the number of the server's ranks; the clients live on the others
    directions: Directions | None = None  # of all rounds so far; counted at the end, as it takes time at large m
    late: dict[int, float] = field(default_factory=dict)  # {client rank: seconds waited for it}, see `latest_rank`

    def count_directions(self, method: Method[Any]) -> dict[str, float]:
        """Count the run's directions; return the attribute `directions_per_parameter`, if there are any."""
        try:
            self.directions = method.directions(self.round)
        except Exception as exc:  # a user's report must not fail the run
            warn(f"directions({self.round}) failed ({mistake(exc)}): the result does not have them")
        return {"directions_per_parameter": self.directions.per_parameter} if self.directions else {}

    def add(self, row: Row, wall: float, columns: Mapping[str, float]) -> None:
        """Add a round."""
        self.seconds = self.seconds + row.seconds[:, :, :3].sum(axis=0)
        longest = row.seconds[:, :, 0].max(axis=1)
        self.both += float(overlap(row.steps, longest[None, :, None], np.array([wall])).both[0])
        slowest, waited = latest_rank(row, self.servers, {rank for loss in self.losses for rank in loss.ranks})
        if waited:
            self.late[slowest] = self.late.get(slowest, 0.0) + waited
        self.bytes_down += int(row.bytes_down.sum())
        self.bytes_up += int(row.bytes_up.sum())
        self.transport += int(row.transport_received.sum())
        self.wall += wall
        self.rounds += 1
        self.round += 1
        self.last |= {k: v for k, v in columns.items() if not math.isnan(v)}
        self.measured = self.measured if columns.keys().isdisjoint(NOTED) else self.round
        values = [columns[name] for name in ("objective", "test_loss") if name in columns]
        self.course += [(self.round, value) for value in values[:1]]


def latest_rank(row: Row, servers: int, lost: Container[int]) -> tuple[int, float]:
    """The client rank that computed longest in a round, and an upper bound on the server's wait for it.

    The bound is its computing time beyond the client ranks' mean; (0, 0.0) with one client rank.
    """
    compute, wait = row.seconds[:, :, 0].sum(axis=0), float(row.seconds[:, 0, 1].sum())
    ranks = [rank for rank in range(servers, len(compute)) if rank not in lost]
    if len(ranks) < 2:
        return 0, 0.0
    slowest = max(ranks, key=lambda rank: compute[rank])
    return slowest, min(wait, float(compute[slowest] - compute[ranks].mean()))


def note(totals: Totals) -> str:
    """The last evaluation in a few words, with its round unless it is the last one."""
    shown = [f"{name.replace('_', ' ')} {short(totals.last[name])}" for name in NOTED if name in totals.last]
    if shown and totals.measured < totals.round:
        shown[0] += f" (round {totals.measured})"
    return "  ".join(shown)


def short(value: float) -> str:
    """A number for the screen: four decimals, or four digits if large."""
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.4g}"
