"""`SplitMethod`, `EstimatingMethod`: what the methods of split training share beside their rounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import part
from zofl_mpi.engine.setting import Directions, Setting
from zofl_mpi.problems import Split
from zofl_mpi.rounds.split.client import LocalSteps
from zofl_mpi.rounds.split.costs import Traffic, costs_of, plan_of
from zofl_mpi.rounds.split.estimation import Estimation
from zofl_mpi.rounds.split.losses import Loss
from zofl_mpi.rounds.split.messages import Ask, Model, Network, Scalars, State, Update
from zofl_mpi.rounds.split.report import Compared, Report, with_cosines
from zofl_mpi.rounds.split.rules import GradientRule, Lines, compare
from zofl_mpi.rounds.split.server import Replay, slope_at_cut
from zofl_mpi.rounds.split.training import Training


@dataclass(frozen=True)
class SplitMethod:
    """A method of split training: all but its round.

    Attributes:
        setting: problem, data and random numbers.
        training: the flags of the round.
        loss: the loss that a client's step descends.
        rule: how the step gets its direction.
    """

    needs: ClassVar[type] = Split
    setting: Setting[Split]
    training: Training = part()
    loss: Loss = field(init=False, repr=False, compare=False)
    rule: GradientRule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        loss, rule = self.chosen()
        object.__setattr__(self, "loss", loss)
        object.__setattr__(self, "rule", rule)

    def chosen(self) -> tuple[Loss, GradientRule]:
        """The loss and the rule of a client's step.

        Raises:
            UserError: flags that contradict each other.
        """
        raise NotImplementedError

    def start(self) -> State:
        """The parts as the problem makes them."""
        return self.training.start(head=self.loss.travels > self.setting.problem.n_client)

    def steps(self, client: Client, message: Model) -> LocalSteps:
        """The client's model, for its local steps of a round."""
        return LocalSteps(self.training, client, message, self.loss, self.rule.parts)

    # --- reports

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        """The test samples scored by all clients."""
        return self.training.evaluate(state, r, clients)

    @property
    def kernel(self) -> str:
        """The name of what computes a step, for the record."""
        return self.training.kernel

    @property
    def traffic(self) -> Traffic:
        """The bytes that travel."""
        return Traffic(self.training)

    def plan(self, rounds: int) -> Lines:
        """The lines of --dry-run."""
        return plan_of(self.traffic, rounds, self.rule.cost(self.loss)) | self.rule.lines()

    def directions(self, rounds: int) -> Directions | None:
        """Those of all participants' local steps, each client's own."""
        training, part = self.training, self.rule.parts[0]
        taken = Counter(i for r in range(rounds) for i in training.participants(r))
        steps = ((taken[i], training.samples(i, q)) for i in taken for q in range(training.steps(i)))
        drawn = sum(times * self.rule.count(samples) for times, samples in steps)
        return Directions(drawn, part.stop - part.start) if drawn else None

    def costs(self) -> Lines:
        """The measured costs of a client's step and the server's."""
        return costs_of(self.training, self.loss, self.rule)


@dataclass(frozen=True)
class EstimatingMethod(SplitMethod):
    """A method whose clients estimate gradients by forward passes.

    Attributes:
        setting: problem, data and random numbers.
        training: the flags of the round.
        estimation: how a client estimates; its flags choose the rule.
    """

    estimation: Estimation = field(default_factory=Estimation)

    def steps(self, client: Client, message: Model) -> LocalSteps:
        """The client's model, for its local steps of a round."""
        return LocalSteps(self.training, client, message, self.loss, self.rule.parts, self.estimation.scalars)

    def average(self, state: State, r: int, clients: Clients) -> tuple[Update, dict[str, Any]]:
        """The mean of the clients' models, and {i: moments of client i} where the server replays its steps."""
        if self.estimation.uplink == "dense":
            return self.training.mean(clients, self.training.participants(r)), {}
        return self.replay.mean(state, r, clients, self.scalars)

    @property
    def replay(self) -> Replay:
        """The clients' local steps, at the server."""
        return Replay(self.training, self.loss, self.rule)

    def scalars(self, client: Client, message: Ask) -> Scalars:
        """With --uplink seeds: the scalars from which the server replays the local steps."""
        return self.replay.scalars(client, message)

    # --- reports

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        """The test samples scored by all clients, and with --probe-gradient the cosines of their directions."""
        report = self.training.evaluate(state, r, clients)
        if not self.estimation.probe_gradient:
            return report
        network = Network(state.theta, state.buffers, state.theta_s, state.buffers_s, r)
        to = self.setting.eval_participants(r)
        return with_cosines(report, clients.ask(self.probe, network, to=to, counted=False))

    def probe(self, client: Client, message: Network) -> Compared:
        """A step's direction beside the gradient; moves nothing."""
        model, copy = Model(message.theta, message.buffers, message.r), Client(client.i, client.data)
        local = LocalSteps(self.training, copy, model, self.loss, self.rule.parts)
        return compare(local, self.rule, slope_at_cut(self.training, message) if self.loss.answered else None)

    @property
    def kernel(self) -> str:
        """The name of what computes a step, and how directions are drawn, for the record."""
        return self.estimation.kernel(self.training)

    @property
    def traffic(self) -> Traffic:
        """The bytes that travel."""
        exact = sum(own.stop - own.start for own in self.rule.parts[1:])
        return replace(super().traffic, scalars=self.estimation.scalars, exact=exact)
