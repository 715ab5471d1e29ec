"""Placement of clients on ranks, a function of the configuration."""

import heapq
from collections import Counter
from collections.abc import Sequence

from zofl_mpi.engine.setting import Loads


def place_clients(m: int, ranks: int, loads: Loads | None = None) -> list[int]:
    """(m,) rank of each client, among the client ranks 1..`ranks`; computed equally on every rank.

    If loads are unknown or equal, client i lives on rank 1 + i mod P.
    """
    if loads is None or len(set(loads.work)) <= 1:
        return [1 + i % ranks for i in range(m)]
    return (dealt if loads.paced else packed)(loads.work, ranks)


def clients_per_rank(size: int, servers: int, m: int, loads: Loads | None) -> list[int]:
    """Number of clients, of m, on each of `size` ranks, of which the first `servers` are the server."""
    if size == 1:
        return [m]
    clients = Counter(place_clients(m, size - servers, loads))
    return [clients[rank - servers + 1] for rank in range(size)]


def packed(work: Sequence[float], ranks: int) -> list[int]:
    """(m,) ranks: clients by decreasing work, each to the rank with the least work so far, ties to the lowest rank.

    The largest work of a rank is at most 4/3 - 1/(3P) times the optimum (Graham 1969, LPT).
    """
    heap, placement = [(0.0, rank) for rank in range(1, ranks + 1)], [0] * len(work)
    for i in descending(work):
        total, rank = heap[0]
        placement[i] = rank
        heapq.heapreplace(heap, (total + work[i], rank))
    return placement


def dealt(work: Sequence[float], ranks: int) -> list[int]:
    """(m,) ranks: clients by decreasing work, P at a time, one per rank, the longest to the rank with the least work.

    For any w, the ranks' numbers of clients with more work than w differ by at most one. Ranks' total work differs by
    at most max(work) (Coffman et al. 1984, restricted LPT).
    """
    totals, placement, order = [0.0] * (ranks + 1), [0] * len(work), descending(work)
    for low in range(0, len(order), ranks):
        free = sorted(range(1, ranks + 1), key=totals.__getitem__)
        for i, rank in zip(order[low : low + ranks], free, strict=False):
            placement[i] = rank
            totals[rank] += work[i]
    return placement


def descending(work: Sequence[float]) -> list[int]:
    """Clients by decreasing work, ties by i."""
    return sorted(range(len(work)), key=lambda i: -work[i])
