"""HERON-SFL: clients train by forward passes only, the server by backpropagation on what they upload.

[C] Kou, Chen, Yang, Shen, "Lean Clients, Full Accuracy: Hybrid Zeroth- and First-Order Split Federated Learning".
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from zofl_mpi.errors import UserError
from zofl_mpi.problems import Split, optional
from zofl_mpi.rounds.split.client import Draw, LocalSteps
from zofl_mpi.rounds.split.costs import LocalStep, Traffic, costs_of, plan_of
from zofl_mpi.rounds.split.estimate import Estimate
from zofl_mpi.rounds.split.exact_layers import check_exact_layers, exact_start
from zofl_mpi.rounds.split.forward_mode import check_forward_mode
from zofl_mpi.rounds.split.messages import Ask, Model, Smashed, State, Trained, Update, Whole
from zofl_mpi.rounds.split.passes import check_abreast, stacked
from zofl_mpi.rounds.split.per_sample import check_directions, signed_layers
from zofl_mpi.rounds.split.probe import Compared, check_probe, compare, compared
from zofl_mpi.rounds.split.report import Report
from zofl_mpi.rounds.split.seeds import Scalars, Seeds, check_seeds
from zofl_mpi.rounds.split.server import averaged_round
from zofl_mpi.rounds.split.training import Training
from zofl_mpi.run.clients import Client, Clients
from zofl_mpi.run.fields import part
from zofl_mpi.run.setting import Setting

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
        mu: smoothing radius, in the unit of the distribution.
        distribution: of the directions: sqrt_d_sphere (norm sqrt(d): entries of size 1, as with gaussian; the same
            estimate as sphere with mu sqrt(d)), sphere (norm 1) or gaussian.
        n_p: directions of a local step, whose estimates are averaged.
        estimate: one-sided (1 + n_p forward passes), central (2 n_p, and one more for an upload), jvp (as an oracle
            without mu: the derivatives themselves along n_p directions by forward-mode differentiation, n_p passes that
            take products twice, and one more for an upload), or exact: the gradient itself by backpropagation, which
            makes this CSE-FSL; for tests.
        directions: global (one for a mini-batch), or per-sample: one a sample, by random signs around one perturbation
            of each layer; see `problems.signs`. A perturbed pass then takes each layer's products twice.
        head_gradient: of the auxiliary head: estimated, [C]'s, or exact: for a linear head, in closed form, by the
            forward pass at the point itself. The head then leaves the directions, and comes back as it is beside seeds.
            ElasticZO (arXiv:2501.04287) takes a network's last layers out of the estimate so.
        exact_layers: the client's last N layers step along the gradient of the local loss, by a backward pass through
            them and the head, which is exact too; N = all layers is CSE-FSL to the bit. A client then keeps the graph
            of so many layers.
        rest: what becomes of the layers before these: estimated, or frozen.
        probe_gradient: whether an evaluation also tells how far the clients' steps point along their gradients, which
            it computes by backpropagation, outside the ledger.
        uplink: how a client's model comes back: dense, or seeds: as the n_p differences of losses of each local step,
            from which the server takes the same steps again, to the same bits where it has the same kind of processor.
        draw: where directions are drawn: device (where the model is: a GPU draws others than a CPU), or host (the same
            ones for any device; a GPU then waits for the host, about 10 ns an entry).
        passes_abreast: perturbed passes that are computed as one, at most those of a step: n_p, or 2 n_p (central). A
            client then holds as many copies of what it perturbs, and of the activations. For a GPU that one pass leaves
            idle; the numbers are those of one pass after the other but for rounding.
    """

    needs: ClassVar[type] = Split
    grows_with: ClassVar[tuple[str, ...]] = ("passes_abreast",)
    setting: Setting[Split]
    training: Training = part()
    mu: float = 1e-3
    distribution: Literal["sqrt_d_sphere", "sphere", "gaussian"] = "sqrt_d_sphere"
    n_p: int = 1
    estimate: Literal["one-sided", "central", "jvp", "exact"] = "one-sided"
    directions: Literal["global", "per-sample"] = "global"
    head_gradient: Literal["estimated", "exact"] = "estimated"
    exact_layers: int = 0
    rest: Literal["estimated", "frozen"] = "estimated"
    probe_gradient: bool = False
    uplink: Literal["dense", "seeds"] = "dense"
    draw: Draw = "device"
    passes_abreast: int = 1

    def __post_init__(self) -> None:
        _ = self._estimate  # refuses what cannot be
        check_seeds(self.uplink, self.estimate)
        self.training.check_local()
        if self.head_gradient == "exact":
            self._check_head()
        check_exact_layers(self.exact_layers, self.rest, self.uplink, self.estimate, self.training, self._part)
        if self.exact_layers and self.head_gradient == "estimated":
            raise UserError(
                f"--exact-layers {self.exact_layers}: a backward pass to them has the head's gradient too; give "
                "--head-gradient exact"
            )
        check_probe(self.probe_gradient, self.estimate)
        check_directions(self.directions, self.estimate, self.uplink)
        check_abreast(self.passes_abreast, self.estimate, self.directions, self._estimates, self.training)
        _ = self._around

    def _check_head(self) -> None:
        """Refuses what has no meaning with an exact gradient of the head.

        Raises:
            UserError: the head is not linear, does not train, or is exact already; or moments that travel as one.
        """
        flag, training = "--head-gradient exact", self.training
        if optional.head_gradient(self.setting.problem) is None and not self.exact_layers:
            raise UserError(
                f"{flag}: this auxiliary head is not a linear layer with nothing to train before it, and so has "
                "no gradient in closed form; take --head-gradient estimated"
            )
        if self.estimate == "exact":
            raise UserError(f"{flag}: --estimate exact has it already; take one-sided or central")
        if training.freeze != "none":
            raise UserError(f"{flag}: --freeze {training.freeze} leaves no client or no head to train; take none")
        if training.state == "average":
            raise UserError(f"{flag}: --state average has one optimiser for client and head; take keep or reset")

    @cached_property
    def _layers(self) -> SignedLayers | None:
        """What takes signs, where each sample has a direction."""
        if self.directions == "global" or not self._estimates:
            return None
        return signed_layers(self.training, self._part, head=True)

    @property
    def _part(self) -> slice:
        """What of theta_l directions are of."""
        whole = self.training.trainable()
        return whole if self._exact is None else slice(whole.start, self._exact.start)

    @property
    def _estimates(self) -> bool:
        """Whether anything is estimated."""
        return self._part.start < self._part.stop and (self.exact_layers == 0 or self.rest == "estimated")

    @cached_property
    def _around(self) -> Around | None:
        """What passes do besides."""
        if self.estimate == "jvp" and self._estimates:
            return check_forward_mode(self.training, self._part, head=True)
        if self.passes_abreast > 1:
            return stacked(self.training, self._part, True, self.passes_abreast, self.estimate == "central")
        return self._layers

    @cached_property
    def _exact(self) -> slice | None:
        """What of theta_l steps along its gradient."""
        local = self.setting.problem.local
        if self.head_gradient == "estimated":
            return None
        return slice(exact_start(self.training, self.exact_layers), local.n)

    # --- the two servers

    def start(self) -> State:
        """The parts as the problem makes them."""
        return self.training.start()

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Steps 1 to 4: the clients train and upload, the main server trains on what comes, the models are averaged."""
        if self.uplink == "dense":
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
        local, differences = LocalSteps(self.training, client, message, exact=self._exact), []
        for q, x, labels in local:
            head = None
            if self.estimate == "exact":
                smashed, g = local.gradient(x, labels)
                if local.uploads(q):
                    yield Smashed(smashed, labels)
            else:
                base = each = None
                if self.estimate == "one-sided" or self._exact or local.uploads(q):
                    if self.exact_layers:
                        smashed, base, head = local.backward_exact(x, labels)
                    elif self._exact:
                        smashed, base, head = local.forward_head(x, labels)
                    else:
                        smashed, base = local.forward(x, labels)
                    if self._layers is not None and self.estimate == "one-sided":
                        each = local.each(smashed, labels)
                    if local.uploads(q):
                        yield Smashed(smashed, labels)  # it leaves while the perturbed passes go on
                g = None
                if self._estimates and self._layers is None:
                    g, found = self.estimated(local, q, x, labels, base)
                    differences += found
                elif self._layers is not None:
                    us, signs = self._estimate.directions(local, q), local.signs(q, self.draw)
                    g = self._estimate.of_each(local, us, self._layers, signs, x, labels, each)
            local.step(g, head)
        if self.uplink == "seeds":
            client.memory["differences"] = local.host(differences).reshape(-1, self.n_p)
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
        return Estimate.named(self.mu, self.n_p, self.distribution, self.estimate, self.draw, self.passes_abreast)

    def scalars(self, client: Client, message: Ask) -> Scalars:
        """Step 4 with --uplink seeds: what the local model can be made of again."""
        return self.seeds.told(client, message)

    # --- reports

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        """The test samples scored by all clients, and with --probe-gradient their estimates beside their gradients."""
        report = self.training.evaluate(state, r, clients)
        if not self.probe_gradient:
            return report
        audience = self.setting.audience(r)
        return compared(report, state, r, lambda whole: clients.ask(self.probe, whole, to=audience, counted=False))

    def probe(self, client: Client, message: Whole) -> Compared:
        """A step's direction beside the gradient."""
        estimate = self._estimate if self._estimates else None
        return compare(self.training, client, message, estimate, self._layers, self._exact)

    @property
    def kernel(self) -> str:
        """What computes a step, and how directions are drawn, for the record."""
        return self.training.kernel + ("" if self.estimate == "exact" else ", directions from whole states")

    @property
    def local_step(self) -> LocalStep:
        """What a local step computes, for its costs."""
        if self.estimate == "exact":
            return LocalStep("auxiliary")
        passes, each = self.n_p * (2 if self.estimate == "central" else 1), self._layers is not None
        twice = self._around is not None and self.passes_abreast == 1
        signed, heads = twice * passes, each * (self.estimate == "one-sided")
        found = LocalStep("forward", 1 + passes, signed, heads, abreast=self.passes_abreast)
        if self.exact_layers:  # and the loss at the point once more
            passes, signed = self._estimates * passes, self._estimates * signed
            return found._replace(
                kind="head", forwards=1 + passes, signed=signed, heads=heads + 1, layers=self.exact_layers
            )
        if self._exact:
            return found._replace(kind="head", heads=heads + 1)  # (softmax - y)^T s costs as much as s W
        if self.estimate == "one-sided":
            return found
        return found._replace(forwards=f"{passes}, and 1 more where it is uploaded")

    def plan(self, rounds: int) -> dict[str, str | float]:
        """The lines of --dry-run."""
        scalars = self.n_p if self.uplink == "seeds" else None
        exact = self._exact.stop - self._exact.start if self._exact else 0
        lines = plan_of(Traffic(self.training, scalars=scalars, exact=exact), rounds, self.local_step)
        told = self._estimates and self.estimate != "exact" and self.directions == "global"
        return {**lines, **self._estimate.told((self._part.stop - self._part.start) * told)}

    def costs(self) -> dict[str, str | float]:
        """What a client's step and the server's cost."""
        return costs_of(self.training, self.local_step, self._around, self._exact if self.exact_layers else None)
