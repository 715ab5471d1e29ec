"""Costs of split methods: bytes that travel; measured passes, products and memory of a client's step."""

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar, final

import numpy as np

from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.problems import Split
from zofl_mpi.problems.saving import recomputing
from zofl_mpi.rounds.split.client import HeadLoss, Loss, NetworkLoss
from zofl_mpi.rounds.split.rules import GradientRule, Lines, StepCost
from zofl_mpi.rounds.split.training import Training

C = TypeVar("C", bound=AbstractContextManager[Any])
SAMPLE_MACS = "multiply-accumulates of a sample at the client"
STEP_MACS = "multiply-accumulates of a client's step"
PASS_MACS = "multiply-accumulates of each of a client's forward passes"
STEP_BYTES = "peak bytes of a client's step, beyond its model"  # of its passes, as in [C]'s Table II: see `peak_bytes`
WITHOUT = ", without --client-memory"
STEP_COUNTED = STEP_MACS + ", its backward pass as computed"
RECOMPUTED = ", if it computes its blocks again"  # gradient checkpointing
PARTS, HEADS, SMASHED = "the clients' parts", "auxiliary heads", "smashed samples"
SCALARS, GRADIENTS = "scalars in place of models", "gradients at the cut"
LABELS, NUMBERS = "labels", "rounds and losses"


@final
@dataclass(frozen=True)
class Traffic:
    """Messages between the server and the clients of a method."""

    training: Training
    head: bool = True  # True if the auxiliary head trains and travels with the client's part
    returned: bool = False  # True if the server returns a gradient for each upload
    scalars: int = 0  # numbers per local step sent up in place of the model; 0: the model is sent
    last: int = 0  # last entries of theta_l that are sent up beside scalars
    aligned: int = 0  # each participant receives a new head every so many rounds; 0: never
    unsplit: bool = False  # clients hold both parts: scalars travel, down those of all rounds since a client's last
    losses: bool = True  # True if a client's steps compute a loss and send its mean
    sums: tuple[int, int] | None = None  # bytes (down, up) of sums that replace the scalars of steps
    _clients: dict[int, tuple[int, int]] = field(default_factory=dict, init=False, compare=False)  # by client

    def of(self, r: int, i: int) -> dict[str, tuple[int, int]]:
        """{kind: bytes (down, up)} of participant i in round r."""
        client, head, statistics, moments = self._sizes
        dense, each = not self.scalars, 8 * self.scalars * self.training.steps(i)
        densely = self.last * int(np.dtype(self.training.setting.dtype).itemsize)
        of_head = min(densely, head) if self.head else 0
        smashed, labels = (0, 0) if self.unsplit else self._uploads(r, i)
        missed = r - self.training.latest(r).get(i, 0) if self.unsplit else 0
        return {
            PARTS: (client, client if dense else densely - of_head),
            HEADS: ((self.head or self.aligns(r)) * head, self.head * (head if dense else of_head)),
            "BatchNorm's statistics": (statistics, statistics),
            "the optimisers' moments": (moments, dense * moments),
            SCALARS: self.sums or (missed * each, each),
            SMASHED: (0, smashed),
            GRADIENTS: (self.returned * smashed, 0),
            LABELS: (0, labels),
            NUMBERS: (8, 8 * self.losses),
        }

    def aligns(self, r: int) -> bool:
        """True if the participants of round r receive new heads during it."""
        return self.aligned > 0 and r % self.aligned == 0

    def total(self, rounds: int) -> Counter[str]:
        """{kind: bytes, both ways} of all participants in the first `rounds` rounds."""
        training, sums = self.training, Counter[str]()
        # then round 0 stands for all rounds with new heads, round 1 for all others
        alike = training.problem.equal_sizes and not self.unsplit
        like = [int(r % max(1, self.aligned) > 0) if alike else r for r in range(rounds)]
        cases = Counter((like[r], i) for r in range(rounds) for i in training.participants(r))
        for (stands, i), times in cases.items():
            sums.update({kind: times * sum(ways) for kind, ways in self.of(stands, i).items()})
        return sums

    @cached_property
    def _sizes(self) -> tuple[int, int, int, int]:
        """Bytes of a client's part, a head, BatchNorm's statistics, and a client's moments if they travel."""
        training, problem = self.training, self.training.problem
        itemsize, client = int(np.dtype(training.setting.dtype).itemsize), problem.n_client
        if training.own_parts:
            return 0, 0, 0, 0
        if self.unsplit:
            return 0, 0, (problem.client_side.b + problem.server_side.b) * itemsize, 0
        part, moments = training.trainable(self.head), 0
        if training.state == "average":
            moments = training.optimiser.memory_bytes(part.stop - part.start, itemsize)
        return client * itemsize, (problem.client_side.n - client) * itemsize, problem.client_side.b * itemsize, moments

    def _uploads(self, r: int, i: int) -> tuple[int, int]:
        """Bytes of client i's smashed samples and labels in round r; constant if samples have one size."""
        training, problem, data = self.training, self.training.problem, self.training.setting.data[i]
        if i not in self._clients or not problem.equal_sizes:
            sent = [batch for q, batch in enumerate(training.batches(i, r)) if training.uploads(q)]
            smashed = sum(problem.upload_bytes(data, batch) for batch in sent)
            self._clients[i] = smashed, sum(problem.label_bytes(data, batch) for batch in sent)
        return self._clients[i]


def plan_of(traffic: Traffic, rounds: int, step: StepCost) -> Lines:
    """The lines of --dry-run: sizes, bytes of the first round and of all, passes of a local step."""
    training, problem = traffic.training, traffic.training.problem
    to, usual = training.participants(0), replace(traffic, aligned=0)
    down, up = (sum(ways[k] for kind, ways in usual.of(0, 0).items() if kind != LABELS) for k in (0, 1))
    first = usual.total(1)
    sizes = [*problem.client_side.sizes(), problem.server_side.n]
    forwards = f"{step.forwards}, and 1 more where it is uploaded" if step.on_upload else step.forwards
    signed = {"of these, with twice the products": step.signed} if step.signed else {}
    layers = {"the client's layers with a backward pass": step.layers} if step.layers else {}
    return {
        "kernel": problem.kernel_name(training.batch),
        "parameters of client, auxiliary, server": " ".join(map(str, sizes)),
        "a smashed sample": " x ".join(map(str, problem.smashed_shape)),
        "clients, participants in a round": f"{training.setting.m}, {len(to)}",
        "local steps of a round, client 0": training.steps(0),
        "bytes down, client 0, a round": down,
        "bytes up, client 0, a round": up,
        "bytes down and up, all clients, a round": first.total() - first[LABELS],
        "bytes of labels, all clients, a round": first[LABELS],
        **_gibibytes(traffic, rounds),
        "forward passes of a local step": forwards,
        **signed,
        "backward passes of a local step": step.backwards,
        **layers,
    }


def _gibibytes(traffic: Traffic, rounds: int) -> Lines:
    """Lines of --dry-run: bytes of all rounds, by kind and by the sums that [C] prints."""
    kinds = traffic.total(rounds)
    bare = sum(kinds[kind] for kind in (PARTS, SMASHED, GRADIENTS))
    lines = {kind: size for kind, size in kinds.items() if kind != NUMBERS}
    lines |= {
        "as [C] counts, without heads": bare,
        "as [C] counts, with heads": bare + kinds[HEADS],
        "all but labels": kinds.total() - kinds[LABELS],
    }
    sizes = {name: size / 2**30 for name, size in lines.items()}
    label = f"GiB in {rounds} rounds"
    return {f"{label}: {name}": f"{size:.3f} ({size / rounds:.5g} a round)" for name, size in sizes.items()}


def costs_of(training: Training, loss: Loss, rule: GradientRule) -> Lines:
    """Measured costs of a step: multiply-accumulates (a backward pass counts twice), bytes of its passes."""
    step, batch = rule.cost(loss), training.batch
    client, auxiliary, server_part = macs(training.problem)
    merged = min(training.merge, len(training.participants(0)))
    own, further = work_of(loss, rule)
    label, each = (PASS_MACS, further) if further else (STEP_MACS, own)
    lines: Lines = {
        SAMPLE_MACS: round(client),
        "multiply-accumulates of a sample in the head": round(auxiliary),
        "multiply-accumulates of a sample at the server": round(server_part),
        label: round(each * batch),
        "multiply-accumulates of the server's step": round(3 * server_part * batch * merged),
        STEP_BYTES: peak_bytes(loss, rule, batch),
    }
    if step.backwards:
        lines[STEP_COUNTED] = round(step_macs(loss, rule) * batch)
    if step.backwards and loss.problem.blocks and step.plain is None and rule.pieces == 1:
        with recomputing(loss.problem.blocks):
            lines[STEP_COUNTED + RECOMPUTED] = round(step_macs(loss, rule) * batch)
            lines[STEP_BYTES + RECOMPUTED] = peak_bytes(loss, rule, batch)
    return lines


# --- measured


def work_of(loss: Loss, rule: GradientRule) -> tuple[float, float]:
    """Multiply-accumulates of a sample in a client's step, and further ones if its smashed samples are uploaded."""
    step, (client, auxiliary, server) = rule.cost(loss), macs(loss.problem)
    if isinstance(loss, NetworkLoss):
        return step.forwards * (client + server), 0.0
    forward, further = client if loss.at_cut else client + auxiliary, step.heads * auxiliary
    if step.last:
        further += step_macs(loss, step.last) - forward  # its backward pass
    if step.plain:
        further += step_macs(loss, rule) - step_macs(loss, step.plain)  # the blocks a second time
    passes = step.forwards + step.signed + 2 * step.backwards
    return passes * forward + further, step.on_upload * forward


def macs(problem: Split) -> tuple[float, float, float]:
    """Multiply-accumulates of a forward pass of one sample, [C]'s "FLOPs": client, auxiliary, server."""
    from zofl_mpi.problems.counting import Products

    theta, buffers, x, labels = _example(HeadLoss(problem), 2)
    theta_s, buffers_s = (t.to(problem.device) for t in problem.server_side.initial())
    with (
        torch.no_grad(),
        problem.client_side.bound_to(theta, buffers),
        problem.server_side.bound_to(theta_s, buffers_s),
    ):
        with Products() as client:
            smashed = problem.smash(x)
        with Products() as auxiliary:
            problem.local_loss(smashed, labels)
        with Products() as server:
            problem.server_loss(smashed, labels)
    return client.flops / 2 / len(x), auxiliary.flops / 2 / len(x), server.flops / 2 / len(x)


def step_macs(loss: Loss, rule: GradientRule) -> float:
    """Multiply-accumulates of a client's step on one sample, with the backward pass as computed.

    With frozen weights, as in LoRA, a backward pass needs about as many as the forward pass, not twice as many.
    """
    from zofl_mpi.problems.counting import Products

    return float(_counted(loss, rule, 2, Products(), _trial).flops / 2 / 2)


def held_bytes(loss: Loss, rule: GradientRule, batch: int, rehearse: Callable[..., None]) -> int:
    """Peak bytes of a client's device in a step on a mini-batch, computed by a run's own code.

    Counted: weights (frozen ones too), BatchNorm's statistics, the mini-batch, activations, gradients, directions,
    perturbed points and the optimiser's moments. Not counted: kernels' workspaces, the rest of the client's data, code.

    Args:
        rehearse: (rule, theta, buffers, inputs, labels) takes steps on such a mini-batch, equal from the second on;
            theta is the message that the client's model, which is counted, copies.
    """
    labels = _example(loss, 1)[3].nbytes * batch
    return frozen_bytes(loss) + labels + _most(loss, rule, batch, lambda loss, *step: rehearse(*step))


def frozen_bytes(loss: Loss) -> int:
    """Bytes that a client holds beside theta and its statistics: frozen weights and constants."""
    local, top = loss.problem.client_side, loss.problem.server_side
    held = [(local, local.modules if loss.held > loss.problem.n_client else local.modules[:1])]
    if isinstance(loss, NetworkLoss):
        held = [(local, local.modules[:1]), (top, top.modules)]
    each = {t.data_ptr(): t.nbytes for flat, modules in held for t in flat.constants(modules)}
    return sum(each.values())  # a tied weight counts once


def peak_bytes(loss: Loss, rule: GradientRule, batch: int) -> int:
    """Bytes live at once in the passes of a client's step: inputs, activations, gradients."""
    return _most(loss, rule, batch, _trial)


def _most(loss: Loss, rule: GradientRule, batch: int, work: Callable[..., None]) -> int:
    """Peak bytes that `work` on a mini-batch allocates, and the bytes of its inputs.

    On a GPU its allocator counts; otherwise torch's tensors are counted. Runs on 2 and on 3 samples extrapolate to any
    number, since each tensor's size is linear in it; if these two runs differ in their tensors, the mini-batch itself
    is run. Chunked computation uses the chunk count of the full batch (`Split.pieces_like_batch_of`), at most one
    chunk too much. A mini-batch in pieces has as many samples in each.
    """
    problem, pieces = loss.problem, rule.pieces
    if torch.device(problem.device).type == "cuda":
        from zofl_mpi.engine.device import allocated

        example = _example(loss, batch)
        return example[2].nbytes + int(allocated(problem.device, lambda: work(loss, rule, *example)))
    from zofl_mpi.problems.counting import Allocations

    peak, each = None, -(-batch // pieces)
    if each > 1 and batch % pieces == 0:
        with problem.pieces_like_batch_of(each):
            two, three = (_counted(loss, rule, count * pieces, Allocations(), work) for count in (2, 3))
        peak = _peak(two.events, three.events, each)
    inputs = _example(loss, 1)[2].nbytes * batch
    return inputs + (_counted(loss, rule, batch, Allocations(), work).peak if peak is None else peak)


def _example(loss: Loss, batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """theta, its buffers, inputs and labels."""
    theta, buffers = (t.to(loss.problem.device) for t in loss.flat.initial())
    return theta, buffers, *loss.problem.example(batch)


def _counted(loss: Loss, rule: GradientRule, batch: int, counter: C, work: Callable[..., None]) -> C:
    """The counter after `work` on `batch` samples."""
    example = _example(loss, batch)
    with counter:
        work(loss, rule, *example)
    return counter


def _peak(two: list[tuple[int, int]], three: list[tuple[int, int]], batch: int) -> int | None:
    """Peak bytes with `batch` samples, extrapolated from the events with 2 and 3; None if these do not match."""
    if [(k, size > 0) for k, size in two] != [(k, size > 0) for k, size in three]:
        return None
    sizes = (a + (b - a) * (batch - 2) for (_, a), (_, b) in zip(two, three, strict=True))
    return max(itertools.accumulate(sizes), default=0)


def _trial(loss: Loss, rule: GradientRule, theta: Tensor, buffers: Tensor, x: Tensor, labels: Tensor) -> None:
    """Compute a step's passes as the rule takes them."""
    with loss.flat.bound_to(theta, buffers):
        rule.trial(loss, theta, x, labels)
