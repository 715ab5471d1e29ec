"""What the split methods share: mini-batches, uploads, the server's steps, averages, reports."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi import server
from zofl_mpi.errors import UserError, demand
from zofl_mpi.optimisers import Optimiser
from zofl_mpi.run.clients import Client, Clients, Step
from zofl_mpi.run.messages import APART
from zofl_mpi.run.setting import Setting
from zofl_mpi.run.streams import Purpose

Tensor = Any  # torch's, which the server's methods need not import


@final
@dataclass(frozen=True)
class Model:
    """Server to client."""

    theta: Tensor  # (n_l,) theta_c, then theta_a where it travels
    buffers: Tensor  # (b_l,) BatchNorm's running statistics
    r: int  # the round
    moments: dict[str, Any] = field(default_factory=dict)  # of the optimiser, with --state average


@final
@dataclass(frozen=True)
class Smashed:
    """Client to server, an upload."""

    s: Tensor  # (B, *smashed_shape)
    labels: Tensor = field(metadata=APART)  # (B,)


@final
@dataclass(frozen=True)
class Trained:
    """Client to server: the local steps are done; the model stays until it is asked for."""

    loss: float  # mean over the local steps of the local loss


@final
@dataclass(frozen=True)
class Ask:
    """Server to client: send the model."""


@final
@dataclass(frozen=True)
class Update:
    """Client to server."""

    theta: Tensor  # what of theta_l is averaged
    buffers: Tensor  # (b_l,)
    moments: dict[str, Any] = field(default_factory=dict)  # of the optimiser, with --state average


@final
@dataclass(frozen=True)
class Whole:
    """Server to client at an evaluation: all parts."""

    theta: Tensor
    buffers: Tensor
    theta_s: Tensor
    buffers_s: Tensor


@final
@dataclass(frozen=True)
class Scored:
    """Client to server at an evaluation: sums over its share of the test samples."""

    samples: int
    loss: float
    hits: int


@dataclass(frozen=True)
class State:
    """What the server carries from round to round."""

    theta: Tensor  # (n_l,) theta_c and theta_a
    buffers: Tensor  # (b_l,)
    theta_s: Tensor  # (n_s,)
    buffers_s: Tensor  # (b_s,)
    optimiser: dict[str, Any]  # the server's moments
    server_steps: int = 0
    server_loss: float = math.nan
    local_loss: float = math.nan
    label_bytes: int = 0
    moments: dict[str, Any] = field(default_factory=dict)  # the clients', with --state average
    replayed: dict[str, Any] = field(default_factory=dict)  # {i: moments of client i}, where the server replays steps


COLUMNS: Mapping[str, tuple[str, str]] = {
    "theta": ("1", "theta_c and theta_a, flat"),
    "buffers": ("1", "BatchNorm's running statistics of the client's part"),
    "theta_s": ("1", "the server's part, flat"),
    "buffers_s": ("1", "BatchNorm's running statistics of the server's part"),
    "test_accuracy": ("1", "share of test samples that server(client(x)) classifies correctly"),
    "test_loss": ("nat", "its mean cross-entropy on the test samples"),
    "server_steps": ("1", "the server's steps in this round"),
    "server_loss": ("nat", "mean over the server's steps of this round of the loss before each"),
    "local_loss": ("nat", "mean over clients and local steps of the loss that the client itself sees"),
    "label_bytes": ("B", "labels that went up in this round; no part of bytes_up"),
}


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
        return server.participants(setting, self.beta, r)

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


@final
class LocalSteps:
    """A client's local steps of a round, one after the other; its model moves in place.

    Nothing of it lies in the modules between two calls, so that clients of one process may take turns. Losses stay
    where they are computed until the round ends: a GPU that had to tell the host each one would stand still meanwhile.
    """

    def __init__(self, setting: Setting, training: Training, client: Client, message: Model, head: bool = True) -> None:
        """
        Args:
            head: whether the method trains the auxiliary head.
        """
        self.setting, self.training, self.client, self.r = setting, training, client, message.r
        import torch

        self.problem = setting.problem
        self.theta, self.buffers = (self.problem.placed(t).clone() for t in (message.theta, message.buffers))
        self.scratch = self.buffers.clone()
        self.base = self.theta.clone()
        self.part = training.trainable(setting, head)
        self.moments = training.moments(client, message)
        self.reset()
        self.compared: int = 0
        self.vague: Tensor = self.theta.new_zeros((), dtype=torch.int64)

    def __iter__(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(q, inputs, labels) of each local step."""
        for q, positions in enumerate(self.training.batches(self.setting, self.client, self.r)):
            yield q, *self.training.inputs(self.setting, self.client, positions, self.r, q)

    def reset(self) -> None:
        """No loss has been seen."""
        import torch

        self.loss, self.count = self.theta.new_zeros((), dtype=torch.float64), 0

    def at(self, buffers: Tensor) -> AbstractContextManager[Any]:
        """Meanwhile the local part is this client's; BatchNorm's running statistics are `buffers` (b_l,)."""
        return self.problem.local.at(self.theta, buffers, self.training.running)  # type: ignore[no-any-return]

    def uploads(self, q: int) -> bool:
        """Whether local step q goes up."""
        return self.training.uploads(self.setting, self.client.i, q)

    def host(self, values: Sequence[Tensor]) -> NDArray[np.float64]:
        """(len(values),) the numbers () on the host."""
        import torch

        found = torch.stack(list(values)) if values else self.theta.new_zeros(0)
        return np.asarray(found.double().cpu().numpy())

    def zeros(self) -> Tensor:
        """(d,) what trains of theta_l, zeros."""
        return self.theta[self.part].new_zeros(self.part.stop - self.part.start)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The smashed activations and () the local loss at the model itself; it moves BatchNorm's statistics."""
        import torch

        with torch.no_grad(), self.at(self.buffers):
            smashed = self.problem.smash(x)
            loss = self.problem.local_loss(smashed, labels)
        self.loss, self.count = self.loss + loss, self.count + 1
        return smashed, loss

    def perturbed(self, x: Tensor, labels: Tensor, u: Tensor, mu: float) -> Tensor:
        """() the local loss at theta_l + mu u; the model comes back to the bit."""
        import torch

        buffers = self.buffers
        if self.training.batchnorm == "batch":
            buffers = self.scratch.copy_(self.buffers)
        self.base.copy_(self.theta)
        self.theta[self.part].add_(u, alpha=mu)
        with torch.no_grad(), self.at(buffers):
            loss = self.problem.local_loss(self.problem.smash(x), labels)
        self.theta.copy_(self.base)
        return loss

    def gradient(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The smashed activations and (d,) the gradient of the local loss."""
        with self.at(self.buffers):
            smashed = self.problem.smash(x)
            loss = self.problem.local_loss(smashed, labels)
            g = self.problem.local.gradient(loss)
        self.loss, self.count = self.loss + loss.detach(), self.count + 1
        return smashed.detach(), g[self.part]

    def directions(self, count: int, q: int, distribution: str) -> Iterator[Tensor]:
        """u_1, ..., u_count (d,) of step q, drawn where the model is, by a generator of that device."""
        seed = self.setting.streams(Purpose.DIRECTION, r=self.r, i=self.client.i, t=q)
        return drawn(seed, self.theta[self.part], count, distribution)

    def compare(self, plus: Tensor, other: Tensor) -> None:
        """Counts the pairs of losses that differ by too little to mean anything in their precision.

        A direction that is nearly orthogonal to the gradient gives such a pair at any radius; `done` warns of many.
        """
        self.compared += 1
        self.vague += (plus - other).abs() <= self._rounding() * plus.abs().maximum(other.abs())

    def _rounding(self) -> float:
        """Of a loss, relative."""
        import torch

        return 8 * float(torch.finfo(self.theta.dtype).eps)

    def _warn(self) -> None:
        """Once a process, where most differences of losses were rounding."""
        vague = int(self.vague)
        if 2 * vague <= self.compared or _warned:
            return
        _warned.append(True)
        dtype = np.dtype(self.setting.dtype)
        print(
            f"zofl_mpi: warning: {vague} of {self.compared} losses of a perturbed pass differ from the other loss "
            f"of their step by less than {self._rounding():.1g} of their size, which is rounding in {dtype}: take a "
            f"larger --mu{', or --dtype float64' if dtype == np.float32 else ''}",
            file=sys.stderr,
        )

    def step(self, g: Tensor) -> None:
        """The optimiser's step along g (d,)."""
        self.training.rule.step(self.theta[self.part], g, self.moments, self.training.lr_client)

    def done(self) -> Trained:
        """The model stays in the client's memory until it is asked for."""
        self._warn()
        self.client.memory["theta"], self.client.memory["buffers"] = self.theta, self.buffers
        return Trained(float(self.loss) / self.count if self.count else math.nan)


def drawn(seed: np.random.Generator, like: Tensor, count: int, distribution: str) -> Iterator[Tensor]:
    """`count` directions u (d,) of the dtype of `like` (d,), by a generator of its device.

    Args:
        distribution: see `HERON`.
    """
    import torch

    generator = torch.Generator(like.device).manual_seed(int(seed.integers(2**63)))
    d = like.numel()
    for _ in range(count):
        u = torch.randn(d, generator=generator, device=like.device, dtype=like.dtype)
        if distribution != "gaussian":
            norm = torch.linalg.vector_norm(u, dtype=torch.float64)
            u.mul_((math.sqrt(d) if distribution == "sqrt_d_sphere" else 1.0) / norm)
        yield u


_warned: list[bool] = []


def kept(training: Training, client: Client) -> Update:
    """What `LocalSteps.done` left; it need not be kept any longer."""
    moments = client.memory.pop("moments") if training.state == "average" else {}
    return Update(client.memory.pop("theta"), client.memory.pop("buffers"), moments)


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


def averaged_round(
    setting: Setting,
    training: Training,
    state: State,
    r: int,
    clients: Clients,
    train: Step,
    average: Callable[[list[int], Mapping[int, float]], Any],
) -> State:
    """A round in which the server trains on the uploads of `train`, and then the clients' models are averaged.

    Args:
        average: the mean `Update` of the participants, by their weights.
    """
    to = training.participants(setting, r)
    main = Server(setting, training, state)
    losses = {}
    for group in training.groups(setting, r):
        for i, item in clients.ask(train, Model(state.theta, state.buffers, r, state.moments), to=group):
            match item:
                case Smashed():
                    main.step(item)
                case Trained():
                    losses[i] = item.loss
    mean = average(to, training.shares(setting))
    return main.state(mean, math.fsum(losses.values()) / len(losses))


@final
class Server:
    """The server's part while a round goes on: it takes a step for each upload."""

    def __init__(
        self, setting: Setting, training: Training, state: State, moments: Mapping[str, Any] | None = None
    ) -> None:
        import torch

        self.problem, self.training = setting.problem, training
        self.theta, self.buffers = (self.problem.placed(t).clone() for t in (state.theta_s, state.buffers_s))
        kept = state.optimiser if moments is None else moments
        self.moments = copied(kept)
        self.steps, self.label_bytes = 0, 0
        self.losses: Tensor = self.theta.new_zeros((), dtype=torch.float64)  # where it is computed, as at the clients

    def step(self, item: Smashed) -> None:
        """One step on one upload."""
        smashed, labels = self.problem.placed(item.s), self.problem.placed(item.labels)
        with self.problem.top.at(self.theta, self.buffers, self.training.running):
            loss = self.problem.server_loss(smashed, labels)
            g = self.problem.top.gradient(loss)
        self._move(g)
        self.count(loss.detach(), item)

    def exchange(self, item: Smashed) -> Tensor:
        """One step on one upload; (B, *smashed_shape) the gradient at the smashed samples, taken before the step."""
        import torch

        smashed, labels = self.problem.placed(item.s).requires_grad_(), self.problem.placed(item.labels)
        with self.problem.top.at(self.theta, self.buffers, self.training.running) as parameters:
            loss = self.problem.server_loss(smashed, labels)
            slope, *parts = torch.autograd.grad(loss, [smashed, *parameters], materialize_grads=True)
        self._move(torch.cat([part.reshape(-1) for part in parts]))
        self.count(loss.detach(), item)
        return slope

    def _move(self, g: Tensor) -> None:
        if self.training.server_state == "per_batch_reset":
            self.moments.clear()
        self.training.rule.step(self.theta, g, self.moments, self.training.lr_server)

    def count(self, loss: Tensor, item: Smashed) -> None:
        """Books a step."""
        self.steps += 1
        self.losses = self.losses + loss
        self.label_bytes += item.labels.numel() * item.labels.element_size()

    def state(self, mean: Update, local_loss: float) -> State:
        """After the round.

        Args:
            mean: of the clients' models, theta_l whole.

        Raises:
            UserError: something is not finite.
        """
        if not (bool(self.theta.isfinite().all()) and bool(mean.theta.isfinite().all())):
            raise UserError("the model is not finite after the round; smaller --lr-client or --lr-server may help")
        return State(
            mean.theta,
            mean.buffers,
            self.theta,
            self.buffers,
            self.moments,
            self.steps,
            float(self.losses) / self.steps if self.steps else math.nan,
            local_loss,
            self.label_bytes,
            mean.moments,
        )


def copied(moments: Mapping[str, Any]) -> dict[str, Any]:
    """An optimiser's state with tensors of its own."""
    return {k: v.clone() if hasattr(v, "clone") else v for k, v in moments.items()}


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


def scored(setting: Setting, client: Client, message: Whole) -> Scored:
    """Step of an evaluation: client i looks at every m-th test sample."""
    from torch.nn.functional import cross_entropy

    problem, test = setting.problem, setting.test
    theta, buffers, theta_s, buffers_s = (
        problem.placed(t).clone() for t in (message.theta, message.buffers, message.theta_s, message.buffers_s)
    )
    positions = np.arange(client.i, len(test), setting.m)
    loss, hits = 0.0, 0
    with problem.evaluating(), problem.local.at(theta, buffers), problem.top.at(theta_s, buffers_s):
        for start in range(0, len(positions), 256):
            x, labels = problem.samples(test, positions[start : start + 256])
            logits = problem.logits(x)
            loss += float(cross_entropy(logits.double(), labels, reduction="sum"))
            hits += int((logits.argmax(dim=1) == labels).sum())
    return Scored(len(positions), loss, hits)


def report(state: Any, clients: Clients, score: Step) -> dict[str, float]:
    """The columns of COLUMNS but those of the state, which has the fields of `State`.

    Args:
        score: the method's step that returns `scored`.
    """
    whole = Whole(state.theta, state.buffers, state.theta_s, state.buffers_s)
    told = [reply for _, reply in clients.ask(score, whole, counted=False)]
    samples = sum(p.samples for p in told)
    return {
        "test_accuracy": sum(p.hits for p in told) / samples,
        "test_loss": math.fsum(p.loss for p in told) / samples,
    }


def plan_of(
    setting: Setting,
    training: Training,
    rounds: int,
    forwards: float | str,
    backwards: bool,
    returned: bool = False,
    head: bool = True,
    scalars: int | None = None,
    aligned: int = 0,
) -> dict[str, str | float]:
    """The lines of --dry-run.

    Args:
        forwards: forward passes of a local step; in words where steps differ.
        backwards: whether it has a backward pass, which counts as two forward passes.
        returned: whether the server sends a gradient back for each upload.
        head: whether the auxiliary head trains and travels with the client's part.
        scalars: of each local step, which go up in place of the model.
        aligned: rounds from one in which each participant gets a new head to the next; 0: none does.
    """
    problem = setting.problem
    itemsize = np.dtype(setting.dtype).itemsize
    to, each = training.participants(setting, 0), range(setting.m)
    model = ((problem.local.n if head else problem.n_client) + problem.local.b) * itemsize
    moments = _moments_bytes(setting, training, head)
    uploads = {i: [q for q in range(training.steps(setting, i)) if training.uploads(setting, i, q)] for i in each}
    smashed = problem.smashed_bytes
    back = dict.fromkeys(each, model + moments)
    if scalars is not None:
        back = {i: problem.local.b * itemsize + 8 * scalars * training.steps(setting, i) for i in each}
    samples = {i: sum(training.samples(setting, i, q) for q in found) for i, found in uploads.items()}
    return {
        "kernel": problem.kernel_name(training.batch),
        "parameters of client, auxiliary, server": " ".join(map(str, [*problem.local.sizes(), problem.top.n])),
        "a smashed sample": " x ".join(map(str, problem.smashed_shape)),
        "clients, participants in a round": f"{setting.m}, {len(to)}",
        "local steps of a round, client 0": training.steps(setting, 0),
        "bytes down, client 0, a round": model + moments + 8 + returned * samples[0] * smashed,
        "bytes up, client 0, a round": back[0] + 8 + samples[0] * smashed,
        "bytes down and up, all clients, a round": sum(
            model + moments + back[i] + 16 + (1 + returned) * samples[i] * smashed for i in to
        ),
        "bytes of labels, all clients, a round": 8 * sum(samples[i] for i in to),
        **_gibibytes(setting, training, rounds, samples, (1 + returned, head, scalars, aligned)),
        "forward passes of a local step": forwards,
        "backward passes of a local step": int(backwards),
    }


def _moments_bytes(setting: Setting, training: Training, head: bool) -> int:
    """Of a client's optimiser, as they travel each way."""
    if training.state != "average":
        return 0
    part = training.trainable(setting, head)
    return training.rule.memory_bytes(part.stop - part.start, np.dtype(setting.dtype).itemsize)


def _gibibytes(
    setting: Setting,
    training: Training,
    rounds: int,
    samples: Mapping[int, int],
    what: tuple[int, bool, int | None, int],
) -> dict[str, str | float]:
    """Lines of --dry-run: what all clients send and get in all rounds, by kind, and in the sums that [C] prints.

    Args:
        samples: {i: smashed samples that client i sends in a round}.
        what: how often a smashed sample's size travels; and `head`, `scalars`, `aligned` of `plan_of`.
    """
    (times, head, scalars, aligned), problem = what, setting.problem
    itemsize, ways = np.dtype(setting.dtype).itemsize, 1 if scalars is not None else 2
    asked = [training.participants(setting, r) for r in range(rounds)]
    all_asked = [i for to in asked for i in to]
    heads = ways * len(all_asked) if head else sum(map(len, asked[::aligned])) if aligned else 0
    up = sum(samples[i] for i in all_asked)
    steps = 0 if scalars is None else scalars * sum(training.steps(setting, i) for i in all_asked)
    kinds = {
        "the clients' parts": ways * len(all_asked) * problem.n_client * itemsize,
        "auxiliary heads": heads * (problem.local.n - problem.n_client) * itemsize,
        "BatchNorm's statistics": 2 * len(all_asked) * problem.local.b * itemsize,
        "the optimisers' moments": ways * len(all_asked) * _moments_bytes(setting, training, head),
        "scalars in place of models": 8 * steps,
        "smashed samples": up * problem.smashed_bytes,
        "gradients at the cut": (times - 1) * up * problem.smashed_bytes,
        "labels": 8 * up,
    }
    bare = sum(kinds[name] for name in ("the clients' parts", "smashed samples", "gradients at the cut"))
    sums = {
        "as [C] counts, without heads": bare,
        "as [C] counts, with heads": bare + kinds["auxiliary heads"],
        "all but labels": sum(kinds.values()) - kinds["labels"] + 16 * len(all_asked),
    }
    told = {name: size / 2**30 for name, size in {**kinds, **sums}.items()}
    return {
        f"GiB in {rounds} rounds: {name}": f"{size:.3f} ({size / rounds:.5g} a round)" for name, size in told.items()
    }


def measured_of(setting: Setting, training: Training, step: str, forwards: float | str = 1) -> dict[str, str | float]:
    """What --dry-run tells and the result keeps of a step's cost: multiply-accumulates, and bytes live at once.

    Args:
        step: see `costs.peak_bytes`; a backward pass counts as two forward passes.
        forwards: forward passes of a local step; in words where steps differ.
    """
    from zofl_mpi.costs import macs, peak_bytes

    client, auxiliary, server_part = macs(setting.problem)
    each = (client if step == "cut" else client + auxiliary) * training.batch
    what, passes = "multiply-accumulates of each of a client's forward passes", 1.0
    if not isinstance(forwards, str):
        what, passes = STEP_MACS, forwards + 2 * (step != "forward")
    return {
        "multiply-accumulates of a sample at the client": round(client),
        "multiply-accumulates of a sample in the head": round(auxiliary),
        "multiply-accumulates of a sample at the server": round(server_part),
        what: round(passes * each),
        "multiply-accumulates of the server's step": round(3 * server_part * training.batch),
        STEP_BYTES: peak_bytes(setting.problem, training.batch, step),
    }


STEP_MACS = "multiply-accumulates of a client's step"
STEP_BYTES = "peak bytes of a client's step, beyond its model"
