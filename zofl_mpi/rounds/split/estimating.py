"""Base of split methods with clients that estimate gradients by forward passes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

from zofl_mpi import Client, Clients, UserError
from zofl_mpi.engine import mean
from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.engine.reduction import Reduction
from zofl_mpi.numerics.optimisers import copied
from zofl_mpi.rounds.split.client import Key, LocalSteps
from zofl_mpi.rounds.split.estimates import Estimation
from zofl_mpi.rounds.split.messages import Model, NetworkParts, Scalars, Smashed, SplitReport, SplitState, Update
from zofl_mpi.rounds.split.method import SplitMethod, Trainings, with_head
from zofl_mpi.rounds.split.server import Server


@dataclass(frozen=True)
class Compared:
    """Client to server at an evaluation, with --probe-gradient."""

    cosine: float  # cosine of the step's direction with the gradient, in the trained part of theta_c
    head: float  # |g_a| / |g_c|; nan without a head


def check_arithmetic(server: str, client: str, flags: str, remedy: str) -> None:
    """Refuse a client that would draw other directions than the server from the same seeds, by their devices."""
    if client != server:
        where = f"a client computes on {client}, the server on {server}"
        raise UserError(f"{flags}: {where}, which draws other directions from the same seeds; take {remedy}")


@dataclass(frozen=True)
class EstimatingMethod(SplitMethod):
    """A method with clients that estimate gradients by forward passes; the flags of `estimation` choose the rule."""

    computes: ClassVar[str] = "values of its loss, by forward passes"
    estimation: Estimation = field(default_factory=Estimation)

    def models(self, r: int) -> Reduction | None:
        return super().models(r) if self.estimation.uplink == "dense" else None

    def average(
        self, state: SplitState, r: int, ended: Trainings, models: Reduction | None
    ) -> tuple[Update, dict[str, Any]]:
        """The mean of the clients' models, and {i: moments of client i} where the server replays its steps."""
        training, replayed = self.training, dict(state.replayed)
        if self.estimation.uplink == "dense":
            return self.mean(state, models), {}

        def replays() -> Iterator[tuple[int, Update]]:
            for i in to:
                theta, moments = self.replay(state, r, i, reply := cast(Scalars, ended[i]))
                yield i, Update(theta, reply.buffers, moments if training.state == "average" else {})
                if training.state == "keep":
                    replayed[str(i)] = moments

        to = training.participants(r)
        return with_head(state, mean.of_replies(replays(), to, training.client_weights())), replayed

    def replay(self, state: SplitState, r: int, i: int, reply: Scalars) -> tuple[Tensor, dict[str, Any]]:
        """Client i's model as sent after its local steps of round r, with its optimiser's moments."""
        training, problem = self.training, self.problem
        remedy = "processors of one kind, --device cpu, or --uplink dense"
        check_arithmetic(problem.arithmetic, reply.arithmetic, "--uplink seeds", remedy)
        theta = problem.to_device(state.theta).clone()
        moving = theta[self.rule.parts[0]]
        theta[self._last] = problem.to_device(reply.last)
        before = {"keep": state.replayed.get(str(i), {}), "reset": {}, "average": state.moments}
        moments = copied(before[training.state])
        for q, differences in enumerate(reply.differences.tolist()):
            g = self.rule.replay(moving, differences, Key(self.setting.streams, r, i, q))
            training.optimiser.step(moving, g, moments, training.client_size(r, i, q))
        return theta[: self.loss.travels], moments

    @property
    def _last(self) -> slice:
        """The part of theta_l that follows a gradient which scalars cannot reproduce."""
        return self.rule.parts[1] if len(self.rule.parts) > 1 else slice(0)

    # --- reports

    def evaluate(self, state: SplitState, r: int, clients: Clients) -> SplitReport:
        """The scores, and with --probe-gradient the cosines of the clients' directions with their gradients."""
        report = super().evaluate(state, r, clients)
        if not self.estimation.probe_gradient:
            return report
        asked = clients.ask(self.probe, state.network(r), to=self.setting.eval_participants(r), counted=False)
        replies = [reply for _, reply in asked]
        cosine = math.fsum(reply.cosine for reply in replies) / len(replies)
        head = math.fsum(reply.head for reply in replies) / len(replies)
        return replace(report, estimate_cosine=cosine, head_over_client=None if math.isnan(head) else head)

    def probe(self, client: Client, message: NetworkParts) -> Compared:
        """Compares a step's direction with the gradient, at a round's first mini-batch; moves nothing."""
        message = self.training.with_own_part(client, message)
        model, copy = Model(message.theta, message.buffers, message.r), Client(client.i, client.data)
        rule, n = self.rule, self.problem.n_client
        local = LocalSteps(self.training, copy, model, self.loss, rule.parts)
        q, x, labels = next(iter(local))
        target = labels
        if self.loss.at_cut:  # lambda, as the server would return it
            with torch.no_grad(), local.bound_to(local.scratch):
                upload = Smashed(self.problem.smash(x), labels)
            server = Server(self.training, self.server_pass, message.theta_s, message.buffers_s, {})
            server.step(client.i, upload, returned=True)
            server.move()
            target = server.slopes[client.i]
        with local.bound_to(local.scratch):
            g = self.problem.client_side.gradient(self.loss(self.problem.smash(x), target))
        gradient = rule(local, rule.forward(local, x, labels), target, local.key(q))
        direction = g.new_zeros(g.shape)
        for place, estimate in zip(rule.parts, gradient.parts, strict=True):
            if estimate is not None:
                direction[place] = estimate
        at_client = slice(rule.parts[0].start, n)
        taken, exact = direction[at_client], g[at_client]
        size = float(exact.norm())
        cosine = float(taken @ exact) / (float(taken.norm()) * size or math.nan)
        return Compared(cosine, math.nan if self.loss.at_cut else float(g[n:].norm()) / (size or math.nan))

    @property
    def kernel(self) -> str:
        return super().kernel + ("" if self.estimation.estimate == "exact" else ", directions from whole states")

    @property
    def scalars_each(self) -> int:
        return self.estimation.n_p if self.estimation.uplink == "seeds" else 0
