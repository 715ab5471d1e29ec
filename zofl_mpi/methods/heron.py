"""HERON-SFL: clients train by forward passes only, the server by backpropagation on what they upload.

[C] Kou, Chen, Yang, Shen, "Lean Clients, Full Accuracy: Hybrid Zeroth- and First-Order Split Federated Learning".
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import part
from zofl_mpi.engine.setting import Setting
from zofl_mpi.errors import UserError
from zofl_mpi.problems import Split, optional
from zofl_mpi.rounds.split.client import LocalSteps
from zofl_mpi.rounds.split.costs import LocalStep, Traffic, costs_of, plan_of
from zofl_mpi.rounds.split.estimate import Estimate
from zofl_mpi.rounds.split.estimation import Estimation
from zofl_mpi.rounds.split.exact_layers import exact_start
from zofl_mpi.rounds.split.messages import Ask, Model, Smashed, State, Trained, Update, Whole
from zofl_mpi.rounds.split.probe import Compared, compare, compared
from zofl_mpi.rounds.split.report import Report
from zofl_mpi.rounds.split.seeds import Scalars, Seeds
from zofl_mpi.rounds.split.server import averaged_round
from zofl_mpi.rounds.split.training import Training

if TYPE_CHECKING:
    from torch import Tensor

    from zofl_mpi.problems.signs import SignedLayers
    from zofl_mpi.rounds.split.measured import Around


@final
@dataclass(frozen=True)
class HERON:
    """[C] equations (2) and (6) to (8).

    Attributes:
        setting: problem, data and random numbers.
        training: the round.
        estimation: how a client estimates.
        head_gradient: of the auxiliary head: estimated, [C]'s, or exact: for a linear head, in closed form, by the
            forward pass at the point itself. The head then leaves the directions, and comes back as it is beside seeds.
            ElasticZO (arXiv:2501.04287) takes a network's last layers out of the estimate so.
    """

    needs: ClassVar[type] = Split
    grows_with: ClassVar[tuple[str, ...]] = ("passes_abreast",)
    setting: Setting[Split]
    training: Training = part()
    estimation: Estimation = field(default_factory=Estimation)
    head_gradient: Literal["estimated", "exact"] = "estimated"

    def __post_init__(self) -> None:
        own = self.estimation
        self.training.check_local()
        if self.head_gradient == "exact":
            self._check_head()
        own.check(self.training, self._part, self._estimates)
        if own.exact_layers and self.head_gradient == "estimated":
            raise UserError(
                f"--exact-layers {own.exact_layers}: a backward pass to them has the head's gradient too; give "
                "--head-gradient exact"
            )
        _ = self._around

    def _check_head(self) -> None:
        """Refuses what has no meaning with an exact gradient of the head.

        Raises:
            UserError: the head is not linear, does not train, or is exact already; or moments that travel as one.
        """
        flag, training = "--head-gradient exact", self.training
        if optional.head_gradient(self.setting.problem) is None and not self.estimation.exact_layers:
            raise UserError(
                f"{flag}: this auxiliary head is not a linear layer with nothing to train before it, and so has "
                "no gradient in closed form; take --head-gradient estimated"
            )
        if self.estimation.exact:
            raise UserError(f"{flag}: --estimate exact has it already; take one-sided or central")
        if training.freeze != "none":
            raise UserError(f"{flag}: --freeze {training.freeze} leaves no client or no head to train; take none")
        if training.state == "average":
            raise UserError(f"{flag}: --state average has one optimiser for client and head; take keep or reset")

    @cached_property
    def _layers(self) -> SignedLayers | None:
        """What takes signs, where each sample has a direction."""
        return self.estimation.layers(self.training, self._part, head=True) if self._estimates else None

    @property
    def _part(self) -> slice:
        """What of theta_l directions are of."""
        whole = self.training.trainable()
        return whole if self._exact is None else slice(whole.start, self._exact.start)

    @property
    def _estimates(self) -> bool:
        """Whether anything is estimated."""
        own = self.estimation
        return self._part.start < self._part.stop and (own.exact_layers == 0 or own.rest == "estimated")

    @cached_property
    def _around(self) -> Around | None:
        """What passes do besides."""
        if not self._estimates:
            return None
        return self.estimation.around(self.training, self._part, True, self._layers)

    @cached_property
    def _exact(self) -> slice | None:
        """What of theta_l steps along its gradient."""
        local = self.setting.problem.local
        if self.head_gradient == "estimated":
            return None
        return slice(exact_start(self.training, self.estimation.exact_layers), local.n)

    # --- the two servers

    def start(self) -> State:
        """The parts as the problem makes them."""
        return self.training.start()

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Steps 1 to 4: the clients train and upload, the main server trains on what comes, the models are averaged."""
        if self.estimation.uplink == "dense":
            return averaged_round(self.training, state, r, clients, self.train, self.training.mean)
        replayed: dict[str, Any] = {}

        def average(clients: Clients, to: list[int]) -> Update:
            mean, moments = self.seeds.mean(state, r, clients, self.scalars)
            replayed.update(moments)
            return mean

        new = averaged_round(self.training, state, r, clients, self.train, average)
        return replace(new, replayed=replayed)

    @property
    def seeds(self) -> Seeds:
        """The clients' steps, taken once more at the server."""
        return Seeds(self.training, self._estimate, exact=self._exact)

    # --- a client

    def train(self, client: Client, message: Model) -> Generator[Smashed, None, Trained]:
        """Step 2: takes the local steps, and uploads."""
        own, one_sided = self.estimation, self._estimate.one_sided
        local, differences = LocalSteps(self.training, client, message, exact=self._exact), []
        for q, x, labels in local:
            head = None
            if own.exact:
                smashed, g = local.gradient(x, labels)
                if local.uploads(q):
                    yield Smashed(smashed, labels)
            else:
                base = each = None
                if one_sided or self._exact or local.uploads(q):
                    if own.exact_layers:
                        smashed, base, head = local.backward_exact(x, labels)
                    elif self._exact:
                        smashed, base, head = local.forward_head(x, labels)
                    else:
                        smashed, base = local.forward(x, labels)
                    if self._layers is not None and one_sided:
                        each = local.each(smashed, labels)
                    if local.uploads(q):
                        yield Smashed(smashed, labels)  # it leaves while the perturbed passes go on
                g = None
                if self._estimates and self._layers is None:
                    g, found = self.estimated(local, q, x, labels, base)
                    differences += found
                elif self._layers is not None:
                    us, signs = self._estimate.directions(local, q), local.signs(q, own.draw)
                    g = self._estimate.of_each(local, us, self._layers, signs, x, labels, each)
            local.step(g, head)
        if own.uplink == "seeds":
            client.memory["differences"] = local.host(differences).reshape(-1, own.n_p)
        return local.done()

    def estimated(
        self, local: LocalSteps, q: int, x: Tensor, labels: Tensor, base: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """(d,) the mean of the n_p zeroth-order estimates of step q on one mini-batch; () the differences behind them.

        Args:
            base: () the unperturbed loss, for the one-sided estimate.
        """
        return self._estimate.of(local, self._estimate.directions(local, q), x, labels, base)

    @property
    def _estimate(self) -> Estimate:
        return self.estimation.estimator

    def scalars(self, client: Client, message: Ask) -> Scalars:
        """Step 4 with --uplink seeds: what the local model can be made of again."""
        return self.seeds.told(client, message)

    # --- reports

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        """The test samples scored by all clients, and with --probe-gradient their estimates beside their gradients."""
        report = self.training.evaluate(state, r, clients)
        if not self.estimation.probe_gradient:
            return report
        audience = self.setting.eval_participants(r)
        return compared(report, state, r, lambda whole: clients.ask(self.probe, whole, to=audience, counted=False))

    def probe(self, client: Client, message: Whole) -> Compared:
        """A step's direction beside the gradient."""
        estimate = self._estimate if self._estimates else None
        return compare(self.training, client, message, estimate, self._layers, self._exact)

    @property
    def kernel(self) -> str:
        """What computes a step, and how directions are drawn, for the record."""
        return self.estimation.kernel(self.training)

    @property
    def local_step(self) -> LocalStep:
        """What a local step computes, for its costs."""
        if self.estimation.exact:
            return LocalStep("auxiliary")
        own, one_sided = self.estimation, self._estimate.one_sided
        passes, each = self._estimate.passes, self._layers is not None
        signed, heads = self._estimates * own.twice * passes, each * one_sided
        found = LocalStep("forward", 1 + passes, signed, heads, abreast=own.passes_abreast)
        if own.exact_layers:  # and the loss at the point once more
            return found._replace(
                kind="head", forwards=1 + self._estimates * passes, heads=heads + 1, layers=own.exact_layers
            )
        if self._exact:
            return found._replace(kind="head", heads=heads + 1)  # (softmax - y)^T s costs as much as s W
        return found if one_sided else found._replace(forwards=f"{passes}, and 1 more where it is uploaded")

    def plan(self, rounds: int) -> dict[str, str | float]:
        """The lines of --dry-run."""
        exact = self._exact.stop - self._exact.start if self._exact else 0
        lines = plan_of(Traffic(self.training, scalars=self.estimation.scalars, exact=exact), rounds, self.local_step)
        return {**lines, **self.estimation.told((self._part.stop - self._part.start) * self._estimates)}

    def costs(self) -> dict[str, str | float]:
        """What a client's step and the server's cost."""
        exact = self._exact if self.estimation.exact_layers else None
        return costs_of(self.training, self.local_step, self._around, exact)
