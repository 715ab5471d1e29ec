"""Compressed uploads with error feedback: unbiased rounding, telescoping errors, bytes by formula."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import BOTH, Array, Make, clients_of, method, point, run, softmax, started, toy
from zofl_mpi import Method, Reduction, Reply, Setting, UserError
from zofl_mpi.clients import groups_for, why_without
from zofl_mpi.clients.compression import Compression, largest, quantised
from zofl_mpi.engine.between import answering
from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.methods.ditto import Ditto
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.fedmspp import FedMSPP
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.pfedme import PFedMe
from zofl_mpi.methods.scaffold import Controlled, Scaffold
from zofl_mpi.methods.server_sgd import ServerSGD
from zofl_mpi.methods.zo_hfl import ZOHFL, Values
from zofl_mpi.rounds.local_sgd import LocalModel
from zofl_mpi.rounds.report import GlobalModel
from zofl_mpi.rounds.split.unsplit import Uploaded
from zofl_mpi.run.command.flags import from_flags
from zofl_mpi.run.loop.rounds import finite_round

ERROR = "compression_error_y"


@dataclass(frozen=True)
class Done:
    loss: float


@dataclass(frozen=True)
class Own(Method[Any]):
    """A method of a user's own whose clients stream, or reply at once; it knows no wrapper."""

    setting: Setting[Any]
    streams: bool = False

    def start(self) -> GlobalModel:
        return GlobalModel(point(self.setting), 0)

    def round(self, state: GlobalModel, r: int, clients: Any) -> GlobalModel:
        message, into = GlobalModel(state.x, r), Reduction(range(clients.m))
        if not self.streams:
            return GlobalModel(clients.mean(self.at_once, message).y, r)
        assert [item.loss for _, item in clients.ask(self.stream, message, into=into)] == [0.5] * clients.m + [0.0] * 4
        return GlobalModel(into.mean().y, r)

    def unsaid(self, client: Client, message: GlobalModel) -> Done:
        return Done(0.5)

    def at_once(self, client: Client, message: GlobalModel) -> LocalModel:
        return LocalModel(message.x + np.linspace(-1, client.i, self.setting.problem.n))

    def stream(self, client: Client, message: GlobalModel) -> Generator[Done, Any, Reply[Done, LocalModel]]:
        yield Done(0.5)
        return Reply(Done(0.0), self.at_once(client, message))


def test_wrappers_treat_a_reduced_part_as_a_reply() -> None:
    """Its changes are compressed, and counted so; means that read each reply are refused. Mutations: a reduced part, or
    the reply of a step that streams, goes up as it is; dense bytes."""
    found = []
    for streams in (True, False):
        of = from_flags(Own, toy(), streams=streams, compress="topk:0.3")
        state, clients = of.start(), clients_of(of)
        for r in range(3):
            state = of.round(state, r, clients)
        row = clients.account()[0]
        up = dict(zip(row.steps, row.bytes_up.sum(axis=1).tolist(), strict=True))
        found.append((state.x.tobytes(), up["reduced" if streams else "at_once"], up.get("stream", 0)))
    dense = run(from_flags(Own, toy(), streams=True), 3)
    assert found[0][:2] == found[1][:2] and found[0][2] == 3 * 4 * 16 and dense.x.tobytes() != found[0][0]
    for flags in ({"aggregate": "median"}, {"attackers": 0.3}):
        with pytest.raises(UserError, match=r"Own asks for step 'stream' by clients.ask; it needs clients.mean"):
            run(from_flags(Own, toy(), streams=True, **flags), 1)


@pytest.mark.parametrize("flags", [{"aggregate": "median"}, {"attackers": 0.3}])
def test_a_mean_of_replies_that_say_no_change_is_refused(flags: dict[str, Any]) -> None:
    """Or what one client is asked. Mutation: an answer that nobody looks at, by either."""
    of = from_flags(Own, toy(), **flags)
    clients, message = clients_of(of), GlobalModel(point(of.setting), 0)
    with pytest.raises(UserError, match=r"Own asks for step 'unsaid' by clients.mean; it needs clients.mean or"):
        clients.mean(of.unsaid, message)
    with pytest.raises(UserError, match=r"Own asks for step 'unsaid' by clients.ask_each; it needs clients.mean or"):
        list(clients.ask_each(of.unsaid, {0: message}))


def test_a_method_without_a_wrappers_flags_says_why() -> None:
    """Mutations: a reason for a flag that is no wrapper's; of privacy for every one of them; another reason for a
    method of a user's own."""
    reasons = [
        (ZOHFL, "compress", False, "the replies of ZOHFL's clients are scalars, or counted from one another: no"),
        (HERON, "clip", False, "smashed activations and labels leave this method's clients as they are"),
        (HERON, "clip", True, "no step of HERON says what its reply changes (zofl_mpi.change)"),
    ]
    for cls, flag, own, reason in reasons:
        (told,) = why_without(cls, flag, own)
        assert told.startswith(reason)
    for cls, flag in ((HERON, "aggregate"), (HERON, "beta"), (ServerSGD, "clip")):
        assert why_without(cls, flag, False) == []
    assert groups_for(type("Bare", (Method,), {})) == groups_for(GlobalModel) == groups_for(HERON) == {}


class Given:
    """A generator whose uniform numbers are given."""

    def __init__(self, numbers: Array) -> None:
        self.numbers = numbers

    def random(self, n: int) -> Array:
        assert n == len(self.numbers)
        return self.numbers


@pytest.mark.parametrize("bits", [2, 3])
def test_quantisation_is_unbiased_over_all_roundings(bits: int) -> None:
    """Uniform numbers on a midpoint grid that the levels divide give the expectation itself.

    Mutations: to the nearest level; 2^bits levels; the sum of magnitudes as the scale; the sign dropped."""
    a = np.array([0.0, -1.0, 0.25, 2.0])
    grid = (np.arange(24) + 0.5) / 24
    each = np.array([quantised(a, bits, Given(np.full(4, u))) for u in grid])  # type: ignore[arg-type]
    np.testing.assert_allclose(each.mean(axis=0), a, rtol=1e-12, atol=1e-12)
    levels = 2.0 * np.arange(-(2 ** (bits - 1) - 1), 2 ** (bits - 1)) / (2 ** (bits - 1) - 1)
    assert np.abs(each.ravel()[:, None] - levels).min(axis=1).max() < 1e-12
    assert len(np.unique(each[:, 2])) == 2  # both neighbours occur


def test_quantisation_of_nothing_is_nothing() -> None:
    assert not quantised(np.zeros(3), 2, np.random.default_rng(1)).any()


def test_the_largest_entries_and_of_equal_ones_the_first() -> None:
    """Mutations: the smallest; of equal ones the last."""
    assert sorted(largest(np.array([1.0, 3.0, 2.0, 2.0, 2.0]), 3)) == [1, 2, 3]
    assert sorted(largest(np.array([1.0, 0.0]), 2)) == [0, 1]


@BOTH
@pytest.mark.parametrize("cls", [FedAvg, FedProx, Ditto, FedMSPP, PFedMe])
def test_all_entries_are_the_uncompressed_method_to_the_bit(make: Make, cls: type[Any]) -> None:
    """Mutations: the server adds differences; an error that is kept though nothing is left out."""
    setting = make()
    np.testing.assert_array_equal(run(method(cls, setting, compress="topk:1"), 4).x, run(method(cls, setting), 4).x)


@pytest.mark.parametrize("compress", ["topk:0.3", "quantise:3"])
def test_errors_telescope(compress: str) -> None:
    """Decompressed updates and what is left add up to the updates. Mutations: e_i not added; the other client's e_i."""
    of = method(FedAvg, toy(noise=1.0), compress=compress)
    clients = [Client(i, data) for i, data in enumerate(of.setting.data)]
    x, updates, sent = point(of.setting), 0.0, 0.0
    for r in range(5):
        for client in clients[:2]:
            before = client.memory.get(ERROR, 0.0)
            y = answering(of, of.train)(client, GlobalModel(x, r)).y
            plain = method(FedAvg, of.setting).train(Client(client.i, client.data), GlobalModel(x, r)).y
            np.testing.assert_allclose(y + client.memory[ERROR], plain + before, rtol=1e-12, atol=1e-12)
            updates, sent = updates + plain - x, sent + y - x
        x = x + 0.1 * (y - x)
    left = clients[0].memory[ERROR] + clients[1].memory[ERROR]
    np.testing.assert_allclose(sent + left, updates, rtol=1e-12, atol=1e-12)
    assert np.abs(left).max() > 1e-3


def test_an_upload_is_its_formula() -> None:
    """Two entries of 1.5 rounded up; roundings anew for each client and round. Mutations: the largest of the model; the
    number rounded down; the random numbers of round 0, or of client 0, for all."""
    setting = toy()
    n = setting.problem.n
    x, change = 10 * np.arange(1.0, n + 1), np.linspace(2.0, -1.0, n)
    found = Compression(setting, f"topk:{1.5 / n}").compressed(x, x + change, np.random.default_rng(1))
    assert np.flatnonzero(found != x).tolist() == [0, 1]
    for r, i in ((0, 0), (2, 0), (0, 1)):
        of = method(FedAvg, setting, compress="quantise:3")
        vars(of)["train"] = lambda client, message: LocalModel(x + change)
        found = answering(of, of.train)(Client(i, setting.data[i]), GlobalModel(x, r)).y
        numbers = setting.streams(Purpose.COMPRESSION, r=r, i=i)
        np.testing.assert_array_equal(found, x + quantised(x + change - x, 3, numbers))


@pytest.mark.parametrize(
    ("compress", "size"),
    [("topk:0.1", lambda n, b: -(-n // 10) * (4 + b)), ("quantise:3", lambda n, b: -(-3 * n // 8) + b)],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bytes_are_counted_by_formula(compress: str, size: Any, dtype: Any) -> None:
    """Mutations: dense bytes; indices that are not counted; bits rounded down."""
    of = method(FedAvg, softmax(dtype), compress=compress)
    clients, state = clients_of(of), started(of)
    finite_round(of, state, 0, clients)
    up = clients.account()[0].bytes_up.sum(axis=0)
    expected = size(of.setting.problem.n, np.dtype(dtype).itemsize)
    assert up.tolist() == [expected] * of.setting.m
    assert of.plan(1)["bytes up, for each participant and round"] == expected


def test_what_is_left_of_a_change_of_the_memory_comes_with_the_next_one() -> None:
    """SCAFFOLD's c_i moves by what was sent, so that the server's c stays their mean. Mutations: it moves by all of the
    change; an error is kept beside it; both fields rounded by the same random numbers."""
    of = method(Scaffold, toy(noise=1.0), compress="quantise:2")
    client, x, c = Client(1, of.setting.data[1]), point(of.setting), 0.1 * point(of.setting, 3)
    sent = np.zeros_like(x)
    for r in range(3):
        reply = answering(of, of.train)(client, Controlled(x, c, r))
        sent += reply.dc
        np.testing.assert_allclose(client.memory["c_i"], sent, rtol=1e-12)
    assert sorted(client.memory) == ["c_i", "compression_error_dy"]
    plain = method(Scaffold, of.setting).train(Client(1, client.data), Controlled(x, c, 0))
    numbers = [of.setting.streams(Purpose.COMPRESSION, r=0, i=1, t=t) for t in (0, 1)]
    first = answering(of, of.train)(Client(1, client.data), Controlled(x, c, 0))
    for name, generator in zip(("dy", "dc"), numbers, strict=True):
        np.testing.assert_array_equal(getattr(first, name), quantised(getattr(plain, name), 2, generator))


def test_vectors_of_any_step_are_compressed() -> None:
    """Mutations: of all steps; scalars that are counted from 0; differences of two values."""
    assert Compression.fits([Values, LocalModel])
    assert not any(Compression.fits([kind]) for kind in (Values, Uploaded))


def test_a_question_that_is_not_counted_is_answered_as_it_is() -> None:
    """It is a measurement, as FedRZO_nn's of the iterate in the middle of a round: no error is kept of it. Mutation:
    what stands between answers it, too."""
    of, plain = (method(FedAvg, toy(noise=1.0), compress=kind) for kind in ("topk:0.3", "none"))
    message = GlobalModel(point(of.setting), 0)
    found, expected = (clients_of(each).mean(each.train, message, counted=False) for each in (of, plain))
    np.testing.assert_array_equal(found.y, expected.y)
    clients = clients_of(of)
    clients.mean(of.train, message, counted=False)
    assert clients.holders() == []
    clients.mean(of.train, message)
    assert clients.holders() == [0, 1, 2, 3]
