"""Base of the methods with clients that train the whole network by forward passes and send scalars."""

import weakref
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from zofl_mpi import Client, Clients, above, change, demand, flag_group, injected
from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.engine.memory import room
from zofl_mpi.engine.messages import APART, EACH
from zofl_mpi.numerics.optimisers import copied
from zofl_mpi.rounds.base import Sampling
from zofl_mpi.rounds.split import pieces
from zofl_mpi.rounds.split.client import Draw, Key, LocalSteps, Loss, NetworkLoss, at_a_line
from zofl_mpi.rounds.split.costs import SAMPLE_MACS, SCALARS, STEP_BYTES, STEP_MACS, macs, peak_bytes, work_of
from zofl_mpi.rounds.split.estimating import check_arithmetic
from zofl_mpi.rounds.split.messages import Model, SplitState, mean_loss
from zofl_mpi.rounds.split.method import SplitMethod
from zofl_mpi.rounds.split.pieces import Kept, PieceEstimates, Piecewise, PiecewiseDirections
from zofl_mpi.rounds.split.rules import GradientRule, Lines
from zofl_mpi.rounds.split.training import Training

DIRECTIONS_SHARE = 1 / 8  # share of free memory for a process's directions; other processes start beside it
S = TypeVar("S", bound=SplitState)
Move = Callable[[Tensor, int, PieceEstimates], None]
"""Takes local step q of x (d,) along minus an estimate: (x, q, estimate)."""


@dataclass(frozen=True)
class ModelBroadcast:
    """Server to ranks: the model before the round.

    A client of a federation would rebuild it from numbers, which are booked in its place. Here each rank receives one
    copy for all of its clients: each of them would rebuild the same bits.
    """

    x: Tensor  # (d,)
    moments: dict[str, Any]  # of the optimiser; K of HiSo
    buffers: Tensor  # (b_l + b_s,) BatchNorm's running statistics, which numbers cannot reproduce
    r: int  # the round
    span: float = field(metadata=APART)  # distance of the two points of a difference, in units of a direction
    arithmetic: str = field(metadata=APART)  # arithmetic of the server, for a check

    def booked(self, numbers: int) -> int:
        """Bytes for a client of a federation: `numbers` of them for the model, and everything else but its moments."""
        return numbers + self.buffers.nbytes + 8


@dataclass(frozen=True, kw_only=True)
class Uploaded:
    """Client to server; in the mean, `loss` holds those of the clients."""

    # loss differences of each step's passes: DeComFL's (h, n_p), or sums
    differences: NDArray[Any] = change(
        "a loss is not finite; a smaller --lr-client or a larger --mu may help", unit="span", scalar=True
    )
    # (b_l + b_s,)
    buffers: Tensor = field(metadata={"leaves": "BatchNorm's running statistics leave a client; take --norm group"})
    loss: Any = field(metadata=EACH)  # mean loss over the local steps; None: no step computes it


@dataclass(frozen=True)
class UnsplitMethod(SplitMethod):
    """Base of methods on the whole network: each client holds theta_c and theta_s, without cut or head.

    All clients of a rank share one copy of the model x = (theta_c, theta_s), see `ModelBroadcast`. Local steps move a
    copy of it in place; a single step needs no copy.

    Attributes:
        training: the round; lr_client is the one step size. lr_server has no meaning here; k, merge, order, state and
            freeze are refused.
        mu: smoothing radius, in units of the distribution.
        distribution: distribution of the directions; see --method heron.
        estimate: one-sided (the paper's) or central: one more pass per direction, and one more for a network with
            BatchNorm, to move its statistics.
        draw: device that draws the directions: device or host; see --method heron.
    """

    uploads: ClassVar[str] = "scalars"
    holds_all: ClassVar[bool] = True
    computes: ClassVar[str] = "values of the whole network's loss"
    travels: ClassVar[str] = "scalars down, scalars up"
    training: Training = flag_group(
        batch=32, h=1, lr_client=1e-2, optimiser="sgd", weights="uniform", paper={"batch": 8}
    )
    mu: float = above(0, 1e-3, "a smoothing radius")
    distribution: Literal["gaussian", "sqrt_d_sphere", "sphere", "rademacher"] = "gaussian"
    estimate: Literal["one-sided", "central"] = "one-sided"
    draw: Draw = "device"
    n_p: int = injected(default=1)  # a flag of DeComFL
    rule: Piecewise = field(init=False, repr=False, compare=False)

    @property
    def _held(self) -> dict[str, Any]:
        """The model as one vector, the last message, and directions."""
        return self.setting.context.of(self)

    # --- the server

    def start(self) -> SplitState:
        """The problem's initial parts, without a head."""
        first = super().start()
        return replace(first, theta=first.theta[: self.problem.n_client].clone())

    def full_theta(self, state: SplitState) -> Tensor:
        """(d,) theta_c and theta_s of the state; without a copy if it was `made` last."""
        if self._held.get("state") is not state:
            whole = torch.cat([self.problem.to_device(state.theta), self.problem.to_device(state.theta_s)])
            self._held.update(state=state, whole=whole)
        return cast("Tensor", self._held["whole"])

    def broadcast(self, state: SplitState, r: int) -> ModelBroadcast:
        """The model before round r, as each rank receives it."""
        x, buffers = self.full_theta(state), torch.cat([state.buffers, state.buffers_s])
        return ModelBroadcast(x, state.optimiser, buffers, r, self.rule.span, self.problem.arithmetic)

    def averaged(
        self, clients: Clients, message: ModelBroadcast, booked: Mapping[int, int], zeros: NDArray[Any]
    ) -> tuple[Uploaded, float]:
        """Mean of the participants' scalars (like `zeros`) and statistics, the replies to `train`, and of their losses.

        `booked`: {i: bytes down to participant i}.
        """
        nobody, weights = Uploaded(differences=zeros, buffers=message.buffers, loss={}), self.training.client_weights()
        mean = clients.mean(self.train, message, to=booked, weights=weights, booked=booked, nobody=nobody)
        return mean, mean_loss(mean.loss.values())

    def next_state(self, kind: type[S], x: Tensor, buffers: Tensor, **further: Any) -> S:
        """The state after a round with the model x (d,) and BatchNorm's statistics."""
        n, b = self.problem.n_client, self.problem.client_side.b
        state = kind(x[:n], buffers[:b].clone(), x[n:], buffers[b:].clone(), **further)
        self._held.update(state=state, whole=x)
        return state

    # --- directions

    @property
    def steps_alike(self) -> int:
        """Number of steps of a round with directions shared by all clients."""
        return 0

    def pieces(self, x: Tensor, key: Key, rule: Piecewise) -> PiecewiseDirections:
        """Directions of a step, for x (d,).

        If memory permits they are kept: for the step's other passes, for other clients of this rank, and for the
        server's step in the same process. Otherwise they are drawn again, bit-identically.
        """
        if self.kept_steps == 0:
            return rule.draw_pieces(x, key)
        kept: dict[Key, Kept] = self._held.setdefault("directions", {})
        if key not in kept:
            while len(kept) >= self.kept_steps:
                del kept[next(iter(kept))]
            kept[key] = {}
        return rule.draw_pieces(x, key, kept[key])

    @cached_property
    def kept_steps(self) -> int:
        """Number of steps with kept directions in this process, within a share of the memory first found free."""
        on_gpu = torch.device(self.problem.device).type == "cuda"
        free = max(0.0, DIRECTIONS_SHARE * room(on_gpu) - self.point_bytes)
        return min(max(1, self.steps_alike), int(free / self.direction_bytes))

    @property
    def direction_bytes(self) -> int:
        """Bytes of the directions of a step."""
        return self.rule.n_p * max(1, self.loss.flat.n) * int(np.dtype(self.setting.dtype).itemsize)

    @property
    def point_bytes(self) -> int:
        """Bytes of a perturbed point beside kept directions; a small network has one in any case."""
        return 0 if self.loss.flat.n <= pieces.AT_ONCE else self.direction_bytes // self.rule.n_p

    # --- a client

    def received(self, message: ModelBroadcast) -> tuple[Tensor, dict[str, Any]]:
        """(d,) the model and the optimiser's moments on the network's device; once for all clients of a rank."""
        if self._held.get("message", lambda: None)() is not message:
            remedy = "processors of one kind, or --device cpu"
            check_arithmetic(message.arithmetic, self.problem.arithmetic, type(self).__name__, remedy)
            x = at_a_line(self.problem.to_device(message.x))
            self._held.update(message=weakref.ref(message), x=x, moments=copied(message.moments))
        return self._held["x"], self._held["moments"]

    def local(self, client: Client, message: ModelBroadcast) -> LocalSteps:
        """The client's model for its local steps, which are discarded: a copy unless there is only one."""
        visited, model = Client(client.i, client.data), Model(self.received(message)[0], message.buffers, message.r)
        local = LocalSteps(self.training, visited, model, self.loss, self.rule.parts, moves=self.training.h > 1)
        if self.kept_steps:  # the same memory for all steps: fresh pages cost more than the writing
            if "point" not in self._held:
                self._held["point"] = torch.empty_like(local.theta)
            local.perturbed_theta = self._held["point"]
        return local

    def reply(
        self, client: Client, message: ModelBroadcast, rule: Piecewise, key: Callable[[int], Key], move: Move
    ) -> Uploaded:
        """Loss differences of the local steps, q along the directions of key(q); takes all steps but the last."""
        local, found = self.local(client, message), list[Tensor]()
        for q, inputs, labels in local:
            point = rule.forward(local, inputs, labels, upload=False)
            us = self.pieces(local.theta, key(q), rule)
            found += (own := rule.differences(local, point, labels, us))
            if q < self.training.h - 1:
                move(local.theta, q, rule.estimate(us, own))
        return Uploaded(
            differences=torch.stack(found).double().cpu().numpy().reshape(-1, rule.n_p),
            buffers=local.buffers,
            loss=local.mean_loss(),
        )

    def first_moments(self, x: Tensor) -> dict[str, Any]:
        """The optimiser's moments before round 0, at x (d,)."""
        return self.training.optimiser.memory(x)

    def estimator(self, moments: MutableMapping[str, Any]) -> Piecewise:
        """The gradient rule in a round that begins with these moments."""
        return self.rule

    def rehearse(self, rule: GradientRule, theta: Tensor, buffers: Tensor, x: Tensor, labels: Tensor) -> None:
        x0, h = theta.clone(), self.training.h  # stays unchanged: local steps move a copy, unless there is only one
        own = self.estimator(kept := self.first_moments(x0))
        own = replace(own, n_p=min(own.n_p, 3), lean=True)  # never more directions than these at once
        moments = copied(kept) if h > 1 else kept
        local = LocalSteps(self.training, Client(0, None), Model(x0, buffers, 0), self.loss, own.parts, moves=h > 1)
        for q in range(min(h, 2)):
            point = own.forward(local, x, labels, upload=False)
            us = own.draw_pieces(local.theta, Key(self.setting.streams, t=q))
            found = own.differences(local, point, labels, us)
            if h > 1:
                self.training.optimiser.step_by_parts(local.theta, own.estimate(us, found), moments, 0.0)

    # --- the step, and refusals

    def __post_init__(self) -> None:
        training = self.training
        demand(training.h >= 1, "h", training.h, "at least 1: the scalars of equally many steps are averaged")
        words = {"freeze": "none", "state": "keep", "client_parts": "average", "order": "interleave"}
        for flag, only in {"k": 1, "merge": 1, **words}.items():
            value = getattr(training, flag)
            demand(value == only, flag, value, f"{only}: it has no meaning here")
        super().__post_init__()

    def make_loss_and_rule(self) -> tuple[Loss, Piecewise]:
        """The whole network's loss, and its estimate from n_p directions."""
        loss, central = NetworkLoss(self.problem), self.estimate == "central"
        moves = loss.flat.b > 0 and not self.training.running
        return loss, Piecewise(slice(0, loss.flat.n), self.n_p, self.distribution, self.draw, self.mu, central, moves)

    # --- reports

    @property
    def server_uploads(self) -> int:
        """0: the server replays scalars."""
        return 0

    @property
    def kernel(self) -> str:
        return super().kernel + ", directions from whole states"

    @property
    def sampling(self) -> Sampling:
        return self.training.participants

    @property
    def example_reply(self) -> Uploaded:
        up, b = self.traffic.of(0, 0)[SCALARS][1], self.loss.flat.b
        return Uploaded(differences=np.zeros(up // 4, np.float32), buffers=torch.zeros(b), loss=None)

    def plan(self, rounds: int) -> Lines:
        size = self.kept_steps * self.direction_bytes + self.point_bytes
        kept = f"drawn once, and kept: {size:,} bytes of this process"
        told = kept if self.kept_steps else "drawn again for each pass and step: there is no room to keep them"
        return super().plan(rounds) | {"directions of a step": told}

    def costs(self) -> Lines:
        (client, _, server), batch = macs(self.problem), self.training.batch
        return {
            SAMPLE_MACS: round(client + server),
            STEP_MACS: round(work_of(self.loss, self.rule)[0] * batch),
            STEP_BYTES: peak_bytes(self.loss, self.rule, batch),
            **self.held_lines(),
        }
