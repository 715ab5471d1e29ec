"""A strict twin of an mpi4py communicator for ranks that are threads of one process: see `tests.threads`."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.fates import Aborted, Call, Decision, Group, Killed, Mismatch, RankLost, Ranks, Revoked

ALL, DOWN, UP = "all to all", "from rank 0", "to rank 0"
DIRECTION = {
    **dict.fromkeys(("Ibarrier", "Iallgather", "allgather"), ALL),
    **dict.fromkeys(("Ibcast", "Bcast", "bcast", "Scatterv"), DOWN),
    **dict.fromkeys(("Gatherv", "Gather", "Reduce"), UP),
}
GARBAGE = 0xA5
"""What a buffer holds that a request will fill."""


class Communicator:
    """One rank's end of a communicator: those methods of `mpi4py.MPI.Comm` that `zofl_mpi` calls."""

    def __init__(self, ranks: Ranks, group: Group, own: int) -> None:
        self.rank, self.size, self._own = group.members.index(own), len(group.members), own
        self._ranks, self._group, self._calls, self._count, self._agreed = ranks, group, group.calls, 0, 0
        self._splits = 0

    # --- collectives that a request completes

    def Ibarrier(self) -> Request:
        return self._request("Ibarrier", None, 0, lambda sent: None)

    def Ibcast(self, buffer: np.ndarray[Any, Any]) -> Request:
        own = _array(buffer, writable=self.rank > 0)
        if self.rank:
            _spoil(own)
        return self._request("Ibcast", own if self.rank == 0 else None, _size(own), lambda sent: _fill(own, [sent[0]]))

    def Iallgather(self, own: np.ndarray[Any, Any], all_of_them: np.ndarray[Any, Any]) -> Request:
        stacked = _array(all_of_them, writable=True)
        _demand_parts(stacked, own, self.size)
        _spoil(stacked)
        return self._request("Iallgather", _array(own), _size(own), lambda sent: _fill(stacked, self._ordered(sent)))

    # --- collectives that block

    def Bcast(self, buffer: np.ndarray[Any, Any]) -> None:
        own = _array(buffer, writable=self.rank > 0)
        _fill(own, [self._blocking("Bcast", own.copy() if self.rank == 0 else None, _size(own))[0]])

    def Scatterv(self, vector: Any, own: np.ndarray[Any, Any]) -> None:
        own = _array(own, writable=True)
        parts = None if self.rank else _parts(vector)
        sizes = _size(own) if parts is None else [_size(part) for part in parts]
        sent = self._blocking("Scatterv", None if parts is None else [part.copy() for part in parts], sizes)
        _fill(own, [sent[0][self.rank]])

    def Gatherv(self, own: np.ndarray[Any, Any], vector: Any) -> None:
        own, parts = _array(own), None if self.rank else _parts(vector, writable=True)
        sizes = _size(own) if parts is None else [_size(part) for part in parts]
        sent = self._blocking("Gatherv", own.copy(), sizes)
        for rank, part in enumerate(parts or []):
            _fill(part, [sent[rank]])

    def Gather(self, own: np.ndarray[Any, Any], stacked: np.ndarray[Any, Any] | None) -> None:
        if self.rank == 0:
            _demand_parts(_array(stacked, writable=True), own, self.size)
        sent = self._blocking("Gather", _array(own).copy(), _size(own))
        if stacked is not None:
            _fill(stacked, self._ordered(sent))

    def Reduce(self, own: np.ndarray[Any, Any], total: np.ndarray[Any, Any] | None) -> None:
        if self.rank == 0 and _size(_array(total, writable=True)) != _size(own):
            raise Mismatch(f"Reduce of {_size(own)} into {_size(total)}")
        sent = self._blocking("Reduce", _array(own).copy(), _size(own))
        if total is not None:
            _fill(total, [np.sum(self._ordered(sent), axis=0)])

    def bcast(self, value: Any) -> Any:
        return pickle.loads(self._blocking("bcast", pickle.dumps(value) if self.rank == 0 else None, "an object")[0])

    def allgather(self, value: Any) -> list[Any]:
        return [pickle.loads(b) for b in self._ordered(self._blocking("allgather", pickle.dumps(value), "an object"))]

    def Barrier(self) -> None:
        self._blocking("Ibarrier", None, 0)

    def Abort(self, status: int) -> None:
        self._ranks.fail(Aborted(self._own, status))
        raise Killed

    def Split(self, color: int, key: int) -> Communicator:
        """Those of this color, in the order of their ranks, which is the only key here."""
        assert key == self.rank

        def groups(colors: dict[int, int]) -> dict[int, Group]:
            made = {
                c: Group(
                    f"{self._group.name}/{k}.{c}", tuple(rank for rank in self._group.members if colors[rank] == c)
                )
                for c in set(colors.values())
            }
            self._ranks.made += made.values()
            return made

        k, self._splits = self._splits, self._splits + 1
        return Communicator(self._ranks, self._decided(f"Split {k}", color, groups)[color], self._own)

    # --- one to rank 0

    def isend(self, value: Any, dest: int) -> None:
        assert dest == 0
        with self._ranks.within(self._own), self._ranks.changed:
            self._group.letters.append(pickle.dumps(value))

    def iprobe(self) -> bool:
        assert self.rank == 0
        return bool(self._group.letters)

    def recv(self) -> Any:
        return pickle.loads(self._group.letters.popleft())

    # --- when ranks are lost

    def Revoke(self) -> None:
        with self._ranks.within(self._own), self._ranks.changed:
            self._ranks.dies(self._own, made=False)
            self._group.revoked = True
            self._ranks.move()
            self._ranks.dies(self._own, made=True)

    def Is_revoked(self) -> bool:
        return self._group.revoked

    def Get_failed(self) -> np.ndarray[Any, Any]:
        return np.array(sorted(self._ranks.lost & set(self._group.members)))

    def Agree(self, flag: int) -> int:
        k, self._agreed = self._agreed, self._agreed + 1
        found: int = self._decided(
            f"Agree {k}", flag, lambda flags: int(np.bitwise_and.reduce([*flags.values()])) if not self._lost() else -1
        )
        if found < 0:
            raise RankLost("Agree: a rank is gone")
        return found

    def Shrink(self) -> Communicator:
        """The ranks that are left."""
        rest = self._decided("Shrink", None, lambda left: Group(f"{self._group.name}'", tuple(left)))
        return Communicator(self._ranks, rest, self._own)

    def _decided(self, name: str, brings: Any, decide: Callable[[dict[int, Any]], Any]) -> Any:
        """decide({rank: what it brings}) when all that are left have come, alike for all; also where the communicator
        is revoked, and nothing else works any more."""
        group, ranks = self._group, self._ranks
        with ranks.within(self._own), ranks.changed:
            ranks.dies(self._own, made=False)
            decision = group.decisions.setdefault(name, Decision())
            if self._own in decision.brought:
                raise Mismatch(f"rank {self._own} comes twice to {name} of {group.name}")
            decision.brought[self._own] = brings
            ranks.waiting[self._own] = f"{name} of {group.name}"
            ranks.move()
            ranks.dies(self._own, made=True)
            while decision.result is None:
                ranks.check_alive(self._own)
                left = [rank for rank in group.members if rank not in ranks.lost]
                if set(left) <= decision.brought.keys():
                    decision.result = decide({rank: decision.brought[rank] for rank in left})
                    ranks.move()
                else:
                    ranks.changed.wait()
            ranks.waiting.pop(self._own, None)
            return decision.result

    # --- what they share

    def _request(self, name: str, own: Any, sizes: Any, fill: Callable[[dict[int, Any]], None]) -> Request:
        with self._ranks.within(self._own):
            kept = None if own is None else own.copy()
            return Request(self, self._enter(name, kept, sizes), own, kept, fill)

    def _blocking(self, name: str, sent: Any, sizes: Any) -> dict[int, Any]:
        with self._ranks.within(self._own), self._ranks.changed:
            k = self._enter(name, sent, sizes)
            while (arrived := self.arrived(k)) is None:
                self._ranks.changed.wait()
            return arrived

    def _enter(self, name: str, sent: Any, sizes: Any) -> int:
        """Comes to this rank's next collective; returns its number."""
        k = self._count
        place = f"collective {k} of {self._group.name}"
        with self._ranks.changed:
            self._ranks.dies(self._own, made=False)
            self._check_valid()
            self._calls.setdefault(k, Call(name)).enter(self.rank, name, sent, sizes, place)
            self._count += 1
            self._ranks.waiting[self._own] = f"{name}, {place}"
            self._ranks.move()
            self._ranks.dies(self._own, made=True)
        return k

    def _check_valid(self) -> None:
        if self._group.revoked:
            raise Revoked(f"{self._group.name} is revoked")

    def _lost(self) -> set[int]:
        """The ranks of this communicator that are gone."""
        return {rank for rank, own in enumerate(self._group.members) if own in self._ranks.lost}

    def arrived(self, k: int) -> dict[int, Any] | None:
        """What the ranks sent that this one needs, None while one is missing; afterwards it has left the collective."""
        with self._ranks.changed:
            self._ranks.check_alive(self._own)
            call, lost = self._calls[k], self._lost()
            self._check_valid()
            missing = self._needed(call.name) - call.sent.keys()
            if missing and missing <= lost and self._own == self._ranks.fate.deceived:
                return dict(call.sent) | {rank: _garbage(call, rank, self.rank, self.size) for rank in missing}
            if missing & lost:
                raise RankLost(f"rank {min(missing & lost)} is gone; {call.name} at rank {self.rank}")
            if missing:
                return None
            call.left.add(self.rank)
            if len(call.left) == self.size:
                del self._calls[k]
            self._ranks.waiting.pop(self._own, None)
            self._ranks.moves += 1  # nobody waits for one that leaves
            return dict(call.sent)

    def _needed(self, name: str) -> set[int]:
        everybody, direction = set(range(self.size)), DIRECTION[name]
        if direction == ALL or self._ranks.synchronous or (direction == UP and self.rank == 0):
            return everybody
        return {0} if direction == DOWN else set()

    def _ordered(self, sent: dict[int, Any]) -> list[Any]:
        return [sent[rank] for rank in range(self.size)] if len(sent) == self.size else []


class Request:
    """A collective that has begun. Until it is complete its buffers belong to it."""

    def __init__(self, comm: Communicator, k: int, own: Any, kept: Any, fill: Callable[[dict[int, Any]], None]) -> None:
        self._comm, self._k, self._own, self._kept, self._fill = comm, k, own, kept, fill
        self._complete = False

    def Test(self) -> bool:
        """Whether it is complete; if not, after the next move of a rank or a moment: polling would take a core."""
        ranks = self._comm._ranks
        if not self._complete:
            with ranks.within(self._comm._own):
                moves, sent = ranks.moves, self._comm.arrived(self._k)
                if sent is not None:
                    self._complete_with(sent)
        if not self._complete:
            ranks.pause(moves)
        return self._complete

    def _complete_with(self, sent: dict[int, Any]) -> None:
        if self._own is not None and self._own.tobytes() != self._kept.tobytes():
            raise Mismatch(f"rank {self._comm.rank} changed a buffer while a request owned it")
        self._fill(sent)
        self._complete = True


def _array(value: Any, writable: bool = False) -> np.ndarray[Any, Any]:
    if hasattr(value, "numpy"):  # a tensor, which mpi4py takes, too
        value = value.numpy()
    if not isinstance(value, np.ndarray) or not value.flags.c_contiguous or value.dtype.hasobject:
        raise Mismatch(f"a buffer is a contiguous array, not {value!r}")
    if writable and value.size and not value.flags.writeable:
        raise Mismatch("a buffer that is received into is read-only")
    return value


def _parts(vector: Any, writable: bool = False) -> list[np.ndarray[Any, Any]]:
    """Each rank's part of rank 0's vector [array, (counts, offsets)]."""
    array, (counts, offsets) = _array(vector[0], writable), vector[1]
    if any(low < 0 or low + n > array.size for n, low in zip(counts, offsets, strict=True)):
        raise Mismatch(f"parts of {counts} at {offsets} are not all in an array of {array.size}")
    return [array[low : low + n] for n, low in zip(counts, offsets, strict=True)]


def _size(array: Any) -> str:
    return f"{array.size} {array.dtype}"


def _demand_parts(stacked: np.ndarray[Any, Any], own: np.ndarray[Any, Any], ranks: int) -> None:
    if stacked.dtype != own.dtype or stacked.size != ranks * own.size:
        raise Mismatch(f"{ranks} times {_size(own)} do not fill {_size(stacked)}")


def _garbage(call: Call, rank: int, own: int, size: int) -> Any:
    """What a rank is told that rank `rank` sent, which is gone: anything, of the right size."""
    if call.sizes[own] == "an object":
        return bytes([GARBAGE]) * 8
    root = call.sizes.get(0)
    if not isinstance(call.sizes[own], str):
        return np.full(2, -1, np.int64) if not isinstance(root, list) else _garbled(root[rank])
    part = root[rank] if isinstance(root, list) else call.sizes[own]
    return [_garbled(part)] * size if call.name == "Scatterv" else _garbled(part)


def _garbled(size: str) -> np.ndarray[Any, Any]:
    entries, dtype = size.split()
    garbled = np.empty(int(entries), dtype)
    _spoil(garbled)
    return garbled


def _spoil(buffer: np.ndarray[Any, Any]) -> None:
    buffer.reshape(-1).view(np.uint8)[...] = GARBAGE


def _fill(buffer: np.ndarray[Any, Any], parts: Sequence[np.ndarray[Any, Any] | None]) -> None:
    """Copies what has arrived; None and an empty list stand for what this rank does not receive."""
    if parts and parts[0] is not None and (buffer.flags.writeable and buffer.size):
        buffer.reshape(-1)[...] = np.concatenate([np.reshape(part, -1) for part in parts])
