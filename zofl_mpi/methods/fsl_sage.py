"""FSL-SAGE: split learning with auxiliary heads that learn to estimate the server's gradient at the cut.

Nair, Lin, Liu, Liu, "FSL-SAGE: Accelerating Federated Split Learning via Smashed Activation Gradient Estimation",
ICML 2025.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np

from zofl_mpi import Client, Clients, at_least, column, demand
from zofl_mpi.engine.fields import UsedWith
from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.rounds.split.client import HeadLoss, LocalSteps, Loss
from zofl_mpi.rounds.split.costs import Traffic
from zofl_mpi.rounds.split.messages import Model, Smashed, SplitState, mean_loss
from zofl_mpi.rounds.split.method import SplitMethod, Trainings
from zofl_mpi.rounds.split.rules import GradientRule, Lines, backprop
from zofl_mpi.rounds.split.server import RecentUploads, Server


@dataclass(frozen=True)
class Head:
    """Server to client: its aligned auxiliary head."""

    theta: Tensor  # (|theta_a|,)


@dataclass(frozen=True, kw_only=True)
class SageState(SplitState):
    """The server's state after a round: `theta` has the first head as theta_a; plus the uploads for the alignment."""

    heads: dict[str, Tensor] = column("1", "the aligned auxiliary heads")  # {i: (|theta_a|,)} as last aligned
    smashed: dict[str, Any] = column("1", "the clients' last uploads")  # {i: (N, *smashed_shape)}; see `RecentUploads`
    labels: dict[str, Any] = column("1", "their labels")  # {i: (N,)}
    alignment_loss: float = column(
        "1", "mean over clients of |estimated - true cut gradient|^2, before the alignment", math.nan
    )


@final
@dataclass(frozen=True)
class FSLSAGE(SplitMethod):
    """Clients step along their head's gradient estimate; every l-th round the server aligns the heads.

    In these rounds the server aligns a client's head after its first upload, on its latest uploads: the gradient of the
    head's loss at the smashed samples approaches the server's. Heads do not train on the local loss and are not
    averaged.

    Attributes:
        l: rounds between alignments; the rounds are 0, l, 2l, ...
        buffer: samples of each client that the server keeps for the alignment.
        align_epochs: steps of the alignment, each on the whole buffer. Samples of equal size form one mini-batch;
            texts, padded to the longest of their mini-batch, stay in their original mini-batches.
        align_lr: step size of the alignment (Adam; AdamW, with its decay, if the clients use that).
    """

    travels: ClassVar[str] = "its part and head down, its part and activations up"
    USED_WITH: ClassVar[UsedWith] = {"buffer": {"align_epochs": ()}, "align_lr": {"align_epochs": ()}}
    l: int = at_least(1, 10)  # noqa: E741  (the paper's symbol)
    buffer: int = at_least(1, 1000)
    align_epochs: int = at_least(0, 100)
    align_lr: float = at_least(0, 1e-3, "a step size")

    def round(self, state: SageState, r: int, clients: Clients) -> SageState:
        """Algorithm 1 of the paper."""
        main, heads = self.server(state, r, clients.sharing), dict(state.heads)
        recent = RecentUploads(state.smashed, state.labels, self.buffer, self.problem.equal_sizes)
        message, models, ended, errors = self.begin_round(state, r), self.models(r), Trainings(), []
        for group in self.training.groups(r):
            if r % self.l == 0:
                for i, item in main.train(clients.ask(self.first, message, to=group)):
                    recent.add(i, item)
                errors += [self.align(main, recent, heads, i) for i in group]
                uploads = clients.ask_each(self.rest, {i: Head(heads[str(i)]) for i in group}, into=models)
            else:
                uploads = clients.ask(self.train, message, to=group, into=models)
            for i, item in main.train(uploads):
                if isinstance(item, Smashed):
                    recent.add(i, item)
                else:
                    ended[i] = item
        new = main.state(self.mean(state, models), mean_loss(each.loss for each in ended.values()))
        error = math.fsum(errors) / len(errors) if errors else math.nan
        return SageState(**vars(new), heads=heads, smashed=recent.smashed, labels=recent.labels, alignment_loss=error)

    def start(self) -> SageState:
        return SageState(**vars(super().start()), heads={}, smashed={}, labels={})

    def align(self, main: Server, recent: RecentUploads, heads: dict[str, Tensor], i: int) -> float:
        """Align client i's head; return |estimated - true gradient|^2 on its recent uploads before the alignment."""
        problem, running = self.problem, self.training.running
        uploads = []
        for s, y in recent.uploads(i):
            leaf, labels = problem.to_device(s).detach().requires_grad_(), problem.to_device(y)
            # a copy: the server's running statistics stay unchanged
            with problem.server_side.bound_to(main.theta, main.buffers.clone(), running):
                (target,) = torch.autograd.grad(problem.server_loss(leaf, labels), leaf)
            uploads.append((leaf, labels, target))
        theta = problem.to_device(problem.client_side.initial()[0])
        head = theta[problem.n_client :]
        if str(i) in heads:
            head.copy_(heads[str(i)])
        optimiser, moments, first = self.training.optimiser, dict[str, Any](), math.nan
        if not optimiser.optimiser.startswith("adamw"):
            optimiser = Optimiser("adam")
        for epoch in range(max(1, self.align_epochs)):
            distances, g = [], head.new_zeros(head.shape)
            for upload in uploads:
                distance, slope = self._distance(theta, *upload)
                distances.append(distance)
                g = slope if len(uploads) == 1 else g.add_(slope)
            first = math.fsum(map(float, distances)) if epoch == 0 else first
            if self.align_epochs:
                optimiser.step(head, g, moments, self.align_lr)
        heads[str(i)] = head.clone()
        return first

    def _distance(self, theta: Tensor, leaf: Tensor, labels: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """() |estimated - true gradient|^2 on the smashed samples `leaf`, and its gradient (|theta_a|,) in the head."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        problem = self.problem
        buffers, math_alone = problem.to_device(problem.client_side.initial()[1]), sdpa_kernel(SDPBackend.MATH)
        # attention by plain products: its fused kernels have no second derivative
        with problem.client_side.bound_to(theta, buffers, self.training.running), math_alone:
            (estimated,) = torch.autograd.grad(problem.local_loss(leaf, labels), leaf, create_graph=True)
            distance = (estimated - target).square().sum()
            return distance.detach(), problem.client_side.gradient(distance)[problem.n_client :]

    def first(self, client: Client, message: Model) -> Smashed:
        """Upload the first mini-batch of a round with alignment, before the aligned head arrives."""
        model = client.scratch["model"] = self.steps(client, message)
        _, x, labels = next(iter(model))
        with torch.no_grad(), model.bound_to(model.scratch):  # the pass that moves the statistics follows with the head
            return Smashed(model.problem.smash(x), labels)

    def rest(self, client: Client, message: Head) -> Generator[Smashed, Any, Any]:
        """Take all local steps with the aligned head; the first mini-batch is already uploaded."""
        model: LocalSteps = client.scratch.pop("model")
        model.theta[model.problem.n_client :] = model.problem.to_device(message.theta)
        client.memory["head"] = message.theta.clone()
        return (yield from self.run_steps(model, sent=1))

    def steps(self, client: Client, message: Model) -> LocalSteps:
        """The client's model for its local steps of a round: theta_c as received, with its own head."""
        problem = self.problem
        aligned = client.memory.get("head")
        head = problem.client_side.initial()[0][problem.n_client :] if aligned is None else aligned
        theta = torch.cat([problem.to_device(message.theta), problem.to_device(head)])
        return super().steps(client, replace(message, theta=theta))

    def __post_init__(self) -> None:
        demand(self.training.freeze == "none", "freeze", self.training.freeze, "none: heads do not train here anyway")
        demand(not self.training.own_parts, "client_parts", "own", "average: the server aligns the heads that it sends")
        least = 1 if self.problem.allows_batch_of_one or self.training.running else 2
        demand(self.buffer >= least, "buffer", self.buffer, "at least 2: BatchNorm cannot normalise one sample")
        super().__post_init__()

    def make_loss_and_rule(self) -> tuple[Loss, GradientRule]:
        """The auxiliary head's loss, with a backward pass; the head itself does not train on it."""
        loss = HeadLoss(self.problem, trained=False)
        return loss, backprop(self.training, loss)

    @cached_property
    def traffic(self) -> Traffic:
        """Clients' parts both ways, smashed samples up, heads down in rounds with alignment."""
        return replace(super().traffic, aligned=self.l)

    def plan(self, rounds: int) -> Lines:
        problem = self.problem
        head = (problem.client_side.n - problem.n_client) * np.dtype(self.setting.dtype).itemsize
        return super().plan(rounds) | {f"further bytes down, each client, every {self.l} rounds": head}
