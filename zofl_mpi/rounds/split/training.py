"""What the split methods share: messages, mini-batches, the server's steps, averages, reports."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.errors import UserError, demand
from zofl_mpi.numerics.optimisers import Optimiser, copied
from zofl_mpi.rounds.split.messages import Model, State
from zofl_mpi.rounds.start import participants
from zofl_mpi.run.clients import Client
from zofl_mpi.run.setting import Setting
from zofl_mpi.run.streams import Purpose

Tensor = Any  # torch's, which the server's methods need not import


@final
@dataclass(frozen=True)
class Training:
    """A round of split training.

    Attributes:
        batch: samples of a local step.
        h: local steps of a round; 0: one pass over the client's data.
        k: the smashed samples of every k-th local step go up.
        upload_at: first or last local step of each k.
        lr_client: step size of the clients.
        lr_server: step size of the server.
        rule: how clients and server step.
        state: a client's moments between rounds: keep, reset, or average, as the models (they travel with these).
        server_state: the server's moments: keep, or per_batch_reset, a new optimiser for each step, as SplitFed's code
            has it; a step of Adam is then about lr_server times the gradient's sign.
        order: interleave (the server meets the q-th uploads of all, then the next; the clients in an order drawn anew
            each round) or client_major (client by client).
        weights: of the clients in the average: size (|D_i|) or uniform.
        beta: participating fraction of the clients.
        augment: none, or crop-flip (images padded by 4, cropped back, mirrored with probability 1/2).
        freeze: what of the local part does not train: none, client or auxiliary.
        batchnorm: what BatchNorm normalises by: batch (the running statistics move in unperturbed passes alone),
            every_pass (in perturbed ones too: the tested network then depends on mu and n_p), or running (the running
            statistics, which stay as they came: for networks that were trained before).
    """

    batch: int = 256
    h: int = 0
    k: int = 1
    upload_at: Literal["first", "last"] = "first"
    lr_client: float = 1e-4
    lr_server: float = 1e-4
    rule: Optimiser = field(default_factory=Optimiser)
    state: Literal["keep", "reset", "average"] = "keep"
    server_state: Literal["keep", "per_batch_reset"] = "keep"
    order: Literal["interleave", "client_major"] = "interleave"
    weights: Literal["size", "uniform"] = "size"
    beta: float = 1.0
    augment: Literal["none", "crop-flip"] = "none"
    freeze: Literal["none", "client", "auxiliary"] = "none"
    batchnorm: Literal["batch", "every_pass", "running"] = "batch"

    def __post_init__(self) -> None:
        demand(self.batch >= 1, "batch", self.batch, "a whole number, at least 1")
        demand(self.h >= 0, "h", self.h, "a whole number, at least 0 (0: one pass over the data)")
        demand(self.k >= 1, "k", self.k, "a whole number, at least 1")
        demand(0 < self.beta <= 1, "beta", self.beta, "a fraction of the clients, above 0 and at most 1")
        for flag in ("lr_client", "lr_server"):
            value = getattr(self, flag)
            demand(0 <= value < math.inf, flag, value, "a step size, at least 0")

    def fit(self, setting: Setting) -> None:
        """Refuses data that the batches do not fit.

        Raises:
            UserError: a client with fewer samples than a batch; a batch of one sample, which BatchNorm cannot take;
                inputs that are no images, which cannot be cropped.
        """
        shape = setting.problem.input_shape
        if self.augment != "none" and len(shape) != 3:
            raise UserError(f"--augment {self.augment}: inputs of shape {shape} are no images")
        sizes = [len(data) for data in setting.data]
        demand(
            self.batch <= min(sizes), "batch", self.batch, f"at most {min(sizes)}, the samples of the smallest client"
        )
        if setting.problem.takes_one or self.running:
            return
        for i in range(setting.m):
            if any(self.samples(setting, i, q) == 1 for q in range(self.steps(setting, i))):
                who = "every batch" if self.batch == 1 else f"the last batch of client {i}"
                raise UserError(
                    f"--batch {self.batch}: {who} has one sample, which BatchNorm cannot normalise; take another batch"
                )

    def fit_local(self, setting: Setting) -> None:
        """Refuses a local part of which nothing trains."""
        part = self.trainable(setting)
        if part.start == part.stop:
            raise UserError(f"--freeze {self.freeze}: nothing of the local part is left to train")

    @property
    def running(self) -> bool:
        """Whether BatchNorm uses its running statistics."""
        return self.batchnorm == "running"

    # --- a client

    def batches(self, setting: Setting, client: Client, r: int) -> Iterator[NDArray[np.int64]]:
        """The positions of each local step: passes over the data, shuffled anew, the last batch of each the rest."""
        generator, left = setting.streams(Purpose.BATCH, r=r, i=client.i), self.steps(setting, client.i)
        while left:
            order = generator.permutation(len(client.data))
            for start in range(0, len(order), self.batch)[:left]:
                yield order[start : start + self.batch]
                left -= 1

    def samples(self, setting: Setting, i: int, q: int) -> int:
        """Samples of local step q of client i."""
        size = len(setting.data[i])
        each = -(-size // self.batch)
        return min(self.batch, size - q % each * self.batch)

    def steps(self, setting: Setting, i: int) -> int:
        """h of client i."""
        return self.h or -(-len(setting.data[i]) // self.batch)

    def uploads(self, setting: Setting, i: int, q: int) -> bool:
        """Whether local step q goes up."""
        last = self.steps(setting, i) - 1
        return q % self.k == 0 if self.upload_at == "first" else q % self.k == self.k - 1 or q == last

    def inputs(self, setting: Setting, client: Client, positions: NDArray[np.int64], r: int, q: int) -> Any:
        """Inputs and labels of a local step, on the device."""
        x, labels = setting.problem.samples(client.data, positions)
        if self.augment == "none":
            return x, labels
        return augmented(x, setting.streams(Purpose.AUGMENT, r=r, i=client.i, t=q)), labels

    def trainable(self, setting: Setting, head: bool = True) -> slice:
        """What of theta_l moves; the auxiliary head only where the method trains it, `head`."""
        start, stop = 0, setting.problem.local.n
        if self.freeze == "client":
            start = setting.problem.n_client
        if self.freeze == "auxiliary" or not head:
            stop = setting.problem.n_client
        return slice(start, stop)

    def moments(self, client: Client, message: Model) -> dict[str, Any]:
        """The client's optimiser state, in its memory."""
        if self.state == "average":
            client.memory["moments"] = copied(message.moments)
        elif self.state == "reset" or "moments" not in client.memory:
            client.memory["moments"] = {}
        return client.memory["moments"]  # type: ignore[no-any-return]

    # --- the server

    def participants(self, setting: Setting, r: int) -> list[int]:
        """S_r, ascending."""
        return participants(setting, self.beta, r)

    def shares(self, setting: Setting) -> dict[int, float]:
        """{i: w_i} of all clients, summing to 1."""
        sizes = [1 if self.weights == "uniform" else len(data) for data in setting.data]
        return {i: size / sum(sizes) for i, size in enumerate(sizes)}

    def groups(self, setting: Setting, r: int) -> list[list[int]]:
        """S_r in the groups that are asked one after the other, each in the order in which the server meets it."""
        to = self.participants(setting, r)
        if self.order == "client_major":
            return [[i] for i in to]
        return [setting.streams(Purpose.ORDER, r=r).permutation(to).tolist()]


def first_state(setting: Setting, training: Training, head: bool = True) -> State:
    """The parts as the problem makes them.

    Args:
        head: whether the method trains the auxiliary head.
    """
    problem = setting.problem
    theta, buffers = problem.local.initial()
    theta_s, buffers_s = problem.top.initial()
    averages = training.state == "average"
    moments = training.rule.memory(theta[training.trainable(setting, head)]) if averages else {}
    return State(theta, buffers, theta_s, buffers_s, {}, moments=moments)


def augmented(x: Tensor, generator: np.random.Generator) -> Tensor:
    """Images (B, channels, height, width), padded by 4 zeros, cropped back at random, mirrored with probability 1/2."""
    import torch

    count, _, height, width = x.shape
    up, left = torch.from_numpy(generator.integers(0, 9, (2, count))).to(x.device)
    flip = torch.from_numpy(generator.random(count) < 0.5).to(x.device)
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4))
    rows = up[:, None] + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device).expand(count, width)
    columns = left[:, None] + torch.where(flip[:, None], columns.flip(1), columns)
    which = torch.arange(count, device=x.device)[:, None, None]
    found = padded.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]]
    return found.permute(0, 3, 1, 2)  # channels last in memory, as they came
