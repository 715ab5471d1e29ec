"""Base of the methods whose clients train the whole network by forward passes, from scalars alone."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar, cast

from numpy.typing import NDArray

from zofl_mpi import Client, Clients, above, demand, finite, part
from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.engine.messages import APART
from zofl_mpi.numerics.optimisers import copied
from zofl_mpi.rounds.robust import Robust
from zofl_mpi.rounds.split.client import Draw, Key, LocalSteps, Loss, NetworkLoss, at_a_line
from zofl_mpi.rounds.split.costs import SAMPLE_MACS, SCALARS, STEP_BYTES, STEP_MACS, macs, peak_bytes
from zofl_mpi.rounds.split.estimating import check_arithmetic
from zofl_mpi.rounds.split.messages import Ask, Model, State
from zofl_mpi.rounds.split.method import SplitMethod
from zofl_mpi.rounds.split.pieces import Parts, Piecewise
from zofl_mpi.rounds.split.rules import Lines
from zofl_mpi.rounds.split.training import Training

S = TypeVar("S", bound=State)
Move = Callable[[Tensor, int, Parts], None]
"""Takes local step q of x (d,) along minus an estimate, (x, q, estimate)."""


@dataclass(frozen=True)
class Current:
    """Server to ranks: the model before the round."""

    x: Tensor  # (d,)
    moments: dict[str, Any]  # of the optimiser; K of HiSo


@dataclass(frozen=True)
class Known:
    """Server to client: the scalars from which it makes the model before the round."""

    scalars: NDArray[Any]  # see the method
    buffers: Tensor  # (b_l + b_s,) BatchNorm's running statistics, which no scalars give
    r: int  # the round


@dataclass(frozen=True, kw_only=True)
class Averaged:
    """The part of `Uploaded` that is averaged."""

    # of the losses of each step's passes: DeComFL's (h, n_p), or sums
    differences: NDArray[Any] = finite("a loss is not finite; a smaller --lr-client or a larger --mu may help")
    buffers: Tensor  # (b_l + b_s,) BatchNorm's running statistics


@dataclass(frozen=True, kw_only=True)
class Uploaded(Averaged):
    """Client to server."""

    loss: float  # mean over the local steps of the loss; nan where no step computes it
    arithmetic: str = field(metadata=APART)  # a check, not communication that the method needs
    clipped: float = field(default=0.0, metadata=APART)  # see `privacy.Clipped`


@dataclass(frozen=True)
class UnsplitMethod(SplitMethod):
    """Each client holds theta_c and theta_s; there is no cut and no head.

    All clients of a rank share one copy of the model x = (theta_c, theta_s), which each would have to the bit by what
    it gets. Local steps move a copy, in place; where there is but one, none is made.

    Attributes:
        training: the round; its lr_client is the one step size. Its lr_server, k, order, state and freeze have no
            meaning here.
        mu: smoothing radius, in the unit of the distribution.
        distribution: of the directions; see --method heron.
        estimate: one-sided, the paper's, or central (of each direction one pass more; and one more where there is a
            BatchNorm, whose statistics that one moves).
        draw: where directions are drawn: device or host; see --method heron.
    """

    uploads: ClassVar[str] = "scalars"
    holds_all: ClassVar[bool] = True
    computes: ClassVar[str] = "values of the whole network's loss"
    travels: ClassVar[str] = "scalars down, scalars up"
    training: Training = part(batch=32, h=1, lr_client=1e-2, optimiser="sgd", weights="uniform", paper={"batch": 8})
    mu: float = above(0, 1e-3, "a smoothing radius")
    distribution: Literal["gaussian", "sqrt_d_sphere", "sphere", "rademacher"] = "gaussian"
    estimate: Literal["one-sided", "central"] = "one-sided"
    draw: Draw = "device"
    robust: Robust = part()
    rule: Piecewise = field(init=False, repr=False, compare=False)
    _held: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    # --- the server

    def joined(self, state: State) -> Tensor:
        """(d,) theta_c and theta_s of the state; without a copy where it was `made` last."""
        if self._held.get("state") is not state:
            theta, theta_s = (self.problem.placed(t) for t in (state.theta, state.theta_s))
            self._held.update(state=state, whole=torch.cat([theta[: self.problem.n_client], theta_s]))
        return cast("Tensor", self._held["whole"])

    def held_by(self, to: Sequence[int], state: State, clients: Clients) -> Tensor:
        """(d,) the model before a round, which the ranks of its participants then hold too."""
        current = Current(self.joined(state), state.optimiser)
        for _ in clients.ask(self.hold, current, to=to, counted=False) if to else ():
            pass
        return current.x

    def averaged(self, r: int, replies: Mapping[int, Uploaded], nobodys: Averaged) -> tuple[Averaged, float]:
        """The mean of the participants' scalars and statistics, robustly, and of their losses; `nobodys` of none."""
        for i, reply in replies.items():
            remedy = "processors of one kind, or --device cpu"
            check_arithmetic(self.problem, i, reply.arithmetic, type(self).__name__, remedy)
        if not replies:
            return nobodys, math.nan
        kept = {i: Averaged(differences=reply.differences, buffers=reply.buffers) for i, reply in replies.items()}
        loss = math.fsum(reply.loss for reply in replies.values()) / len(replies)
        return self.robust.of_replies(kept, r, self.training.shares(), self.rule.span, differences=0.0), loss

    def made(self, kind: type[S], before: State, x: Tensor, buffers: Tensor, **further: Any) -> S:
        """The state after a round whose model is x (d,), with BatchNorm's statistics; the head stays."""
        n, b, theta = self.problem.n_client, self.problem.local.b, self.problem.placed(before.theta)
        state = kind(
            theta=torch.cat([x[:n], theta[n:]]) if len(theta) > n else x[:n],
            theta_s=x[n:],
            buffers=buffers[:b].clone(),
            buffers_s=buffers[b:].clone(),
            **further,
        )
        self._held.update(state=state, whole=x)
        return state

    # --- a client

    def hold(self, client: Client, message: Current) -> Ask:
        """Keeps the model before the round: one copy a rank, where each of its clients would have the same to the bit.

        A client has it by what it gets, whose bytes are counted; this question is not counted.
        """
        if self._held.get("message", lambda: None)() is not message:
            x = at_a_line(self.problem.placed(message.x))
            self._held.update(message=weakref.ref(message), x=x, moments=copied(message.moments))
        return Ask()

    def local(self, client: Client, buffers: Tensor, r: int) -> LocalSteps:
        """The client's model for its local steps, which are forgotten: a copy unless there is but one."""
        visited, model = Client(client.i, client.data), Model(self._held["x"], buffers, r)
        return LocalSteps(self.training, visited, model, self.loss, self.rule.parts, moves=self.training.h > 1)

    def reply(self, client: Client, message: Known, rule: Piecewise, key: Callable[[int], Key], move: Move) -> Uploaded:
        """Differences of losses of the local steps, q along the directions of key(q); takes all steps but the last."""
        local, found = self.local(client, message.buffers, message.r), list[Tensor]()
        for q, inputs, labels in local:
            point = rule.forward(local, inputs, labels, upload=False)
            us = rule.draw_pieces(local.theta, key(q))
            found += (own := rule.differences(local, point, labels, us))
            if q < self.training.h - 1:
                move(local.theta, q, rule.estimate(us, own))
        return Uploaded(
            differences=torch.stack(found).double().cpu().numpy().reshape(-1, rule.n_p),
            buffers=local.buffers,
            loss=local.done().loss,
            arithmetic=self.problem.arithmetic,
        )

    # --- the step, and refusals

    def __post_init__(self) -> None:
        training = self.training
        demand(training.h >= 1, "h", training.h, "at least 1: the scalars of equally many steps are averaged")
        for flag, only in {"k": 1, "merge": 1, "freeze": "none", "state": "keep", "client_parts": "average"}.items():
            value = getattr(training, flag)
            demand(value == only, flag, value, f"{only}: it has no meaning here")
        self.robust.demand_replies(len(training.participants(0)))
        super().__post_init__()

    def chosen(self) -> tuple[Loss, Piecewise]:
        return self.two_point(1)

    def two_point(self, n_p: int) -> tuple[Loss, Piecewise]:
        """The whole network's loss, and its estimate from n_p directions."""
        loss, central = NetworkLoss(self.problem), self.estimate == "central"
        moves = loss.flat.b > 0 and not self.training.running
        return loss, Piecewise(slice(0, loss.flat.n), n_p, self.distribution, self.draw, self.mu, central, moves)

    # --- reports

    @property
    def server_uploads(self) -> int:
        """None: the server replays scalars."""
        return 0

    @property
    def kernel(self) -> str:
        return super().kernel + ", directions from whole states"

    def plan(self, rounds: int) -> Lines:
        asked, (_, up) = len(self.training.participants(0)), self.traffic.of(0, 0)[SCALARS]
        return super().plan(rounds) | self.robust.lines(asked, up)

    def costs(self) -> Lines:
        (client, _, server), batch = macs(self.problem), self.training.batch
        return {
            SAMPLE_MACS: round(client + server),
            STEP_MACS: round((self.rule.passes + self.rule.needs_point) * (client + server) * batch),
            STEP_BYTES: peak_bytes(self.loss, self.rule, batch),
        }
