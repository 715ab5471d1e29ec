"""HO-SFL: the server backpropagates to the cut, clients estimate along what it returns by forward passes only.

Chen, Wu, Wang, Chen, "HO-SFL: Hybrid-Order Split Federated Learning with Backprop-Free Clients and Dimension-Free
Aggregation", arXiv:2603.14773. Its code is not public.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, final

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import part
from zofl_mpi.engine.setting import Setting
from zofl_mpi.problems import Split
from zofl_mpi.rounds.split.client_part import padded, with_head
from zofl_mpi.rounds.split.costs import LocalStep, Traffic, costs_of, plan_of
from zofl_mpi.rounds.split.cut import at_cut
from zofl_mpi.rounds.split.estimate import Estimate
from zofl_mpi.rounds.split.estimation import Estimation
from zofl_mpi.rounds.split.exact_layers import exact_start
from zofl_mpi.rounds.split.lockstep import Batches, Cut, Lockstep, begun, following
from zofl_mpi.rounds.split.messages import Ask, Model, Smashed, State, Trained, Whole
from zofl_mpi.rounds.split.perturbed import Perturbed
from zofl_mpi.rounds.split.probe import Compared, compare, compared, slope_at_cut
from zofl_mpi.rounds.split.report import Report
from zofl_mpi.rounds.split.seeds import Scalars, Seeds
from zofl_mpi.rounds.split.server import Server
from zofl_mpi.rounds.split.training import Training

if TYPE_CHECKING:
    from zofl_mpi.problems.signs import SignedLayers
    from zofl_mpi.rounds.split.measured import Around


@final
@dataclass(frozen=True)
class HOSFL:
    """SFLV2 whose clients estimate, by perturbed forward passes, what SFLV2's compute by a backward pass.

    A client sends the smashed samples s of a mini-batch up; the server takes its step and returns lambda = dL/ds of its
    loss L, taken before the step. The client's gradient is then that of

        <lambda, s(theta_c)> = sum_j <lambda_j, s_j(theta_c)>,   lambda held fixed,

    and it steps along its zeroth-order estimate, with the same mini-batch. No auxiliary head trains or travels.

    From the paper (by its abstract; its code is not public) are first order above the cut and zeroth below it, held
    together by a multiplier lambda, and models that come back as a few scalars and are made again from shared seeds
    (--uplink seeds). Our reading are: lambda is the gradient that SFLV2 returns; one local step for each; the server's
    step at once, with one server part for all clients in turns; directions of each client's own, so that the model
    travels down at the beginning of a round; and the default --uplink dense. HOSL (Lnu et al., arXiv:2601.10940), also
    by its abstract, is of the same kind without federation.

    Attributes:
        setting: problem, data and random numbers.
        lockstep: the round.
        estimation: how a client estimates: along the gradient that the server returned, 1 + n_p forward passes of a
            step, or 1 + 2 n_p, one of them the upload's.
    """

    needs: ClassVar[type] = Split
    grows_with: ClassVar[tuple[str, ...]] = ("passes_abreast",)
    setting: Setting[Split]
    lockstep: Lockstep = part()
    estimation: Estimation = field(default_factory=Estimation)

    def __post_init__(self) -> None:
        self.estimation.check(self.training, self._part, self._estimates)
        _ = self._around

    @property
    def training(self) -> Training:
        """The flags of the round."""
        return self.lockstep.training

    # --- the server

    def start(self) -> State:
        """The parts as the problem makes them."""
        return self.lockstep.start()

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Mini-batches up, lambdas down, one by one; then the clients' parts are averaged."""
        to, main, replayed = self.training.participants(r), Server.of(self.training, state, r), dict[str, Any]()
        self.lockstep.exchange(state, r, clients, dict.fromkeys(to, main), self.begin, self.proceed)
        if self.estimation.uplink == "dense":
            mean = self.training.mean(clients, to)
        else:
            mean, replayed = self.seeds.mean(state, r, clients, self.scalars)
        return replace(main.state(with_head(self.setting.problem, state, mean), math.nan), replayed=replayed)

    @property
    def seeds(self) -> Seeds:
        """The clients' steps, taken once more at the server."""
        return Seeds(self.training, self._estimate, head=False, exact=self._exact)

    # --- a client

    def begin(self, client: Client, message: Model) -> Smashed | Trained:
        """The first mini-batch up to the cut."""
        model = padded(self.setting.problem, message)
        if self.estimation.exact:
            return begun(client, Batches(self.training, client, model))
        estimate, kept = self._estimate if self._estimates else None, self.estimation.uplink == "seeds"
        return begun(client, Perturbed(self._at_cut, estimate, client, model, kept, self._layers, self._exact))

    def proceed(self, client: Client, message: Cut) -> Smashed | Trained:
        """Takes the step along the estimate from lambda; the next mini-batch up to the cut."""
        return following(client, message.slope)

    def scalars(self, client: Client, message: Ask) -> Scalars:
        """With --uplink seeds: what the local model can be made of again."""
        return self.seeds.told(client, message)

    @property
    def _estimate(self) -> Estimate:
        return self.estimation.estimator

    @cached_property
    def _at_cut(self) -> Training:
        """The round of a client whose loss is <lambda, s>."""
        own = replace(self.setting, problem=at_cut(self.setting.problem))
        return replace(self.training, setting=own)

    @cached_property
    def _layers(self) -> SignedLayers | None:
        """What takes signs, where each sample has a direction."""
        return self.estimation.layers(self._at_cut, self._part, head=False) if self._estimates else None

    @cached_property
    def _exact(self) -> slice | None:
        """What of theta_l steps along its gradient."""
        if not self.estimation.exact_layers:
            return None
        return slice(exact_start(self.training, self.estimation.exact_layers), self.setting.problem.n_client)

    @property
    def _part(self) -> slice:
        """What of theta_l directions are of."""
        whole = self.training.trainable(head=False)
        return whole if self._exact is None else slice(whole.start, self._exact.start)

    @property
    def _estimates(self) -> bool:
        """Whether anything is estimated."""
        own = self.estimation
        return own.exact_layers == 0 or (self._part.start < self._part.stop and own.rest == "estimated")

    @cached_property
    def _around(self) -> Around | None:
        """What passes do besides."""
        if not self._estimates:
            return None
        return self.estimation.around(self._at_cut, self._part, False, self._layers)

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
        slope = slope_at_cut(self.training, message)
        return compare(self._at_cut, client, message, estimate, self._layers, self._exact, slope)

    @property
    def kernel(self) -> str:
        """What computes a step, and how directions are drawn, for the record."""
        return self.estimation.kernel(self.training)

    @property
    def local_step(self) -> LocalStep:
        """What a local step computes, for its costs."""
        if self.estimation.exact:
            return LocalStep("cut")
        own, passes = self.estimation, self._estimates * self._estimate.passes
        return LocalStep("slope", 1 + passes, own.twice * passes, layers=own.exact_layers, abreast=own.passes_abreast)

    def plan(self, rounds: int) -> dict[str, str | float]:
        """The lines of --dry-run."""
        exact = self._exact.stop - self._exact.start if self._exact else 0
        traffic = Traffic(self.training, head=False, returned=True, scalars=self.estimation.scalars, exact=exact)
        lines = plan_of(traffic, rounds, self.local_step)
        return {**lines, **self.estimation.told((self._part.stop - self._part.start) * self._estimates)}

    def costs(self) -> dict[str, str | float]:
        """What a client's step and the server's cost."""
        return costs_of(self.training, self.local_step, self._around, self._exact)
