"""Copies between a GPU and the host beside the computing: the bytes are right, and none is read before it is complete.

The GPU is a fake that does its work as late as it may; its tensors lie on the CPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import nan
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conftest import Patch
from tests.numerics.split_methods import method, setting, training
from tests.threads import run_ranks, serve_or_ask
from zofl_mpi.engine import device, lazy, messages
from zofl_mpi.engine import staging as staging_module
from zofl_mpi.engine.staging import Staging, staging
from zofl_mpi.methods.heron import HERON
from zofl_mpi.run.loop.local import LocalClients
from zofl_mpi.run.mpi import client, gather, server
from zofl_mpi.run.mpi.gather import OPTIONAL, REQUIRED, UPLOAD, Outbox


@dataclass(frozen=True)
class Item:
    a: Tensor


class Stream:
    """A queue of work, none of which is done before somebody waits for it: as late as a GPU may be."""

    def __init__(self) -> None:
        self.work: list[Callable[[], Any]] = []
        self.done = 0

    def run(self, end: int) -> None:
        while self.done < end:
            self.done += 1
            self.work[self.done - 1]()

    def synchronize(self) -> None:
        self.run(len(self.work))

    def wait_stream(self, other: Stream) -> None:
        self.work.append(partial(other.run, len(other.work)))

    def record_event(self) -> Any:
        end = len(self.work)
        return SimpleNamespace(query=lambda: self.done >= end, synchronize=lambda: self.run(end))


class Fake:
    """torch.cuda with copies that are late: until then their targets are NaN. Memory that was let go is NaN, too."""

    def __init__(self, monkeypatch: Patch) -> None:
        self.computing = self.now = Stream()
        copy, empty = torch.Tensor.copy_, torch.empty
        self.pinned: list[int] = []

        def late(target: Tensor, source: Tensor) -> Tensor:
            alive = weakref.ref(source)
            self.now.work.append(lambda: copy(target, found) if (found := alive()) is not None else target.fill_(nan))
            return target.fill_(nan)

        def copy_(own: Tensor, other: Tensor, non_blocking: bool = False) -> Tensor:
            return late(own, other) if non_blocking else copy(own, other)

        def to_(own: Tensor, place: Any, non_blocking: bool = False) -> Tensor:
            assert str(place).startswith("cuda") and non_blocking
            return late(torch.empty_like(own), own)

        def empty_(*size: int, pin_memory: bool = False, **kind: Any) -> Tensor:
            self.pinned += size if pin_memory else ()
            return empty(*size, **kind)

        monkeypatch.setattr(device, "layer", lambda: self)
        monkeypatch.setattr(torch.Tensor, "copy_", copy_)
        monkeypatch.setattr(torch.Tensor, "to", to_)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda own, of: None)
        monkeypatch.setattr(torch, "empty", empty_)
        monkeypatch.setattr(messages, "is_remote", lazy.is_tensor)

    def Stream(self, place: str) -> Any:
        assert place == "cuda:1"
        return Stream()

    def current_stream(self, place: str) -> Any:
        assert place == "cuda:1"
        return self.computing

    @contextmanager
    def stream(self, of: Any) -> Iterator[None]:
        self.now = of
        yield
        self.now = self.computing

    def compute(self, work: Callable[[], Any]) -> None:
        self.computing.work.append(work)


@pytest.fixture
def gpu(monkeypatch: Patch) -> Fake:
    return Fake(monkeypatch)


def test_on_the_cpu_a_copy_is_made_at_once() -> None:
    """Mutations: a copy that is made later; other bytes of bfloat16."""
    own = Staging()
    for kind in (torch.float64, torch.bfloat16, torch.int64):
        values = torch.arange(6).to(kind).view(2, 3).T  # not contiguous
        target = own.empty(values.nbytes)
        assert own.fetch(values, target).ready()
        assert torch.equal(torch.from_numpy(target).view(kind).view(3, 2), values)
    host = torch.zeros(3)
    assert own.bring(host) is host
    own.rest()
    assert own.taken() == 0.0
    assert staging("cpu") is staging("cpu") and staging("cuda:0") is not staging("cpu"), "one of each device"


def computed(gpu: Fake, size: int, value: float) -> Tensor:
    """A tensor that the GPU has yet to compute."""
    values = torch.full((size,), nan)
    gpu.compute(lambda: values.data.fill_(value))
    return values


def test_an_upload_is_complete_when_it_is_waited_for_and_not_before(gpu: Fake) -> None:
    """Mutations: no wait for what computes it; bytes that are read before they are there; a copy for which the host
    waits at once; seconds that nobody counts; a change of what is on its way that nobody notices."""
    own, values = Staging("cuda:1"), computed(gpu, 4, 3.0)
    target = own.empty(values.nbytes)
    fetch = own.fetch(values, target)
    assert not fetch.ready() and np.isnan(target.view(np.float32)).all()
    before = own.taken()
    fetch.wait()
    assert fetch.ready() and (target.view(np.float32) == 3).all()
    assert own.taken() > 0 and before > 0 and own.taken() == 0
    fetch = own.fetch(values, own.empty(16))
    values.add_(1)
    with pytest.raises(RuntimeError, match=r"^a client changed an upload in place while it was on its way"):
        fetch.wait()


def test_a_message_down_is_packed_completely_in_pinned_memory_where_it_pays(gpu: Fake) -> None:
    """Mutations: bytes that are sent before they are there; pageable memory; small blocks pinned, too; pinned memory
    without a GPU; the bytes of an array on the host."""
    sizes = [Staging(place).empty(size).nbytes for place in ("cpu", "cuda:1") for size in (100, 1 << 20)]
    assert sizes == [100, 1 << 20] * 2 and gpu.pinned == [1 << 20]
    item = Item(computed(gpu, 1 << 15, 2.0))
    assert (messages.unpack(Staging("cuda:1").packed([messages.prepare(item)])).a == 2).all() and len(gpu.pinned) == 2
    assert torch.equal(messages.unpack(Staging().packed([messages.prepare(item)])).a, item.a)
    with mock.patch.object(torch.Tensor, "cpu", lambda self: pytest.fail("a copy") if len(self) else self):
        item = Item(torch.zeros(5, 2, dtype=torch.bfloat16))
        assert messages.size(item) == 20 and messages.prepare(item).size % 64 == 0


def test_what_is_brought_is_there_where_the_gpu_uses_it_and_the_host_is_two_ahead_at_most(gpu: Fake) -> None:
    """Mutations: no wait of the stream that computes; the host waits for each; it runs ahead for ever; memory of the
    host that is let go while it is read, or kept for ever."""
    own, hosts, seen = Staging("cuda:1"), [torch.full((2,), float(k)) for k in range(4)], list[float]()
    kept = [weakref.ref(host) for host in hosts]
    for k in range(4):
        found = own.bring(hosts.pop(0))
        gpu.compute(lambda found=found: seen.append(float(found[0])))
        assert seen == [float(j) for j in range(k - 1)]
        assert [ref() is not None for ref in kept[: k + 1]] == [k - j < 2 for j in range(k + 1)]
    own.rest()
    assert seen == [0, 1, 2, 3] and not any(ref() for ref in kept)


def noting(call: Any, name: str, calls: list[str]) -> Any:
    def noted(*arguments: Any) -> Any:
        calls.append(name)
        return call(*arguments)

    return noted


def test_the_main_thread_goes_on_while_an_upload_is_on_its_way(gpu: Fake) -> None:
    """The communication thread waits for it where it is due, and leaves it where it is not and has not arrived.
    Mutations: `add` waits; a small item in memory that is not pinned, for whose copy it would wait; bytes that are sent
    before they are there; a wave that is held up by a rank that is not due."""
    outbox = Outbox(Staging("cuda:1"))
    outbox.add(UPLOAD, messages.prepare(Item(computed(gpu, 8, 3.0))))
    assert gpu.pinned == [staging_module.LEAST_PINNED_BYTES] and not gpu.computing.done
    assert outbox.take(OPTIONAL) is gather.NOTHING_SENT
    sent = outbox.take(REQUIRED)
    [piece] = gather.pieces(sent.block, sent.items)
    assert messages.unpack(piece).a.tolist() == [3.0] * 8
    outbox.add(UPLOAD, messages.prepare(Item(computed(gpu, 8, 4.0))))
    assert outbox.take(OPTIONAL) is gather.NOTHING_SENT
    outbox.drop()  # after its copy: its memory is free then
    assert gpu.computing.done == len(gpu.computing.work)


def test_in_one_process_what_is_on_a_gpu_stays_there_and_keeps_its_notes(monkeypatch: Patch) -> None:
    """Mutations: the sender's own tensor; a way through the host; notes that are lost."""
    monkeypatch.setattr(messages, "is_remote", lazy.is_tensor)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: pytest.fail("a copy"))
    own = torch.zeros(2, 3).T
    own.predicted = "note"  # type: ignore[attr-defined]
    found = messages.copy(Item(own)).a
    own.add_(1)
    assert found.tolist() == [[0.0, 0.0]] * 3 and found.stride() == own.stride() and found.predicted == "note"


def test_a_run_whose_uploads_leave_a_gpu_has_the_same_bits(monkeypatch: Patch) -> None:
    """HERON on three ranks, all tensors as if they were on a GPU. Mutations: another place in a block; a shape or a
    dtype of a message that is not the tensor's; sizes of items that are not behind them."""
    own = [method(HERON, training(setting())) for _ in range(3)]  # a module serves one thread at a time
    alone = LocalClients(list(own[0].setting.data), method=own[0])
    (plain,) = run_ranks(1, lambda world: own[0].round(own[0].start(), 0, alone))  # threads have torch's own number
    calls: list[str] = []
    monkeypatch.setattr(Staging, "fetch", noting(Staging.fetch, "fetch", calls))
    monkeypatch.setattr(messages, "is_remote", lazy.is_tensor)
    monkeypatch.setattr(gather, "BOUND", 2000)  # smaller than an upload
    monkeypatch.setattr(staging_module, "LEAST_PINNED_BYTES", 2000)

    def program(world: Any) -> Any:
        mine = own[world.rank]
        return serve_or_ask(world, mine, list(mine.setting.data), lambda clients: mine.round(mine.start(), 0, clients))

    found = run_ranks(3, program)[0]
    steps = int(found.server_steps)
    assert calls == ["fetch"] * 2 * steps
    for name in ("theta", "buffers", "theta_s", "buffers_s"):
        assert torch.equal(getattr(found, name), getattr(plain, name))
    assert found.local_loss == plain.local_loss


class Echo:
    """A method whose clients send back what they get."""

    def reply(self, client: Any, message: Item) -> Item:
        return message


def test_each_ranks_seconds_of_staging_are_in_the_rounds_account(monkeypatch: Patch) -> None:
    """Mutations: another rank's or another step's; none of the server's or of the clients'."""
    for module, seconds in ((server, 0.5), (client, 0.25)):
        own = Staging()
        monkeypatch.setattr(own, "taken", lambda seconds=seconds: seconds)
        monkeypatch.setattr(module, "staging_of", lambda method, own=own: own)
    echo = Echo()

    def program(clients: Any) -> Any:
        list(clients.ask(echo.reply, Item(torch.zeros(2))))
        return clients.account()[0]

    row = run_ranks(3, lambda world: serve_or_ask(world, echo, [None] * 4, program))[0]
    assert row.steps == ["server", "reply"] and row.seconds[:, :, 3].tolist() == [[0, 0, 0], [0.5, 0.25, 0.25]]
