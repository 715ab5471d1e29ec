"""What the split methods cost: the lines of --dry-run, and those that the result keeps too."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, final

import numpy as np

from zofl_mpi.problems import Split, optional
from zofl_mpi.rounds.split.training import Training
from zofl_mpi.rounds.split.uploads import Uploads

STEP_MACS = "multiply-accumulates of a client's step"
STEP_BYTES = "peak bytes of a client's step, beyond its model"
STEP_COUNTED = STEP_MACS + ", its backward pass as computed"
AGAIN = ", if it computes its blocks again"
"""That is, if it keeps of its blocks what goes in alone, and computes each anew in the backward pass."""
PARTS, HEADS, SMASHED = "the clients' parts", "auxiliary heads", "smashed samples"
GRADIENTS, LABELS, NUMBERS = "gradients at the cut", "labels", "rounds and losses"
"""Kinds of bytes that sums name; `Traffic.of` names the others."""
if TYPE_CHECKING:
    from zofl_mpi.rounds.split.measured import Around

Lines = dict[str, str | float]
"""Numbers, or words, by what they are."""


class LocalStep(NamedTuple):
    """A client's local step."""

    kind: Literal["forward", "head", "slope", "auxiliary", "cut"]
    """What it computes, as `measured.peak_bytes` calls it: no backward pass (from the auxiliary loss, with the head's
    gradient or without, or along what the server returned), one from the auxiliary loss, or one from the cut."""
    forwards: int | str = 1
    """Its forward passes; in words where steps differ."""
    signed: int = 0
    """Those of them that take each layer's products twice: with its parameters, and with a direction."""
    heads: int = 0
    """Further products that cost what the head's do in a forward pass."""
    layers: int = 0
    """How many of the client's last layers have a backward pass; with "head" the head too."""
    abreast: int = 1
    """Perturbed passes that are computed as one."""

    @property
    def backwards(self) -> int:
        """Its backward passes, each of which costs as much as two forward passes."""
        return int(self.kind in ("auxiliary", "cut"))


@final
@dataclass(frozen=True)
class Traffic:
    """What travels between the server and the clients of a method.

    Attributes:
        training: the round.
        head: whether the auxiliary head trains, and travels with the client's part.
        returned: whether the server sends a gradient back for each upload.
        scalars: numbers of each local step that go up in place of the model; None where the model itself does.
        whole: whether clients hold the whole network: nothing but scalars travels, down those of each round since a
            participant's last one, and BatchNorm's statistics.
        exact: numbers of theta_l, the last of those that travel, that come up as they are beside scalars.
        aligned: rounds from one in which each participant gets a new head to the next; 0: it never does.
    """

    training: Training
    head: bool = True
    returned: bool = False
    scalars: int | None = None
    exact: int = 0
    aligned: int = 0
    whole: bool = False

    def of(self, r: int, i: int) -> dict[str, tuple[int, int]]:
        """{kind: bytes (down, up)} of participant i in round r."""
        client, head, statistics, moments = self._sizes
        aligns = self.aligned > 0 and r % self.aligned == 0
        dense, each = self.scalars is None, 8 * (self.scalars or 0) * self.training.steps(i)
        exact = self.exact * int(np.dtype(self.training.setting.dtype).itemsize)
        last = min(exact, head) if self.head else 0
        own = exact - last
        smashed, labels = (0, 0) if self.whole else self._uploads.of(r, i)
        missed = r - self.training.latest(r).get(i, 0) if self.whole else 0
        return {
            PARTS: (client, client if dense else own),
            HEADS: ((self.head or aligns) * head, self.head * (head if dense else last)),
            "BatchNorm's statistics": (statistics, statistics),
            "the optimisers' moments": (moments, dense * moments),
            "scalars in place of models": (missed * each, each),
            SMASHED: (0, smashed),
            GRADIENTS: (self.returned * smashed, 0),
            LABELS: (0, labels),
            NUMBERS: (8, 8),
        }

    def total(self, rounds: int) -> dict[str, int]:
        """{kind: bytes, both ways} of all participants in so many rounds."""
        sums: dict[str, int] = {}
        for r in range(rounds):
            for i in self.training.participants(r):
                for kind, ways in self.of(r, i).items():
                    sums[kind] = sums.get(kind, 0) + sum(ways)
        return sums

    @cached_property
    def _sizes(self) -> tuple[int, int, int, int]:
        """Bytes of a client's part, of a head, of BatchNorm's statistics, and of a client's optimiser state, as they
        travel where they do."""
        training, problem = self.training, self.training.problem
        itemsize, client = int(np.dtype(training.setting.dtype).itemsize), problem.n_client
        if self.whole:
            return 0, 0, (problem.local.b + problem.top.b) * itemsize, 0
        part, moments = training.trainable(self.head), 0
        if training.state == "average":
            moments = training.rule.memory_bytes(part.stop - part.start, itemsize)
        return client * itemsize, (problem.local.n - client) * itemsize, problem.local.b * itemsize, moments

    @cached_property
    def _uploads(self) -> Uploads:
        return Uploads(self.training)


def plan_of(traffic: Traffic, rounds: int, step: LocalStep) -> Lines:
    """The lines of --dry-run: sizes, bytes of the first round and of all, passes of a local step."""
    training, problem = traffic.training, traffic.training.problem
    to, usual = training.participants(0), replace(traffic, aligned=0)
    down, up = (sum(ways[k] for kind, ways in usual.of(0, 0).items() if kind != LABELS) for k in (0, 1))
    first = usual.total(1)
    signed = {"of these, with twice the products": step.signed} if step.signed else {}
    abreast = {"perturbed passes that are computed as one": step.abreast} if step.abreast > 1 else {}
    layers = {"the client's layers with a backward pass": step.layers} if step.layers else {}
    return {
        "kernel": training.kernel,
        "parameters of client, auxiliary, server": " ".join(map(str, [*problem.local.sizes(), problem.top.n])),
        "a smashed sample": " x ".join(map(str, problem.smashed_shape)),
        "clients, participants in a round": f"{training.setting.m}, {len(to)}",
        "local steps of a round, client 0": training.steps(0),
        "bytes down, client 0, a round": down,
        "bytes up, client 0, a round": up,
        "bytes down and up, all clients, a round": sum(first.values()) - first[LABELS],
        "bytes of labels, all clients, a round": first[LABELS],
        **_gibibytes(traffic, rounds),
        "forward passes of a local step": step.forwards,
        **signed,
        **abreast,
        "backward passes of a local step": step.backwards,
        **layers,
    }


def _gibibytes(traffic: Traffic, rounds: int) -> Lines:
    """Lines of --dry-run: what travels in all rounds, by kind, and in the sums that [C] prints."""
    kinds = traffic.total(rounds)
    bare = sum(kinds[kind] for kind in (PARTS, SMASHED, GRADIENTS))
    lines = {kind: size for kind, size in kinds.items() if kind != NUMBERS}
    lines |= {
        "as [C] counts, without heads": bare,
        "as [C] counts, with heads": bare + kinds[HEADS],
        "all but labels": sum(kinds.values()) - kinds[LABELS],
    }
    shown = {name: size / 2**30 for name, size in lines.items()}
    return {
        f"GiB in {rounds} rounds: {name}": f"{size:.3f} ({size / rounds:.5g} a round)" for name, size in shown.items()
    }


def costs_of(training: Training, step: LocalStep, around: Around | None = None, exact: slice | None = None) -> Lines:
    """What a step costs, measured: multiply-accumulates, and bytes live at once. Kept in the result, and in --dry-run.

    A backward pass counts as two forward passes, but where a line says that it is counted as it is computed.

    Args:
        around: what the passes of an estimate do besides: signs, tangents, or several points at once.
        exact: what of theta_l has a backward pass of its own.
    """
    from zofl_mpi.rounds.split.measured import backward_macs, macs, peak_bytes

    client, auxiliary, server_part = macs(training.problem)
    head = step.heads * auxiliary * training.batch
    if exact is not None:
        head += backward_macs(training.problem, step.kind, exact) * training.batch
    each = (client if step.kind in ("slope", "cut") else client + auxiliary) * training.batch
    what, passes = "multiply-accumulates of each of a client's forward passes", 1.0
    if not isinstance(step.forwards, str):
        what, passes = STEP_MACS, step.forwards + step.signed + 2 * step.backwards
    return {
        "multiply-accumulates of a sample at the client": round(client),
        "multiply-accumulates of a sample in the head": round(auxiliary),
        "multiply-accumulates of a sample at the server": round(server_part),
        what: round(passes * each + head),
        "multiply-accumulates of the server's step": round(3 * server_part * training.batch),
        STEP_BYTES: peak_bytes(training.problem, training.batch, step.kind, around=around, exact=exact),
        **(_backward_costs(training, step.kind) if step.backwards else {}),
    }


def _backward_costs(training: Training, kind: str) -> Lines:
    """What a step with a backward pass costs as torch computes it, and with less memory: if it computes blocks again.

    Beside clients without a backward pass stands this one, not the plain one, where memory is short.
    """
    from zofl_mpi.rounds.split.measured import peak_bytes, step_macs

    problem, batch = training.problem, training.batch
    lines: Lines = {STEP_COUNTED: round(step_macs(problem, kind) * batch)}
    if optional.blocks(problem):
        lines[STEP_COUNTED + AGAIN] = round(step_macs(problem, kind, recompute=True) * batch)
        lines[STEP_BYTES + AGAIN] = peak_bytes(problem, batch, kind, recompute=True)
    return lines


def whole_costs(training: Training, problem: Split, step: LocalStep, around: Around | None = None) -> Lines:
    """The same for a client that holds the whole network.

    Args:
        problem: that of `training` as one part; see `whole.whole`.
        step: without a backward pass.
        around: see `costs_of`.
    """
    from zofl_mpi.rounds.split.measured import macs, peak_bytes

    client, _, server_part = macs(training.problem)
    return {
        "multiply-accumulates of a sample at the client": round(client + server_part),
        STEP_MACS: round(float(step.forwards) * (client + server_part) * training.batch),
        STEP_BYTES: peak_bytes(problem, training.batch, step.kind, around=around),
    }
