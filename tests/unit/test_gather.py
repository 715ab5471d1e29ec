"""Waves: whatever is packed into them, the server meets the same items in the same order, in bounded memory."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.communicator import Communicator
from tests.threads import run_ranks, serve_or_ask
from zofl_mpi.engine import messages
from zofl_mpi.engine.clients import Client, ClientError
from zofl_mpi.engine.setting import Loads
from zofl_mpi.run.loop.local import LocalClients
from zofl_mpi.run.mpi import collectives, gather
from zofl_mpi.run.mpi.gather import REPLY, REQUIRED, UPLOAD, Order, Outbox, Sent, Turn
from zofl_mpi.run.mpi.placement import place_clients

BOUND = 1000
"""Bytes of a wave in these tests: five empty items, or two of ten numbers."""


@dataclass(frozen=True)
class Ask:
    text: str = ""


@dataclass(frozen=True)
class Numbers:
    a: np.ndarray


@dataclass(frozen=True)
class Plan:
    """What a client does: numbers in each upload and in the reply; the items at which it fails and rests, if at all."""

    sizes: tuple[int, ...]
    fails: int
    rests: int


class Planned:
    def stream(self, client: Client, message: Ask) -> Iterator[Numbers]:
        plan: Plan = client.data
        for q, size in enumerate(plan.sizes):
            if q == plan.rests:
                time.sleep(0.002)
            if q == plan.fails:
                raise ValueError(f"item {q} of client {client.i}")
            upload = Numbers(np.full(size, client.i + q / 100))
            if q == len(plan.sizes) - 1:
                return upload
            yield upload
            upload.a[:] = np.nan  # it has been packed
        raise AssertionError

    def plain(self, client: Client, message: Ask) -> Numbers:
        return Numbers(np.full(1, float(client.i)))

    def own(self, client: Client, message: Numbers) -> Numbers:
        client.memory["kept"] = message.a
        return message


planned = Planned()
LOADS = st.builds(Loads, st.lists(st.integers(0, 5), min_size=12, max_size=12), st.booleans())
"""Of the first clients, so many as there are."""
ITEMS = st.sampled_from([0, 0, 1, 10, 30, 150, 400])  # numbers of 8 bytes: up to three times BOUND
PLANS = st.builds(
    Plan,
    st.lists(ITEMS, min_size=1, max_size=9).map(tuple),
    st.sampled_from([-1] * 12 + [0, 1, 2, 4]),
    st.sampled_from([-1, -1, -1, 0, 1, 3]),
)


@pytest.mark.parametrize("ranks", [2, 3, 5])
@settings(max_examples=25, deadline=None)
@given(
    plans=st.lists(PLANS, min_size=1, max_size=9),
    limit=st.sampled_from([300, 1 << 30]),
    most=st.sampled_from([1, 3, 60]),
    synchronous=st.booleans(),
    slow=st.booleans(),
    loads=LOADS,
    data=st.data(),
)
def test_streams_of_any_lengths_and_sizes_have_one_order_and_one_error(
    ranks: int, plans: list[Plan], limit: int, most: int, synchronous: bool, slow: bool, loads: Loads, data: Any
) -> None:
    """Mutations: the items of a wave in rank order; a failure met before its turn, or the items after it too; the bits
    of `last` shifted by one; a buffer that is filled while it is sent; items above LIMIT cut wrongly; i mod P at one of
    the places that ask where a client lives."""
    loads = Loads(loads.work[: len(plans)], loads.paced)
    to = data.draw(st.permutations(range(len(plans))))

    def program(clients: Any) -> list[Any]:
        seen: list[Any] = []
        try:
            for i, item in clients.ask(planned.stream, Ask(), to=to):
                seen.append((i, item.a.tobytes()))
                if slow and len(seen) % 3 == 0:
                    time.sleep(0.001)
        except ClientError as exc:
            seen.append(str(exc).split("(rank")[0] + str(exc).split(")", 1)[1])
        seen += [(i, item.a.tobytes()) for i, item in clients.ask(planned.plain, Ask())]  # the engine can go on
        each = {i: Numbers(np.full(i + 1, i / 7)) for i in to}
        seen += [(i, item.a.tobytes()) for i, item in clients.ask_each(planned.own, each)]
        return seen

    with mock.patch.multiple(gather, BOUND=BOUND, MAX_WAVE_ITEMS=most), mock.patch.object(collectives, "LIMIT", limit):
        results = run_ranks(
            ranks, lambda world: serve_or_ask(world, planned, plans, program, loads), synchronous=synchronous
        )
    assert results[0] == program(LocalClients(list(plans)))


class Rank:
    """One rank's items, made as a test wants, through a real outbox."""

    def __init__(self, items: Sequence[tuple[int, int]]) -> None:
        self.outbox, self._items = Outbox(), list(items)

    def make(self, count: int) -> None:
        """Packs so many items, or as many as there is room for; those sent before have been gathered."""
        while count and self._items and self.outbox.fits(sized(self._items[0][1]).size):
            kind, size = self._items.pop(0)
            self.outbox.add(kind, sized(size))
            count -= 1


def sized(numbers: int) -> messages.Prepared:
    return messages.prepare(Numbers(np.zeros(numbers)))


@settings(max_examples=60, deadline=None)
@given(plans=st.lists(PLANS, min_size=1, max_size=12), ranks=st.integers(1, 4), loads=LOADS, data=st.data())
def test_no_wave_is_empty_and_what_comes_before_its_turn_is_bounded(
    plans: list[Plan], ranks: int, loads: Loads, data: st.DataObject
) -> None:
    """The order of all ranks, computed from the headers, for every choice of what is ready when. Mutations: a rank
    sends although the server holds items of its; a large item goes with a wave in which it is not due; a rank is due
    whose next client comes after another of the same rank's; `due` leaves out the first."""
    placement = place_clients(len(plans), ranks, Loads(loads.work[: len(plans)], loads.paced))
    to = data.draw(st.permutations(range(len(plans))))
    length = {i: len(plans[i].sizes) for i in to}
    passes = [[i for i in to if length[i] > q] for q in range(max(length.values()))]
    expected = [
        Turn(i, placement[i], REPLY if q == length[i] - 1 else UPLOAD) for q, one in enumerate(passes) for i in one
    ]
    own = [[(m.kind, 0, k) for k, m in enumerate(expected) if m.rank == rank] for rank in range(ranks + 1)]
    count = dict.fromkeys(to, 0)
    sizes = []
    for m in expected:
        sizes.append(plans[m.i].sizes[count[m.i]])
        count[m.i] += 1
    with mock.patch.multiple(gather, BOUND=BOUND, PAUSE=0.0):
        makers = [Rank([(kind, sizes[k]) for kind, _, k in items]) for items in own]
        order, met, sent_of = Order(to, placement), list[Turn](), [0] * (ranks + 1)
        while not order.over:
            headers, due = np.zeros((ranks + 1, 4), np.int64), order.due()
            assert due  # else everybody might wait for ever
            for rank in range(1, ranks + 1):
                makers[rank].make(data.draw(st.integers(int(rank in due), 8)))
                sent = makers[rank].outbox.take(order.wish(rank))
                headers[rank] = sent.header
                sent_of[rank] += sent.items
                assert sent.items or rank not in due
            new = order.advance(headers)
            assert {m.rank for m in new} >= due
            met += new
            for rank in range(1, ranks + 1):
                early = [k for _, _, k in own[rank][: sent_of[rank]] if k >= len(met)]
                assert sum(sized(sizes[k]).size for k in early) <= BOUND
    assert met == expected


def test_many_small_items_take_few_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 clients a rank: after its first wave, which does not wait, a rank sends full ones, and then the rest. It
    waits for a full one, however long (PAUSE), but not when nothing can follow, or it would be stuck here. How many
    items go with the first wave depends on the machine, and with it how many waves both ranks send in. Mutations: one
    item a wave; no PAUSE; PAUSE after the last item, or with a full buffer; one message a `Scatterv`."""
    sent: dict[Outbox, list[int]] = {}
    scattered: list[int] = []
    take, scatter = Outbox.take, Communicator.Scatterv

    def noted_take(outbox: Outbox, wish: int) -> Sent:
        part = take(outbox, wish)
        sent.setdefault(outbox, []).extend([part.items] * (part.items > 0))
        return part

    def noted_scatter(comm: Communicator, *args: Any) -> None:
        scattered.extend([1] * (comm.rank == 0))
        scatter(comm, *args)

    monkeypatch.setattr(gather, "PAUSE", 1e4)
    monkeypatch.setattr(Outbox, "take", noted_take)
    monkeypatch.setattr(Communicator, "Scatterv", noted_scatter)
    each = {i: Numbers(np.full(2, i / 7)) for i in range(600)}

    def program(clients: Any) -> list[Any]:
        return [(i, item.a.tobytes()) for i, item in clients.ask_each(planned.own, each)]

    results = run_ranks(3, lambda world: serve_or_ask(world, planned, [None] * 600, program))
    assert results[0] == [(i, message.a.tobytes()) for i, message in each.items()]
    assert len(sent) == 2
    for first, *further in sent.values():
        full, rest = divmod(300 - first, 60)
        assert further == [60] * full + [rest] * (rest > 0)
    assert len(scattered) == 1


def test_a_small_item_keeps_no_other_in_memory() -> None:
    """Mutations: views of small items; copies of large ones."""
    for size, count, copied in ((5, 1, True), (5, 2, True), (gather.BOUND, 1, False)):
        outbox = Outbox()
        for _ in range(count):
            outbox.add(REPLY, sized(size))
        block = outbox.take(REQUIRED).block
        assert [np.shares_memory(piece, block) for piece in gather.pieces(block, count)] == [not copied] * count
