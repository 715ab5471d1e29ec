"""Clients with clipped and noised replies, as the server's program sees them."""

from collections.abc import Callable
from typing import Any, TypeVar, final

import numpy as np

from zofl_mpi import Clients, Step, UserError
from zofl_mpi.clients import changes
from zofl_mpi.clients.wrapped import Wrapped
from zofl_mpi.engine.clients import Participants, Weights

T = TypeVar("T")


@final
class PrivateClients(Wrapped):
    """Clients whose replies are clipped on their own rank; each answers one question a round."""

    def __init__(self, inner: Clients, method: Any, privacy: Any) -> None:
        super().__init__(inner, method)
        self.privacy, self._answered, self.flag = privacy, -1, f"--clip {privacy.clip:g}"

    def mean(
        self,
        step: Step,
        message: Any,
        *,
        to: Participants = None,
        weights: Weights = None,
        counted: bool = True,
        nobody: Any = None,
        **how: Any,
    ) -> Any:
        """The noised sum of the replies' changes, divided by the expected number of participants."""
        kind, privacy = changes.reply_of(step), self.privacy
        if kind is None:
            self.refuse(counted, step, "clients.mean")
            return self.inner.mean(step, message, to=to, weights=weights, counted=counted, nobody=nobody, **how)
        to = self._one_reply(step, message, to)
        if weights is not None and len({weights[i] for i in to}) > 1:
            raise UserError(f"{self.flag}: clients.mean must weigh participants equally: weights reveal their data")
        like = changes.example(kind, message) if nobody is None else nobody
        if to:
            total = self.inner.sum(step, message, privacy.clipped_change, to=to, **how)()
        else:
            total = np.zeros(sum(changes.size(getattr(like, c.name)) for c in changes.of(kind)) + 1)
        scalars = all(c.scalar for c in changes.of(kind))
        noised = privacy.add_noise(total[:-1], total[-1] / privacy.C, len(to), message.r, scalars)
        return changes.applied(like, message, noised / privacy.denominator(len(to)))

    def sum(
        self,
        step: Step,
        message: Any,
        term: Any,
        *,
        to: Participants = None,
        stretch: float | None = None,
        nobody: Any = None,
        **how: Any,
    ) -> Callable[[], Any]:
        """The noised sum of the terms; a term is `stretch` times as long as the reply's change."""
        kind, privacy = changes.reply_of(step), self.privacy
        if kind is None or not changes.along(kind):
            self.refuse(True, step, "clients.sum")
        if stretch is None:
            raise UserError(f"{self.flag}: clients.sum needs stretch=, by how much a term is longer than a change")
        to = self._one_reply(step, message, to)
        if not to and nobody is None:
            raise UserError(f"{self.flag}: no client takes part in round {message.r + 1}: give clients.sum nobody=")
        read = self.inner.sum(step, message, privacy.adding(term), to=to, **how) if to else None

        def noised() -> Any:
            total = read() if read else np.append(np.asarray(nobody, np.float64), 0.0)
            return privacy.add_noise(total[:-1], total[-1] / privacy.C, len(to), message.r, unit=stretch)

        return noised

    def retry_on_rank_loss(self, work: Callable[[], T]) -> T:
        def again() -> T:
            self._answered = -1  # a repeated round must add the same noise to the same question
            return work()

        return self.inner.retry_on_rank_loss(again)

    def _one_reply(self, step: Step, message: Any, to: Participants) -> list[int]:
        """Refuse a second question in a round, or one to other clients than the account's participants."""
        chosen, r = list(range(self.m)) if to is None else [int(i) for i in to], message.r
        if r == self._answered:
            again = f"step {step.__name__!r} asks for a second reply in round {r + 1}"
            raise UserError(f"{self.flag}: {again}; the account allows one per client and round")
        self._answered = r
        if sorted(chosen) != self.privacy.participants(r):
            raise UserError(f"{self.flag}: step {step.__name__!r} goes to other clients than `sampling` draws")
        return chosen
