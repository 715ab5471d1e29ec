"""DeComFL and HiSo: clients train the entire network by forward passes, and only scalars travel.

Li, Ying, Liu, Dong, Yang, "Achieving Dimension-Free Communication in Federated Learning via Zeroth-Order Optimization",
ICLR 2025. With one client and h = 1 it is MeZO: Malladi et al., "Fine-Tuning Language Models with Just Forward Passes",
NeurIPS 2023. HiSo: Li, Ying, Liu, Dong, Yang, "Converge Faster, Talk Less: Hessian-Informed Federated Zeroth-Order
Optimization", ICLR 2026, arXiv:2506.02370.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, cast, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi import Client, Clients, Directions, above, at_least, column, demand, finite, fraction, part
from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.engine.messages import APART
from zofl_mpi.numerics.history import History
from zofl_mpi.numerics.optimisers import copied
from zofl_mpi.rounds.robust import Robust
from zofl_mpi.rounds.split.client import Draw, Key, LocalSteps, Loss, NetworkLoss
from zofl_mpi.rounds.split.costs import Traffic, plan_of, unsplit_costs
from zofl_mpi.rounds.split.estimates import TwoPoint
from zofl_mpi.rounds.split.estimating import check_arithmetic
from zofl_mpi.rounds.split.messages import Ask, Model, State
from zofl_mpi.rounds.split.method import SplitMethod
from zofl_mpi.rounds.split.rules import Lines, StepCost
from zofl_mpi.rounds.split.training import Training

K = "second_moment"
"""Name of K among the moments, which the server and every client hold."""


@dataclass(frozen=True)
class DeComFL(SplitMethod):
    """The whole network by forward passes at clients; scalars travel: Algorithms 3, 4 (1, 2 with n_p directions).

    Each client holds theta_c and theta_s; there is no cut and no head. All clients draw the same directions for local
    step q of round r from the seed, so the means of their loss differences give the round's step, at the server and at
    every client that gets them. A participant gets the means of all rounds since its last one, by which it would make
    the server's model to the bit; here ranks hold one copy of that, whatever the number of clients. It then takes local
    steps of its own, which it discards.

    With another optimiser than the paper's SGD the moments are those of the means, as in the paper's code: local steps
    start from them and do not change them.

    Attributes:
        training: the round; its lr_client is the one step size, which changes with r h + q. Its lr_server, k,
            order, state and freeze have no meaning here.
        mu: smoothing radius, in the unit of the distribution.
        distribution: of the directions; see --method heron.
        n_p: directions of a local step, whose estimates are averaged.
        estimate: one-sided, the paper's (1 + n_p forward passes), or central, MeZO's (2 n_p, and one more where there
            is a BatchNorm, whose statistics that one moves).
        draw: where directions are drawn: device or host; see --method heron.
    """

    training: Training = part(batch=8, h=1, optimiser="sgd", weights="uniform")
    mu: float = above(0, 1e-3, "a smoothing radius")
    distribution: Literal["gaussian", "sqrt_d_sphere", "sphere"] = "gaussian"
    n_p: int = at_least(1, 1, "a whole number of directions")
    estimate: Literal["one-sided", "central"] = "one-sided"
    draw: Draw = "device"
    robust: Robust = part()
    _history: History = field(init=False, repr=False, compare=False, default_factory=History)
    _held: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    # --- the server

    def round(self, state: ScalarState, r: int, clients: Clients) -> ScalarState:
        """Asks the participants for their scalars, and takes the steps of the means."""
        training, problem = self.training, self.problem
        to, latest = training.timetable.participants(r), training.timetable.latest(r)
        buffers = torch.cat([state.buffers, state.buffers_s])
        since = {i: latest.get(i, 0) for i in to}
        x = torch.cat([problem.placed(state.theta)[: problem.n_client], problem.placed(state.theta_s)])
        for _ in clients.ask(self.hold, Current(x, state.optimiser), to=to, counted=False):
            pass
        different = {t: Missed(state.scalars[t:], buffers, r) for t in set(since.values())}
        replies = dict(clients.ask_each(self.train, {i: different[t] for i, t in since.items()}))
        for i, reply in replies.items():
            remedy = "processors of one kind, or --device cpu"
            check_arithmetic(problem, i, reply.arithmetic, "--method decomfl", remedy)
        averaged = {i: Averaged(differences=reply.differences, buffers=reply.buffers) for i, reply in replies.items()}
        average = self.robust.of_replies(averaged, r, training.shares(), differences=0.0)
        theta, x, moments = problem.placed(state.theta).clone(), x.clone(), copied(state.optimiser)
        n, b = problem.n_client, problem.local.b
        self.replay(x, moments, r, average.differences)
        theta[:n] = x[:n]
        return ScalarState(
            theta=theta,
            buffers=average.buffers[:b].clone(),
            theta_s=x[n:].clone(),
            buffers_s=average.buffers[b:].clone(),
            optimiser=moments,
            local_loss=math.fsum(reply.loss for reply in replies.values()) / len(replies),
            scalars=self._history.appended(state.scalars, average.differences),
        )

    def start(self) -> ScalarState:
        first = super().start()
        x = torch.cat([first.theta[: self.setting.problem.n_client], first.theta_s])
        scalars = np.zeros((0, self.training.h, self.n_p))
        return ScalarState(**{**vars(first), "optimiser": self.first_moments(x)}, scalars=scalars)

    def replay(self, x: Tensor, moments: MutableMapping[str, Any], r: int, differences: NDArray[np.float64]) -> Tensor:
        """Moves x (d,), and the optimiser's moments, by round r, whose mean differences are (h, n_p).

        Returns:
            (d,) the estimate of the last local step.
        """
        estimator = self.estimator(moments)
        for q, row in enumerate(differences.tolist()):
            g = estimator.replay(x, row, self.key(r, q))
            self.step(x, moments, r, q, g)
        return g

    def step(self, x: Tensor, moments: MutableMapping[str, Any], r: int, q: int, g: Tensor) -> None:
        """Moves x (d,) by the optimiser's step along -g (d,), local step q of round r."""
        training = self.training
        training.optimiser.step(x, g, moments, training.pace.client(training.lr_client, r * training.h + q))

    def first_moments(self, x: Tensor) -> dict[str, Any]:
        """The optimiser's moments before round 0, at x (d,)."""
        return self.training.optimiser.memory(x)

    def estimator(self, moments: MutableMapping[str, Any]) -> TwoPoint:
        """The gradient rule in a round that begins with these moments."""
        return cast(TwoPoint, self.rule)

    def key(self, r: int, q: int) -> Key:
        """Random numbers of local step q in round r, the same for all clients."""
        return partial(self.setting.streams, r=r, t=q)

    # --- a client

    def hold(self, client: Client, message: Current) -> Ask:
        """Keeps the model before the round: one copy a rank, where each of its clients would have the same to the bit.

        A client has it by the steps that it missed (`Missed`, whose bytes are counted); this question is not counted.
        """
        if self._held.get("message") is not message:
            x = self.problem.placed(message.x)
            self._held.update(message=message, x=x, moments=copied(message.moments))
        return Ask()

    def train(self, client: Client, message: Missed) -> Uploaded:
        """Takes local steps on a copy of the model."""
        x, moments = self._held["x"], self._held["moments"]
        estimator, visited = self.estimator(moments), Client(client.i, client.data)  # forgotten, as the steps are
        local = LocalSteps(self.training, visited, Model(x, message.buffers, message.r), self.loss, self.rule.parts)
        moments, differences = copied(moments), list[Tensor]()
        for q, inputs, labels in local:
            point = estimator.forward(local, inputs, labels, self._moves_statistics)
            gradient = estimator(local, point, labels, self.key(message.r, q))
            self.step(local.theta, moments, message.r, q, cast("Tensor", gradient.parts[0]))
            differences += gradient.differences
        return Uploaded(
            differences=torch.stack(differences).double().cpu().numpy().reshape(-1, self.n_p),
            buffers=local.buffers,
            loss=local.done().loss,
            arithmetic=self.problem.arithmetic,
        )

    @property
    def _moves_statistics(self) -> bool:
        """Whether a pass at the model itself moves BatchNorm's running statistics."""
        return self.loss.flat.b > 0 and not self.training.running

    # --- the step, and refusals

    def __post_init__(self) -> None:
        training = self.training
        demand(training.h >= 1, "h", training.h, "at least 1: the scalars of equally many steps are averaged")
        demand(training.k == 1, "k", training.k, "1: it has no meaning here")
        for flag, value, only in (
            ("merge", training.merge, 1),
            ("freeze", training.freeze, "none"),
            ("state", training.state, "keep"),
            ("client_parts", training.client_parts, "average"),
        ):
            demand(value == only, flag, value, f"{only}: it has no meaning here")
        self.robust.demand_replies(len(training.timetable.participants(0)))
        super().__post_init__()

    def chosen(self) -> tuple[Loss, TwoPoint]:
        loss = NetworkLoss(self.problem)
        central = self.estimate == "central"
        return loss, TwoPoint(slice(0, loss.flat.n), self.n_p, self.distribution, self.draw, self.mu, central)

    # --- reports

    @property
    def server_uploads(self) -> int:
        """None: the server replays scalars."""
        return 0

    @property
    def kernel(self) -> str:
        return super().kernel + ", directions from whole states"

    @property
    def passes(self) -> int:
        """Forward passes of a local step."""
        return self.rule.passes + (self.rule.needs_point or self._moves_statistics)

    @cached_property
    def traffic(self) -> Traffic:
        """Scalars: up those of a client's steps, down the means of all rounds since its last."""
        return Traffic(self.training, scalars=self.n_p, unsplit=True)

    def plan(self, rounds: int) -> Lines:
        lines = plan_of(self.traffic, rounds, StepCost(self.passes))
        each = 8 * self.training.h * self.n_p
        lines["further bytes down, a client, for each round since its last"] = each
        return {**lines, **self.robust.lines(len(self.training.timetable.participants(0)), each)}

    def directions(self, rounds: int) -> Directions:
        """The directions of one client's local steps: all clients share them."""
        return Directions(rounds * self.training.h * self.n_p, self.loss.flat.n)

    def costs(self) -> Lines:
        return unsplit_costs(self.training, self.loss, self.rule, self.passes)


@final
@dataclass(frozen=True)
class HiSo(DeComFL):
    """DeComFL along z = u / sqrt(K), entry by entry, u the directions of DeComFL; K (d,) begins at 1.

    After a round K <- nu K + (1 - nu) G^2, with G = (1/P) sum_p g_p z_p its last local step's
    estimate, g_p the participants' mean scalars. A client that was away replays the missed steps and updates of K in
    order, and so has the server's x and K to the bit. nu = 1 is DeComFL.
    As in the paper's code nothing bounds K below: an entry that nothing moves goes to 0, and its directions grow.

    Attributes:
        nu: weight of the old K; the code of the paper has 0.95.
    """

    nu: float = fraction(0.95)

    def start(self) -> HiSoState:
        return HiSoState(**vars(super().start()))

    def round(self, state: ScalarState, r: int, clients: Clients) -> HiSoState:
        """The round of DeComFL, and the smallest entry of the new K."""
        new = super().round(state, r, clients)
        return HiSoState(**{**vars(new), "least_second_moment": float(new.optimiser[K].min())})

    def replay(self, x: Tensor, moments: MutableMapping[str, Any], r: int, differences: NDArray[np.float64]) -> Tensor:
        """Moves x, the optimiser's moments and K by round r; returns G."""
        G = super().replay(x, moments, r, differences)
        moments[K] = moments[K].to(G.device).mul_(self.nu).addcmul_(G, G, value=1 - self.nu)
        return G

    def first_moments(self, x: Tensor) -> dict[str, Any]:
        """The optimiser's moments, and K = 1."""
        return {**super().first_moments(x), K: x.new_ones(x.shape)}

    def estimator(self, moments: MutableMapping[str, Any]) -> TwoPoint:
        """The two-point estimate along u / sqrt(K)."""
        return replace(super().estimator(moments), factors=moments[K].rsqrt())


# --- messages and state


@dataclass(frozen=True)
class Current:
    """Server to ranks: the model before the round."""

    x: Tensor  # (d,)
    moments: dict[str, Any]  # of the optimiser; K of HiSo


@dataclass(frozen=True)
class Missed:
    """Server to client: the steps of the rounds since it last took part."""

    scalars: NDArray[np.float64]  # (rounds, h, n_p) the means of the rounds from its last one to the one before r
    buffers: Tensor  # (b_l + b_s,) BatchNorm's running statistics, which no scalars give
    r: int  # the round


@dataclass(frozen=True, kw_only=True)
class Averaged:
    """The part of `Uploaded` that is averaged."""

    # (h, n_p) of the losses of each step's passes
    differences: NDArray[np.float64] = finite("a loss is not finite; a smaller --lr-client or a larger --mu may help")
    buffers: Tensor  # (b_l + b_s,)


@dataclass(frozen=True, kw_only=True)
class Uploaded(Averaged):
    """Client to server."""

    loss: float  # mean over the local steps of the loss; nan where no step computes it
    arithmetic: str = field(metadata=APART)  # a check, not communication that the method needs


@dataclass(frozen=True, kw_only=True)
class ScalarState(State):
    """The server's state after a round; its theta_a stays, and its optimiser is every client's."""

    scalars: NDArray[np.float64] = column("nat", "mean differences of losses of each round, local step, direction")


@final
@dataclass(frozen=True, kw_only=True)
class HiSoState(ScalarState):
    """The server's state after a round."""

    least_second_moment: float = column("1", "smallest entry of K, by whose root directions are divided", 1.0)
