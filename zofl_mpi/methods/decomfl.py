"""DeComFL: clients train the whole network by forward passes, and nothing but scalars travels.

Li, Ying, Liu, Dong, Yang, "Achieving Dimension-Free Communication in Federated Learning via Zeroth-Order Optimization",
ICLR 2025. With one client and h = 1 it is MeZO: Malladi et al., "Fine-Tuning Language Models with Just Forward Passes",
NeurIPS 2023.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine import mean
from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import column, part
from zofl_mpi.engine.messages import APART
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError, demand
from zofl_mpi.numerics.optimisers import copied
from zofl_mpi.problems import Split
from zofl_mpi.rounds.split.client import Draw, LocalSteps, drawn
from zofl_mpi.rounds.split.costs import LocalStep, Traffic, plan_of, whole_costs
from zofl_mpi.rounds.split.estimate import Estimate
from zofl_mpi.rounds.split.messages import Model, State
from zofl_mpi.rounds.split.passes import check_abreast, stacked
from zofl_mpi.rounds.split.report import Report
from zofl_mpi.rounds.split.training import Training
from zofl_mpi.rounds.split.unsplit import whole

if TYPE_CHECKING:
    from torch import Tensor

    from zofl_mpi.rounds.split.measured import Around


@final
@dataclass(frozen=True)
class Missed:
    """Server to client: all that has happened since it last took part."""

    scalars: NDArray[np.float64]  # (rounds, h, n_p) the means of the rounds from its last one to the one before r
    buffers: Tensor  # (b_l + b_s,) BatchNorm's running statistics, which no scalars give
    r: int  # the round


@final
@dataclass(frozen=True)
class Told:
    """Client to server."""

    differences: NDArray[np.float64]  # (h, n_p) of the losses of each step's passes
    buffers: Tensor  # (b_l + b_s,)
    loss: float  # mean over the local steps of the loss; nan where no step has it
    arithmetic: str = field(metadata=APART)  # a check, not communication that the method needs


@final
@dataclass(frozen=True)
class Mean:
    """What of `Told` is averaged."""

    differences: NDArray[np.float64]  # (h, n_p)
    buffers: Tensor  # (b_l + b_s,)


@final
@dataclass(frozen=True, kw_only=True)
class ScalarState(State):
    """What the server carries from round to round; its theta_a stays, and its optimiser is every client's."""

    scalars: NDArray[np.float64] = column("nat", "mean differences of losses of each round, local step, direction")


@final
@dataclass(frozen=True)
class DeComFL:
    """Algorithms 3 and 4 of the paper (Algorithms 1 and 2 with n_p directions).

    All that trains, theta_c and theta_s, is at each client: there is no cut, and the auxiliary head plays no part. The
    directions of local step q of round r are the same for all clients, who draw them from the seed; so the means of the
    clients' differences of losses make the round's step at the server, and at each client as soon as it has them. A
    client that takes part first brings its model up to date, with the means of all rounds since it last did so, takes
    local steps of its own, and goes back.

    An optimiser other than SGD, of which the paper speaks, takes these same steps; its moments are those of the means,
    as in the code of the paper, and local steps go on from them and leave them.

    Attributes:
        setting: problem, data and random numbers.
        training: the round; its lr_client is the one step size. Of its flags lr_server, k, upload_at, order, state,
            server_state and freeze have no meaning here. Step sizes change with r h + q.
        mu: smoothing radius, in the unit of the distribution.
        distribution: of the directions; see --method heron.
        n_p: directions of a local step, whose estimates are averaged.
        estimate: one-sided, the paper's (1 + n_p forward passes), or central, MeZO's (2 n_p, and one more where there
            is a BatchNorm, whose statistics that one moves).
        draw: where directions are drawn: device or host; see --method heron.
        passes_abreast: perturbed passes that are computed as one, at most those of a step; see --method heron.
    """

    needs: ClassVar[type] = Split
    grows_with: ClassVar[tuple[str, ...]] = ("passes_abreast",)
    setting: Setting[Split]
    training: Training = part(batch=8, h=1, optimiser="sgd", weights="uniform")
    mu: float = 1e-3
    distribution: Literal["gaussian", "sqrt_d_sphere", "sphere"] = "gaussian"
    n_p: int = 1
    estimate: Literal["one-sided", "central"] = "one-sided"
    draw: Draw = "device"
    passes_abreast: int = 1

    def __post_init__(self) -> None:
        training = self.training
        demand(training.h >= 1, "h", training.h, "at least 1: the scalars of equally many steps are averaged")
        for flag, only in (("k", 1), ("freeze", "none"), ("state", "keep"), ("server_state", "keep")):
            demand(getattr(training, flag) == only, flag, getattr(training, flag), f"{only}: it has no meaning here")
        _ = self._estimate  # refuses what cannot be
        check_abreast(self.passes_abreast, self.estimate, "global", True, self._whole)
        _ = self._around

    # --- the server

    def start(self) -> ScalarState:
        """The parts as the problem makes them."""
        scalars = np.zeros((0, self.training.h, self.n_p))
        return ScalarState(**vars(self.training.start(head=False)), scalars=scalars)

    def round(self, state: ScalarState, r: int, clients: Clients) -> ScalarState:
        """Asks the participants for their scalars, and takes the steps of the means."""
        import torch

        training, problem = self.training, self.setting.problem
        to, latest = training.participants(r), training.latest(r)
        buffers = torch.cat([state.buffers, state.buffers_s])
        since = {i: latest.get(i, 0) for i in to}
        different = {t: Missed(state.scalars[t:], buffers, r) for t in set(since.values())}
        told = dict(clients.ask_each(self.train, {i: different[t] for i, t in since.items()}))
        self._check(told)
        found = mean.among({i: Mean(reply.differences, reply.buffers) for i, reply in told.items()}, training.shares())
        theta, theta_s = problem.placed(state.theta).clone(), problem.placed(state.theta_s)
        n, moments = problem.n_client, copied(state.optimiser)
        x = torch.cat([theta[:n], theta_s])
        self.replay(x, moments, r, found.differences)
        if not bool(x.isfinite().all()):
            raise UserError("the model is not finite after the round; a smaller --lr-client or a larger --mu may help")
        theta[:n] = x[:n]
        b = problem.local.b
        return ScalarState(
            theta=theta,
            buffers=found.buffers[:b].clone(),
            theta_s=x[n:].clone(),
            buffers_s=found.buffers[b:].clone(),
            optimiser=moments,
            local_loss=math.fsum(reply.loss for reply in told.values()) / len(told),
            scalars=np.concatenate([state.scalars, found.differences[None]]),
        )

    def _check(self, told: dict[int, Told]) -> None:
        """Refuses clients who draw other directions, and losses that are not finite.

        Raises:
            UserError: there is one.
        """
        own = self.setting.problem.arithmetic
        for i, reply in told.items():
            if reply.arithmetic != own:
                raise UserError(
                    f"--method decomfl: client {i} computes on {reply.arithmetic}, the server on {own}, which draws "
                    "other directions from the same seeds; take processors of one kind, or --device cpu"
                )
            if not np.isfinite(reply.differences).all():
                raise UserError(f"a loss of client {i} is not finite; a smaller --lr-client or a larger --mu may help")

    def replay(self, x: Tensor, moments: MutableMapping[str, Any], r: int, differences: NDArray[np.float64]) -> None:
        """Moves x (n_c + n_s,), and the optimiser's moments, by round r, whose mean differences are (h, n_p)."""
        training = self.training

        def step(q: int, g: Tensor) -> None:
            training.rule.step(x, g, moments, training.pace.client(training.lr_client, r * training.h + q))

        self._estimate.replay(x, differences, lambda q: self.seed(r, q), step)

    def seed(self, r: int, q: int) -> np.random.Generator:
        """Of the directions of local step q in round r: the same for all clients."""
        return self.setting.streams(Purpose.DIRECTION, r=r, t=q)

    @property
    def _estimate(self) -> Estimate:
        return Estimate.named(self.mu, self.n_p, self.distribution, self.estimate, self.draw, self.passes_abreast)

    # --- a client

    def train(self, client: Client, message: Missed) -> Told:
        """Brings the model up to date, and takes local steps on a copy of it."""
        x, moments = self.caught_up(client, message)
        local = LocalSteps(self._whole, client, Model(x, message.buffers, message.r, moments))
        differences: list[Tensor] = []
        for q, inputs, labels in local:
            base = None
            if self._looks:
                _, base = local.forward(inputs, labels)
            g, found = self._estimate.of(local, self.directions(local, q), inputs, labels, base)
            differences += found
            local.step(g)
        told = Told(
            local.host(differences).reshape(-1, self.n_p),
            local.buffers,
            local.done().loss,
            self.setting.problem.arithmetic,
        )
        for name in ("theta", "buffers", "moments"):  # of the copy
            client.memory.pop(name)
        return told

    def caught_up(self, client: Client, message: Missed) -> tuple[Tensor, dict[str, Any]]:
        """(n_c + n_s,) the model before round r, and the optimiser's moments, both in the client's memory."""
        problem, memory = self._whole.problem, client.memory
        x = problem.placed(memory["x"] if "x" in memory else problem.local.initial()[0]).clone()
        moments = copied(memory.get("own", {}))
        for r, differences in enumerate(message.scalars, start=message.r - len(message.scalars)):
            self.replay(x, moments, r, differences)
        memory["x"], memory["own"] = x, moments
        return x, moments

    def directions(self, local: LocalSteps, q: int) -> Iterator[Tensor]:
        """u_1, ..., u_{n_p} (n_c + n_s,) of local step q."""
        return drawn(self.seed(local.r, q), local.theta, self.n_p, self.distribution, self.draw)

    @cached_property
    def _whole(self) -> Training:
        """The round of a client that holds the whole network, and whose moments are given; it has missed nothing."""
        own = replace(self.setting, problem=whole(self.setting.problem))
        return replace(self.training, setting=own, state="average", beta=1.0)

    @property
    def _looks(self) -> bool:
        """Whether a local step computes the loss at the point itself."""
        moves = self._whole.problem.local.b > 0 and not self.training.running
        return self.estimate == "one-sided" or moves

    @cached_property
    def _around(self) -> Around | None:
        """What passes do besides."""
        if self.passes_abreast == 1:
            return None
        whole, central = self._whole, self.estimate == "central"
        return stacked(whole, whole.trainable(), True, self.passes_abreast, central)

    # --- reports

    def evaluate(self, state: ScalarState, r: int, clients: Clients) -> Report:
        """The test samples scored by all clients."""
        return self.training.evaluate(state, r, clients)

    @property
    def kernel(self) -> str:
        """What computes a step, and how directions are drawn, for the record."""
        return self.training.kernel + ", directions from whole states"

    @property
    def local_step(self) -> LocalStep:
        """What a local step computes, for its costs."""
        return LocalStep("forward", self._estimate.passes + self._looks, abreast=self.passes_abreast)

    def plan(self, rounds: int) -> dict[str, str | float]:
        """The lines of --dry-run."""
        lines = plan_of(Traffic(self.training, scalars=self.n_p, whole=True), rounds, self.local_step)
        each = 8 * self.training.h * self.n_p
        return {**lines, "further bytes down, a client, for each round since its last": each}

    def costs(self) -> dict[str, str | float]:
        """What a client's step costs."""
        return whole_costs(self.training, self._whole.problem, self.local_step, self._around)
