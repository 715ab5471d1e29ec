"""Bases of the methods of split training: all but their rounds."""

import math
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from zofl_mpi import Client, Clients, Directions, UserError, demand, part
from zofl_mpi.engine import mean
from zofl_mpi.engine.clients import Replies
from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.engine.setting import Passes
from zofl_mpi.numerics.optimisers import copied
from zofl_mpi.problems import Split
from zofl_mpi.rounds.base import GRADIENT, OnProblem
from zofl_mpi.rounds.split.client import CutLoss, LocalSteps, Loss
from zofl_mpi.rounds.split.costs import Traffic, costs_of, macs, plan_of
from zofl_mpi.rounds.split.estimates import Estimation
from zofl_mpi.rounds.split.messages import Ask, Model, Network, Report, Scalars, Smashed, State, Trained, Update
from zofl_mpi.rounds.split.rules import Backprop, GradientRule, Lines
from zofl_mpi.rounds.split.server import Server
from zofl_mpi.rounds.split.training import Training

BLOCK = 256
"""Test samples that are scored at once; a multiple of every problem's `report_batch`."""


@dataclass(frozen=True)
class Scored:
    """Client to server at an evaluation."""

    sums: dict[str, float]  # over its share of the test samples, by name: see `problems.Split.score`
    validation: dict[str, float] = field(default_factory=dict)  # of its share of the validation samples, likewise


@dataclass(frozen=True)
class Compared:
    """Client to server at an evaluation, with --probe-gradient."""

    cosine: float  # of the step's direction with the gradient, in what trains of theta_c
    head: float  # |g_a| / |g_c|; nan without a head


@dataclass(frozen=True)
class SplitMethod(OnProblem[Split]):
    """A method of split training: all but its round."""

    needs: ClassVar[type] = Split
    training: Training = part()
    loss: Loss = field(init=False, repr=False, compare=False)
    rule: GradientRule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        loss, rule = self.chosen()
        vars(self).update(loss=loss, rule=rule)

    def chosen(self) -> tuple[Loss, GradientRule]:
        """The loss and the rule of a client's step; refuses flags that contradict each other."""
        raise NotImplementedError

    def start(self) -> State:
        return self.training.start(head=self.loss.travels > self.problem.n_client)

    def steps(self, client: Client, message: Model) -> LocalSteps:
        """The client's model, for its local steps of a round."""
        own = self.training.with_own(client, message)
        return LocalSteps(self.training, client, own, self.loss, self.rule.parts, self.scalars_each)

    # --- reports

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        """The test samples, scored by the clients that an evaluation asks."""
        asked = clients.ask(self.score, state.network(r), to=self.setting.eval_participants(r), counted=False)
        replies, sensors = dict(asked), self.problem.sensors
        test: dict[str, float | None] = {**self._quality("test", [reply.sums for reply in replies.values()])}
        for name in dict.fromkeys(sensors):
            seen = [reply.sums for i, reply in replies.items() if sensors[i % len(sensors)] == name]
            test[f"test_accuracy_{name}"] = self._quality("test", seen).get("test_accuracy")
        return Report(**test, **self._quality("validation", [reply.validation for reply in replies.values()]))

    def score(self, client: Client, message: Network) -> Scored:
        """Sums over a client's share of the test samples, and of the validation samples."""
        problem, setting, message = self.problem, self.setting, self.training.with_own(client, message)
        theta, buffers, theta_s, buffers_s = (
            problem.placed(t).clone() for t in (message.theta, message.buffers, message.theta_s, message.buffers_s)
        )
        asked = setting.eval_participants(message.r)
        with problem.evaluating(), problem.local.at(theta, buffers), problem.top.at(theta_s, buffers_s):
            test, validation = (
                self._sums(data, client.i, asked.index(client.i), len(asked))
                for data in (setting.test, setting.validation)
            )
        return Scored(test, validation)

    def _sums(self, data: Any, i: int, first: int, step: int) -> dict[str, float]:
        """Sums over every step-th batch of consecutive samples, as client i sees them.

        Batches do not depend on the number of clients.
        """
        problem, sums = self.problem, dict[str, Any]()
        rows = np.arange(0 if data is None else len(data))
        positions = rows[rows // problem.report_batch % step == first]
        for start in range(0, len(positions), BLOCK):
            x, labels = problem.samples(data, positions[start : start + BLOCK])
            score = problem.score(problem.sensed(x, i), labels)
            sums = {name: sums.get(name, 0.0) + value for name, value in score.items()}
        return {name: float(value) for name, value in sums.items()}

    def _quality(self, name: str, parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """{name_...: quality} from the sums of the clients that were asked; nothing where there are no samples."""
        kinds = {kind for sums in parts for kind in sums}
        sums = {kind: math.fsum(part.get(kind, 0.0) for part in parts) for kind in kinds}
        return {f"{name}_{kind}": value for kind, value in self.problem.quality(sums).items()} if sums else {}

    @property
    def server_uploads(self) -> int:
        return self.training.merge

    @property
    def kernel(self) -> str:
        return self.problem.kernel_name(self.training.batch)

    @property
    def scalars_each(self) -> int:
        """Numbers of each local step that go up in place of the model; 0: the model does."""
        return 0

    @property
    def traffic(self) -> Traffic:
        """The bytes that travel; the loss knows whether the head does, and whether uploads are answered."""
        exact = sum(own.stop - own.start for own in self.rule.parts[1:])
        head = self.loss.travels > self.problem.n_client
        return Traffic(self.training, head, self.loss.answered, self.scalars_each, exact)

    def plan(self, rounds: int) -> Lines:
        return plan_of(self.traffic, rounds, self.rule.cost(self.loss)) | self.rule.lines()

    def directions(self, rounds: int) -> Directions | None:
        """The directions of all participants' local steps; each client draws its own."""
        training, part = self.training, self.rule.parts[0]
        taken = Counter(i for r in range(rounds) for i in training.participants(r))
        steps = ((taken[i], training.samples(i, q)) for i in taken for q in range(training.steps(i)))
        drawn = sum(times * self.rule.count(samples) for times, samples in steps)
        copies = len(taken) if training.own else 1
        numbers = copies * (part.stop - part.start)  # 0 where all of the client's part is frozen
        return Directions(drawn, numbers) if drawn and numbers else None

    def sample_passes(self, rounds: int, asked: int) -> Passes:
        """In each round as many as in the middle one.

        A local step counts its passes at the client or those at the server, whichever are fewer: then both sides'
        evaluations are a tenth of their training at most.
        """
        training, r = self.training, rounds // 2
        client = 1 + self.rule.passes + (GRADIENT - 1) * self.rule.cost(self.loss).backwards
        samples = sum(training.samples(i, q) for i in training.participants(r) for q in range(training.steps(i)))
        each = min(client, GRADIENT / training.k)
        return Passes(rounds * samples * each, 1, 0, self._flops)

    def _flops(self) -> float:
        """FLOPs of a forward pass of one sample through client and server."""
        client, _, server = macs(self.problem)
        return 2 * (client + server)

    def costs(self) -> Lines:
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
            return training.mean(state, clients, training.participants(r)), {}
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
        asked = clients.ask(self.probe, state.network(r), to=self.setting.eval_participants(r), counted=False)
        replies = [reply for _, reply in asked]
        cosine, head = (
            math.fsum(values) / len(replies) for values in zip(*((c.cosine, c.head) for c in replies), strict=True)
        )
        return replace(report, estimate_cosine=cosine, head_over_client=None if math.isnan(head) else head)

    def probe(self, client: Client, message: Network) -> Compared:
        """Compares a step's direction with the gradient, at a round's first mini-batch; moves nothing."""
        message = self.training.with_own(client, message)
        model, copy = Model(message.theta, message.buffers, message.r), Client(client.i, client.data)
        rule, n = self.rule, self.problem.n_client
        local = LocalSteps(self.training, copy, model, self.loss, rule.parts)
        q, x, labels = next(iter(local))
        target = labels
        if self.loss.answered:  # lambda, as the server would return it
            with torch.no_grad(), local.at(local.scratch):
                upload = Smashed(self.problem.smash(x), labels)
            server = Server(self.training, message.theta_s, message.buffers_s, {})
            server.step(client.i, upload, returned=True)
            server.move()
            target = server.slopes[client.i]
        with local.at(local.scratch):
            g = self.problem.local.gradient(self.loss(self.problem.smash(x), target))
        gradient = rule(local, rule.forward(local, x, labels), target, local.key(q))
        direction = g.new_zeros(g.shape)
        for place, estimate in zip(rule.parts, gradient.parts, strict=True):
            if estimate is not None:
                direction[place] = estimate
        own = slice(rule.parts[0].start, n)
        size = float(g[own].norm())
        cosine = float(direction[own] @ g[own]) / (float(direction[own].norm()) * size or math.nan)
        return Compared(cosine, math.nan if self.loss.answered else float(g[n:].norm()) / (size or math.nan))

    @property
    def kernel(self) -> str:
        return super().kernel + ("" if self.estimation.estimate == "exact" else ", directions from whole states")

    @property
    def scalars_each(self) -> int:
        return self.estimation.n_p if self.estimation.uplink == "seeds" else 0


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

    # --- the server

    def exchange(self, state: State, r: int, clients: Clients, servers: Mapping[int, Server]) -> None:
        """Exchanges all mini-batches with {i: client i's server part}; the models stay at the clients."""
        for group in self.training.groups(r):
            replies = clients.ask(self.begin, self.training.client_part(state, r), to=group)
            while asked := list(self._stepped(servers, replies)):
                for i in asked:
                    servers[i].move()
                replies = clients.ask_each(self.proceed, {i: Cut(servers[i].slopes.pop(i)) for i in asked})

    def _stepped(self, servers: Mapping[int, Server], replies: Replies) -> Iterator[int]:
        """Takes the servers' steps on the uploads among replies; yields the clients."""
        for i, item in replies:
            if isinstance(item, Smashed):
                servers[i].step(i, item, returned=True)
                yield i

    # --- a client

    def train(self, client: Client, message: Model) -> Generator[Smashed, Tensor, Trained]:
        """Takes the local steps: each uploads a mini-batch at the cut and steps along lambda, the server's answer."""
        model = self.steps(client, message)
        for q, x, labels in model:
            point = self.rule.forward(model, x, labels)
            lam = yield point.upload(labels, keep=self.rule.needs_point)
            model.step(self.rule(model, point, point.laid_out(model.problem.placed(lam)), model.key(q)))
        return model.done()

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
