"""Placement of clients on ranks, a function of the configuration."""

import heapq
from collections.abc import Sequence

from zofl_mpi.engine.setting import Loads


def place_clients(m: int, ranks: int, loads: Loads | None = None) -> list[int]:
    """(m,) rank of each client, among the client ranks 1..`ranks`; computed equally on every rank.

    Where no loads are known, or all are equal, client i lives on 1 + i mod P.
    """
    if loads is None or len(set(loads.work)) <= 1:
        return [1 + i % ranks for i in range(m)]
    return (dealt if loads.paced else packed)(loads.work, ranks)


def packed(work: Sequence[float], ranks: int) -> list[int]:
    """(m,) ranks: the longest first, each to the rank with the least work so far; of several, to the lowest.

    The largest sum on a rank is at most 4/3 - 1/(3P) times the least possible one (Graham 1969, LPT).
    """
    heap, placement = [(0.0, rank) for rank in range(1, ranks + 1)], [0] * len(work)
    for i in descending(work):
        total, rank = heap[0]
        placement[i] = rank
        heapq.heapreplace(heap, (total + work[i], rank))
    return placement


def dealt(work: Sequence[float], ranks: int) -> list[int]:
    """(m,) ranks: the longest first, P at a time, one to each rank, the longest of them to that with the least work.

    For any w, the ranks' numbers of clients with more work than w differ by one at most. The sums differ by at most
    max(work) (Coffman and others 1984, restricted LPT).
    """
    totals, placement, order = [0.0] * (ranks + 1), [0] * len(work), descending(work)
    for low in range(0, len(order), ranks):
        free = sorted(range(1, ranks + 1), key=totals.__getitem__)
        for i, rank in zip(order[low : low + ranks], free, strict=False):
            placement[i] = rank
            totals[rank] += work[i]
    return placement


def descending(work: Sequence[float]) -> list[int]:
    """The clients by their work, the longest first; among equals by i."""
    return sorted(range(len(work)), key=lambda i: -work[i])
