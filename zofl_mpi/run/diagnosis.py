"""Diagnoses for a run's last lines: an objective that goes astray, a rank that the others wait for."""

from collections.abc import Container, Sequence

from zofl_mpi.engine.ledger import Row

FAR = 1e3
"""An objective that exceeds its first value by this factor has diverged."""
HUGE = 1e9
"""An objective beyond this had left its start before the first evaluation."""
STILL = 6
"""Evaluations in a row with the same bits that count as no progress."""


def astray(course: Sequence[tuple[int, float]], called: str) -> str:
    """A sentence on a quantity, by its (round, value), that diverges or stands still; else ""."""
    values = [value for _, value in course]
    if len(values) < 2:
        return ""
    first, last = values[0], values[-1]
    if not abs(last) <= min(FAR * max(abs(first), 1.0), HUGE):
        return f"the {called} went from {first:.4g} after its first round to {last:.4g}: smaller steps may help"
    since = next((k for k in range(len(values) - 1, -1, -1) if values[k] != last), -1) + 1
    if len(values) - since < STILL:
        return ""
    rounds = course[-1][0] - course[since][0]
    return f"the {called} is the same to the bit for the last {rounds} rounds: larger steps, or --dtype float64?"


def latest_rank(row: Row, server_ranks: int, lost: Container[int]) -> tuple[int, float]:
    """The client rank that computed longest in a round, and the seconds that the server waited for it.

    These are at most what it computed beyond the mean of the client ranks; (0, 0.0) where one client rank is left.
    """
    compute, wait = row.seconds[:, :, 0].sum(axis=0), float(row.seconds[:, 0, 1].sum())
    ranks = [rank for rank in range(server_ranks, len(compute)) if rank not in lost]
    if len(ranks) < 2:
        return 0, 0.0
    slowest = max(ranks, key=lambda rank: compute[rank])
    return slowest, min(wait, float(compute[slowest] - compute[ranks].mean()))
