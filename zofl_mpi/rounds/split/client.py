"""`LocalSteps`: a client's model during its local steps of a round, with its loss and its estimate's directions.

A loss is a function of the smashed samples and a target: the labels, or, if it is `at_cut`, lambda, the gradient at the
cut that the server returns. Its value () is summed in float64 when no gradient is needed. It knows the split network,
the modules with parameters theta (`flat`), and how many of theta's first entries travel and are `held` by a client.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast, final

import numpy as np

from zofl_mpi import Client, Purpose
from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.engine.reduction import Reply
from zofl_mpi.engine.streams import Streams, seed_torch
from zofl_mpi.errors import warn
from zofl_mpi.numerics.optimisers import copied
from zofl_mpi.problems import Batch, Split
from zofl_mpi.rounds.split.messages import Model, Scalars, Smashed, Trained, Update
from zofl_mpi.rounds.split.training import Training

Draw = Literal["device", "host"]
AHEAD = 2**15  # bytes of directions drawn at once per client: many clients may wait in the middle of their steps
_warned: list[bool] = []


# --- losses


@final
class HeadLoss:
    """The auxiliary head's loss, in theta_l = (theta_c, theta_a)."""

    at_cut = False

    def __init__(self, problem: Split, trained: bool = True) -> None:
        """`trained`: True if the head trains and travels."""
        self.problem, self.flat, self.held = problem, problem.client_side, problem.client_side.n
        self.travels = problem.client_side.n if trained else problem.n_client
        self.each = problem.local_losses  # (smashed, labels) to (B,) contribution of each sample; None: unknown

    def __call__(self, smashed: Tensor, target: Tensor) -> Tensor:
        """() the head's mean loss on the labels."""
        return self.problem.local_loss(smashed, target)


@final
class CutLoss:
    """<lambda, s>; its gradient in theta_c continues the server's through the cut; the head has no part in it."""

    at_cut = True

    def __init__(self, problem: Split) -> None:
        self.problem, self.flat = problem, problem.client_side
        self.travels = self.held = problem.n_client

    def __call__(self, smashed: Tensor, target: Tensor) -> Tensor:
        """() sum_j <lambda_j, s_j> over the samples j; summed in float64 when no gradient is needed."""
        product = _products(target, smashed)
        return product.sum(dtype=None if product.requires_grad else torch.float64)

    def each(self, smashed: Tensor, target: Tensor) -> Tensor:
        """(B,) <lambda_j, s_j>."""
        return _products(target, smashed).flatten(1).sum(dim=1, dtype=torch.float64)


@final
class NetworkLoss:
    """The server's loss as a function of theta = (theta_c, theta_s), for clients with both parts and no gradient."""

    at_cut = False

    def __init__(self, problem: Split) -> None:
        self.problem, self.flat = problem, Joined(problem)
        self.travels = self.held = self.flat.n

    def __call__(self, smashed: Tensor, target: Tensor) -> Tensor:
        """() the network's mean loss on the labels, in a pass without a graph."""
        return self.problem.forward_loss(smashed, target)


OwnLoss = HeadLoss | CutLoss
"""Losses of clients that hold only the first layers."""
Loss = OwnLoss | NetworkLoss


@final
class Joined:
    """The client's and the server's part as a function of (theta_c, theta_s) and (b_l, b_s): a `Flat`."""

    def __init__(self, problem: Split) -> None:
        self._problem = problem
        self.n = problem.n_client + problem.server_side.n
        self.b = problem.client_side.b + problem.server_side.b
        self._halves: dict[int, tuple[weakref.ref[Tensor], Tensor, Tensor]] = {}  # for vectors that still exist

    def initial(self) -> tuple[Tensor, Tensor]:
        """Initial parameters (n,) and buffers (b,) of the modules."""
        (theta, buffers), (theta_s, buffers_s) = self._problem.client_side.first, self._problem.server_side.first
        return torch.cat([theta[: self._problem.n_client], theta_s]), torch.cat([buffers, buffers_s])

    @cached_property
    def places(self) -> dict[int, slice]:
        """{id of a parameter: its slice of theta}."""
        n, problem = self._problem.n_client, self._problem
        client, server = problem.client_side.places(), problem.server_side.places()
        places = {key: part for key, (part, _) in client.items() if part.stop <= n}
        return places | {key: slice(n + part.start, n + part.stop) for key, (part, _) in server.items()}

    @contextmanager
    def bound_to(self, theta: Tensor, buffers: Tensor | None = None, running: bool = False) -> Iterator[list[Any]]:
        """See `problems.flat.Flat.bound_to`; the auxiliary head stays empty."""
        problem, b, key = self._problem, self._problem.client_side.b, id(theta)
        if key not in self._halves:  # kept alive, since `Flat` caches the views of each
            first, last = theta.data.tensor_split([problem.n_client])
            self._halves[key] = weakref.ref(theta, lambda _: self._halves.pop(key, None)), first, last
        _, first, last = self._halves[key]
        client, server = (None, None) if buffers is None else (buffers[:b], buffers[b:])
        with (
            problem.client_side.bound_to(first, client, running) as below,
            problem.server_side.bound_to(last, server, running) as top,
        ):
            yield [*below, *top]


def _products(slope: Tensor, smashed: Tensor) -> Tensor:
    """(B, *smashed_shape) entry by entry, in float32 or better."""
    wide = torch.promote_types(smashed.dtype, torch.float32)
    return smashed.to(wide) * slope.to(wide)


# --- a local step


class Key(NamedTuple):
    """The random numbers of one local step, by purpose."""

    streams: Streams
    r: int = 0
    i: int = 0
    t: int = 0

    def __call__(self, purpose: Purpose) -> np.random.Generator:
        return self.streams(purpose, *self[1:])


@dataclass
class Point:
    """A local step's forward pass at the model itself, as far as the step's rule needs it."""

    x: Tensor  # its inputs
    smashed: Tensor | None = None  # with a graph if a backward pass follows
    loss: Tensor | None = None  # () if the target is known
    gradient: Tensor | None = None  # gradient of an exact rule's part, if the pass computes it too
    strides: tuple[int, ...] = ()  # shape and strides of the smashed samples, once uploaded

    def upload(self, labels: Tensor, keep: bool = True) -> Smashed:
        """The message to the server, without the graph; `keep`: True if the step still needs the smashed samples."""
        smashed = cast("Tensor", self.smashed)
        self.smashed, self.strides = smashed if keep else None, smashed.stride()
        return Smashed(smashed.detach(), labels)

    def laid_out(self, slope: Tensor) -> Tensor:
        """A gradient at the uploaded samples, with their strides: a message on the host loses them.

        Different strides make a ReLU's backward pass take torch 40 times as long.
        """
        if slope.stride() == self.strides:
            return slope
        return torch.empty_strided(slope.shape, self.strides, dtype=slope.dtype, device=slope.device).copy_(slope)


class Gradient(NamedTuple):
    """A local step's direction, and the scalars from which the server can replay it."""

    parts: tuple[Tensor | None, ...]  # (d_j,) for each of the rule's parts of theta; None: that part stays unchanged
    differences: Sequence[Tensor] = ()  # () differences of losses, one per direction


@final
class LocalSteps:
    """A client's model during its local steps of a round; updated in place.

    The modules keep nothing between calls: clients of one process take turns. Losses stay on their device until the
    round ends: a transfer for each would stall a GPU.
    """

    def __init__(
        self,
        training: Training,
        client: Client,
        message: Model,
        loss: Loss,
        parts: Sequence[slice],
        scalars: int = 0,
        moves: bool = True,
    ) -> None:
        """`message.theta` may be theta's first entries only, where no step depends on the others.

        Args:
            parts: of theta, each of which steps with moments of its own.
            scalars: of each step, that go up in place of the model; 0: the model does.
            moves: whether there are steps; else the model is the message's, all of theta, and no copy.
        """
        self.training, self.client, self.r, self.loss = training, client, message.r, loss
        self.problem, self.parts, self.scalars = loss.problem, parts, scalars
        theta, self.buffers = self.problem.to_device(message.theta), self.problem.to_device(message.buffers).clone()
        self.theta = theta
        if moves:
            theta = theta[: loss.held]
            self.theta = theta.new_zeros(loss.held)
            self.theta[: len(theta)] = theta
        self.scratch = self.buffers.clone()
        names = ("moments", "exact_moments")[: len(parts)]
        self.moments = [moments_of(training, client, message, name) for name in names]
        self.total, self.count = self.theta.new_zeros((), dtype=torch.float64), 0  # losses of the steps
        self.moved = 0
        self.differences: list[Tensor] = []
        self.rounding = 8 * float(torch.finfo(theta.dtype).eps)  # relative to a loss
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self.ahead: dict[int, list[Tensor]] = {}  # directions of later steps, by step

    def __iter__(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(q, inputs, labels) of each local step."""
        for q, positions in enumerate(self.training.batches(self.client.i, self.r)):
            yield q, *self.inputs(positions, q)

    def inputs(self, positions: Batch, q: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of step q, on the device; randomly changed with --augment."""
        x, labels = self.problem.samples(self.client.data, positions)
        x, kind = self.problem.sensed(x, self.client.i), self.training.augment
        return x if kind == "none" else self.problem.augmentation(kind)(x, self.key(q)(Purpose.AUGMENT)), labels

    def key(self, q: int) -> Key:
        """The random numbers of step q."""
        return Key(self.training.setting.streams, self.r, self.client.i, q)

    def drawn(self, draw: Callable[[Key], Iterable[Tensor]], key: Key, size: int) -> Iterable[Tensor]:
        """draw(key), of `size` bytes; if small, drawn together with those of the next steps.

        A small draw between two passes takes three times as long: the processor's caches hold other code.
        """
        count = min(AHEAD // max(1, size), self.training.steps(self.client.i) - key.t)
        if key.t not in self.ahead and count > 1:
            self.ahead = {key.t + k: list(draw(key._replace(t=key.t + k))) for k in range(count)}
        return self.ahead.pop(key.t, None) or draw(key)

    # --- passes

    @cached_property
    def perturbed_theta(self) -> Tensor:
        """(n,) memory for a perturbed point."""
        return torch.empty_like(self.theta)

    def bound_to(self, buffers: Tensor) -> AbstractContextManager[list[Any]]:
        """Context manager: binds the modules to this client's theta, with these buffers (b,)."""
        return self.loss.flat.bound_to(self.theta, buffers, self.training.running)

    def unmoved(self) -> Tensor:
        """Buffers (b,) for further passes: a copy, unless these passes may move the statistics or move none."""
        return self.scratch.copy_(self.buffers) if self.training.batchnorm == "batch" else self.buffers

    def forward(self, x: Tensor, labels: Tensor) -> Point:
        """The pass at the model itself, without a graph; moves BatchNorm's running statistics."""
        with torch.no_grad(), self.bound_to(self.buffers):
            smashed = self.problem.smash(x)
            loss = None if self.loss.at_cut else self.loss(smashed, labels)
        self.record(loss)
        return Point(x, smashed, loss)

    def perturbed(self, x: Tensor, target: Tensor, u: Tensor, mu: float) -> Tensor:
        """() the loss at theta + mu u, for u of the first part; computed at a separate point, the model stays."""
        if len(u) == len(self.theta):
            torch.add(self.theta, u, alpha=mu, out=self.perturbed_theta)
        else:
            self.perturbed_theta.copy_(self.theta)[self.parts[0]].add_(u, alpha=mu)
        with torch.no_grad(), self.loss.flat.bound_to(self.perturbed_theta, self.unmoved(), self.training.running):
            return self.loss(self.problem.smash(x), target)

    # --- losses and steps

    def record(self, loss: Tensor | None) -> None:
        """Add a step's loss () to the running mean."""
        if loss is not None:
            self.total, self.count = self.total + loss, self.count + 1

    def compare(self, plus: Tensor, other: Tensor) -> None:
        """Record pairs of losses; `done` warns if many differences are rounding noise (a few are, at any radius)."""
        self.pairs.append((plus, other))

    def step(self, gradient: Gradient) -> None:
        """Move each part of the model by the optimiser's step along its gradient."""
        size = self.training.client_size(self.r, self.client.i, self.moved)
        for part, g, moments in zip(self.parts, gradient.parts, self.moments, strict=True):
            if g is not None:
                self.training.optimiser.step(self.theta[part], g, moments, size)
        self.differences += gradient.differences
        self.moved += 1

    def mean_loss(self) -> float | None:
        """Mean of the steps' losses; warns where their differences were rounding."""
        self._warn()
        return float(self.total) / self.count if self.count else None

    def done(self) -> Trained | Reply[Trained, Update]:
        """End the round: a client's own part stays in its memory, else the model goes up, or scalars in its place."""
        loss, theta, memory = self.mean_loss(), self.theta[: self.loss.travels], self.client.memory
        if self.training.own_parts:
            memory.update(theta=theta.clone(), buffers=self.buffers)
            return Trained(loss)
        moments = memory.pop("moments") if self.training.state == "average" else {}
        if not self.scalars:
            return Reply(Trained(loss), Update(theta, self.buffers, moments))
        found = torch.stack(self.differences) if self.differences else self.theta.new_zeros(0)
        differences = found.double().cpu().numpy().reshape(-1, self.scalars)  # (h, n_p) on the host
        last = theta[self.parts[1]] if len(self.parts) > 1 else theta[:0]
        return Scalars(loss, differences, self.buffers, last.clone(), self.problem.arithmetic)

    def _warn(self) -> None:
        """Warn, once per process, if most differences of losses were rounding noise."""
        if _warned or not self.pairs:
            return
        plus, other = (torch.cat([loss.reshape(-1) for loss in losses]) for losses in zip(*self.pairs, strict=True))
        vague = int(((plus - other).abs() <= self.rounding * plus.abs().maximum(other.abs())).sum())
        if 2 * vague <= len(plus):
            return
        _warned.append(True)
        dtype = np.dtype(self.training.setting.dtype)
        warn(
            f"{vague} of {len(plus)} losses of a perturbed pass differ from the other loss of their step by less than "
            f"{self.rounding:.1g} of their size, which is rounding in {dtype}: take a larger --mu"
            f"{', or --dtype float64' if dtype == np.float32 else ''}"
        )


# --- what a client gets, and keeps between rounds


def at_a_line(vector: Tensor) -> Tensor:
    """The vector at an aligned address, on which rounding depends (`problems.flat`); maybe a copy."""
    return vector.clone() if vector.data_ptr() % 64 else vector


def moments_of(training: Training, client: Client, message: Model, name: str) -> dict[str, Any]:
    """The client's optimiser state, stored in its memory under that name; only `moments` is ever averaged."""
    if training.state == "average":
        client.memory[name] = copied(message.moments)
    elif training.state == "reset" or name not in client.memory:
        client.memory[name] = {}
    return client.memory[name]  # type: ignore[no-any-return]


# --- directions


def drawn(
    seed: np.random.Generator, like: Tensor, count: int, distribution: str, draw: Draw = "device"
) -> Iterator[Tensor]:
    """Yields `count` directions u (d,) of the dtype of `like` (d,), on its device; see `estimates.Estimation`.

    From the host they travel through pinned memory: the host draws for the next step while a GPU takes one.
    """
    generator, d = generator_of(seed, like, draw), like.numel()
    for _ in range(count):
        u = random_values(d, generator, like, distribution)
        if "sphere" in distribution:
            norm = torch.linalg.vector_norm(u, dtype=torch.float64)
            u.mul_(norm.reciprocal_().mul_(math.sqrt(d) if distribution == "sqrt_d_sphere" else 1.0))
        yield u.to(like.device, non_blocking=True)


def random_values(count: int, generator: torch.Generator, like: Tensor, distribution: str) -> Tensor:
    """(count,) independent numbers of mean 0 and variance 1, on the generator's device: normal, or random signs."""
    place, pinned = generator.device, generator.device != like.device
    if distribution != "rademacher":
        return torch.randn(count, generator=generator, device=place, dtype=like.dtype, pin_memory=pinned)
    words = torch.empty(-(-count // 64), device=place, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    # each bit, moved to the front
    signs = words.view(torch.int32)[:, None] << torch.arange(32, device=place, dtype=torch.int32)
    ones = signs.bitwise_and_(-(2**31)).bitwise_or_(0x3F800000).view(torch.float32)  # 1.0 is 0x3F800000
    u = ones.flatten()[:count].to(like.dtype)
    return u.pin_memory() if pinned else u


def generator_of(seed: np.random.Generator, like: Tensor, draw: Draw) -> torch.Generator:
    """torch's generator of the device of `like`, or of the host."""
    return seed_torch(torch.Generator(like.device if draw == "device" else "cpu"), seed)
