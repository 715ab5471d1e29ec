"""The ledger: bytes and items by step and client, seconds by step, one row a round."""

from contextlib import suppress

import numpy as np

from tests.conftest import Hands
from zofl_mpi.engine import ledger as ledger_module
from zofl_mpi.engine.ledger import SERVER, Clock, Ledger, Row, overlap

CLOCKED = ledger_module


def row(ledger: Ledger) -> Row:
    return ledger.row(np.zeros((1, 1, 5)))


def test_bytes_and_items_are_added_up_by_step_and_client() -> None:
    """A round starts empty, but the steps stay, in the order of their first use. Mutation: a row that changes later."""
    ledger = Ledger(3)
    empty = row(ledger)
    for step in ("solve", "a", "solve", SERVER):
        ledger.open(step)
    ledger.sent("solve", 0, 100)
    ledger.sent("solve", 2, 40)
    ledger.received("solve", 2, 7)
    ledger.received("solve", 2, 8)
    found, after = row(ledger), row(ledger)
    assert found.steps == after.steps == [SERVER, "solve", "a"]
    assert found.bytes_down.tolist() == [[0, 0, 0], [100, 0, 40], [0, 0, 0]]
    assert found.bytes_up.tolist() == [[0, 0, 0], [0, 0, 15], [0, 0, 0]]
    assert found.messages.tolist() == [[0, 0, 0], [0, 0, 2], [0, 0, 0]]
    assert {a.dtype for a in (found.bytes_down, found.bytes_up, found.messages)} == {np.dtype(np.int64)}
    assert after.bytes_down.sum() == 0 and empty.steps == [SERVER] and empty.bytes_down.shape == (1, 3)


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
    table = clock.report("SIGUSR1").table([SERVER, "solve"])
    assert table[:2, :4].tolist() == [[0, 0, 0, 0], [4, 0, 0.5, 0.25]]
    assert (table[:2, 4] > 0).all() and table[2].tolist() == [1.0] * 5
    later = clock.report("")
    assert later.seconds == {} and later.table([]).tolist() == [[0.0] * 5]


def test_a_row_has_each_ranks_seconds_and_memory_by_step() -> None:
    """Mutations: ranks and steps exchanged; another column."""
    tables = np.arange(30.0).reshape(3, 2, 5)
    found = Ledger(2).row(tables)
    first = [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22, 23]]
    assert found.seconds.tolist() == [first, (np.array(first) + 5).tolist()]
    assert found.peak_bytes.tolist() == [[4, 14, 24], [9, 19, 29]] and found.peak_bytes.dtype == np.int64


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
