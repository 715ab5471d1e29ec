"""The engine's contract: same items, order, bits, byte counts and errors for any number of processes."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from zofl_mpi.engine import mean
from zofl_mpi.engine.clients import Client, ClientError
from zofl_mpi.engine.reduction import Reduction, Reply
from zofl_mpi.run.loop.client_memory import STEPS, Acknowledged

pytestmark = pytest.mark.mpi(min_size=2)
Both = Callable[..., tuple[Any, Any] | None]
SLOW = 0.02  # seconds of the slow step


@dataclass(frozen=True)
class Seed:
    k: int


@dataclass(frozen=True)
class Part:
    k: int
    i: int
    q: int
    a: np.ndarray


@dataclass(frozen=True)
class Vector:
    a: np.ndarray
    weight: float = 1.0


@dataclass(frozen=True)
class Label:
    text: str


def rng(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[11, key[0]], counter=[0, *key[1:], *[0] * (4 - len(key))]))


class Steps:
    """Every kind of step that a method may have, and every way for one to go wrong."""

    def stream(self, client: Client, message: Seed) -> Iterator[Part]:
        """0 to 6 uploads of random length, a random failure, computing that takes unpredictably long."""
        g = rng(message.k, client.i)
        length, bad = int(g.integers(0, 7)), int(g.integers(0, 60))
        for q in range(length):
            if np.random.default_rng().random() < 0.2:
                time.sleep(0.002)
            if q == bad:
                raise ValueError(f"bad {message.k} {client.i} {q}")
            upload = g.standard_normal(int(g.integers(0, 2000)))
            yield Part(message.k, client.i, q, upload)
            upload[:] = np.nan  # what was yielded is the engine's: overwriting it must not matter
        return Part(message.k, client.i, -1, np.zeros(0))

    def slow(self, client: Client, message: Vector) -> Vector:
        time.sleep(SLOW)
        return message

    def plain(self, client: Client, message: Vector) -> Vector:
        return Vector(message.a * (client.i + 0.1), message.weight)

    def random(self, client: Client, message: Seed) -> Vector:
        g = rng(message.k, client.i)
        return Vector(
            (g.standard_normal((300, 401)) * 10.0 ** g.integers(-8, 8)).astype(np.float32), g.standard_normal()
        )

    def train(self, client: Client, message: Seed) -> Any:
        """0 to 3 uploads, then a loss and what `random` replies, to be averaged."""
        for q in range(client.i % 4):
            yield Part(message.k, client.i, q, np.ones(2))
        return Reply(Part(message.k, client.i, -1, np.zeros(1)), self.random(client, message))

    def begin(self, client: Client, message: Seed) -> Part:
        client.scratch["steps"] = self.train(client, message)
        return self.go_on(client, message)

    def go_on(self, client: Client, message: Seed) -> Any:
        try:
            return next(client.scratch["steps"])
        except StopIteration as stop:
            return stop.value

    def unequal(self, client: Client, message: Seed) -> Any:
        """A reduced part that is not as the others: of the client k not finite, of the next one of another shape."""
        yield Part(message.k, client.i, 0, np.zeros(1))
        a = np.full(2 + (client.i == message.k + 1), np.nan if client.i == message.k else 1.0)
        return Reply(Label("done"), Vector(a))

    def scaled(self, i: int, message: Seed, reply: Vector) -> np.ndarray:
        return (reply.a.astype(np.float64) * (reply.weight + message.k * i)).ravel()

    def count(self, client: Client, message: Seed) -> Vector:
        client.memory["calls"] = client.memory.get("calls", 0) + message.k
        return Vector(np.full(3, client.memory["calls"], np.float64))

    def write(self, client: Client, message: Vector) -> Vector:
        message.a[0] = 1.0
        return message

    def fail(self, client: Client, message: Seed) -> Vector:
        if client.i == message.k:
            raise FloatingPointError("y is not finite")
        return Vector(np.zeros(2))

    def leave(self, client: Client, message: Seed) -> Vector:
        if client.i == message.k:
            sys.exit(3)
        return Vector(np.zeros(2))

    def nan(self, client: Client, message: Seed) -> Vector:
        return Vector(np.array([0.0, np.nan if client.i == message.k else 1.0]))

    def text(self, client: Client, message: Seed) -> Label:
        return Label("two")

    def bare(self, client: Client, message: Seed) -> Any:
        return 3.0 if client.i == message.k else Vector(np.zeros(2))


steps = Steps()


def alike(both: Both, m: int, program: Callable[[Any], Any]) -> Any:
    """What `program` gives for m clients in one process and on ranks; None on all ranks but the first."""
    result = both(steps, [None] * m, program)
    if result is None:
        return None
    assert result[0] == result[1]
    return result[0]


def books(clients: Any) -> list[Any]:
    row, _ = clients.account()
    return [row.steps, row.bytes_down.tolist(), row.bytes_up.tolist(), row.messages.tolist()]


def test_random_streams_have_one_order_one_set_of_bits_and_one_ledger(both: Both) -> None:
    def program(clients: Any) -> list[Any]:
        seen: list[Any] = []
        for k in range(11):
            g = rng(1000, k)
            to = g.permutation(clients.m)[: g.integers(1, clients.m + 1)].tolist()
            try:
                for i, part in clients.ask(steps.stream, Seed(k), to=to, counted=bool(k % 2)):
                    seen.append((i, part.q, part.a.tobytes()))
            except ClientError as exc:
                seen.append(str(exc).split("(rank")[0] + str(exc).split(")", 1)[1])
            for i, reply in clients.ask_each(steps.plain, {i: Vector(np.arange(float(i + k % 3))) for i in to}):
                seen.append((i, reply.a.tobytes()))
        return [seen, books(clients)[0]]

    for m in (1, 5, 11):
        if local := alike(both, m, program):
            assert any("bad" in entry for entry in local[0] if isinstance(entry, str)) or m == 1


def test_bytes_are_counted_as_the_definition_says_and_only_when_asked_to(both: Both) -> None:
    def program(clients: Any) -> list[Any]:
        list(clients.ask(steps.plain, Vector(np.zeros(7)), to=[1, 3]))
        list(clients.ask(steps.plain, Vector(np.zeros(7)), counted=False))
        clients.mean(steps.plain, Vector(np.zeros(7)), counted=False)
        return books(clients)

    down = 7 * 8 + 8  # the vector and the number `weight`
    moved, items = [[0] * 4, [0, down, 0, down]], [[0] * 4, [0, 1, 0, 1]]
    assert alike(both, 4, program) in (None, [["server", "plain"], moved, moved, items])


def test_the_mean_has_the_same_bits_on_any_number_of_ranks_and_is_right(both: Both) -> None:
    to = [0, 2, 3, 5, 6]
    weights = {i: 1.0 + i for i in to}

    def program(clients: Any) -> tuple[bytes, float]:
        reply = clients.mean(steps.random, Seed(5), to=to, weights=weights)
        return reply.a.tobytes(), reply.weight

    if found := alike(both, 7, program):
        replies = {i: steps.random(Client(i, None), Seed(5)) for i in to}
        a = np.frombuffer(found[0], np.float32).reshape(300, 401)
        exact = sum(replies[i].a.astype(np.float64) * weights[i] for i in to) / sum(weights.values())
        np.testing.assert_allclose(a, exact, rtol=2**-23, atol=1e-17 * np.abs(exact).max())
        assert found[1] == pytest.approx(
            sum(replies[i].weight * weights[i] for i in to) / sum(weights.values()), rel=1e-15
        )


def sums(clients: Any) -> list[Callable[..., Any]]:
    """Questions for a sum, added up at the ranks and at the server."""

    def summed(step: Any, message: Any, many: int, **to: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mean, "SUM_ON_RANKS_FROM", many)
            return clients.sum(step, message, steps.scaled, **to)()

    return [partial(summed, many=0), partial(summed, many=1000)]


@pytest.mark.parametrize("m", [1, 7])
def test_the_sum_has_the_same_bits_wherever_it_is_added_up_and_is_right(both: Both, m: int) -> None:
    """Terms between 1e-8 and 1e8. Mutations: the quantum of a rank's own terms, or for their number; a rank without
    clients left out; bytes of the vectors booked in place of the replies'."""
    to = [i for i in (6, 0, 3, 2, 5) if i < m]

    def program(clients: Any) -> list[Any]:
        return [(ask(steps.random, Seed(5), to=to).tobytes(), books(clients)) for ask in sums(clients)]

    if local := alike(both, m, program):
        assert local[0] == local[1]
        terms = [steps.scaled(i, Seed(5), steps.random(Client(i, None), Seed(5))) for i in to]
        right = np.sum(np.array(terms, np.longdouble), axis=0)
        found = np.frombuffer(local[0][0])
        assert np.abs(found - right).max() <= len(to) ** 2 * 2.0**-53 * max(np.abs(term).max() for term in terms)
        assert np.allclose(found, right.astype(float), rtol=1e-9, atol=0)
        assert local[0][1][2][1] == [(4 * 300 * 401 + 8) * (i in to) for i in range(m)]


def test_a_term_that_is_not_finite_makes_the_sum_nan_and_a_stream_has_none(both: Both) -> None:
    def program(clients: Any) -> list[str]:
        for ask in sums(clients):
            with pytest.raises(TypeError, match="sum needs a step that returns its reply, 'stream' streams"):
                ask(steps.stream, Seed(2))
        with np.errstate(invalid="ignore"):
            return [str(ask(steps.nan, Seed(2))) for ask in sums(clients)]

    assert alike(both, 5, program) in (None, [str(np.full(2, np.nan))] * 2)


def test_reduced_parts_have_the_bits_of_a_mean_over_all_their_questions(both: Both) -> None:
    """By streams of one question, of two, and in lockstep. Mutations: equal weights; shares of one question alone; a
    rank that begins anew with each question; parts of the round before; parts that go up with the items."""
    to, weights = [6, 0, 3, 2, 5, 1], {i: float(i % 3) for i in range(7)}

    def streamed(clients: Any, groups: list[list[int]]) -> Any:
        into, read = Reduction(to, weights), []
        for group in groups:
            read += [(i, item.q) for i, item in clients.ask(steps.train, Seed(5), to=group, into=into)]
        return into.mean(), read

    def lockstep(clients: Any) -> Any:
        into, left, read = Reduction(to, weights), to, []
        items = clients.ask(steps.begin, Seed(5), to=to, into=into)
        while left:
            read += (found := [(i, item.q) for i, item in items])
            left = [i for i, q in found if q >= 0]
            items = clients.ask_each(steps.go_on, {i: Seed(5) for i in left}, into=into) if left else ()
        return into.mean(), read

    def program(clients: Any) -> list[Any]:
        found = []
        for ask in (partial(streamed, groups=[to]), partial(streamed, groups=[[6, 2], [0, 3], [5, 1]]), lockstep):
            result, read = ask(clients)
            found.append((result.a.tobytes(), result.weight, read, books(clients)))
        whole = clients.mean(steps.random, Seed(5), to=to, weights=weights)
        return [*found, (whole.a.tobytes(), whole.weight)]

    if local := alike(both, 7, program):
        *found, whole = local
        assert all(each[:2] == whole for each in found)
        assert found[0][2] == found[2][2]
        for _, _, read, (names, _, up, messages) in found:
            assert up[names.index("reduced")] == [(4 * 300 * 401 + 8) * (i in to) for i in range(7)]
            items = [(1 + i % 4) * (i in to) for i in range(7)]
            assert items == [sum(i == j for j, _ in read) for i in range(7)] == np.sum(messages, axis=0).tolist()


def test_reduced_parts_that_have_no_mean_are_refused_by_client(both: Both) -> None:
    """And the engine can go on. Mutations: NaN is added; a part that nobody asked for goes up; a mean of some."""

    def program(clients: Any) -> list[float]:
        words = r"client 2 .*failed in step 'unequal', item 1: Vector.a is not finite, so it has no mean"
        with pytest.raises(ClientError, match=words):
            list(clients.ask(steps.unequal, Seed(2), to=[0, 2], into=Reduction([0, 2])))
        with pytest.raises(ClientError, match=r"client 0 .*needs clients.ask\(..., into=Reduction"):
            list(clients.ask(steps.unequal, Seed(2), to=[0]))
        with pytest.raises(ClientError, match=r"client 1 .*a reduced part of client 1, of whom none is left to come"):
            list(clients.ask(steps.unequal, Seed(2), to=[0, 1], into=Reduction([0])))
        into = Reduction([0, 1, 4])
        list(clients.ask(steps.unequal, Seed(2), to=[4], into=into))
        with pytest.raises(TypeError, match="no reduced part came from 2 clients, of which the first is 0"):
            into.mean()
        into = Reduction([0, 3])
        with pytest.raises((ClientError, TypeError), match="replies of different shapes"):
            list(clients.ask(steps.unequal, Seed(2), to=[0, 3], into=into))
            into.mean()
        replies = clients.ask(steps.unequal, Seed(2), to=[0], into=(into := Reduction([0])))
        with pytest.raises(RuntimeError, match="a mean of replies was read while replies to 'unequal' are unread"):
            into.mean()
        list(replies)
        with pytest.raises(RuntimeError, match="before clients were asked into it"):
            Reduction([0]).mean()
        return [float(x) for x in into.mean().a]

    assert alike(both, 5, program) in (None, [1.0, 1.0])


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (steps.fail, "client 3 .* failed in step 'fail', item 0: FloatingPointError: y is not finite"),
        (steps.leave, "client 3 .* failed in step 'leave', item 0: SystemExit: 3"),
        (
            steps.bare,
            "client 3 .* failed in step 'bare', item 0: TypeError: a message is an instance of a dataclass, not float",
        ),
    ],
)
def test_a_failing_step_is_named_and_the_engine_can_go_on(both: Both, step: Any, words: str) -> None:
    def program(clients: Any) -> list[float]:
        for ask in (clients.ask, clients.mean, *sums(clients)):
            with pytest.raises(ClientError, match=words):
                for _ in ask(step, Seed(3)):
                    pass
        return [float(reply.a[0]) for _, reply in clients.ask(steps.plain, Vector(np.ones(1)))]

    assert alike(both, 5, program) in (None, [i + 0.1 for i in range(5)])


@pytest.mark.parametrize(
    ("step", "error", "words"),
    [
        (steps.nan, ClientError, "client 2 .*Vector.a is not finite, so it has no mean"),
        (steps.text, ClientError, "mean cannot average Label.text"),
        (steps.stream, TypeError, "mean needs .* 'stream' streams"),
    ],
)
def test_a_reply_without_a_mean_is_refused(both: Both, step: Any, error: type[Exception], words: str) -> None:
    def program(clients: Any) -> bool:
        with pytest.raises(error, match=words):
            clients.mean(step, Seed(2))
        return True

    assert alike(both, 5, program) in (None, True)


def test_a_question_asked_while_another_is_open_is_an_error_that_names_both(both: Both) -> None:
    def program(clients: Any) -> bool:
        replies = clients.ask(steps.plain, Vector(np.ones(1)))
        next(replies)
        for ask in (clients.ask, clients.mean):
            with pytest.raises(RuntimeError, match="'fail' was asked while replies to 'plain' are unread"):
                ask(steps.fail, Seed(99))
        with pytest.raises(RuntimeError, match="the run ended while replies to 'plain' are unread"):
            clients.close()
        for _ in replies:
            pass
        return True

    assert alike(both, 3, program) in (None, True)


def test_clients_cannot_write_into_a_message_that_others_share(both: Both) -> None:
    def program(clients: Any) -> bool:
        with pytest.raises(ClientError, match="read-only"):
            list(clients.ask(steps.write, Vector(np.zeros(3))))
        return True

    assert alike(both, 4, program) in (None, True)


def test_memories_go_to_a_checkpoint_and_come_back(both: Both) -> None:
    def program(clients: Any) -> list[Any]:
        for k in (1, 2):
            list(clients.ask(steps.count, Seed(k), to=[0, 2]))
        kept = dict(clients.ask(STEPS["<recall>"], Acknowledged(), counted=False))
        list(clients.ask(steps.count, Seed(100)))
        list(clients.ask_each(STEPS["<restore>"], {i: kept[i] for i in (0, 2)}, counted=False))
        return [
            {i: memory.entries for i, memory in kept.items()},
            [reply.a[0] for _, reply in clients.ask(steps.count, Seed(0))],
        ]

    assert alike(both, 3, program) in (None, [{0: {"calls": 3}, 1: {}, 2: {"calls": 3}}, [3, 100, 3]])


def test_payloads_above_the_limit_travel_in_pieces(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("LIMIT", 1000), ("POLLED_BYTES", 3000), ("FRAME", 64)):
        monkeypatch.setattr(f"zofl_mpi.run.mpi.collectives.{name}", limit)

    def program(clients: Any) -> list[bytes]:
        out = [r.a.tobytes() for _, r in clients.ask(steps.plain, Vector(np.arange(777.0)))]
        out.append(clients.mean(steps.plain, Vector(np.arange(77.0))).a.tobytes())
        return out + [
            r.a.tobytes() for _, r in clients.ask_each(steps.plain, {i: Vector(np.arange(200.0 * i)) for i in range(4)})
        ]

    alike(both, 4, program)


def test_the_seconds_of_a_round_add_up_on_every_rank(both: Both) -> None:
    def program(clients: Any) -> Any:
        since = time.perf_counter()  # before: a rank's seconds count from its own answer
        clients.account()
        list(clients.ask(steps.plain, Vector(np.ones(1000))))
        time.sleep(0.05)
        row, _ = clients.account()
        return row.seconds[:, :, :3].sum(axis=(0, 2)), time.perf_counter() - since

    result = both(steps, [None] * 4, program)
    if result:
        for seconds, wall in result:
            assert (seconds > 0.05).all()
            assert (seconds < wall).all()


def test_a_round_that_ends_with_a_mean_has_the_costs_of_all_its_questions(both: Both) -> None:
    """The ranks report theirs with the mean. Mutations: reports of another question or of the last round are added;
    those of earlier means of the round are dropped."""

    def program(clients: Any) -> list[Any]:
        clients.account()
        rows = []
        for questions in (1, 3):
            for _ in range(questions):
                clients.mean(steps.slow, Vector(np.ones(10)))
            rows.append(clients.account()[0])
        list(clients.ask(steps.plain, Vector(np.ones(10))))
        rows.append(clients.account()[0])
        return rows

    result = both(steps, [None] * 4, program)
    if result:
        once, thrice, plain = result[1]
        computed = [row.seconds[row.steps.index("slow"), 1:, 0] for row in (once, thrice, plain)]
        assert (computed[1] >= 3 * SLOW).all() and (computed[0] >= SLOW).all() and not computed[2].any()
        assert all((row.peak_bytes > 0).all() for row in (once, thrice, plain))
