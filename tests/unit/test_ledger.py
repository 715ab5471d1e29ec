"""The ledger: bytes and items by step and client, seconds by step, one row a round."""

from contextlib import suppress

import numpy as np

from tests.conftest import Hands
from zofl_mpi.engine import ledger as ledger_module
from zofl_mpi.engine.ledger import SERVER, Clock, overlap

CLOCKED = ledger_module


def test_a_clock_books_the_time_under_step_and_kind(hands: Hands) -> None:
    """Mutations: the last block's time in place of the sum; the time between two blocks, or of a round before; none
    where the work fails; seconds of staging in what a rank computes, waits or sends, or kept for the next round."""
    clock = Clock()
    for _ in range(2):
        hands.now += 16
        with suppress(ArithmeticError), clock.time("solve", "compute"):
            assert clock.doing == ("solve", "compute", hands.now)
            hands.now += 2
            raise ArithmeticError
    assert clock.doing is None
    with clock.time("solve", "comm"):
        hands.now += 0.5
    clock.seconds["solve", "staging"] += 0.25  # apart from the others
    costs = clock.report("SIGUSR1").costs([SERVER, "solve"])
    assert costs["seconds"].tolist() == [[[0, 0, 0, 0], [4, 0, 0.5, 0.25]]]
    assert costs["peak_bytes"] > 0 and costs["stops"].tolist() == [True]
    later = clock.report("")
    assert later.seconds == {} and later.costs([])["stops"].tolist() == [False]


def test_overlap_is_what_both_times_exceed_the_clock_by() -> None:
    """Steps one after the other, each as long as its slowest rank: 3 + 2 of the clients, by hand. Mutations: the
    slowest rank of the whole round (4); the mean of the ranks; no bounds."""
    compute = np.zeros((4, 3, 3))
    compute[:, 0, 0] = [4, 4, 9, 0]  # the server; hidden in part, in whole or more than that, not at all, no work
    compute[:, 1, 1:] = [3, 2]
    compute[:, 2, 1:] = [0.5, 2]
    found = overlap([SERVER, "train", "update"], compute, np.array([6.0, 4.5, 14.5, 5.0]))
    assert found.clients.tolist() == [5, 5, 5, 5] and found.server.tolist() == [4, 4, 9, 0]
    assert found.both.tolist() == [3, 4, 0, 0]
    np.testing.assert_array_equal(found.share, [0.75, 1, 0, np.nan])
    none = overlap([], np.zeros((1, 0, 3)), np.zeros(1))
    assert none.both == [0] and np.isnan(none.share)
