"""SplitFed: split learning in which the server returns the gradient of every mini-batch. SFLV1 and SFLV2.

Thapa, Arachchige, Camtepe, Sun, "SplitFed: When Federated Learning Meets Split Learning", AAAI 2022.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, final

from zofl_mpi.errors import demand
from zofl_mpi.problems import Split
from zofl_mpi.run.clients import Client, Clients, Step
from zofl_mpi.run.setting import Setting
from zofl_mpi.split_client import LocalSteps, kept
from zofl_mpi.split_costs import measured_of, plan_of
from zofl_mpi.split_training import (
    COLUMNS,
    Ask,
    Model,
    Scored,
    Server,
    Smashed,
    State,
    Trained,
    Training,
    Update,
    Whole,
    first_state,
    report,
    scored,
)

Tensor = Any  # torch's
Work = dict[int, "Batches"]
"""{i: client i's round in progress}; of one process, and of one round."""


@final
@dataclass(frozen=True)
class Cut:
    """Server to client: the gradient at its smashed samples."""

    slope: Tensor  # (B, *smashed_shape)


@final
class Batches:
    """A client's round: forward to the cut, wait, backward from the cut, step."""

    def __init__(self, setting: Setting, training: Training, client: Client, message: Model) -> None:
        self.local = LocalSteps(setting, training, client, message, head=False)
        self.left: Iterator[tuple[int, Tensor, Tensor]] = iter(self.local)
        self.smashed: Tensor = None

    def forward(self) -> Smashed | None:
        """The next mini-batch, up to the cut; None after the last."""
        found = next(self.left, None)
        if found is None:
            return None
        _, x, labels = found
        with self.local.at(self.local.buffers):
            self.smashed = self.local.problem.smash(x)
        return Smashed(self.smashed.detach(), labels)

    def backward(self, slope: Tensor) -> None:
        """From the cut to the client's own parameters, and a step."""
        problem, local = self.local.problem, self.local
        with local.at(local.buffers):
            g = problem.local.gradient(self.smashed, problem.placed(slope))
        self.smashed = None
        local.step(g[local.part])


def begun(work: Work, setting: Setting, training: Training, client: Client, message: Model) -> Smashed | Trained:
    """The step of both methods that begins a client's round."""
    work[client.i] = Batches(setting, training, client, message)
    return _next(work, client)


def proceeded(work: Work, client: Client, message: Cut) -> Smashed | Trained:
    """The step of both methods that ends one mini-batch and begins the next."""
    work[client.i].backward(message.slope)
    return _next(work, client)


def _next(work: Work, client: Client) -> Smashed | Trained:
    batches = work[client.i]
    found = batches.forward()
    if found is None:
        del work[client.i]
        return batches.local.done()
    return found


def lockstep(
    clients: Clients,
    begin: Step,
    proceed: Step,
    message: Model,
    to: list[int],
    exchange: Mapping[int, Server],
) -> None:
    """Mini-batch after mini-batch: what comes up from each client, and what its server sends back."""
    replies = clients.ask(begin, message, to=to)
    while True:
        cuts = {i: Cut(exchange[i].exchange(item)) for i, item in replies if isinstance(item, Smashed)}
        if not cuts:
            return
        replies = clients.ask_each(proceed, cuts)


@final
@dataclass(frozen=True)
class SFLV2:
    """One server part, stepped after every mini-batch of every client; only the clients' parts are averaged.

    Attributes:
        setting: problem, data and random numbers.
        training: the round; every step goes up, so k must be 1. The auxiliary head plays no part.
    """

    needs: ClassVar[type] = Split
    setting: Setting
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        fit(self.training, self.setting)

    @cached_property
    def work(self) -> Work:
        """The rounds in progress of this process's clients: they hold autograd graphs, which cannot travel."""
        return {}

    def start(self) -> State:
        """The parts as the problem makes them."""
        return first_state(self.setting, self.training, head=False)

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Algorithm 2 of the paper, with one server part (its section on SFLV2)."""
        setting, training = self.setting, self.training
        to, main = training.participants(setting, r), Server(setting, training, state)
        message = own_part(setting, state, r)
        for group in training.groups(setting, r):
            lockstep(clients, self.begin, self.proceed, message, group, dict.fromkeys(group, main))
        mean = clients.mean(self.update, Ask(), to=to, weights=training.shares(setting))
        return main.state(with_head(setting, state, mean), math.nan)

    def begin(self, client: Client, message: Model) -> Smashed | Trained:
        """The first mini-batch up to the cut."""
        return begun(self.work, self.setting, self.training, client, padded(self.setting, message))

    def proceed(self, client: Client, message: Cut) -> Smashed | Trained:
        """Back from the cut, and the next mini-batch."""
        return proceeded(self.work, client, message)

    def update(self, client: Client, message: Ask) -> Update:
        """The client's part."""
        return own_update(self.setting, self.training, client)

    def evaluate(self, state: State, r: int, clients: Clients) -> dict[str, float]:
        return report(state, clients, self.score)

    def score(self, client: Client, message: Whole) -> Scored:
        """Step of an evaluation."""
        return scored(self.setting, client, message)

    def columns(self) -> Mapping[str, tuple[str, str]]:
        return COLUMNS

    def measured(self) -> dict[str, str | float]:
        """What --dry-run measures."""
        return measured_of(self.setting, self.training, "cut")

    def plan(self, rounds: int) -> dict[str, str | float]:
        return plan_of(self.setting, self.training, rounds, forwards=1, backwards=True, returned=True, head=False)


@final
@dataclass(frozen=True)
class SFLV1:
    """A replica of the server's part for each client; at the end of a round both parts are averaged.

    With any cut it is FedAvg on the whole network: the same mini-batches, the same optimiser state policy.

    Attributes:
        setting: problem, data and random numbers.
        training: the round; every step goes up, so k must be 1. The auxiliary head plays no part.
    """

    needs: ClassVar[type] = Split
    setting: Setting
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        fit(self.training, self.setting)

    @cached_property
    def work(self) -> Work:
        """The rounds in progress of this process's clients: they hold autograd graphs, which cannot travel."""
        return {}

    def start(self) -> State:
        """The parts as the problem makes them."""
        return first_state(self.setting, self.training, head=False)

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Algorithm 1 of the paper."""
        import torch

        setting, training = self.setting, self.training
        to, shares = training.participants(setting, r), training.shares(setting)
        replicas = {i: Server(setting, training, state, self._moments(state, i)) for i in to}
        message = own_part(setting, state, r)
        for group in training.groups(setting, r):
            lockstep(clients, self.begin, self.proceed, message, group, replicas)
        mean = clients.mean(self.update, Ask(), to=to, weights=shares)

        total = math.fsum(shares[i] for i in to)
        added = partial(_added, {i: shares[i] / total for i in to})
        main = Server(setting, training, state, {})
        with torch.no_grad():
            for vector in ("theta", "buffers"):
                getattr(main, vector).copy_(added({i: getattr(replicas[i], vector) for i in to}))
            each = {i: replica.moments for i, replica in replicas.items()}
            if training.state == "average":
                main.moments = {name: added({i: each[i][name] for i in to}) for name in each[to[0]]}
            else:
                main.moments = {**state.optimiser, **{str(i): moments for i, moments in each.items()}}
        main.steps = sum(replica.steps for replica in replicas.values())
        main.losses = sum(replica.losses for replica in replicas.values())
        main.label_bytes = sum(replica.label_bytes for replica in replicas.values())
        return main.state(with_head(setting, state, mean), math.nan)

    def _moments(self, state: State, i: int) -> dict[str, Any]:
        """Of the replica of client i, before a round."""
        kept: dict[str, Any] = state.optimiser.get(str(i), {})
        return {"keep": kept, "reset": {}, "average": state.optimiser}[self.training.state]

    def begin(self, client: Client, message: Model) -> Smashed | Trained:
        """The first mini-batch up to the cut."""
        return begun(self.work, self.setting, self.training, client, padded(self.setting, message))

    def proceed(self, client: Client, message: Cut) -> Smashed | Trained:
        """Back from the cut, and the next mini-batch."""
        return proceeded(self.work, client, message)

    def update(self, client: Client, message: Ask) -> Update:
        """The client's part."""
        return own_update(self.setting, self.training, client)

    def evaluate(self, state: State, r: int, clients: Clients) -> dict[str, float]:
        return report(state, clients, self.score)

    def score(self, client: Client, message: Whole) -> Scored:
        """Step of an evaluation."""
        return scored(self.setting, client, message)

    def columns(self) -> Mapping[str, tuple[str, str]]:
        return COLUMNS

    def measured(self) -> dict[str, str | float]:
        """What --dry-run measures."""
        return measured_of(self.setting, self.training, "cut")

    def plan(self, rounds: int) -> dict[str, str | float]:
        return plan_of(self.setting, self.training, rounds, forwards=1, backwards=True, returned=True, head=False)


def fit(training: Training, setting: Setting) -> None:
    """Refuses what has no meaning here."""
    demand(training.k == 1, "k", training.k, "1: the server answers every mini-batch")
    training.fit(setting)


def own_part(setting: Setting, state: State, r: int) -> Model:
    """The message that begins a round: theta_c alone."""
    return Model(state.theta[: setting.problem.n_client], state.buffers, r, state.moments)


def padded(setting: Setting, message: Model) -> Model:
    """The message with a head in its place, which no step looks at."""
    theta = setting.problem.placed(message.theta)
    whole = theta.new_zeros(setting.problem.local.n)
    whole[: theta.numel()] = theta
    return replace(message, theta=whole)


def own_update(setting: Setting, training: Training, client: Client) -> Update:
    """theta_c after the local steps."""
    whole = kept(training, client)
    return replace(whole, theta=whole.theta[: setting.problem.n_client].clone())


def with_head(setting: Setting, state: State, mean: Update) -> Update:
    """The mean of the clients' parts with the head as it was: theta_l whole."""
    new = state.theta.clone()
    new[: setting.problem.n_client] = mean.theta
    return replace(mean, theta=new)


def _added(shares: Mapping[int, float], values: Mapping[int, Any]) -> Any:
    """The weighted sum of tensors (as they are) or of numbers, in float64."""
    if not hasattr(next(iter(values.values())), "double"):
        return math.fsum(shares[i] * value for i, value in values.items())
    found = sum(shares[i] * value.double() for i, value in values.items())
    return found.to(next(iter(values.values())).dtype)
