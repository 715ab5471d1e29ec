"""Bases of the methods of split training: all but their rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from zofl_mpi import Client, Clients, Directions, UserError, demand, part
from zofl_mpi.engine import mean
from zofl_mpi.engine.lazy import Tensor
from zofl_mpi.numerics.optimisers import copied
from zofl_mpi.problems import Split
from zofl_mpi.rounds.base import OnProblem
from zofl_mpi.rounds.split.client import LocalSteps, Point
from zofl_mpi.rounds.split.costs import Traffic, costs_of, plan_of
from zofl_mpi.rounds.split.estimates import Estimation
from zofl_mpi.rounds.split.losses import CutLoss, Loss
from zofl_mpi.rounds.split.messages import Ask, Model, Network, Scalars, Scored, Smashed, State, Trained, Update
from zofl_mpi.rounds.split.report import Compared, Report, report_of, scored, with_cosines
from zofl_mpi.rounds.split.rules import Backprop, GradientRule, Lines, compare
from zofl_mpi.rounds.split.server import Server, slope_at_cut
from zofl_mpi.rounds.split.training import Training


@dataclass(frozen=True)
class SplitMethod(OnProblem[Split]):
    """A method of split training: all but its round."""

    needs: ClassVar[type] = Split
    training: Training = part()
    loss: Loss = field(init=False, repr=False, compare=False)
    rule: GradientRule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        loss, rule = self.chosen()
        object.__setattr__(self, "loss", loss)
        object.__setattr__(self, "rule", rule)

    def chosen(self) -> tuple[Loss, GradientRule]:
        """The loss and the rule of a client's step; refuses flags that contradict each other."""
        raise NotImplementedError

    def start(self) -> State:
        return self.training.start(head=self.loss.travels > self.problem.n_client)

    def steps(self, client: Client, message: Model) -> LocalSteps:
        """The client's model, for its local steps of a round."""
        return LocalSteps(self.training, client, message, self.loss, self.rule.parts, self.scalars_each)

    # --- reports

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        """The test samples, scored by the clients that an evaluation asks."""
        replies = clients.ask(self.score, state.network(r), to=self.setting.eval_participants(r), counted=False)
        return report_of(self.problem, [reply for _, reply in replies])

    def score(self, client: Client, message: Network) -> Scored:
        """Sums over the client's share of the test samples, at an evaluation."""
        return scored(self.setting, client, message)

    @property
    def kernel(self) -> str:
        """The name of what computes a step, for the record."""
        return self.training.kernel

    @property
    def scalars_each(self) -> int | None:
        """Numbers of each local step that go up in place of the model; None where the model itself does."""
        return None

    @property
    def traffic(self) -> Traffic:
        """The bytes that travel."""
        exact = sum(own.stop - own.start for own in self.rule.parts[1:])
        return Traffic(self.training, scalars=self.scalars_each, exact=exact)

    def plan(self, rounds: int) -> Lines:
        return plan_of(self.traffic, rounds, self.rule.cost(self.loss)) | self.rule.lines()

    def directions(self, rounds: int) -> Directions | None:
        """Those of all participants' local steps, each client's own."""
        training, part = self.training, self.rule.parts[0]
        taken = Counter(i for r in range(rounds) for i in training.participants(r))
        steps = ((taken[i], training.samples(i, q)) for i in taken for q in range(training.steps(i)))
        drawn = sum(times * self.rule.count(samples) for times, samples in steps)
        numbers = part.stop - part.start  # 0 where all of the client's part is frozen
        return Directions(drawn, numbers) if drawn and numbers else None

    def costs(self) -> Lines:
        """The measured costs of a client's step and the server's."""
        return costs_of(self.training, self.loss, self.rule)


def check_arithmetic(problem: Split, i: int, arithmetic: str, flags: str, remedy: str) -> None:
    """Refuses client i where it draws other directions than the server from the same seeds."""
    if arithmetic != problem.arithmetic:
        raise UserError(
            f"{flags}: client {i} computes on {arithmetic}, the server on {problem.arithmetic}, which draws other "
            f"directions from the same seeds; take {remedy}"
        )


@dataclass(frozen=True)
class EstimatingMethod(SplitMethod):
    """A method whose clients estimate gradients by forward passes; the flags of `estimation` choose the rule."""

    estimation: Estimation = field(default_factory=Estimation)

    def average(self, state: State, r: int, clients: Clients) -> tuple[Update, dict[str, Any]]:
        """The mean of the clients' models, and {i: moments of client i} where the server replays its steps."""
        training, models, replayed = self.training, dict[int, Update](), dict(state.replayed)
        if self.estimation.uplink == "dense":
            return training.mean(clients, training.participants(r)), {}
        for i, reply in clients.ask(self.scalars, Ask(), to=training.participants(r)):
            theta, moments = self.replay(state, r, i, reply)
            models[i] = Update(theta, reply.buffers, moments if training.state == "average" else {})
            if training.state == "keep":
                replayed[str(i)] = moments
        return mean.of_replies(models, training.shares()), replayed

    def scalars(self, client: Client, message: Ask) -> Scalars:
        """With --uplink seeds: the scalars from which the server replays the local steps."""
        differences, update = client.memory.pop("differences"), self.training.update(client, message)
        exact = update.theta[self._exact].clone()
        return Scalars(differences, update.buffers, exact, self.problem.arithmetic)

    def replay(self, state: State, r: int, i: int, reply: Scalars) -> tuple[Tensor, dict[str, Any]]:
        """Client i's model as it travels after its local steps of round r, with its optimiser's moments."""
        training, problem = self.training, self.problem
        remedy = "processors of one kind, --device cpu, or --uplink dense"
        check_arithmetic(problem, i, reply.arithmetic, "--uplink seeds", remedy)
        theta = problem.placed(state.theta).clone()
        moving = theta[self.rule.parts[0]]
        theta[self._exact] = problem.placed(reply.exact)
        before = {"keep": state.replayed.get(str(i), {}), "reset": {}, "average": state.moments}
        moments = copied(before[training.state])
        for q, differences in enumerate(reply.differences.tolist()):
            g = self.rule.replay(moving, differences, partial(self.setting.streams, r=r, i=i, t=q))
            training.rule.step(moving, g, moments, training.client_size(r, i, q))
        return theta[: self.loss.travels], moments

    @property
    def _exact(self) -> slice:
        """The part of theta_l that steps along a gradient which no scalars give."""
        return self.rule.parts[1] if len(self.rule.parts) > 1 else slice(0)

    # --- reports

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        """The scores, and with --probe-gradient the cosines of the clients' directions with their gradients."""
        report = super().evaluate(state, r, clients)
        if not self.estimation.probe_gradient:
            return report
        to = self.setting.eval_participants(r)
        return with_cosines(report, clients.ask(self.probe, state.network(r), to=to, counted=False))

    def probe(self, client: Client, message: Network) -> Compared:
        """A step's direction beside the gradient; moves nothing."""
        model, copy = Model(message.theta, message.buffers, message.r), Client(client.i, client.data)
        local = LocalSteps(self.training, copy, model, self.loss, self.rule.parts)
        return compare(local, self.rule, slope_at_cut(self.training, message) if self.loss.answered else None)

    @property
    def kernel(self) -> str:
        return self.training.kernel + ("" if self.estimation.estimate == "exact" else ", directions from whole states")

    @property
    def scalars_each(self) -> int | None:
        return self.estimation.n_p if self.estimation.uplink == "seeds" else None


@dataclass(frozen=True)
class Cut:
    """Server to client: the gradient at its smashed samples."""

    slope: Tensor  # (B, *smashed_shape)


@dataclass(frozen=True)
class LockstepMethod(SplitMethod):
    """A method whose server answers every mini-batch, so that k must be 1; the auxiliary head plays no part."""

    def __post_init__(self) -> None:
        demand(self.training.k == 1, "k", self.training.k, "1: the server answers every mini-batch")
        super().__post_init__()

    def chosen(self) -> tuple[Loss, GradientRule]:
        """The gradient that continues the server's answer, by a backward pass."""
        return CutLoss(self.problem), Backprop(self.training.trainable(head=False))

    @property
    def traffic(self) -> Traffic:
        """Smashed samples up, their gradients down, the clients' parts both ways."""
        return replace(super().traffic, head=False, returned=True)

    # --- the server

    def exchange(self, state: State, r: int, clients: Clients, servers: Mapping[int, Server]) -> None:
        """Exchanges all mini-batches with {i: client i's server part}; the clients' models then wait."""
        for group in self.training.groups(r):
            replies = clients.ask(self.begin, self.training.client_part(state, r), to=group)
            while cuts := {i: Cut(servers[i].exchange(item)) for i, item in replies if isinstance(item, Smashed)}:
                replies = clients.ask_each(self.proceed, cuts)

    # --- a client

    def train(self, client: Client, message: Model) -> Generator[Smashed, Tensor, Trained]:
        """Takes the local steps: each uploads a mini-batch at the cut and steps along lambda, the server's answer."""
        model = self.steps(client, message)
        for q, x, labels in model:
            point = self.rule.forward(model, q, x, labels)
            lam = yield self._upload(point, labels)
            model.step(self.rule(model, point, model.problem.placed(lam), model.key(q)))
        return model.done()

    def _upload(self, point: Point, labels: Tensor) -> Smashed:
        """The message of a pass, whose smashed samples stay only where the step needs them again."""
        upload = point.upload(labels)
        if not self.rule.needs_point:
            point.smashed = None
        return upload

    def begin(self, client: Client, message: Model) -> Smashed:
        """Begins `train`, up to its first upload."""
        steps = client.scratch["steps"] = self.train(client, message)
        return next(steps)

    def proceed(self, client: Client, message: Cut) -> Smashed | Trained:
        """Goes on with `train`, up to its next upload or its end."""
        try:
            return client.scratch["steps"].send(message.slope)  # type: ignore[no-any-return]
        except StopIteration as done:
            del client.scratch["steps"]
            return done.value  # type: ignore[no-any-return]
