"""`Estimation`: the flags of clients that estimate gradients by forward passes, and the rule that they choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

from zofl_mpi.engine.fields import above, at_least
from zofl_mpi.engine.lazy import torch
from zofl_mpi.errors import UserError
from zofl_mpi.rounds.split.client import Draw
from zofl_mpi.rounds.split.estimates import ForwardMode, PerSample, TwoPoint
from zofl_mpi.rounds.split.losses import CutLoss, HeadLoss
from zofl_mpi.rounds.split.rules import Backprop, Frozen, GradientRule, LinearHead, Tail
from zofl_mpi.rounds.split.training import Training

if TYPE_CHECKING:
    from zofl_mpi.problems.signs import SignedLayers

OwnLoss = HeadLoss | CutLoss
"""The losses of clients that hold the first layers alone."""


@final
@dataclass(frozen=True)
class Estimation:
    """How a client estimates, and what of its part.

    Attributes:
        mu: smoothing radius, in the unit of the distribution.
        distribution: of the directions: sqrt_d_sphere (norm sqrt(d): entries of size 1, as with gaussian; the same
            estimate as sphere with mu sqrt(d)), sphere (norm 1) or gaussian.
        n_p: directions of a local step, whose estimates are averaged.
        estimate: one-sided (1 + n_p forward passes), central (2 n_p, and one more for an upload), jvp (an oracle
            without mu: the derivatives along n_p directions by forward-mode differentiation, n_p passes that take
            products twice, and one more for an upload), or exact: the gradient by backpropagation, which makes HERON
            CSE-FSL, and HO-SFL SFLV2; for tests.
        directions: global (one for a mini-batch), or per-sample: one a sample, by random signs around one perturbation
            of each layer; see `problems.signs`. A perturbed pass then takes each layer's products twice.
        exact_layers: the client's last N layers step along the gradient, by a backward pass through them: HERON's along
            that of the local loss, with the head, which is exact too; HO-SFL's along the one that continues lambda.
            N = all layers is CSE-FSL or SFLV2 to the bit. A client then keeps the graph of so many layers.
        rest: the layers before these: estimated, or frozen.
        probe_gradient: evaluations also report the cosine of the clients' estimates with their gradients, which they
            compute by backpropagation, outside the ledger.
        uplink: how a client's model comes back: dense, or seeds: as the n_p differences of losses of each local step,
            from which the server replays the steps, to the same bits where it has the same kind of processor.
        draw: where directions are drawn: device (where the model is: a GPU draws others than a CPU), or host (the same
            ones for any device; a GPU then waits for the host, about 10 ns an entry).
    """

    mu: float = above(0, 1e-3, "a smoothing radius")
    distribution: Literal["sqrt_d_sphere", "sphere", "gaussian"] = "sqrt_d_sphere"
    n_p: int = at_least(1, 1, "a whole number of directions")
    estimate: Literal["one-sided", "central", "jvp", "exact"] = "one-sided"
    directions: Literal["global", "per-sample"] = "global"
    exact_layers: int = 0
    rest: Literal["estimated", "frozen"] = "estimated"
    probe_gradient: bool = False
    uplink: Literal["dense", "seeds"] = "dense"
    draw: Draw = "device"

    def rule(self, training: Training, loss: OwnLoss, exact_head: bool = False) -> GradientRule:
        """The gradient rule of a client's local steps, after passes that try it; refuses flags that contradict it.

        Args:
            exact_head: whether the auxiliary head steps along its gradient.
        """
        self._check()
        part, gradient = training.trainable(head=not loss.answered), training.problem.head_gradient
        if exact_head:
            self._check_head(training)
        if not (exact_head or self.exact_layers):
            self._check_layers(training, part)
            return Backprop(part) if self.estimate == "exact" else self._estimate(training, loss, part)
        start = self._exact_start(training)
        tail, before = slice(start, part.stop), slice(part.start, start)
        self._check_layers(training, before)
        if not (exact_head or loss.answered):
            raise UserError(
                f"--exact-layers {self.exact_layers}: a backward pass to them has the head's gradient too; give "
                "--head-gradient exact"
            )
        closed = gradient is not None and not self.exact_layers
        exact = LinearHead(tail, gradient) if closed and gradient else Backprop(tail, last=True)
        frozen = before.start == before.stop or self.rest == "frozen"
        rest = Frozen(before) if frozen else self._estimate(training, loss, before)
        return Tail(part, rest, exact, self.exact_layers)

    def _exact_start(self, training: Training) -> int:
        """Where in theta_l the part with an exact gradient starts."""
        from zofl_mpi.problems.layers import last_layers

        return int(last_layers(training.problem.local, self.exact_layers).start)

    def _estimate(self, training: Training, loss: OwnLoss, part: slice) -> GradientRule:
        """The rule by forward passes, after a pass that tries it."""
        own = (part, self.n_p, self.distribution, self.draw)
        central = self.estimate == "central"
        if self.estimate == "jvp":
            return _forward_mode(training, loss, ForwardMode(*own))
        if self.directions == "global":
            return TwoPoint(*own, self.mu, central)
        if loss.each is None:
            raise UserError(
                "--directions per-sample: this problem does not tell what each sample adds to the loss (local_losses); "
                "take --directions global"
            )
        return PerSample(*own, self.mu, central, layers=_signed(training, loss, part), losses=loss.each)

    # --- refusals

    def _check(self) -> None:
        """Refuses flags that contradict each other."""
        exact, signs = self.estimate == "exact", self.directions == "per-sample"
        _refuse(
            (self.uplink == "seeds" and exact)
            and "--uplink seeds: --estimate exact has no differences of losses; take one-sided or central",
            (self.probe_gradient and exact)
            and "--probe-gradient: --estimate exact has the gradient itself; leave one of them out",
            (signs and self.estimate in ("exact", "jvp"))
            and f"--directions per-sample: --estimate {self.estimate} has no differences; take one-sided or central",
            (signs and self.uplink == "seeds")
            and "--directions per-sample: --uplink seeds sends a number a step and direction, not a number a sample; "
            "take --uplink dense, or --directions global",
        )

    def _check_head(self, training: Training) -> None:
        """Refuses an exact gradient of the head where it has no meaning."""
        flag, freeze = "--head-gradient exact", training.freeze
        closed = training.problem.head_gradient is not None or self.exact_layers != 0
        _refuse(
            not closed
            and f"{flag}: this auxiliary head is not a linear layer with nothing to train before it, and so has no "
            "gradient in closed form; take --head-gradient estimated",
            self.estimate == "exact" and f"{flag}: --estimate exact has it already; take one-sided or central",
            freeze != "none" and f"{flag}: --freeze {freeze} leaves no client or no head to train; take none",
            training.state == "average"
            and f"{flag}: --state average has one optimiser for client and head; take keep or reset",
        )

    def _check_layers(self, training: Training, rest: slice) -> None:
        """Refuses exact layers where they have no meaning, and `rest` without them."""
        flag, freeze = f"--exact-layers {self.exact_layers}", training.freeze
        nothing = self.rest == "frozen" or rest.start == rest.stop
        if not self.exact_layers:
            _refuse(
                self.rest == "frozen"
                and "--rest frozen: with --exact-layers 0 nothing of the client would train; --freeze client does so"
            )
            return
        _refuse(
            self.estimate == "exact"
            and f"{flag}: --estimate exact has them all already; take one-sided, central or jvp",
            freeze != "none" and f"{flag}: --freeze {freeze} and --rest contradict each other; take --freeze none",
            training.state == "average"
            and f"{flag}: --state average has one optimiser for all layers; take keep or reset",
            (self.uplink == "seeds" and nothing)
            and f"{flag}: --uplink seeds sends scalars of an estimate, and nothing is estimated; take dense",
        )


def _refuse(*sentences: str | Literal[False]) -> None:
    """Raises the first sentence; False stands for one that does not apply."""
    for sentence in filter(None, sentences):
        raise UserError(sentence)


def _forward_mode(training: Training, loss: OwnLoss, rule: ForwardMode) -> ForwardMode:
    """The rule, after a step of it; refused where some operation has no forward-mode derivative."""
    problem = loss.problem
    theta, buffers = (problem.placed(t) for t in problem.local.initial())
    x, labels = problem.example(2)
    try:
        with problem.local.at(theta, buffers, training.running):
            rule.trial(loss, theta, x, labels)
    except (NotImplementedError, RuntimeError) as exc:
        raise UserError(
            f"--estimate jvp: this network has no forward-mode derivative ({str(exc).splitlines()[0]}); take "
            "one-sided or central"
        ) from exc
    return rule


def _signed(training: Training, loss: OwnLoss, part: slice) -> SignedLayers:
    """The layers that are perturbed, after a forward pass that tries their signs; refused where one takes none."""
    from zofl_mpi.problems.signs import SignedLayers

    problem, flat = loss.problem, loss.problem.local
    layers = SignedLayers(flat, flat.modules[:1] if loss.answered else flat.modules, part, training.running)
    theta, buffers = (problem.placed(t) for t in flat.initial())
    x, labels = problem.example(2)
    u = theta.new_zeros(part.stop - part.start)
    signs = layers.draw(torch.Generator(theta.device), 2, u)
    with torch.no_grad(), flat.at(theta, buffers, training.running), layers.perturbed(u, signs, 0.0) as calls:
        smashed = problem.smash(x)
        loss(smashed, smashed if loss.answered else labels)
    layers.check(calls)
    return layers
