"""The costs of split methods: bytes that travel, passes, products, memory. --dry-run prints them, results keep some."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.problems import Batch
from zofl_mpi.rounds.split.losses import Loss
from zofl_mpi.rounds.split.rules import Backprop, GradientRule, Lines, StepCost, Tail
from zofl_mpi.rounds.split.training import Training

STEP_MACS = "multiply-accumulates of a client's step"
STEP_BYTES = "peak bytes of a client's step, beyond its model"
STEP_COUNTED = STEP_MACS + ", its backward pass as computed"
AGAIN = ", if it computes its blocks again"
"""Gradient checkpointing: it keeps the inputs of its blocks alone, and computes each anew in the backward pass."""
PARTS, HEADS, SMASHED = "the clients' parts", "auxiliary heads", "smashed samples"
GRADIENTS, LABELS, NUMBERS = "gradients at the cut", "labels", "rounds and losses"
"""Kinds of bytes that sums name; `Traffic.of` names the others."""


@final
@dataclass(frozen=True)
class Traffic:
    """Messages between the server and the clients of a method.

    Attributes:
        training: the round.
        head: whether the auxiliary head trains, and travels with the client's part.
        returned: whether the server sends a gradient back for each upload.
        scalars: numbers of each local step that go up in place of the model; None where the model itself does.
        unsplit: whether clients hold the whole network: nothing but scalars travels, down those of each round since a
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
    unsplit: bool = False

    def of(self, r: int, i: int) -> dict[str, tuple[int, int]]:
        """{kind: bytes (down, up)} of participant i in round r."""
        client, head, statistics, moments = self._sizes
        aligns = self.aligned > 0 and r % self.aligned == 0
        dense, each = self.scalars is None, 8 * (self.scalars or 0) * self.training.steps(i)
        exact = self.exact * int(np.dtype(self.training.setting.dtype).itemsize)
        last = min(exact, head) if self.head else 0
        own = exact - last
        smashed, labels = (0, 0) if self.unsplit else self._uploads.of(r, i)
        missed = r - self.training.latest(r).get(i, 0) if self.unsplit else 0
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
        if self.unsplit:
            return 0, 0, (problem.local.b + problem.top.b) * itemsize, 0
        part, moments = training.trainable(self.head), 0
        if training.state == "average":
            moments = training.rule.memory_bytes(part.stop - part.start, itemsize)
        return client * itemsize, (problem.local.n - client) * itemsize, problem.local.b * itemsize, moments

    @cached_property
    def _uploads(self) -> Uploads:
        return Uploads(self.training)


class Sizes(NamedTuple):
    """Bytes of uploads."""

    smashed: int
    labels: int


@final
class Uploads:
    """The bytes of smashed samples and labels that the clients of a round send, without computing any.

    A client whose samples are alike sends the same in each round. Else the bytes of a mini-batch depend on how many
    samples it has and on the longest of them: where the problem has the lengths of samples, each such pair is computed
    once, since of mini-batches there may be millions.
    """

    def __init__(self, training: Training) -> None:
        self.training = training
        self._alike: dict[int, Sizes] = {}
        self._lengths: dict[int, NDArray[np.int64] | None] = {}
        self._goes: dict[int, NDArray[np.bool_]] = {}
        self._tables: dict[int, NDArray[np.int64]] = {}

    def of(self, r: int, i: int) -> Sizes:
        """Bytes that client i sends in round r."""
        problem, data = self.training.problem, self.training.setting.data[i]
        if problem.alike:
            if i not in self._alike:
                self._alike[i] = self._asked(r, i)
            return self._alike[i]
        if i not in self._lengths:
            self._lengths[i] = problem.lengths(data)
            self._goes[i] = np.array([self.training.uploads(i, q) for q in range(self.training.steps(i))])
        lengths = self._lengths[i]
        return self._asked(r, i) if lengths is None else self._looked_up(r, i, lengths)

    def _asked(self, r: int, i: int) -> Sizes:
        """The sum over all mini-batches that go up."""
        sent = [batch for q, batch in enumerate(self.training.batches(i, r)) if self.training.uploads(i, q)]
        each = [self._bytes(i, batch) for batch in sent]
        return Sizes(sum(sizes.smashed for sizes in each), sum(sizes.labels for sizes in each))

    def _looked_up(self, r: int, i: int, lengths: NDArray[np.int64]) -> Sizes:
        """The same from tables; `lengths` (N,) of the client's samples."""
        total, q, batch = np.zeros(2, np.int64), 0, self.training.batch
        for order in self.training.passes(i, r):
            starts = np.arange(0, len(order), batch)
            longest = np.maximum.reduceat(lengths[order], starts)
            goes = self._goes[i][q : q + len(starts)]
            q, full = q + len(starts), len(order) // batch
            total += self._table(batch)[longest[:full][goes[:full]]].sum(axis=0)
            if full < len(starts) and goes[full]:  # the rest of a pass
                total += self._table(len(order) - full * batch)[longest[full]]
        return Sizes(int(total[0]), int(total[1]))

    def _table(self, samples: int) -> NDArray[np.int64]:
        """(longest of all clients + 1, 2) bytes of a mini-batch of so many samples; 0 for lengths that do not occur."""
        if samples not in self._tables:
            table = np.zeros((max(self._examples) + 1, 2), np.int64)
            for length, (i, position) in self._examples.items():
                table[length] = self._bytes(i, np.full(samples, position))
            self._tables[samples] = table
        return self._tables[samples]

    @cached_property
    def _examples(self) -> dict[int, tuple[int, int]]:
        """{length: a client and the position of a sample of its that has it}."""
        found: dict[int, tuple[int, int]] = {}
        for i, data in enumerate(self.training.setting.data):
            lengths = self.training.problem.lengths(data)
            assert lengths is not None
            different, positions = np.unique(lengths, return_index=True)
            for length, position in zip(different.tolist(), positions.tolist(), strict=True):
                found.setdefault(length, (i, position))
        return found

    def _bytes(self, i: int, batch: Batch) -> Sizes:
        problem, data = self.training.problem, self.training.setting.data[i]
        return Sizes(problem.upload_bytes(data, batch), problem.label_bytes(data, batch))


# --- lines


def plan_of(traffic: Traffic, rounds: int, step: StepCost) -> Lines:
    """The lines of --dry-run: sizes, bytes of the first round and of all, passes of a local step."""
    training, problem = traffic.training, traffic.training.problem
    to, usual = training.participants(0), replace(traffic, aligned=0)
    down, up = (sum(ways[k] for kind, ways in usual.of(0, 0).items() if kind != LABELS) for k in (0, 1))
    first = usual.total(1)
    signed = {"of these, with twice the products": step.signed} if step.signed else {}
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


def costs_of(training: Training, loss: Loss, rule: GradientRule) -> Lines:
    """Measured costs of a step: multiply-accumulates, and bytes live at once. Kept in the result, and in --dry-run.

    A backward pass counts as two forward passes, but where a line says that it is counted as it is computed.
    """
    from zofl_mpi.rounds.split.measured import backward_macs, macs, peak_bytes

    step, batch = rule.cost(loss), training.batch
    client, auxiliary, server_part = macs(training.problem)
    head = step.heads * auxiliary * batch
    if isinstance(rule, Tail) and isinstance(rule.exact, Backprop):
        head += backward_macs(loss, rule.exact) * batch
    each = (client if loss.answered else client + auxiliary) * batch
    label, passes = "multiply-accumulates of each of a client's forward passes", 1.0
    if not isinstance(step.forwards, str):
        label, passes = STEP_MACS, step.forwards + step.signed + 2 * step.backwards
    return {
        "multiply-accumulates of a sample at the client": round(client),
        "multiply-accumulates of a sample in the head": round(auxiliary),
        "multiply-accumulates of a sample at the server": round(server_part),
        label: round(passes * each + head),
        "multiply-accumulates of the server's step": round(3 * server_part * batch),
        STEP_BYTES: peak_bytes(loss, rule, batch),
        **(_backward_costs(loss, rule, batch) if step.backwards else {}),
    }


def _backward_costs(loss: Loss, rule: GradientRule, batch: int) -> Lines:
    """Costs of a step with a backward pass as torch computes it, and with less memory: if it computes blocks again.

    Beside clients without a backward pass stands this one, not the plain one, where memory is short.
    """
    from zofl_mpi.rounds.split.measured import peak_bytes, step_macs

    lines: Lines = {STEP_COUNTED: round(step_macs(loss, rule) * batch)}
    if loss.problem.blocks:
        lines[STEP_COUNTED + AGAIN] = round(step_macs(loss, rule, recompute=True) * batch)
        lines[STEP_BYTES + AGAIN] = peak_bytes(loss, rule, batch, recompute=True)
    return lines


def unsplit_costs(training: Training, loss: Loss, rule: GradientRule, passes: int) -> Lines:
    """The same for a client that holds the whole network and takes so many forward passes a step."""
    from zofl_mpi.rounds.split.measured import macs, peak_bytes

    client, _, server_part = macs(training.problem)
    return {
        "multiply-accumulates of a sample at the client": round(client + server_part),
        STEP_MACS: round(passes * (client + server_part) * training.batch),
        STEP_BYTES: peak_bytes(loss, rule, training.batch),
    }
