"""Server ranks 0..S-1 (--server-ranks): they share the uploads of a server step; rank 0 updates the model.

Rank 0 reads all uploads. While others still arrive, it sends upload k of a step to rank k mod S, each over a
communicator of the two. It computes its own when those after it are on their way. The other ranks get the server's part
with a step's second upload: a step on a single one stays at rank 0. At the end of the step all tell each other the
largest magnitudes, from which follow the quanta of the exact mean, and reductions add whole numbers. Rank 0 alone moves
the server's part and holds the optimiser's moments, so a checkpoint knows nothing of S.

No deadlock: rank 0's two threads take turns in MPI (`world.split`), and wait for others outside of it, except in
blocking collectives. The other side comes to these without waiting for either thread: client ranks in a wave, or server
ranks that have reported, by a barrier or their magnitudes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast, final

import numpy as np

from zofl_mpi.engine import mean, messages
from zofl_mpi.engine.clients import step_of
from zofl_mpi.engine.fields import without_warnings
from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.engine.ledger import SERVER, Clock, Costs
from zofl_mpi.engine.messages import Bytes
from zofl_mpi.engine.sharing import Begin, PassResult, SharedServerStep
from zofl_mpi.run.mpi.collectives import Collectives, Question


@final
class ServerRanks(SharedServerStep):
    """Rank 0's side of shared server steps (`SharedServerStep`).

    `collectives` connects all server ranks, `pairs` rank 0 with each other one.
    """

    def __init__(self, collectives: Collectives, pairs: Sequence[Collectives], clock: Clock) -> None:
        self.ranks, self._collectives, self._pairs, self._clock = 1 + len(pairs), collectives, pairs, clock

    def begin(self, step: Begin, message: Any) -> None:
        self._name, self._message, self._work = step.__name__, message, step(message)
        self._parts, self._held, self._count = dict[int, PassResult](), list[Any](), 0

    def add(self, item: Any) -> None:
        k, self._count = self._count, self._count + 1
        if k == 1:
            with self._clock.time(SERVER, "comm"):
                self._collectives.send(Question("step", self._name), messages.pack(self._message))
        if k % self.ranks:
            with self._clock.time(SERVER, "comm"):
                block = messages.pack(item)
            with self._clock.time(SERVER, "wait"):
                self._pairs[k % self.ranks - 1].send(Question("upload", upload=k), block)
        else:
            self._held.append(item)
        if (k + 1) % self.ranks == 0:
            self._compute()

    def end(self) -> tuple[Sequence[Tensor], list[Any]]:
        self._compute()
        if self._count == 1:
            return self._parts[0].terms, [self._parts[0].reply]
        like = self._parts[0].terms
        for pair in self._pairs:
            pair.bcast_question(Question("end", lengths=[x.numel() for x in like]))
        with self._clock.time(SERVER, "wait"):
            sums, blocks = _sums(self._collectives, self._parts, [x.numel() for x in like])
        means = []
        for x, total in zip(like, sums, strict=True):
            found = torch.zeros_like(x, dtype=torch.float64)
            for unit, multiples in total.items():
                found += torch.from_numpy(multiples).to(x.device).view(x.shape).double() * unit
            means.append(found.to(x.dtype))
        own = {k: each.reply for k, each in self._parts.items()}
        return means, [own[k] if k in own else messages.unpack(blocks[k]) for k in range(self._count)]

    def account(self, own: Costs, steps: list[str]) -> Costs:
        """(S,) costs of the server ranks in a round."""
        self._collectives.bcast_question(Question("account", steps=steps))
        return self._collectives.gather_costs(own)

    def each_collectives(self) -> list[tuple[list[int], Collectives]]:
        """Each group's collectives with the ranks that they connect."""
        return [([*range(self.ranks)], self._collectives), *(([0, k], pair) for k, pair in enumerate(self._pairs, 1))]

    def close(self, status: int) -> None:
        """Ends the other server ranks."""
        self._collectives.bcast_question(Question("end", status=status))

    def _compute(self) -> None:
        """Computes on this rank's pending upload, if any."""
        if self._held:
            self._parts[(self._count - 1) // self.ranks * self.ranks] = self._work(self._held.pop())


def serve_step(
    collectives: Collectives, pair: Collectives, method: Any, question: Question, block: Bytes | None, clock: Clock
) -> None:
    """Part of another server rank in a server step."""
    with clock.time(SERVER, "comm"):
        part = _received(collectives, question, block)
    work = cast(Begin, step_of(method, question.step))(part)
    given = dict[int, PassResult]()
    while True:
        with clock.time(SERVER, "wait"):
            next_one, block = pair.bcast_question()
            item = _received(pair, next_one, block) if next_one.kind == "upload" else None
        if item is None:
            break
        with clock.time(SERVER, "compute"), without_warnings():
            given[next_one.upload] = work(item)
    with clock.time(SERVER, "wait"):
        try:
            _sums(collectives, given, next_one.lengths)
        except FloatingPointError:  # rank 0 names the client
            return


def _sums(
    collectives: Collectives, given: Mapping[int, PassResult], sizes: Sequence[int]
) -> tuple[list[dict[float, Any]], dict[int, Bytes]]:
    """Reduces to rank 0: for each term its sums over all uploads, {quantum: integer multiples}; the others' replies.

    FloatingPointError on all ranks: a term is not finite; the argument is the upload's index.
    """
    replies = {k: messages.pack(each.reply) for k, each in given.items()} if collectives.rank else {}
    bounds = {k: [mean.largest(x) for x in each.terms] for k, each in given.items()}
    blocks, gathered = collectives.gather_memories(replies, bounds)
    uploads = sorted(pair for part in gathered for pair in part.items())
    units = [mean.quanta_of(each) for each in zip(*(bound for _, bound in uploads), strict=True)]
    sums = []
    for term, (size, of) in enumerate(zip(sizes, units, strict=True)):
        total = dict[float, Any]()
        for unit in mean.distinct(of):
            own = [given[k].terms[term] for (k, _), one in zip(uploads, of, strict=True) if k in given and one == unit]
            multiples = mean.quantised_sum(own, 1.0 / len(of) / unit).cpu().numpy() if own else np.zeros(size, np.int64)
            total[unit] = collectives.reduce_sum(multiples)
        sums.append(total)
    return sums, blocks


def _received(collectives: Collectives, question: Question, block: Bytes | None) -> Any:
    """The message of a question, with tensors in torch's memory, as `Flat` needs them."""
    return messages.copy(messages.unpack(collectives.message(question, block)))
