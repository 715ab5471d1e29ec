"""Bases of split methods: everything but their rounds."""

import math
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from zofl_mpi import Client, Clients, Directions, Loads, UserError, demand, flag_group
from zofl_mpi.engine.clients import Replies
from zofl_mpi.engine.fields import demand_known
from zofl_mpi.engine.fleet import HELD_BYTES, Needs, RoundWork
from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.engine.reduction import Reduction
from zofl_mpi.engine.sharing import SharedServerStep, UploadPass
from zofl_mpi.errors import warn
from zofl_mpi.problems import Split
from zofl_mpi.problems.saving import PLAIN
from zofl_mpi.rounds.base import OnProblem
from zofl_mpi.rounds.report import by_column
from zofl_mpi.rounds.split.client import CutLoss, LocalSteps, Loss, at_a_line
from zofl_mpi.rounds.split.costs import LABELS, WITHOUT, Traffic, costs_of, held_bytes, macs, plan_of, work_of
from zofl_mpi.rounds.split.messages import (
    Model,
    NetworkParts,
    ServerPart,
    Smashed,
    SplitReport,
    SplitState,
    Trained,
    Update,
)
from zofl_mpi.rounds.split.rules import Backprop, GradientRule, Lines, backprop
from zofl_mpi.rounds.split.server import Server, passes_at
from zofl_mpi.rounds.split.training import Training

Trainings = dict[int, Trained]  # {client: its reply at the end of its local steps}
EVALUATION_SAMPLES = 256  # test samples scored at once; a multiple of every problem's `report_batch`


@dataclass(frozen=True)
class Scored:
    """Client to server at an evaluation."""

    sums: dict[str, float]  # sums over its share of the test samples, by name: see `problems.Split.score`
    validation: dict[str, float] = field(default_factory=dict)  # the same for its share of the validation samples
    # for metrics, which need all outputs at once: outputs, targets and their rows of both parts
    seen: dict[str, Any] = field(default_factory=dict)
    validation_seen: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SplitMethod(OnProblem[Split]):
    """Base of split methods; a subclass adds the round."""

    computes: ClassVar[str] = "gradients of its part, through its auxiliary head"
    travels: ClassVar[str] = "its part and head down, its part and head, and activations up"
    needs: ClassVar[type] = Split
    uploads: ClassVar[str] = "smashed activations and labels"
    training: Training = flag_group()
    loss: Loss = field(init=False, repr=False, compare=False)
    rule: GradientRule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        loss, rule = self.make_loss_and_rule()
        vars(self).update(loss=loss, rule=rule)
        saving = self.training.saving
        if saving != PLAIN and not any(isinstance(own, Backprop) for own in self.rules):
            raise UserError(f"--client-memory {saving}: this method's clients take no backward pass; take none")

    def make_loss_and_rule(self) -> tuple[Loss, GradientRule]:
        """The loss and the rule of a client's step; UserError if flags contradict each other."""
        raise NotImplementedError

    # --- the server

    def start(self) -> SplitState:
        """The initial parts of the problem's network."""
        training, problem = self.training, self.problem
        (theta, buffers), (theta_s, buffers_s) = problem.client_side.initial(), problem.server_side.initial()
        trained = theta[training.trainable(head=self.loss.travels > problem.n_client)]
        moments = training.optimiser.memory(trained) if training.state == "average" else {}
        return SplitState(theta, buffers, theta_s, buffers_s, {}, moments=moments)

    def begin_round(self, state: SplitState, r: int, head: bool = False) -> Model:
        """The message that begins a round: theta_c, with `head` theta_l; neither if clients have their own parts."""
        if self.training.own_parts:
            return Model(state.theta[:0], state.buffers[:0], r, state.moments)
        n = self.problem.client_side.n if head else self.problem.n_client
        return Model(state.theta[:n], state.buffers, r, state.moments)

    def server(self, state: SplitState, r: int, sharing: SharedServerStep | None = None) -> Server:
        """The server's part at the beginning of round r, for the uploads of all clients."""
        before = self.training.server_steps_before(r)
        part = state.theta_s, state.buffers_s, state.optimiser
        return Server(self.training, self.server_pass, *part, before, sharing)

    def server_pass(self, part: ServerPart) -> UploadPass:
        """A step of the server's ranks: `passes_at` the part."""
        return passes_at(self.training, part)

    def models(self, r: int) -> Reduction | None:
        """The participants' models, by their weights, to be averaged; None where clients keep them."""
        if self.training.own_parts:
            return None
        return Reduction(self.training.participants(r), self.training.client_weights())

    def train_server(self, state: SplitState, r: int, clients: Clients) -> tuple[Server, Trainings, Reduction | None]:
        """The server's part after a step on each upload of `train`, the clients' replies, and their `models`."""
        main, message = self.server(state, r, clients.sharing), self.begin_round(state, r, head=True)
        ended, models = Trainings(), self.models(r)
        for group in self.training.groups(r):
            items = main.train(clients.ask(self.train, message, to=group, into=models))
            ended.update((i, item) for i, item in items if not isinstance(item, Smashed))
        return main, ended, models

    def mean(self, state: SplitState, models: Reduction | None) -> Update:
        """The mean of the participants' models, with the server's head if clients send none."""
        return Update(state.theta, state.buffers) if models is None else with_head(state, models.mean())

    # --- a client

    def train(self, client: Client, message: Any) -> Any:
        """Take the local steps of a round, and upload."""
        return (yield from self.run_steps(self.steps(client, message)))

    def run_steps(self, model: LocalSteps, sent: int = 0) -> Generator[Smashed, Tensor | None, Any]:
        """Take the local steps (the first `sent` are already uploaded); the server may answer with lambda."""
        rule = self.rule_of(model.client.i)
        for q, x, labels in model:
            uploads = self.training.uploads(q) and q >= sent
            yield from self.take_step(model, rule, q, x, labels, uploads)
        return model.done()

    def take_step(
        self, model: LocalSteps, rule: GradientRule, q: int, x: Tensor, labels: Tensor, uploads: bool
    ) -> Generator[Smashed, Tensor | None, None]:
        """Takes local step q, on the inputs x with these labels."""
        point = rule.forward(model, x, labels, uploads)
        # without an answer to wait for, the upload leaves while the rule's further passes run
        lam = (yield point.upload(labels, keep=rule.needs_point)) if uploads else None
        target = labels if lam is None else point.laid_out(self.problem.to_device(lam))
        model.step(rule(model, point, target, model.key(q)))

    def rehearse(self, rule: GradientRule, theta: Tensor, buffers: Tensor, x: Tensor, labels: Tensor) -> None:
        """Take two local steps as a client does, from theta (n,) and buffers (b,): see `costs.held_bytes`."""
        busiest = max(range(self.setting.m), key=self.training.steps)  # the most directions drawn ahead
        client, model = Client(busiest, None), Model(theta, buffers, 0)
        local = LocalSteps(self.training, client, model, self.loss, rule.parts, self.scalars_each)
        for q in range(2):
            steps = self.take_step(local, rule, q, x, labels, uploads=True)
            sent = next(steps)
            answer = torch.zeros_like(sent.s) if self.loss.at_cut else None
            del sent
            with suppress(StopIteration):
                steps.send(answer)

    def steps(self, client: Client, message: Model) -> LocalSteps:
        """The client's model, for its local steps of a round."""
        parts = self.rule_of(client.i).parts
        message = self.training.with_own_part(client, message)
        return LocalSteps(self.training, client, message, self.loss, parts, self.scalars_each)

    @cached_property
    def rules(self) -> tuple[GradientRule, ...]:
        """The rules among which a client's device decides: the first with a step that fits."""
        return (self.rule,)

    def rule_of(self, i: int) -> GradientRule:
        """The rule of client i's steps."""
        return self.rules[self.setting.way_of(i)]

    # --- reports

    def evaluate(self, state: SplitState, r: int, clients: Clients) -> SplitReport:
        """Scores on the test samples, from the clients that an evaluation asks."""
        asked = clients.ask(self.score, state.network(r), to=self.setting.eval_participants(r), counted=False)
        replies, sensors = dict(asked), self.problem.sensors
        test: dict[str, float | None] = {**self._quality("test", [reply.sums for reply in replies.values()])}
        for name in dict.fromkeys(sensors):
            seen = [reply.sums for i, reply in replies.items() if sensors[i % len(sensors)] == name]
            test[f"test_accuracy_{name}"] = self._quality("test", seen).get("test_accuracy")
        test |= self._quality("validation", [reply.validation for reply in replies.values()])
        test |= self._metrics("test", [reply.seen for reply in replies.values()])
        test |= self._metrics("validation", [reply.validation_seen for reply in replies.values()])
        return SplitReport(**by_column(SplitReport, test))

    def score(self, client: Client, message: NetworkParts) -> Scored:
        """Sums over a client's share of the test samples, and of the validation samples."""
        problem, setting, message = self.problem, self.setting, self.training.with_own_part(client, message)
        theta, theta_s = (at_a_line(problem.to_device(t)) for t in (message.theta, message.theta_s))
        # copies: a user's module may move buffers in any mode, and clients of a process share the message
        buffers, buffers_s = (problem.to_device(t).clone() for t in (message.buffers, message.buffers_s))
        asked = setting.eval_participants(message.r)
        with (
            problem.evaluating(),
            problem.client_side.bound_to(theta, buffers),
            problem.server_side.bound_to(theta_s, buffers_s),
        ):
            (test, seen), (validation, further) = (
                self._sums(data, client.i, asked.index(client.i), len(asked))
                for data in (setting.test, setting.validation)
            )
        return Scored(test, validation, seen, further)

    def _sums(self, data: Any, i: int, first: int, step: int) -> tuple[dict[str, float], dict[str, Any]]:
        """Sums over every step-th batch of consecutive samples, as client i sees them; with metrics, outputs too.

        Batches do not depend on the number of clients.
        """
        problem, sums, seen = self.problem, dict[str, Any](), list[tuple[Tensor, Tensor]]()
        rows = np.arange(0 if data is None else len(data))
        positions = rows[rows // problem.report_batch % step == first]
        further = (seen,) if problem.metric_names else ()
        for start in range(0, len(positions), EVALUATION_SAMPLES):
            x, labels = problem.evaluation_samples(data, positions[start : start + EVALUATION_SAMPLES])
            score = problem.score(problem.sensed(x, i), labels, *further)
            sums = {name: sums.get(name, 0.0) + value for name, value in score.items()}
        outputs, targets = (torch.cat(each) for each in zip(*seen, strict=True)) if seen else ((), ())
        found = {"outputs": outputs, "targets": targets, "rows": positions} if seen else {}
        return {name: float(value) for name, value in sums.items()}, found

    def _metrics(self, name: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """{name_...: the user's metric} of all samples in their order; empty without metrics."""
        if not (found := [part for part in parts if part]):
            return {}
        order = np.argsort(np.concatenate([part["rows"] for part in found]))
        outputs, targets = (torch.cat([part[kind] for part in found])[order] for kind in ("outputs", "targets"))
        return {f"{name}_{metric}": value for metric, value in self.problem.measured(outputs, targets).items()}

    def _quality(self, name: str, parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """{name_...: quality} from the sums of the clients asked; empty without samples."""
        kinds = {kind for sums in parts for kind in sums}
        sums = {kind: math.fsum(part.get(kind, 0.0) for part in parts) for kind in kinds}
        quality = self.problem.quality(sums) if sums else {}
        demand_known(quality.get("loss", 0.0), f"the loss of the model on the {name} samples")
        return {f"{name}_{kind}": value for kind, value in quality.items()}

    def loads(self) -> Loads:
        """Local steps of each client; the server takes their uploads in turn."""
        return Loads([self.training.steps(i) for i in range(self.setting.m)], paced=True)

    @property
    def server_uploads(self) -> int:
        return self.training.merge

    @property
    def kernel(self) -> str:
        return self.problem.kernel_name(self.training.batch)

    @property
    def scalars_each(self) -> int:
        """Numbers per local step sent up in place of the model; 0: the model is sent."""
        return 0

    @cached_property
    def traffic(self) -> Traffic:
        """Traffic of the method: the loss knows if the head travels and if the server answers uploads."""
        last = sum(part.stop - part.start for part in self.rule.parts[1:])
        head = self.loss.travels > self.problem.n_client
        at_cut = self.loss.at_cut
        return Traffic(self.training, head, at_cut, self.scalars_each, last, losses=not at_cut)

    def plan(self, rounds: int) -> Lines:
        return plan_of(self.traffic, rounds, self.rule.cost(self.loss)) | self.rule.plan_lines()

    def directions(self, rounds: int) -> Directions | None:
        """Directions of all participants' local steps; each client draws its own."""
        training, part = self.training, self.rule.parts[0]
        taken = Counter(i for r in range(rounds) for i in training.participants(r))
        steps = ((i, taken[i], training.samples(i, q)) for i in taken for q in range(training.steps(i)))
        drawn = sum(times * self.rule_of(i).count(samples) for i, times, samples in steps)
        copies = len(taken) if self.training.own_parts else 1
        numbers = copies * (part.stop - part.start)  # 0 if the client's part is entirely frozen
        return Directions(drawn, numbers) if drawn and numbers else None

    def costs(self) -> Lines:
        return costs_of(self.training, self.loss, self.rule) | self.held_lines()

    def held_lines(self) -> Lines:
        """Memory of a step with and without --client-memory; warns if it takes more than it saves."""
        rule = self.rule
        if not isinstance(rule, Backprop) or rule.saving == PLAIN:
            return {}
        held, plain = self.held_bytes(rule), self.held_bytes(replace(rule, saving=PLAIN))
        if held >= plain:
            warn(f"--client-memory {rule.saving}: a client's step holds {held:,} bytes, without it {plain:,}")
        return {HELD_BYTES: held, HELD_BYTES + WITHOUT: plain}

    def held_bytes(self, rule: GradientRule) -> int:
        """Peak bytes of a client's device in a step by one of the `rules`."""
        return held_bytes(self.loss, rule, self.training.batch, self.rehearse)

    def device_needs(self) -> Sequence[Needs]:
        return [self.needs_of(rule) for rule in self.rules]

    def needs_of(self, rule: GradientRule) -> Needs:
        """Needs of a client's step by a rule, and of a forward and a backward pass at the server."""
        own, further = work_of(self.loss, rule)
        return Needs(own, 3 * macs(self.problem)[2], float(self.held_bytes(rule)), further)

    def round_work(self, r: int, clients: Sequence[int] | None = None) -> RoundWork:
        training, traffic = self.training, self.traffic
        asked = training.participants(r) if clients is None else clients
        rows = []
        for i in asked:
            samples = [training.samples(i, q) for q in range(training.steps(i))]
            uploads = () if traffic.unsplit else range(0, len(samples), training.k)
            sizes = [ways for kind, ways in traffic.of(r, i).items() if kind != LABELS]
            moved = [sum(ways[k] for ways in sizes) for k in (0, 1)]
            sent = (1 + self.loss.at_cut) * len(uploads) + traffic.aligns(r)
            rows.append((sum(samples), *moved, 2 + sent, sum(samples[q] for q in uploads)))
        samples_, down, up, messages, uploaded = np.array(rows, np.float64).reshape(-1, 5).T
        streams = not (traffic.unsplit or self.loss.at_cut)
        return RoundWork(asked, samples_, down, up, messages, streams, float(uploaded.sum()), uploaded)


def with_head(state: SplitState, mean: Update) -> Update:
    """The mean of the clients' models, which begin with theta_c, completed by the rest of the server's theta_l."""
    theta = state.theta.clone()
    theta[: len(mean.theta)] = mean.theta
    return replace(mean, theta=theta)


@dataclass(frozen=True)
class Cut:
    """Server to client: the gradient at its smashed samples."""

    slope: Tensor  # (B, *smashed_shape)


@dataclass(frozen=True)
class LockstepMethod(SplitMethod):
    """A method with a server that answers every mini-batch (hence k = 1); the auxiliary head is not used."""

    computes: ClassVar[str] = "gradients of its part, from the server's answer"
    travels: ClassVar[str] = "its part and gradients of all batches down, its part and activations of all batches up"

    def __post_init__(self) -> None:
        demand(self.training.k == 1, "k", self.training.k, "1: the server answers every mini-batch")
        super().__post_init__()

    def make_loss_and_rule(self) -> tuple[Loss, GradientRule]:
        """The gradient that continues the server's answer, by a backward pass."""
        loss = CutLoss(self.problem)
        return loss, backprop(self.training, loss)

    def exchange(
        self, state: SplitState, r: int, clients: Clients, servers: Mapping[int, Server]
    ) -> tuple[Trainings, Reduction | None]:
        """Exchange all mini-batches with {i: client i's server part}; the clients' replies, and their `models`."""
        ended, models = Trainings(), self.models(r)
        for group in self.training.groups(r):
            items = clients.ask(self.begin, self.begin_round(state, r), to=group)
            while asked := list(self._stepped(servers, items, ended)):
                for i in asked:
                    servers[i].move()
                items = clients.ask_each(self.proceed, {i: Cut(servers[i].slopes.pop(i)) for i in asked}, into=models)
        return ended, models

    def _stepped(self, servers: Mapping[int, Server], items: Replies, ended: Trainings) -> Iterator[int]:
        """Take the servers' steps on the uploads among items; yield the clients."""
        for i, item in items:
            if isinstance(item, Smashed):
                servers[i].step(i, item, returned=True)
                yield i
            else:
                ended[i] = item

    def begin(self, client: Client, message: Model) -> Smashed:
        """Begin `train`, up to its first upload."""
        steps = client.scratch["steps"] = self.train(client, message)
        return next(steps)  # type: ignore[no-any-return]

    def proceed(self, client: Client, message: Cut) -> Any:
        """Goes on with `train`, up to its next upload or its end."""
        try:
            return client.scratch["steps"].send(message.slope)
        except StopIteration as done:
            del client.scratch["steps"]
            return done.value
