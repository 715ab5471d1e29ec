"""Gradient rules by forward passes only, and the flags that choose one (`Estimation`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, final

from zofl_mpi import Purpose, UserError, above, at_least
from zofl_mpi.engine.fields import UsedWith
from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.numerics import zo
from zofl_mpi.rounds.split.client import Draw, Gradient, Key, LocalSteps, Loss, OwnLoss, Point, drawn, generator_of
from zofl_mpi.rounds.split.rules import Backprop, Frozen, GradientRule, LinearHead, Lines, StepCost, Tail, backprop
from zofl_mpi.rounds.split.training import Training

if TYPE_CHECKING:
    from zofl_mpi.problems.signs import SignedLayers


@dataclass(frozen=True)
class Estimate(GradientRule):
    """Mean of the estimates from n_p directions; see `Estimation`."""

    n_p: int = 1
    distribution: str = "sqrt_d_sphere"
    draw: Draw = "device"

    @property
    def span(self) -> float:
        """Distance between the two points of a difference, in units of a direction."""
        return 1.0

    def count(self, batch: int) -> int:
        """n_p, shared by all samples of the mini-batch."""
        return self.n_p

    def directions(self, like: Tensor, key: Key) -> Iterator[Tensor]:
        """u_1, ..., u_{n_p} (d,) of a step, with dtype and device of `like` (d,)."""
        return drawn(key(Purpose.DIRECTION), like, self.n_p, self.distribution, self.draw)

    def of_step(self, model: LocalSteps, key: Key) -> Iterable[Tensor]:
        """The directions of a client's step."""
        like = model.theta[self.part]
        return model.drawn(partial(self.directions, like), key, self.n_p * like.nbytes)

    def term(self, difference: float | Tensor, u: Tensor) -> Tensor:
        """A direction's share of the estimate, (d,), or of a part of u."""
        # sqrt_d_sphere like gaussian: its u already contains sqrt(d)
        kind: zo.Distribution = "sphere" if self.distribution == "sphere" else "gaussian"
        d = self.part.stop - self.part.start
        return cast("Tensor", zo.estimate(difference, u, self.span * self.n_p, kind, d))

    def replay(self, moving: Tensor, differences: Sequence[float], key: Key) -> Tensor:
        g = moving.new_zeros(moving.shape)
        for u, difference in zip(self.directions(moving, key), differences, strict=True):
            g += self.term(difference, u)
        return g

    def plan_lines(self) -> Lines:
        """The expected cosine, sqrt(P / (P + d + 1)): root of the gradient's share of the estimate's mean square.

        Exact for P Gaussian directions in d dimensions; close for those of a sphere.
        """
        d = self.part.stop - self.part.start
        value = f"{math.sqrt(self.n_p / (self.n_p + d + 1)):.3g}"
        return {"cosine of an estimate with the gradient, about": value} if d else {}


@dataclass(frozen=True)
class TwoPoint(Estimate):
    """The two-point estimate, [C] (2); see `numerics.zo`."""

    mu: float = 1e-3  # in units of the distribution
    central: bool = False  # True: both sides of the point; False: one side and the point itself

    @property
    def needs_point(self) -> bool:
        return not self.central

    @property
    def passes(self) -> int:
        return (1 + self.central) * self.n_p

    @property
    def span(self) -> float:
        return 2 * self.mu if self.central else self.mu

    def __call__(self, model: LocalSteps, point: Point, target: Tensor, key: Key) -> Gradient:
        """d/mu (F(theta + mu u) - F(theta)) u, or d/(2 mu) (F(theta + mu u) - F(theta - mu u)) u, averaged over u."""
        base = None if self.central else self._base(model, point, target)
        differences, g = list[Tensor](), None
        for u in self.of_step(model, key):
            plus = model.perturbed(point.x, target, u, self.mu)
            other = model.perturbed(point.x, target, u, -self.mu) if base is None else base
            model.compare(plus, other)
            differences.append(plus - other)
            term = self.term(differences[-1], u)
            g = term if g is None else term.add_(g)
        return Gradient((g,), differences)

    def _base(self, model: LocalSteps, point: Point, target: Tensor) -> Tensor:
        """() F(theta); releases the smashed samples."""
        smashed, point.smashed = point.smashed, None
        return model.loss(cast("Tensor", smashed), target) if point.loss is None else point.loss


@final
@dataclass(frozen=True)
class ForwardMode(Estimate):
    """Derivatives along the directions by forward-mode differentiation: an oracle without smoothing radius."""

    @property
    def needs_point(self) -> bool:
        return False

    @property
    def passes(self) -> int:
        return self.n_p

    def __call__(self, model: LocalSteps, point: Point, target: Tensor, key: Key) -> Gradient:
        """<grad F(theta), u> u, averaged over u."""
        moving, differences = model.theta[self.part], []
        g = moving.new_zeros(moving.shape)
        for u in self.of_step(model, key):
            differences.append(self.derivative(model, point.x, target, u))
            g += self.term(differences[-1], u)
        return Gradient((g,), differences)

    def derivative(self, model: LocalSteps, x: Tensor, target: Tensor, u: Tensor) -> Tensor:
        """() the derivative of the loss along u, without a graph."""
        from zofl_mpi.problems.tangents import channels_first, tangent_of, tangents

        x = channels_first(x)
        with torch.no_grad(), model.bound_to(model.unmoved()), tangents(model.problem.client_side, self.part, u):
            return tangent_of(model.loss(model.problem.smash(x), target))

    def cost(self, loss: Loss) -> StepCost:
        return super().cost(loss)._replace(signed=self.passes)

    def trial(self, loss: Loss, theta: Tensor, x: Tensor, labels: Tensor) -> None:
        from zofl_mpi.problems.tangents import channels_first

        super().trial(loss, theta, channels_first(x), labels)

    def along(self, loss: Loss, theta: Tensor, count: int) -> AbstractContextManager[Any]:
        from zofl_mpi.problems.tangents import tangents

        return tangents(loss.problem.client_side, self.part, theta[self.part])


@final
@dataclass(frozen=True, kw_only=True)
class PerSample(TwoPoint):
    """The two-point estimate with one direction per sample, by random signs; see `problems.signs`."""

    layers: SignedLayers
    losses: Callable[[Tensor, Tensor], Tensor]  # (smashed, target) to (B,) each sample's contribution to the loss

    def __call__(self, model: LocalSteps, point: Point, target: Tensor, key: Key) -> Gradient:
        """The mean over the directions u of the samples' estimates, each along sigma_j u."""
        moving, x, smash = model.theta[self.part], point.x, model.problem.smash

        def each(smashed: Callable[[], Tensor], along: AbstractContextManager[Any] | None = None) -> Tensor:
            """(B,) the samples' losses, each at its own point within `along`."""
            with torch.no_grad(), model.bound_to(model.buffers), along or nullcontext():
                return self.losses(smashed(), target)

        base = None if self.central else each(lambda: cast("Tensor", point.smashed))
        signs, g = generator_of(key(Purpose.SIGNS), model.theta, self.draw), moving.new_zeros(moving.shape)
        for u in self.of_step(model, key):
            sigma = self.layers.draw(signs, len(x), u)
            plus, minus = (self.layers.perturbed(u, sigma, mu) for mu in (self.mu, -self.mu))
            losses = each(lambda: smash(x), plus)
            other = each(lambda: smash(x), minus) if base is None else base
            model.compare(losses, other)
            weight = (len(u) if self.distribution == "sphere" else 1) / (self.span * self.n_p)
            g += self.layers.weighted(u, sigma, weight * (losses - other))
        return Gradient((g,))

    replay = GradientRule.replay  # none: a step has one difference per sample, not per direction

    def count(self, batch: int) -> int:
        """n_p for each sample."""
        return self.n_p * batch

    def cost(self, loss: Loss) -> StepCost:
        """Passes with each layer's products twice; the head's once more for the samples' losses at the model."""
        return super().cost(loss)._replace(signed=self.passes, heads=int(self.needs_point and not loss.at_cut))

    def plan_lines(self) -> Lines:
        """Empty: the rule of thumb is for one direction."""
        return {}

    def along(self, loss: Loss, theta: Tensor, count: int) -> AbstractContextManager[Any]:
        u = theta[: self.layers.d]
        return self.layers.perturbed(u, self.layers.draw(torch.Generator(theta.device), count, u), 1.0)


@final
@dataclass(frozen=True)
class Estimation:
    """Flags of a client's gradient estimate.

    Attributes:
        mu: smoothing radius, in units of the distribution.
        distribution: distribution of the directions: sqrt_d_sphere (norm sqrt(d): entries of size 1, as with gaussian;
            the same estimate as sphere with mu sqrt(d)); sphere (norm 1); gaussian; rademacher (random signs, drawn in
            a tenth of the time).
        n_p: directions of a local step; their estimates are averaged.
        estimate: type of estimate. one-sided: 1 + n_p forward passes. central: 2 n_p, and one more for an upload. jvp:
            derivatives along n_p directions by forward-mode differentiation, an oracle without mu; n_p passes with
            twice the products, and one more for an upload. exact: the gradient by backpropagation, for tests; HERON is
            then CSE-FSL, HO-SFL is SFLV2.
        directions: directions of a mini-batch: global (one for all samples) or per-sample (one per sample, by random
            signs of one perturbation of each layer; see `problems.signs`). per-sample doubles the products of a
            perturbed pass.
        exact_layers: N, number of the client's last layers that step along their gradient, by a backward pass through
            these only. HERON's gradient is that of the local loss (the head is exact too), HO-SFL's that of the
            server's loss, whose derivative lambda at the cut comes back. N = all layers is CSE-FSL or SFLV2 bit for
            bit. The client keeps these layers' graph.
        rest: with --exact-layers, treatment of the layers before these: estimated, or frozen.
        probe_gradient: evaluations also report the cosine between clients' estimates and their gradients by
            backpropagation, outside the ledger.
        uplink: form of a client's upload: dense (the model) or seeds (n_p loss differences per local step, from which
            the server replays the steps, bit-identically on the same kind of processor).
        draw: place where directions are drawn: device (where the model is; a GPU draws other numbers than a CPU) or
            host (the same numbers for any device; a GPU waits for the host, about 10 ns per entry).
    """

    USED_WITH: ClassVar[UsedWith] = {
        "mu": {"estimate": ("one-sided", "central")},
        **{name: {"estimate": ("one-sided", "central", "jvp")} for name in ("distribution", "n_p", "draw")},
    }
    mu: float = above(0, 1e-3, "a smoothing radius")
    distribution: Literal["sqrt_d_sphere", "sphere", "gaussian", "rademacher"] = "sqrt_d_sphere"
    n_p: int = at_least(1, 1, "a whole number of directions")
    estimate: Literal["one-sided", "central", "jvp", "exact"] = "one-sided"
    directions: Literal["global", "per-sample"] = "global"
    exact_layers: int = 0
    rest: Literal["estimated", "frozen"] = "estimated"
    probe_gradient: bool = False
    uplink: Literal["dense", "seeds"] = "dense"
    draw: Draw = "device"

    def rule(self, training: Training, loss: OwnLoss, exact_head: bool = False) -> GradientRule:
        """The rule of a client's local steps, tried by some passes; UserError if flags contradict each other.

        `exact_head`: whether the auxiliary head steps along its gradient.
        """
        for applies, flag, reason in self._refusals(training, exact_head):
            if applies:
                raise UserError(f"{flag}: {reason}")
        rule = self._rule(training, loss, exact_head)
        if self.uplink == "seeds" and not rule.replayable:
            sent = "it sends the scalars of estimates, a number a step and direction"
            raise UserError(f"--uplink seeds: {sent}, and no step follows from them here; take dense")
        return rule

    def _rule(self, training: Training, loss: OwnLoss, exact_head: bool) -> GradientRule:
        """The rule, by the parts that train."""
        from zofl_mpi.problems.layers import last_layers

        part, gradient = training.trainable(head=not loss.at_cut), training.problem.head_gradient
        if not (exact_head or self.exact_layers):
            return backprop(training, loss) if self.estimate == "exact" else self._estimate(training, loss, part)
        start = int(last_layers(training.problem.client_side, self.exact_layers).start)
        tail, before = slice(start, part.stop), slice(part.start, start)
        if not (exact_head or loss.at_cut):
            both = "a backward pass to them has the head's gradient too; give --head-gradient exact"
            raise UserError(f"--exact-layers {self.exact_layers}: {both}")
        last = LinearHead(tail, gradient) if gradient and not self.exact_layers else Backprop(tail, tail=True)
        frozen = before.start == before.stop or self.rest == "frozen"
        first = Frozen(before) if frozen else self._estimate(training, loss, before)
        return Tail(part, first, last, self.exact_layers)

    def _estimate(self, training: Training, loss: OwnLoss, part: slice) -> GradientRule:
        """The rule by forward passes, after a trial pass."""
        directions, central = (part, self.n_p, self.distribution, self.draw), self.estimate == "central"
        if self.estimate == "jvp":
            rule = ForwardMode(*directions)
            try:
                with _two_samples(training, loss) as example:
                    rule.trial(loss, *example)
            except (NotImplementedError, RuntimeError) as exc:
                none = f"this network has no forward-mode derivative ({str(exc).splitlines()[0]})"
                raise UserError(f"--estimate jvp: {none}; take one-sided or central") from exc
            return rule
        if self.directions == "global":
            return TwoPoint(*directions, self.mu, central)
        if loss.each is None:
            untold = "this problem does not tell what each sample adds to the loss (local_losses)"
            raise UserError(f"--directions per-sample: {untold}; take --directions global")
        return PerSample(*directions, self.mu, central, layers=_signed(training, loss, part), losses=loss.each)

    def _refusals(self, training: Training, exact_head: bool) -> Iterator[tuple[object, str, str]]:
        """Conflicts of flags, the first one first: (True if they conflict, the flag to refuse, reason)."""
        signs = self.directions == "per-sample"
        exact_parts = {"--head-gradient exact": exact_head, f"--exact-layers {self.exact_layers}": self.exact_layers}
        gradient = "--estimate exact has the gradient itself; leave one of them out"
        inexact = {"--probe-gradient": self.probe_gradient, "--directions per-sample": signs, **exact_parts}
        for flag, on in inexact.items():
            yield on and self.estimate == "exact", flag, gradient
        none_up = "with --client-parts own no model goes up; take dense"
        yield self.uplink == "seeds" and training.own_parts, "--uplink seeds", none_up
        for flag, on in exact_parts.items():
            frozen = f"--freeze {training.freeze} contradicts it; take --freeze none"
            yield on and training.freeze != "none", flag, frozen
            average = "--state average has one optimiser for all layers; take keep or reset"
            yield on and training.state == "average", flag, average
        jvp = "--estimate jvp has no differences of losses; take one-sided or central"
        yield signs and self.estimate == "jvp", "--directions per-sample", jvp
        no_form = "this auxiliary head is not a linear layer with nothing to train before it, and so has no gradient in"
        closed = training.problem.head_gradient is not None or self.exact_layers
        yield exact_head and not closed, "--head-gradient exact", f"{no_form} closed form; take estimated"
        nothing = "with --exact-layers 0 nothing of the client would train; --freeze client does so"
        yield not self.exact_layers and self.rest == "frozen", "--rest frozen", nothing


@contextmanager
def _two_samples(training: Training, loss: OwnLoss) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Context manager: binds the modules to their initial theta; yields it with inputs and labels, for a trial."""
    problem = loss.problem
    theta, buffers = (problem.to_device(t) for t in problem.client_side.initial())
    with problem.client_side.bound_to(theta, buffers, training.running):
        yield theta, *problem.example(2)


def _signed(training: Training, loss: OwnLoss, part: slice) -> SignedLayers:
    """The perturbed layers, after a trial pass of their signs; UserError if a layer cannot take signs."""
    from zofl_mpi.problems.signs import SignedLayers

    flat = loss.problem.client_side
    layers = SignedLayers(flat, flat.modules[:1] if loss.at_cut else flat.modules, part, training.running)
    with torch.no_grad(), _two_samples(training, loss) as (theta, x, labels):
        u = theta.new_zeros(part.stop - part.start)
        with layers.perturbed(u, layers.draw(torch.Generator(theta.device), 2, u), 0.0) as calls:
            smashed = loss.problem.smash(x)
            loss(smashed, smashed if loss.at_cut else labels)
    layers.check(calls)
    return layers
