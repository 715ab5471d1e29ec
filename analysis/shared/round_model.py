"""A model of a round's time: what is computed, by the rates of one process, and what questions cost, by exchange.py.

A round of m clients on P client ranks is the sum of its questions, the server's work that none hides, and an account,
unless its last question is a mean or a sum, with which the ranks send theirs:

    ask    q + B d + max(n c + P s,  max(c, f) + I s,  c + W w + U u,  (m c + f + I s) / K)
    mean   a + B d + n c + B' r
    sum    a + B d + max(n (c + s), f) + 4 B r + m b        of 32 clients or more, whose ranks do s; else an ask

q, a, w: a question, a mean, and a wave more; d, u, r: a byte down, up and averaged; all from the measured exchange. c:
seconds of a client; n: turns, ceil(m / P) where each rank has a core, a turn of p ranks being p / K of one where all
together are worth K < p cores. s: the server's seconds for each of I items; f: what it computes while the clients do.
W: waves after the first; B, U, B': bytes down, up, of a reply. The terms of the maximum are the clients, the server,
the waves and the cores, which work at once: the longest decides.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import numpy as np
from scipy.optimize import nnls

from shared.scaling import Case, Exchange
from shared.timing import StepTiming
from zofl_mpi.engine.mean import SUM_ON_RANKS_FROM
from zofl_mpi.errors import UserError

Form = Literal["one", "packed"]
"""How replies travel: a wave holds one item a rank, or up to PACKED items or PACKED_BYTES of each."""
PACKED, PACKED_BYTES = 60, 1 << 16
MEANS = {("fedavg", "train"), ("fedavg-cnn", "train"), ("heron", "update"), ("heron", "reduced")}
"""Method and step: the questions that are means; all others are asked."""
SUMS = {"zo_hfl"}
"""Methods whose question is a sum: 8 bytes for each of 4 that went down, of vectors of two sizes, go up from a rank."""
BOOKED = 5e-6
"""b: the server's seconds to draw, ask and book a client of a sum, at most: 0.054 of a round of 10,000 on 3 ranks."""
MEANWHILE = {"zo_hfl"}
"""Methods whose server computes its own gradient while the clients compute; others do it after their replies."""
LIMITS = ("clients", "server", "waves", "cores", "questions", "bytes")


@final
@dataclass(frozen=True)
class Network:
    """What questions cost between P client ranks: `stage` seconds for each doubling of the ranks.

    Attributes:
        stage: {kind: seconds} of `ask`, `upload`, `mean`, `account`, times log2(P + 1).
        rank: {kind: seconds}, times P.
        reply: seconds that a further item takes the server's engine.
        down, up, averaged: seconds a byte: of a message to all; of all that goes up; of a reply in a mean.
        speed: cores that a rank is worth when all compute at once, at most 1.
    """

    stage: Mapping[str, float]
    rank: Mapping[str, float]
    reply: float
    down: float
    up: float
    averaged: float
    speed: float = 1.0

    def fixed(self, kind: str, ranks: int) -> float:
        """Seconds of a question of this kind to P ranks, its bytes aside."""
        return self.stage[kind] * math.log2(ranks + 1) + self.rank[kind] * ranks


STAGED = ("ask", "upload", "mean", "account")


def network(exchanges: Sequence[Exchange]) -> Network:
    """The network that exchanges on different numbers of ranks show; one alone tells no cost for each rank.

    Raises:
        UserError: there is none.
    """
    if not exchanges:
        raise UserError("no exchange is among the results: run the study's test Exchange too")
    ranks = np.array([e.ranks - 1 for e in exchanges], float)
    columns = np.stack([np.log2(ranks + 1), ranks], axis=1)[:, : min(2, len(set(ranks)))]
    most = max(exchanges, key=lambda e: e.ranks)
    fits = {kind: nnls(columns, np.array([e.costs[kind].fixed for e in exchanges]))[0] for kind in STAGED}
    return Network(
        stage={kind: float(fit[0]) for kind, fit in fits.items()},
        rank={kind: float(fit[1]) if len(fit) > 1 else 0.0 for kind, fit in fits.items()},
        reply=most.costs["reply"].fixed / (most.ranks - 1),
        down=most.costs["ask"].per_byte,
        up=most.costs["reply"].per_byte,
        averaged=most.costs["mean"].per_byte,
        speed=most.speed / most.ranks,
    )


@final
@dataclass(frozen=True)
class Question:
    """A step of a round, of each client.

    Attributes:
        mean: whether it is a mean.
        seconds: of computing, at the client.
        down, up: bytes.
        items: that go up, the reply among them.
    """

    mean: bool
    seconds: float
    down: float
    up: float
    items: float


@final
@dataclass(frozen=True)
class Work:
    """What a round of a method computes and sends.

    Attributes:
        questions: one after the other.
        fixed: seconds of the server, whatever the number of clients; `meanwhile`: while the clients compute.
        item: seconds of the server for each item that it is asked for.
        client: seconds for each client that the client ranks share: the sums of a mean.
        summed: whether the ranks of many clients do the server's work for the items of their own.
    """

    questions: tuple[Question, ...]
    fixed: float
    item: float
    client: float
    meanwhile: bool
    summed: bool = False


def work(method: str, runs: Iterable[Case]) -> Work:
    """What a round of a method takes, from its runs in one process; several numbers of clients tell fixed work apart.

    With one number of clients all of the server's work counts as the clients' items'.

    Raises:
        UserError: there is no such run.
    """
    alone = sorted((case.timing for case in runs if case.timing.ranks == 1), key=lambda t: t.participants)
    if not alone:
        raise UserError(f"no run of {method} in one process is among the results")
    last = alone[-1]
    m = last.participants
    questions = tuple(
        Question(
            (method, step.name) in MEANS,
            float(np.mean([_seconds(t.steps, step.name) / t.participants for t in alone])),
            step.bytes_down / m,
            step.bytes_up / m,
            step.messages / m,
        )
        for step in last.steps
    )
    clients = np.array([t.participants for t in alone], float)
    columns = np.stack([clients, np.ones_like(clients)], axis=1)[:, : min(2, len(set(clients)))]
    fit, _ = nnls(columns, np.array([t.server_compute for t in alone]))
    asked = sum(q.items for q in questions if not q.mean)
    per_client, fixed = float(fit[0]), float(fit[1]) if len(fit) > 1 else 0.0
    return Work(
        questions,
        fixed,
        per_client / asked if asked else 0.0,
        0.0 if asked else per_client,
        method in MEANWHILE,
        method in SUMS,
    )


def _seconds(steps: Iterable[StepTiming], name: str) -> float:
    return next((step.seconds for step in steps if step.name == name), 0.0)


@final
@dataclass(frozen=True)
class Prediction:
    """A round's seconds, and what they are by each of LIMITS, were it alone."""

    seconds: float
    parts: Mapping[str, float]

    @property
    def limit(self) -> str:
        """What takes longest."""
        return max(LIMITS, key=lambda name: self.parts[name])


def predict(todo: Work, net: Network, m: int, ranks: int, form: Form = "packed") -> Prediction:
    """A round of m clients.

    Args:
        ranks: P, those that have clients.
    """
    worth = net.speed * (ranks + 1)
    each, n = math.ceil(m / ranks), turns(m, ranks, worth)
    summed = todo.summed and m >= SUM_ON_RANKS_FROM
    total = 0.0 if summed or todo.questions[-1].mean else net.fixed("account", ranks)
    parts = dict.fromkeys(LIMITS, 0.0) | {"questions": total}
    meanwhile = todo.fixed if todo.meanwhile else 0.0
    for question in todo.questions:
        moved = question.down * net.down
        clients = n * question.seconds
        if question.mean:
            asked, sums = net.fixed("mean", ranks), n * todo.client
            moved += question.up * net.averaged
            total += asked + moved + clients + sums
            parts["clients"] += clients + sums
        elif summed:
            asked, terms = net.fixed("mean", ranks), n * todo.item * question.items
            moved += 4 * question.down * net.averaged
            total += asked + moved + max(clients + terms, meanwhile) + m * BOOKED
            parts["clients"] += clients + terms
            parts["server"] += meanwhile + m * BOOKED
            meanwhile = 0.0
        else:
            asked = net.fixed("ask", ranks)
            items, first = m * question.items, question.seconds / max(1.0, question.items)
            item = todo.item + net.reply
            server, up = items * item, m * question.up * net.up
            waves = _waves(question, each, form) * net.fixed("upload", ranks)
            cores = (m * question.seconds + meanwhile + server) / worth
            total += (
                asked
                + moved
                + max(
                    clients + ranks * item,
                    max(first, meanwhile) + server,
                    first + waves + up,
                    cores,
                )
            )
            parts["clients"] += clients
            parts["server"] += meanwhile + server
            parts["waves"] += waves
            parts["cores"] += cores if worth < ranks + 1 else 0.0
            moved += up
            meanwhile = 0.0
        parts["questions"] += asked
        parts["bytes"] += moved
    if not todo.meanwhile:
        total += todo.fixed
        parts["server"] += todo.fixed
    return Prediction(total, parts)


def turns(m: int, ranks: int, cores: float) -> float:
    """The time of m clients on P ranks that share cores, in that of one: a turn ends later where they are too many."""
    full, rest = divmod(m, ranks)
    return full * max(1.0, ranks / cores) + (max(1.0, rest / cores) if rest else 0.0)


def _waves(question: Question, each: int, form: Form) -> float:
    """Waves after the first, which the busiest rank's `each` clients need."""
    items = each * question.items
    if form == "packed":
        fit = PACKED_BYTES * question.items / max(question.up, 1.0)
        items = math.ceil(items / max(1.0, min(PACKED, int(fit))))
    return items - 1


def cluster(exchanges: Sequence[Exchange], rate: float) -> Network:
    """A cluster whose ranks have a core each: questions as between the fewest ranks here, `rate` bytes a second.

    Raises:
        UserError: there is no exchange.
    """
    few = network(sorted(exchanges, key=lambda e: (e.ranks, -e.speed))[:1])
    return replace(few, down=1 / rate, up=1 / rate, averaged=max(few.averaged, 1 / rate), speed=1.0)


def shared_server(todo: Work, net: Network, servers: int, merge: int, numbers: int) -> Work:
    """The round with --server-ranks and --merge: an upload costs the server its share of the pass, and of the exchange.

    Rank 0 sends all uploads but its own on. A step's part of `numbers` (float32) goes to the other ranks, and its
    gradient comes back in sums of 8 bytes a number. The items are those of the one question whose uploads are streamed.
    """
    (asked,) = (question for question in todo.questions if not question.mean)
    if servers == 1:
        return todo
    step = net.fixed("mean", servers - 1) + numbers * (4 * net.down + 8 * net.averaged)
    sent = asked.up * net.up * (1 - 1 / servers) + step / merge
    return replace(todo, item=todo.item / servers + sent / asked.items)
