"""Cost of a round of a result: its seconds by use, and its bytes."""

import json
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.ledger import SERVER
from zofl_mpi.errors import UserError
from zofl_mpi.run import records
from zofl_mpi.run.loop.rounds import Schedule

WARM_UP = 1
"""Rounds in which torch and the page cache wake up."""


@final
@dataclass(frozen=True)
class StepTiming:
    """One step's part of a round; medians.

    Attributes:
        name: of the step.
        seconds: of computing, all clients together.
        bytes_down, bytes_up: all clients together.
        messages: items that went up, all clients together.
    """

    name: str
    seconds: float
    bytes_down: float
    bytes_up: float
    messages: float


@final
@dataclass(frozen=True)
class Timing:
    """A round of a run: medians over its measured rounds, seconds and bytes.

    Measured are the finished rounds but the first, and those with an evaluation.

    Attributes:
        m: clients; participants: of a round.
        ranks: the server's among them; nodes: different hosts.
        rounds: number of measured rounds.
        seconds: wall time; low, high: the least and the largest.
        compute: of the rank of clients that computes longest; compute_all: of all clients together.
        wait, send: a client rank on average.
        server_compute, server_wait, server_send: rank 0's own.
        bytes_down, bytes_up: all clients together.
        start: from the process's beginning to the first round.
        steps: the steps that the clients were asked for.
    """

    m: int
    participants: int
    ranks: int
    nodes: int
    rounds: int
    seconds: float
    low: float
    high: float
    compute: float
    compute_all: float
    wait: float
    send: float
    server_compute: float
    server_wait: float
    server_send: float
    bytes_down: float
    bytes_up: float
    start: float
    kernel: str
    steps: tuple[StepTiming, ...]

    @property
    def share(self) -> float:
        """The server's share of all computing of a round."""
        return self.server_compute / (self.server_compute + self.compute_all)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """The inverse of `asdict`."""
        return cls(**{**values, "steps": tuple(StepTiming(**each) for each in values["steps"])})


def measured(run: records.Run) -> NDArray[np.intp]:
    """The measured rounds, counted from 0.

    Raises:
        UserError: there is none.
    """
    schedule = Schedule(int(run.config["rounds"]), int(run.config["eval_every"]), 0)
    rounds = [r for r in range(WARM_UP, run.length) if not schedule.evaluates(r + 1)]
    if not rounds:
        raise UserError(f"{run.path}: none of its {run.length} rounds can be timed; after the first all are evaluated")
    return np.array(rounds)


def timing(run: records.Run) -> Timing:
    """The cost of a round of a result.

    Raises:
        UserError: no round can be timed.
    """
    rounds, ranks = measured(run), int(run.attrs["ranks"])
    spent = np.stack([run.ranks[f"seconds_{what}"][rounds] for what in ("compute", "wait", "comm")])[..., :ranks]
    own = np.array([name == SERVER for name in run.steps], bool)
    at_clients = slice(1, None) if ranks > 1 else slice(None)
    clients = spent[:, :, ~own, at_clients]
    # The one process of a run without mpirun computes both: the steps are the clients', the rest the server's.
    server = spent[:, :, own, 0] if ranks == 1 else spent[..., 0]
    sums = server.sum(axis=2)
    waits = spent[1:, :, :, at_clients].sum(axis=2).mean(axis=2)
    wall = run.rounds["seconds"][rounds]
    asked = (run.clients["messages"][rounds].sum(axis=1) > 0).sum(axis=1)
    steps = [
        StepTiming(
            name,
            _median(clients[0, :, k].sum(axis=-1)),
            *(_median(run.clients[what][rounds][:, s].sum(axis=-1)) for what in ("bytes_down", "bytes_up", "messages")),
        )
        for k, (s, name) in enumerate((s, name) for s, name in enumerate(run.steps) if name != SERVER)
    ]
    return Timing(
        m=run.clients["messages"].shape[2],
        participants=round(_median(asked)),
        ranks=ranks,
        nodes=len(set(json.loads(run.attrs.get("hosts", "[]")))) or 1,
        rounds=len(rounds),
        seconds=_median(wall),
        low=float(wall.min()),
        high=float(wall.max()),
        compute=_median(clients[0].sum(axis=1).max(axis=1)),
        compute_all=_median(clients[0].sum(axis=(1, 2))),
        wait=_median(waits[0]),
        send=_median(waits[1]),
        server_compute=_median(sums[0]),
        server_wait=_median(sums[1]),
        server_send=_median(sums[2]),
        bytes_down=_median(run.clients["bytes_down"][rounds].sum(axis=(1, 2))),
        bytes_up=_median(run.clients["bytes_up"][rounds].sum(axis=(1, 2))),
        start=float(run.attrs.get("seconds_start", np.nan)),
        kernel=str(run.attrs.get("kernel", "")),
        steps=tuple(step for step in steps if step.messages or step.seconds),
    )


def _median(values: NDArray[Any]) -> float:
    return float(np.median(values))
