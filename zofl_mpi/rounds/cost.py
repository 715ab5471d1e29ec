"""Expected cost of a run: kernel, bytes, local steps and FLOPs, derived from the messages and steps of a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, cast

from zofl_mpi.engine import messages
from zofl_mpi.engine.setting import Loads, P, Setting, Work
from zofl_mpi.rounds.start import step_samples

PROBE = 64
"""Samples that a plan counts the operations of where a batch is all of a client's, maybe too many to compute with."""


@dataclass(frozen=True)
class Effort:
    """The work and the messages of a method's rounds."""

    participants: Callable[[int], Sequence[int]]  # (r) -> S_r
    steps: Callable[[int, int], int]  # (i, r) -> local steps of client i in round r
    planned: Callable[[int], int]  # (rounds) -> about the local steps of all clients in all rounds, without a loop
    batch: int  # samples of a local step; 0: all of the client's
    down: Any  # an example of the message to a participant; None: none
    up: Any  # an example of its reply
    models: int = 1  # that take a local step on the same samples at once
    gradients: int = 1  # mini-batch gradients of a local step
    points: int = 0  # at which a local step evaluates the loss of its mini-batch, in place of gradients
    full_pass: bool = False  # whether a participant also takes one gradient on all of its samples
    server_batch: int = 0  # samples of the server's own step in a round; 0: it takes none


@dataclass(frozen=True)
class OnProblem(Generic[P]):
    """Base of a method on problems of one role."""

    setting: Setting[P]

    @property
    def problem(self) -> P:
        """What the method minimises."""
        return self.setting.problem


@dataclass(frozen=True)
class Costed(OnProblem[P], ABC):
    """Base of a method that states its `effort`: kernel, planned work, loads and the lines of --dry-run follow."""

    @property
    @abstractmethod
    def effort(self) -> Effort:
        """The work and the messages of a round."""

    @property
    def kernel(self) -> str:
        """Name of the code that computes a step; kernels agree to rounding only."""
        return str(cast(Any, self.problem).kernel_name(self._largest()))

    def work(self, rounds: int) -> Work:
        """The local steps of all rounds, for --kernel auto."""
        effort = self.effort
        return Work(self._largest(), effort.models, effort.gradients * effort.planned(rounds) // effort.models)

    def loads(self) -> Loads:
        """Samples of each client's gradients in round 0."""
        return Loads([self._samples(i, 0) for i in range(self.setting.m)])

    def plan(self, rounds: int) -> dict[str, str | float]:
        """The lines of --dry-run."""
        effort, problem = self.effort, cast(Any, self.problem)
        asked = [(i, r) for r in range(rounds) for i in effort.participants(r)]
        down, up = (0 if message is None else messages.size(message) for message in (effort.down, effort.up))
        probe = effort.batch or min(self._largest(), PROBE)
        # of a sample; a network counts by computing: ask once
        each = (effort.points * problem.flops_evaluation(probe) if effort.points else problem.flops(probe)) / probe
        steps = sum(effort.steps(i, r) for i, r in asked)
        lines: dict[str, str | float] = {
            "length of x, n": problem.n,
            "clients, participants in a round": f"{self.setting.m}, {len(effort.participants(0))}",
            "kernel": self.kernel,
            "bytes down, for each participant and round": down,
            "bytes up, for each participant and round": up,
            "bytes down and up, all rounds": len(asked) * (down + up),
            "local steps of all clients, all rounds": steps,
            "FLOPs of all clients, all rounds": f"{sum(self._samples(i, r) for i, r in asked) * each:.3g}",
        }
        if effort.points:
            lines["evaluations of a mini-batch's loss, all rounds"] = steps * effort.points
        if effort.server_batch:
            lines["samples of the server's own steps, all rounds"] = rounds * effort.server_batch
        return lines

    def _samples(self, i: int, r: int) -> int:
        """Samples of client i's gradients in round r."""
        effort, size = self.effort, len(self.setting.data[i])
        return effort.steps(i, r) * effort.gradients * (effort.batch or size) + effort.full_pass * size

    def _largest(self) -> int:
        """Samples of a client's largest mini-batch."""
        return self.effort.batch or max(step_samples(self.setting, 0))
