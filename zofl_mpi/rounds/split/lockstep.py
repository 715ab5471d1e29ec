"""Base of the methods of split training whose server answers every mini-batch."""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass

from zofl_mpi import Client, Clients, demand
from zofl_mpi.engine.clients import Replies
from zofl_mpi.engine.lazy import Tensor
from zofl_mpi.rounds.split.client import CutLoss, Loss
from zofl_mpi.rounds.split.messages import Model, Smashed, State, Trained
from zofl_mpi.rounds.split.method import SplitMethod
from zofl_mpi.rounds.split.rules import GradientRule, backprop
from zofl_mpi.rounds.split.server import Server


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
        loss = CutLoss(self.problem)
        return loss, backprop(self.training, loss)

    # --- the server

    def exchange(self, state: State, r: int, clients: Clients, servers: Mapping[int, Server]) -> None:
        """Exchanges all mini-batches with {i: client i's server part}; the models stay at the clients."""
        for group in self.training.groups(r):
            replies = clients.ask(self.begin, self.begin_round(state, r), to=group)
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
