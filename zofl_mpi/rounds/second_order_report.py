"""Mini-batches, report and --dry-run of a method that takes derivatives of both levels of a bilevel problem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine import messages
from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import at_least, column
from zofl_mpi.engine.setting import Loads, Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.problems import SecondOrder
from zofl_mpi.rounds.bilevel_report import EvalPoints, EvalValues
from zofl_mpi.rounds.report import HeldOut, held_out
from zofl_mpi.rounds.start import among, step_samples

Array = NDArray[Any]


@final
@dataclass(frozen=True, kw_only=True)
class Report(HeldOut):
    """Columns of an evaluation; None where the problem has no such thing."""

    test_loss: float = column("nat", "mean loss of (x, y) on the test samples, in the problem's own unit")
    objective: float = column("1", "f(x, y) = (1/m) sum_i f_i at the iterates, on all of the clients' samples")
    objective_exact: float | None = column("1", "f(x, y(x)) with the exact y(x)", None)
    lower_error: float | None = column("1", "|y - y(x)|", None)


@dataclass(frozen=True)
class SecondOrderReports(ABC):
    """Base of FedNest: mini-batches of both levels, report and --dry-run.

    Attributes:
        setting: problem, data and random numbers.
        batch: samples of a gradient of f_i, drawn with replacement; 0 for all.
        batch_lower: samples of a derivative of h_i, drawn with replacement; 0 for all.
        exact: at each evaluation also solve the lower level exactly, where the problem can.
    """

    needs: ClassVar[type] = SecondOrder
    setting: Setting[SecondOrder]
    batch: int = at_least(0, 64, remark="(0: all samples)")
    batch_lower: int = at_least(0, 64, remark="(0: all samples)")
    exact: bool = False

    def __post_init__(self) -> None:
        if self.exact and self.problem.solution is None:
            raise UserError("--exact: this problem does not know its lower solution; leave it out")

    @property
    def problem(self) -> SecondOrder:
        """The functions f_i and h_i."""
        return self.setting.problem

    @abstractmethod
    def exchanges(self, r: int) -> Sequence[tuple[Any, Any]]:
        """(message, reply) of each exchange with a client in round r, by example."""

    @abstractmethod
    def derivatives(self) -> tuple[int, int]:
        """Derivatives of f_i and of h_i, each on a mini-batch, of a client in a round with all terms."""

    def parts(self, client: Client) -> tuple[Any, Any]:
        """The samples that f_i and h_i see."""
        return self.problem.parts(client.data)

    def lower_batches(self, client: Client, t: int, steps: int) -> Any:
        """(steps, B) positions of h_i's derivatives in inner round t, or in a term of the series behind these."""
        return self._batches(client, 1, Purpose.LOWER_BATCH, t, steps, self.batch_lower)

    def upper_batches(self, client: Client, steps: int) -> Any:
        """(steps, B) positions of f_i's gradients; the first is that of the hypergradient."""
        return self._batches(client, 0, Purpose.BATCH, 0, steps, self.batch)

    def _batches(self, client: Client, part: int, purpose: Purpose, t: int, steps: int, batch: int) -> Any:
        if batch == 0:
            return [None] * steps
        generator = self.setting.streams(purpose, r=client.memory["r"], i=client.i, t=t)
        return generator.integers(len(self.parts(client)[part]), size=(steps, batch))

    def evaluate(self, state: Any, r: int, clients: Clients) -> Report:
        """Reports on x and y, from all samples of the clients."""
        solve, asked = self.problem.solution, self.setting.eval_participants(r)
        exact = solve(state.x, self.setting.data) if self.exact and solve else None
        lower = [state.y] if exact is None else [state.y, np.asarray(exact, state.y.dtype)]
        points = EvalPoints(np.stack([state.x] * len(lower)), np.stack(lower))
        shares = among(dict.fromkeys(range(self.setting.m), 1 / self.setting.m), asked)
        f = np.asarray(sum(shares[i] * p.f for i, p in clients.ask(self.measure, points, to=asked, counted=False)))
        return Report(
            objective=float(f[0]),
            clients_asked=len(asked),
            objective_exact=None if exact is None else float(f[1]),
            lower_error=None if exact is None else float(np.linalg.norm(state.y.astype(np.float64) - exact)),
            **held_out(self.setting, state.x, state.y),
        )

    def measure(self, client: Client, message: EvalPoints) -> EvalValues:
        """f_i on all samples."""
        data, _ = self.parts(client)
        return EvalValues(np.asarray(self.problem.f(client.i, message.x, message.y, data), np.float64))

    def loads(self) -> Loads:
        """Samples of the derivatives that each client takes in a round with all terms of the series."""
        upper, lower = step_samples(self.setting, self.batch), step_samples(self.setting, self.batch_lower)
        outer, inner = self.derivatives()
        return Loads([outer * f + inner * h for f, h in zip(upper, lower, strict=True)])

    @property
    def kernel(self) -> str:
        """Name of the code that computes the derivatives."""
        return self.problem.kernel_name(self.batch)

    def plan(self, rounds: int) -> dict[str, str | float]:
        """The lines of --dry-run."""
        exchanged = [pair for r in range(rounds) for pair in self.exchanges(r)]
        return {
            "length of x, n": self.problem.n,
            "length of y": self.problem.n_lower,
            "clients, all of which take part": self.setting.m,
            "exchanges with each client, all rounds": len(exchanged),
            "bytes down, for each client, all rounds": sum(messages.size(message) for message, _ in exchanged),
            "bytes up, for each client, all rounds": sum(messages.size(reply) for _, reply in exchanged),
        }
