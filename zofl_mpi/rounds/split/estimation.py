"""`Estimation`: the flags of clients that estimate gradients by forward passes, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

from zofl_mpi.rounds.split.client import Draw
from zofl_mpi.rounds.split.estimate import Estimate
from zofl_mpi.rounds.split.exact_layers import check_exact_layers
from zofl_mpi.rounds.split.forward_mode import check_forward_mode
from zofl_mpi.rounds.split.passes import check_abreast, stacked
from zofl_mpi.rounds.split.per_sample import check_directions, signed_layers
from zofl_mpi.rounds.split.probe import check_probe
from zofl_mpi.rounds.split.seeds import check_seeds
from zofl_mpi.rounds.split.training import Training

if TYPE_CHECKING:
    from zofl_mpi.problems.signs import SignedLayers
    from zofl_mpi.rounds.split.measured import Around


@final
@dataclass(frozen=True)
class Estimation:
    """How a client estimates, and what of its part.

    Attributes:
        mu: smoothing radius, in the unit of the distribution.
        distribution: of the directions: sqrt_d_sphere (norm sqrt(d): entries of size 1, as with gaussian; the same
            estimate as sphere with mu sqrt(d)), sphere (norm 1) or gaussian.
        n_p: directions of a local step, whose estimates are averaged.
        estimate: one-sided (1 + n_p forward passes), central (2 n_p, and one more for an upload), jvp (as an oracle
            without mu: the derivatives themselves along n_p directions by forward-mode differentiation, n_p passes that
            take products twice, and one more for an upload), or exact: the gradient itself by backpropagation, which
            makes HERON CSE-FSL, and HO-SFL SFLV2; for tests.
        directions: global (one for a mini-batch), or per-sample: one a sample, by random signs around one perturbation
            of each layer; see `problems.signs`. A perturbed pass then takes each layer's products twice.
        exact_layers: the client's last N layers step along the gradient, by a backward pass through them: HERON's along
            that of the local loss, with the head, which is exact too; HO-SFL's along the one that continues lambda.
            N = all layers is CSE-FSL or SFLV2 to the bit. A client then keeps the graph of so many layers.
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

    mu: float = 1e-3
    distribution: Literal["sqrt_d_sphere", "sphere", "gaussian"] = "sqrt_d_sphere"
    n_p: int = 1
    estimate: Literal["one-sided", "central", "jvp", "exact"] = "one-sided"
    directions: Literal["global", "per-sample"] = "global"
    exact_layers: int = 0
    rest: Literal["estimated", "frozen"] = "estimated"
    probe_gradient: bool = False
    uplink: Literal["dense", "seeds"] = "dense"
    draw: Draw = "device"
    passes_abreast: int = 1

    def __post_init__(self) -> None:
        _ = self.estimator  # refuses what cannot be
        check_seeds(self.uplink, self.estimate)
        check_probe(self.probe_gradient, self.estimate)
        check_directions(self.directions, self.estimate, self.uplink)

    @property
    def estimator(self) -> Estimate:
        """The mean of the estimates along the directions of a step."""
        return Estimate.named(self.mu, self.n_p, self.distribution, self.estimate, self.draw, self.passes_abreast)

    @property
    def exact(self) -> bool:
        """Whether nothing is estimated: gradients by backpropagation alone."""
        return self.estimate == "exact"

    @property
    def scalars(self) -> int | None:
        """Numbers of each local step that go up in place of the model; None where the model itself does."""
        return self.n_p if self.uplink == "seeds" else None

    def check(self, training: Training, part: slice, estimates: bool) -> None:
        """Refuses what has no meaning in this round.

        Args:
            part: of theta_l, what directions are of.
            estimates: whether anything is estimated.

        Raises:
            UserError: there is something.
        """
        check_exact_layers(self.exact_layers, self.rest, self.uplink, self.estimate, training, part)
        check_abreast(self.passes_abreast, self.estimate, self.directions, estimates, training)

    def layers(self, training: Training, part: slice, head: bool) -> SignedLayers | None:
        """What takes signs, where each sample has a direction.

        Args:
            training: of the problem whose local loss is estimated.
            part: of theta_l, what directions are of; something is estimated.
            head: whether the loss depends on the auxiliary head; else the labels are the gradient at the cut.
        """
        return None if self.directions == "global" else signed_layers(training, part, head)

    def around(self, training: Training, part: slice, head: bool, layers: SignedLayers | None) -> Around | None:
        """What passes do besides; see `layers`, of which this has found `layers`."""
        if self.estimate == "jvp":
            return check_forward_mode(training, part, head)
        if self.passes_abreast > 1:
            return stacked(training, part, head, self.passes_abreast, self.estimator.central)
        return layers

    @property
    def twice(self) -> bool:
        """Whether the passes along directions take each layer's products twice."""
        return self.estimate == "jvp" or self.directions != "global"

    def kernel(self, training: Training) -> str:
        """What computes a step, and how directions are drawn, for the record."""
        return training.kernel + ("" if self.exact else ", directions from whole states")

    def told(self, d: int) -> dict[str, str | float]:
        """A line of --dry-run, where there is an estimate with one direction for all samples; see `Estimate.told`."""
        return {} if self.exact or self.directions != "global" else self.estimator.told(d)
