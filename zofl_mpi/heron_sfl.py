"""HERON-SFL: split federated learning whose clients train by forward passes only.

[C] Kou, Chen, Yang, Shen, "Lean Clients, Full Accuracy: Hybrid Zeroth- and First-Order Split Federated Learning".

A client holds the first layers and an auxiliary head, theta_l = (theta_c, theta_a), and steps along a zeroth-order
estimate of its local loss: no backward pass, hence no stored activations. Every k-th step its smashed activations go
up, and the server trains the rest of the network on them by backpropagation while the clients compute on; nothing is
returned. At the end of the round the theta_l are averaged.

    mpirun -n 6 python -m zofl_mpi.heron_sfl --data cifar10 --m 5
    mpirun -n 3 python -m zofl_mpi.heron_sfl --data digits --m 2 --width 8 --batch 64 --rounds 5
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, final

from zofl_mpi import heron_settings, zo
from zofl_mpi.baselines.aux_sfl import CSEFSL
from zofl_mpi.baselines.fsl_sage import FSLSAGE
from zofl_mpi.baselines.sfl import SFLV1, SFLV2
from zofl_mpi.errors import demand
from zofl_mpi.heron_settings import own_split
from zofl_mpi.problems import Split
from zofl_mpi.run.clients import Client, Clients
from zofl_mpi.run.setting import Setting
from zofl_mpi.split_training import (
    COLUMNS,
    Ask,
    LocalSteps,
    Model,
    Scored,
    Smashed,
    State,
    Trained,
    Training,
    Update,
    Whole,
    averaged_round,
    first_state,
    kept,
    measured_of,
    plan_of,
    report,
    scored,
)

Tensor = Any  # torch's


@final
@dataclass(frozen=True)
class HERON:
    """[C] equations (2) and (6) to (8).

    Attributes:
        setting: problem, data and random numbers.
        training: the round.
        mu: smoothing radius, in the unit of the distribution.
        distribution: of the directions: sqrt_d_sphere (norm sqrt(d): entries of size 1, as with gaussian; the same
            estimate as sphere with mu sqrt(d)), sphere (norm 1) or gaussian.
        n_p: directions of a local step, whose estimates are averaged.
        estimate: one-sided (1 + n_p forward passes), central (2 n_p, and one more for an upload), or exact: the
            gradient itself by backpropagation, which makes this CSE-FSL; for tests.
    """

    needs: ClassVar[type] = Split
    setting: Setting
    training: Training = field(default_factory=Training)
    mu: float = 1e-3
    distribution: Literal["sqrt_d_sphere", "sphere", "gaussian"] = "sqrt_d_sphere"
    n_p: int = 1
    estimate: Literal["one-sided", "central", "exact"] = "one-sided"

    def __post_init__(self) -> None:
        demand(0 < self.mu < math.inf, "mu", self.mu, "a smoothing radius above 0")
        demand(self.n_p >= 1, "n_p", self.n_p, "a whole number of directions, at least 1")
        self.training.fit(self.setting)
        self.training.fit_local(self.setting)

    # --- the two servers

    def start(self) -> State:
        """The parts as the problem makes them."""
        return first_state(self.setting)

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Steps 1 to 4: the clients train and upload, the main server trains on what comes, the models are averaged."""
        return averaged_round(self.setting, self.training, state, r, clients, self.train, self.update)

    # --- a client

    def train(self, client: Client, message: Model) -> Generator[Smashed, None, Trained]:
        """Step 2: the local steps, their uploads."""
        local = LocalSteps(self.setting, self.training, client, message)
        for q, x, labels in local:
            if self.estimate == "exact":
                smashed, g = local.gradient(x, labels)
                if local.uploads(q):
                    yield Smashed(smashed, labels)
            else:
                base = math.nan
                if self.estimate == "one-sided" or local.uploads(q):
                    smashed, base = local.forward(x, labels)
                    if local.uploads(q):
                        yield Smashed(smashed, labels)  # it leaves while the perturbed passes go on
                g = self.estimated(local, q, x, labels, base)
            local.step(g)
        return local.done()

    def estimated(self, local: LocalSteps, q: int, x: Tensor, labels: Tensor, base: float) -> Tensor:
        """(d,) the mean of the n_p zeroth-order estimates of step q, on one mini-batch."""
        g = local.zeros()
        for u in local.directions(self.n_p, q, self.distribution):
            plus = local.perturbed(x, labels, u, self.mu)
            other = base if self.estimate == "one-sided" else local.perturbed(x, labels, u, -self.mu)
            local.compare(plus, other)
            span = self.mu if self.estimate == "one-sided" else 2 * self.mu
            scale: zo.Distribution = "sphere" if self.distribution == "sphere" else "gaussian"  # sqrt(d) u has its d
            g += zo.estimate(plus - other, u, span * self.n_p, scale)
        return g

    def update(self, client: Client, message: Ask) -> Update:
        """Step 4: the local model."""
        return kept(client)

    # --- reports

    def evaluate(self, state: State, r: int, clients: Clients) -> dict[str, float]:
        return report(state, clients, self.score)

    def score(self, client: Client, message: Whole) -> Scored:
        """Step of an evaluation."""
        return scored(self.setting, client, message)

    def columns(self) -> Mapping[str, tuple[str, str]]:
        return COLUMNS

    def measured(self) -> dict[str, str | float]:
        """What --dry-run measures."""
        step = "auxiliary" if self.estimate == "exact" else "forward"
        return measured_of(self.setting, self.training, step, self.forwards)

    @property
    def forwards(self) -> int | str:
        """Forward passes of a local step; in words where steps differ."""
        central = f"{2 * self.n_p}, and 1 more where it is uploaded"
        passes: dict[str, int | str] = {"one-sided": 1 + self.n_p, "central": central, "exact": 1}
        return passes[self.estimate]

    def plan(self, rounds: int) -> dict[str, str | float]:
        return plan_of(self.setting, self.training, rounds, self.forwards, backwards=self.estimate == "exact")


METHODS = {"heron": HERON, "sflv1": SFLV1, "sflv2": SFLV2, "cse_fsl": CSEFSL, "fsl_sage": FSLSAGE}
PROBLEMS = heron_settings.PROBLEMS
OWN_PROBLEM = own_split

if __name__ == "__main__":
    from zofl_mpi.run.cli import main

    main("zofl_mpi.heron_sfl")
