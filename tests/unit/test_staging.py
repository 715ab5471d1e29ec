"""Copies between a GPU and the host beside the computing: in which order what is asked of the GPU, and who waits when.

The GPU is a fake that notes its calls; its tensors lie on the CPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conftest import Patch
from tests.numerics.split_methods import method, setting, training
from tests.threads import run_ranks, serve_or_ask
from zofl_mpi.engine import device, messages
from zofl_mpi.engine import staging as staging_module
from zofl_mpi.engine.staging import Staging, staging
from zofl_mpi.methods.heron import HERON
from zofl_mpi.run.local import LocalClients
from zofl_mpi.run.mpi import client, gather, server
from zofl_mpi.run.mpi.gather import DUE, UPLOAD, WELCOME, Outbox


@dataclass(frozen=True)
class Item:
    a: Tensor


class Event:
    """An event of a stream, numbered; it is there once the fake says so, or somebody has waited for it."""

    def __init__(self, gpu: Fake, number: int) -> None:
        self.gpu, self.number = gpu, number

    def query(self) -> bool:
        return self.number in self.gpu.done

    def synchronize(self) -> None:
        self.gpu.calls.append(f"host waits for {self.number}")
        self.gpu.done.add(self.number)


class Stream:
    def __init__(self, gpu: Fake, name: str) -> None:
        self.gpu, self.name = gpu, name

    def wait_stream(self, other: Stream) -> None:
        self.gpu.calls.append(f"{self.name} waits for {other.name}")

    def record_event(self) -> Event:
        self.gpu.events += 1
        self.gpu.calls.append(f"{self.name} records {self.gpu.events}")
        return Event(self.gpu, self.gpu.events)

    def synchronize(self) -> None:
        self.gpu.calls.append(f"host waits for {self.name}")


class Fake:
    """torch.cuda."""

    def __init__(self, monkeypatch: Patch) -> None:
        self.calls: list[str] = []
        self.events, self.done = 0, set[int]()
        self.computing = self.now = Stream(self, "computing")
        copy, empty = torch.Tensor.copy_, torch.empty

        def copy_(own: Tensor, other: Tensor, non_blocking: bool = False) -> Tensor:
            self.calls.append(f"{self.now.name} copies{'' if non_blocking else ', and the host waits'}")
            return copy(own, other)

        def to_(own: Tensor, place: Any, non_blocking: bool = False) -> Tensor:
            assert str(place).startswith("cuda") and non_blocking
            self.calls.append(f"{self.now.name} copies")
            return own.clone()

        def empty_(*size: int, pin_memory: bool = False, **kind: Any) -> Tensor:
            self.calls.append(f"{size[0]} bytes{', pinned' if pin_memory else ''}")
            return empty(*size, **kind)

        monkeypatch.setattr(device, "layer", lambda: self)
        monkeypatch.setattr(torch.Tensor, "copy_", copy_)
        monkeypatch.setattr(torch.Tensor, "to", to_)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda _, of: self.calls.append(f"kept for {of.name}"))
        monkeypatch.setattr(torch, "empty", empty_)
        monkeypatch.setattr(messages, "is_remote", messages._is_tensor)

    def Stream(self, place: str) -> Stream:
        assert place == "cuda:1"
        return Stream(self, "side")

    def current_stream(self, place: str) -> Stream:
        assert place == "cuda:1"
        return self.computing

    @contextmanager
    def stream(self, of: Stream) -> Iterator[None]:
        self.now = of
        yield
        self.now = self.computing


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


def test_an_upload_leaves_on_a_stream_of_its_own_once_it_is_computed(gpu: Fake) -> None:
    """Mutations: no wait for what computes it; a copy for which the host waits, or on the stream that computes; memory
    that is given away while it is read; an event before the copy; no wait for it; seconds that nobody counts."""
    own, values = Staging("cuda:1"), torch.arange(4.0)
    target = own.empty(values.nbytes)
    fetch = own.fetch(values, target)
    assert gpu.calls == ["side waits for computing", "side copies", "kept for side", "side records 1"]
    assert not fetch.ready()
    before = own.taken()
    fetch.wait()
    assert gpu.calls[4:] == ["host waits for 1"] and fetch.ready()
    assert own.taken() > 0 and before > 0 and own.taken() == 0
    assert np.array_equal(target.view(np.float32), values.numpy())
    fetch = own.fetch(values, own.empty(16))
    values.add_(1)
    with pytest.raises(RuntimeError, match=r"^a client changed an upload in place while it was on its way"):
        fetch.wait()


def test_memory_is_pinned_where_it_pays(gpu: Fake) -> None:
    """Also for messages down. Mutations: pageable memory; small blocks pinned, too; pinned memory without a GPU; bytes
    that are sent before they are there; the bytes of an array on the host."""
    sizes = [Staging(place).empty(size).nbytes for place in ("cpu", "cuda:1") for size in (100, 1 << 20)]
    assert sizes == [100, 1 << 20] * 2 and gpu.calls == ["1048576 bytes, pinned"]
    item = Item(torch.full((1 << 15,), 2.0))
    block = Staging("cuda:1").packed([messages.prepare(item)])
    assert "pinned" in gpu.calls[2] and gpu.calls[-1] == "host waits for 1"
    assert torch.equal(messages.unpack(block).a, item.a)
    assert torch.equal(messages.unpack(Staging().packed([messages.prepare(item)])).a, item.a)
    with mock.patch.object(torch.Tensor, "cpu", lambda self: pytest.fail("a copy") if len(self) else self):
        item = Item(torch.zeros(5, 2, dtype=torch.bfloat16))
        assert messages.size(item) == 20 and messages.prepare(item).size % 64 == 0


def test_what_is_brought_is_waited_for_by_the_gpu_and_the_host_is_two_ahead_at_most(gpu: Fake) -> None:
    """Mutations: the host waits for each; it runs ahead for ever; a copy on the stream that computes; no wait of that
    stream for the copy; memory of the host that is let go while it is read, or kept for ever."""
    own, hosts = Staging("cuda:1"), [torch.full((2,), float(k)) for k in range(4)]
    kept = [weakref.ref(host) for host in hosts]
    arrival = ["side copies", "computing waits for side", "kept for computing"]
    found = []
    for k in range(4):
        found.append(own.bring(hosts.pop(0)))
        waits = [f"host waits for {k - 1}"] if k > 1 else []
        assert gpu.calls == [*([f"computing records {k}"] if k else []), *waits, *arrival]
        gpu.calls.clear()
        assert [ref() is not None for ref in kept[: k + 1]] == [k - j < 2 for j in range(k + 1)]
    assert [float(each[0]) for each in found] == [0, 1, 2, 3]
    own.rest()
    assert gpu.calls == ["host waits for computing"] and not any(ref() for ref in kept)


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
    outbox.add(UPLOAD, messages.prepare(Item(torch.full((8,), 3.0))))
    assert f"{staging_module.LEAST} bytes, pinned" in gpu.calls
    assert not [call for call in gpu.calls if "host waits" in call]
    assert outbox.take(WELCOME) is gather.SILENT
    sent = outbox.take(DUE)
    assert gpu.calls[-1] == "host waits for 1"
    [piece] = gather.pieces(sent.block, sent.items)
    assert messages.unpack(piece).a.tolist() == [3.0] * 8
    outbox.add(UPLOAD, messages.prepare(Item(torch.full((8,), 4.0))))
    gpu.done.add(2)
    assert outbox.take(WELCOME).items == 1


def test_memory_of_items_that_are_not_sent_is_free_after_their_copies(gpu: Fake) -> None:
    """Mutations: no wait; a change of what nobody sends ends the rank."""
    outbox, values = Outbox(Staging("cuda:1")), torch.zeros(8)
    outbox.add(UPLOAD, messages.prepare(Item(values)))
    values.add_(1)
    outbox.drop()
    assert gpu.calls[-1] == "host waits for 1"


def test_in_one_process_what_is_on_a_gpu_stays_there_and_keeps_its_notes(monkeypatch: Patch) -> None:
    """Mutations: the sender's own tensor; a way through the host; notes that are lost."""
    monkeypatch.setattr(messages, "is_remote", messages._is_tensor)
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
    monkeypatch.setattr(messages, "is_remote", messages._is_tensor)
    monkeypatch.setattr(gather, "BOUND", 2000)  # smaller than an upload
    monkeypatch.setattr(staging_module, "LEAST", 2000)

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
