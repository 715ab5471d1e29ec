"""Simulated devices of the clients: virtual seconds of a round, and the clients that meet its deadline.

Virtual seconds and joules follow from the operations, bytes and messages that a method counts before a round, never
from a clock. They are the same on any machine, on any ranks, and after a resume. A client takes

    latency messages + 8 down / bandwidth down + operations / speed + 8 up / bandwidth up     seconds,

the last two terms' maximum where uploads leave while it computes. A round ends with the last client that counts, and
then with the rest of the server's computing; what streams overlaps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.arrays import Vector
from zofl_mpi.engine.fields import column
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError

HELD_BYTES = "bytes that a client's device holds in a step, with its model, directions and moments"
KEPT_ROUNDS = 4
"""Rounds kept in memory: a round is requested several times in a row."""


@final
@dataclass(frozen=True)
class DeviceClass:
    """A kind of device; it has one of `share`, `clients` and `labels`."""

    name: str
    speed: float  # multiply-accumulates a second
    memory: float = math.inf  # bytes
    down: float = math.inf  # bits a second
    up: float = math.inf
    latency: float = 0.0  # seconds of a message
    joules_mac: float = 0.0  # of a multiply-accumulate
    joules_byte: float = 0.0  # of a byte sent or received
    available: float = 1.0  # probability that a client can be asked in a round
    share: float = 0.0  # probability that a client has this device
    clients: tuple[int, ...] = ()  # clients with this device
    labels: tuple[int, ...] = ()  # for clients whose most frequent label is one of these


class Needs(NamedTuple):
    """Cost of one way to take a client's step, measured once: multiply-accumulates of a sample, and bytes."""

    macs: float
    server_macs: float = 0.0
    bytes: float = 0.0  # 0: unknown, any device will do
    upload_macs: float = 0.0  # further ones of an uploaded sample


class RoundWork(NamedTuple):
    """Work of a round's clients, each (k,)."""

    clients: Sequence[int]
    samples: Vector  # of a client's local steps
    down: Vector  # bytes
    up: Vector
    messages: Vector  # both ways
    streams: bool = False  # True if uploads leave while a client computes, and the server computes on them
    server_samples: float = 0.0  # of the server's own computing, total
    uploaded: Vector | float = 0.0  # uploaded ones of `samples`


class RoundTimes(NamedTuple):
    """Virtual seconds of clients, by part, each (k,); `total` accounts for overlap."""

    latency: Vector
    down: Vector
    compute: Vector
    up: Vector
    total: Vector


class Taken(NamedTuple):
    """A round's outcome: clients asked with their seconds, clients that count (ascending), and the last one's end."""

    asked: NDArray[np.int64]
    counted: list[int]
    ends: float


class Cost(NamedTuple):
    """A round's cost: its seconds; for each client asked (k,) its seconds, its joules, and True if it counts."""

    seconds: float
    asked: NDArray[np.int64]
    busy: Vector
    joules: Vector
    counts: NDArray[np.bool]


BY_CLIENT = {
    "virtual_seconds": ("s", "virtual seconds of each client in the rounds that it was asked in, dropped or not"),
    "joules": ("J", "energy that each client's device took"),
    "asked": ("1", "rounds in which each client was asked"),
    "dropped": ("1", "of these, rounds in which it was late, or more than were needed"),
    "excluded": ("1", "whether each client's device cannot hold a step: 1, else 0"),
}
"""{name: unit and description} of `Fleet.by_client`."""


@final
@dataclass(frozen=True)
class FleetColumns:
    """Columns of a result with --devices."""

    virtual_seconds: float = column("s", "virtual time since the start, on the clients' devices")
    joules: float = column("J", "energy that all clients' devices took since the start, dropped ones included")
    clients_dropped: int = column("1", "clients of the round that were asked and late, or more than were needed")


@final
@dataclass(eq=False)
class Fleet:
    """The devices of m clients."""

    classes: Sequence[DeviceClass]
    of: NDArray[np.int64]  # (m,) the class of each client, its place in `classes`
    streams: Streams
    deadline: float = math.inf  # a round's deadline in seconds; inf: none
    over_select: float = 1.0  # clients asked per client needed
    server_speed: float = math.inf  # multiply-accumulates a second
    needs: tuple[Needs, ...] = field(default=(Needs(0.0),), init=False)  # ways to take a step, the preferred one first
    way: NDArray[np.int64] = field(init=False)  # (m,) each client's way, the first that fits its device; -1: none

    def __post_init__(self) -> None:
        self.way = np.zeros(len(self.of), np.int64)
        self._round_work: Callable[..., RoundWork] | None = None  # of the method that is bound
        self._rounds = dict[int, Taken]()
        self._forget()

    def _forget(self) -> None:
        """Reset the accounts of all rounds."""
        self._spent, self._each = (0, 0.0, 0.0), np.zeros((4, len(self.of)))

    def bind(self, method: Any, needs: Sequence[Needs]) -> None:
        """Bind a method; before that every client fits its device and meets each deadline.

        UserError: no device can hold a step of the method, or it asks all clients, of which some cannot take part.
        """
        self._round_work, self.needs = None, tuple(needs)
        holds = self.each("memory")[:, None] >= np.array([each.bytes for each in needs])
        self.way = np.where(holds.any(axis=1), holds.argmax(axis=1), -1)
        if not holds.any():
            most = max(device.memory for device in self.classes)
            raise UserError(
                f"--devices: a client's step needs {self.least:.4g} bytes and the largest device has {most:.4g}; take "
                "smaller batches, or a method whose clients take no backward pass"
            )
        self._round_work = method.round_work
        self._rounds.clear()
        self._forget()
        asks = len(self._round_work(0).clients) > 0
        limits = {
            "a device that cannot hold its step": bool((self.way < 0).any()),
            "--deadline": self.deadline < math.inf,
            "--over-select": self.over_select > 1,
            "a device that is not always available": bool((self.each("available") < 1).any()),
        }
        if asks and any(limits.values()) and 0 not in self._rounds:
            met = ", ".join(name for name, is_met in limits.items() if is_met)
            raise UserError(f"--devices: this method asks all clients in every round, and there is {met}")

    @property
    def least(self) -> float:
        """Bytes of the least demanding way to take a step."""
        return min(each.bytes for each in self.needs)

    def costs(self) -> dict[str, float]:
        """Bytes that a client holds in the last way to take its step, if known."""
        held = int(self.needs[-1].bytes)
        return {HELD_BYTES: held} if held else {}

    def macs(self, work: RoundWork) -> Vector:
        """(k,) multiply-accumulates of a round's clients, by each one's way."""
        each = np.array([(needs.macs, needs.upload_macs) for needs in self.needs])
        macs, further = each[self.way[np.asarray(work.clients, np.int64)]].T
        return np.asarray(work.samples * macs + work.uploaded * further)

    def each(self, name: str, clients: NDArray[np.int64] | None = None) -> Vector:
        """(k,) one property of these clients' devices; (m,) for None."""
        of = self.of if clients is None else self.of[clients]
        return np.array([getattr(device, name) for device in self.classes], np.float64)[of]

    # --- a round

    def participants(self, r: int, count: int) -> list[int]:
        """S_r, at most `count` clients, ascending, drawn among the available ones in the order used without devices.

        ceil(over_select count) are asked; the first `count` that are in time take part. If none is, the first one does:
        a round needs one.
        """
        if r not in self._rounds:
            while len(self._rounds) >= KEPT_ROUNDS:
                del self._rounds[next(iter(self._rounds))]
            self._rounds[r] = self._taken(r, count)
        return self._rounds[r].counted

    def number(self, r: int, count: int) -> int:
        """Number of `participants`."""
        if self._round_work is None or self.deadline < math.inf:
            return len(self.participants(r, count))
        return min(count, max(1, int(((self.way >= 0) & self._there(r)).sum())))

    def _there(self, r: int) -> NDArray[np.bool]:
        """(m,) True for each client that is available in round r."""
        return self.streams(Purpose.AVAILABLE, r=r).random(len(self.of)) < self.each("available")

    def _taken(self, r: int, count: int) -> Taken:
        order = self.streams(Purpose.PARTICIPANTS, r=r).permutation(len(self.of))
        if self._round_work is None:
            return Taken(order[:count], np.sort(order[:count]).tolist(), 0.0)
        able = order[self.way[order] >= 0]
        there = able[self._there(r)[able]]
        asked = (there if len(there) else able[:1])[: math.ceil(self.over_select * count - 1e-9)]
        seconds = self.seconds(self._round_work(r, asked.tolist())).total
        if len(asked) <= count and self.deadline == math.inf:
            return Taken(asked, np.sort(asked).tolist(), float(seconds.max()))
        quickest = np.argsort(seconds, kind="stable")
        in_time = max(1, min(count, int((seconds <= self.deadline).sum())))
        last = float(seconds[quickest[in_time - 1]])
        waits = in_time < min(count, len(asked))  # clients that are late
        ends = max(last, self.deadline) if waits else last
        return Taken(asked, np.sort(asked[quickest[:in_time]]).tolist(), ends)

    def seconds(self, work: RoundWork) -> RoundTimes:
        """The virtual seconds of the clients of a round."""
        ids = np.asarray(work.clients, np.int64)
        latency = self.each("latency", ids) * work.messages
        down, up = 8 * work.down / self.each("down", ids), 8 * work.up / self.each("up", ids)
        compute = self.macs(work) / self.each("speed", ids)
        total = latency + down + (np.maximum(compute, up) if work.streams else compute + up)
        return RoundTimes(latency, down, compute, up, total)

    def columns(self, done: int) -> FleetColumns:
        """Virtual seconds and joules of the first `done` rounds, and the clients dropped in the last one."""
        if self._spent[0] > done:
            self._forget()
        first, seconds, joules = self._spent
        dropped = 0
        for r in range(min(first, done - 1), done):
            cost = self._cost(r)
            dropped = int((~cost.counts).sum())
            if r >= first:
                seconds, joules = seconds + cost.seconds, joules + float(cost.joules.sum())
                self._each[:, cost.asked] += cost.busy, cost.joules, np.ones(len(cost.asked)), ~cost.counts
        self._spent = done, seconds, joules
        return FleetColumns(seconds, joules, dropped)

    def by_client(self, done: int) -> dict[str, NDArray[Any]]:
        """{name: (m,)} of BY_CLIENT over the first `done` rounds."""
        self.columns(done)
        busy, joules, asked, dropped = self._each
        counts = (each.astype(np.int64) for each in (asked, dropped, self.way < 0))
        return dict(zip(BY_CLIENT, (busy, joules, *counts), strict=True))

    def _cost(self, r: int) -> Cost:
        assert self._round_work is not None
        work = self._round_work(r)
        taken = self._rounds.get(r)
        whole = work if taken is None else self._round_work(r, taken.asked.tolist())
        ids = np.asarray(whole.clients, np.int64)
        macs, moved = self.macs(whole), whole.down + whole.up
        joules = self.each("joules_mac", ids) * macs + self.each("joules_byte", ids) * moved
        busy = self.seconds(whole).total
        clients = float(busy.max(initial=0.0)) if taken is None else taken.ends
        server = work.server_samples * self.needs[0].server_macs / self.server_speed
        seconds = max(clients, server) if work.streams else clients + server
        return Cost(seconds, ids, busy, joules, np.isin(ids, work.clients))

    # --- reports

    def sampled(self, rounds: int, most: int) -> tuple[int, FleetColumns]:
        """Estimated totals of a run, from evenly spaced rounds that together ask at most `most` clients."""
        assert self._round_work is not None
        taken = max(1, min(rounds, most // max(1, len(self._round_work(0).clients))))
        costs = (self._cost(k * rounds // taken) for k in range(taken))
        sums = ((cost.seconds, float(cost.joules.sum()), int((~cost.counts).sum())) for cost in costs)
        seconds, joules, dropped = (math.fsum(column) * rounds / taken for column in zip(*sums, strict=True))
        return taken, FleetColumns(seconds, joules, round(dropped))

    def class_rows(self) -> list[dict[str, Any]]:
        """One row per class: clients, memory needed and present, True if excluded, seconds of a client's round 0."""
        assert self._round_work is not None
        rows = []
        for k, device in enumerate(self.classes):
            members = np.flatnonzero(self.of == k)
            row: dict[str, Any] = {"class": device.name, "clients": len(members), "lacks": 0.0}
            if len(members):
                row["lacks"] = max(0.0, self.least - device.memory)
                work = self._round_work(0, members[: 1 << 10].tolist())
                row |= {name: float(value.mean()) for name, value in self.seconds(work)._asdict().items()}
                macs = float(self.macs(work).mean())
                row["way"] = int(self.way[members[0]])
                row["joules"] = device.joules_mac * macs + device.joules_byte * float((work.down + work.up).mean())
            rows.append(row)
        return rows
