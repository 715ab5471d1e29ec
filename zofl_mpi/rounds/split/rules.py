"""`GradientRule`: how a client's local step gets its direction; chosen once, from the flags (`Estimation.rule`).

With a loss (`client`) a rule makes a client of [C]'s family:

                 loss of the auxiliary head   <lambda, s> at the cut     the network's loss
    Backprop     CSE-FSL, FSL-SAGE            SFLV1, SFLV2, SplitLoRA
    TwoPoint     HERON                        HO-SFL                     DeComFL
    ForwardMode, PerSample: as TwoPoint, by derivatives along the directions, or by a direction for each sample
    Tail         the last layers along their gradient (Backprop, LinearHead), the first by another rule, or Frozen

A local step q on a mini-batch has two halves, between which the upload leaves:

    point = rule.forward(model, x, labels, upload)    the pass at the model itself, as far as it is needed
    gradient = rule(model, point, target, key)           the target: the labels, or lambda
    model.step(gradient)

`replay` forms the first part's direction from a step's scalars (--uplink seeds), `cost` names a step's passes, and
`trial` computes them to count products and memory. A rule of your own is a frozen dataclass that extends
`GradientRule`; a flag chooses it in `Estimation.rule`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast, final

from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.problems.saving import PLAIN, Saving
from zofl_mpi.rounds.split.client import Gradient, Key, LocalSteps, Loss, Point
from zofl_mpi.rounds.split.training import Training

Lines = dict[str, str | float]
"""Maps a label of --dry-run to its value."""


class StepCost(NamedTuple):
    """The passes of a local step."""

    forwards: int = 1
    on_upload: int = 0  # further ones of a step whose smashed samples go up
    signed: int = 0  # of these, passes that take each layer's products twice: with its parameters, and a direction
    heads: int = 0  # further products that cost as much as the head's in a forward pass
    layers: int = 0  # the client's last layers that have a backward pass of their own
    backwards: int = 0  # backward passes through all layers, each at the cost of two forward passes
    last: Any = None  # the rule of the last layers, where that has the backward pass
    plain: Any = None  # the rule that holds its activations, where this one computes them again


@dataclass(frozen=True)
class GradientRule:
    """Base of the rules that give a client's local step its direction; see the module's docstring."""

    part: slice  # the part of theta that the direction moves

    @property
    def parts(self) -> tuple[slice, ...]:
        """The parts of theta with a direction, each with its optimiser; estimated parts come first."""
        return (self.part,)

    @property
    def passes(self) -> int:
        """Forward passes of a step, without the one at the model itself."""
        return 0

    @property
    def pieces(self) -> int:
        """Number of pieces in which a mini-batch is computed, one after the other."""
        return 1

    def count(self, batch: int) -> int:
        """Directions of a step on a mini-batch of `batch` samples, all along the first part."""
        return 0

    @property
    def needs_point(self) -> bool:
        """True if a step needs the pass at the model itself even without an upload."""
        return True

    def forward(self, model: LocalSteps, x: Tensor, labels: Tensor, upload: bool = True) -> Point:
        """The pass at the model itself, with its smashed samples; empty if neither step nor upload needs it."""
        return model.forward(x, labels) if upload or self.needs_point else Point(x)

    def __call__(self, model: LocalSteps, point: Point, target: Tensor, key: Key) -> Gradient:
        """The direction of a step; `target`: the labels, or lambda if the loss is `at_cut`."""
        raise NotImplementedError

    @property
    def replayable(self) -> bool:
        """True if `replay` exists: loss differences determine a step's direction along the first part."""
        return type(self).replay is not GradientRule.replay

    def replay(self, moving: Tensor, differences: Sequence[float], key: Key) -> Tensor:
        """(d,) the first part's direction of a step, from its loss differences; `moving` (d,) is the moved part."""
        raise NotImplementedError

    def cost(self, loss: Loss) -> StepCost:
        """The passes of a step."""
        always = int(self.needs_point or loss.at_cut)
        return StepCost(always + self.passes, on_upload=1 - always)

    def plan_lines(self) -> Lines:
        """Further lines of --dry-run."""
        return {}

    def trial(self, loss: Loss, theta: Tensor, x: Tensor, labels: Tensor) -> None:
        """Computes a step's passes, one of each kind, in `loss.flat.bound_to(theta)`, to count products and memory."""
        with torch.no_grad():
            if loss.at_cut:
                smashed = loss.problem.smash(x)
                labels = torch.zeros_like(smashed)
                loss(smashed, labels)
                del smashed
            with self.along(loss, theta, len(x)):
                loss(loss.problem.smash(x), labels)

    def along(self, loss: Loss, theta: Tensor, count: int) -> AbstractContextManager[Any]:
        """Context manager for `trial`: a pass of `count` samples along some direction."""
        return nullcontext()


@final
@dataclass(frozen=True)
class Backprop(GradientRule):
    """The gradient, by a backward pass."""

    tail: bool = False  # True if the layers before the part keep no graph
    saving: Saving = PLAIN  # how activations are held

    @property
    def pieces(self) -> int:
        return self.saving.parts

    def forward(self, model: LocalSteps, x: Tensor, labels: Tensor, upload: bool = True) -> Point:
        """A pass with a graph, with the backward pass at once unless the loss waits for the server's answer."""
        with model.bound_to(model.buffers), self._graph(model.loss):
            if model.loss.at_cut:
                return Point(x, self._smashed(model.loss, x))
            loss, smashed, g = self._passes(model.loss, x, labels, model)
        model.record(loss)
        if self.tail:  # once more, without a graph: summed in float64, as perturbed passes sum it
            with torch.no_grad(), model.bound_to(model.scratch.copy_(model.buffers)):
                loss = model.loss(smashed, labels)
        return Point(x, smashed, loss, g)

    def __call__(self, model: LocalSteps, point: Point, target: Tensor, key: Key) -> Gradient:
        """The gradient from the pass, or the one that continues the server's answer."""
        g = point.gradient
        if g is None:
            again = self.saving.checkpoint  # otherwise BatchNorm's statistics would move twice
            buffers = model.scratch.copy_(model.buffers) if again else model.buffers
            with model.bound_to(buffers), self._graph(model.loss):
                g = self._continued(model.loss, point, target)
        return Gradient((g,))

    def _graph(self, loss: Loss) -> AbstractContextManager[Any]:
        """Context manager: restricts the parameters that require a gradient."""
        from zofl_mpi.problems.layers import requiring_grad

        return requiring_grad(loss.problem.client_side, self.part) if self.tail else nullcontext()

    def _gradient(self, loss: Loss, output: Tensor, slope: Tensor | None = None) -> Tensor:
        """(d,) the gradient of `output`, or of <slope, output>, within `_graph`."""
        flat = loss.problem.client_side
        if not self.tail:
            return flat.gradient(output, slope)[self.part]
        return flat.gradient(output, slope, [p for p in flat.parameters if p.requires_grad])

    def _passes(
        self, loss: Loss, x: Tensor, labels: Tensor, model: LocalSteps | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """() the loss, the smashed samples and (d,) the gradient; BatchNorm's statistics of a `model` move once."""
        problem, uploads = loss.problem, list[Tensor]()

        def parts() -> Iterator[tuple[float, tuple[Tensor, ...]]]:
            for own, targets in self.saving.split(x, labels):
                with self.saving.forward(problem.blocks):
                    smashed = problem.smash(own)
                    value = loss(smashed, targets)
                if model is not None and self.saving.checkpoint:
                    problem.client_side.swap(model.scratch.copy_(model.buffers))
                weight = problem.loss_count(targets) / problem.loss_count(labels)
                yield weight, (value.detach(), self._gradient(loss, value))
                uploads.append(smashed.detach())

        value, g = self.saving.added(parts())
        return value, _joined(uploads), g

    def _smashed(self, loss: Loss, x: Tensor) -> Tensor:
        """Smashed samples, with a graph unless `_continued` recomputes their parts."""
        with torch.set_grad_enabled(self.saving.parts == 1), self.saving.forward(loss.problem.blocks):
            return _joined([loss.problem.smash(own) for (own,) in self.saving.split(x)])

    def _continued(self, loss: Loss, point: Point, slope: Tensor) -> Tensor:
        """(d,) the gradient of <slope, s> for the smashed samples s of a point, which are freed part by part."""
        if self.saving.parts == 1:
            return self._gradient(loss, cast("Tensor", point.smashed), slope)
        point.smashed = None
        split = self.saving.split(point.x, slope)
        (g,) = self.saving.added((1.0, (self._gradient(loss, loss.problem.smash(x), own),)) for x, own in split)
        return g

    def cost(self, loss: Loss) -> StepCost:
        plain = replace(self, saving=PLAIN) if self.saving.checkpoint else None
        return StepCost(2 if loss.at_cut and self.saving.parts > 1 else 1, backwards=1, plain=plain)

    def plan_lines(self) -> Lines:
        return {} if self.saving == PLAIN else {"client memory": str(self.saving)}

    def trial(self, loss: Loss, theta: Tensor, x: Tensor, labels: Tensor) -> None:
        with self._graph(loss):
            if loss.at_cut:
                point = Point(x, self._smashed(loss, x))
                self._continued(loss, point, torch.zeros_like(cast("Tensor", point.smashed)))
            else:
                self._passes(loss, x, labels)


def backprop(training: Training, loss: Loss) -> Backprop:
    """Gradient rule of the trained part, as --client-memory has it; UserError if the network has none."""
    problem, saving = loss.problem, training.saving
    saving.check(problem.blocks, problem.client_side.modules[: 1 if loss.at_cut else None], training.running)
    return Backprop(training.trainable(head=loss.travels > problem.n_client), saving=saving)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


@final
@dataclass(frozen=True)
class LinearHead(GradientRule):
    """Gradient in a linear auxiliary head, in closed form from the model's own pass; see `problems.layers`."""

    gradient: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # (smashed, labels) to loss () and gradient (n_a,)

    def forward(self, model: LocalSteps, x: Tensor, labels: Tensor, upload: bool = True) -> Point:
        """The pass, with the head's gradient."""
        with torch.no_grad(), model.bound_to(model.buffers):
            smashed = model.problem.smash(x)
            loss, g = self.gradient(smashed, labels)
        model.record(loss)
        return Point(x, smashed, loss, g)

    def __call__(self, model: LocalSteps, point: Point, target: Tensor, key: Key) -> Gradient:
        return Gradient((point.gradient,))

    def trial(self, loss: Loss, theta: Tensor, x: Tensor, labels: Tensor) -> None:
        with torch.no_grad():
            self.gradient(loss.problem.smash(x), labels)


@final
@dataclass(frozen=True)
class Frozen(GradientRule):
    """No direction: the part stays unchanged."""

    def __call__(self, model: LocalSteps, point: Point, target: Tensor, key: Key) -> Gradient:
        return Gradient((None,))


@final
@dataclass(frozen=True)
class Tail(GradientRule):
    """The last layers along their gradient, the first ones by another rule; the part is both rules' together."""

    first: GradientRule
    last: Backprop | LinearHead  # rule of the last layers, or of a linear head alone
    layers: int = 0  # number of the client's layers that `last` moves

    @property
    def parts(self) -> tuple[slice, ...]:
        return self.first.part, self.last.part

    @property
    def replayable(self) -> bool:
        return self.first.replayable

    def count(self, batch: int) -> int:
        return self.first.count(batch)

    def forward(self, model: LocalSteps, x: Tensor, labels: Tensor, upload: bool = True) -> Point:
        return self.last.forward(model, x, labels, upload)

    def __call__(self, model: LocalSteps, point: Point, target: Tensor, key: Key) -> Gradient:
        last = self.last(model, point, target, key)
        point.smashed = None if point.smashed is None else point.smashed.detach()
        first = self.first(model, point, target, key)
        return Gradient((*first.parts, *last.parts), first.differences)

    def replay(self, moving: Tensor, differences: Sequence[float], key: Key) -> Tensor:
        """The direction of the first layers; the last ones are uploaded densely."""
        return self.first.replay(moving, differences, key)

    def cost(self, loss: Loss) -> StepCost:
        """Passes of the first rule, and the head's products once more.

        They give its gradient ((softmax - y)^T s costs as much as s W), or the loss at the model itself.
        """
        first, graph = self.first.cost(loss), self.last.cost(loss).backwards
        heads = first.heads + (not loss.at_cut)
        last = self.last if graph else None
        forwards = 1 + self.first.passes
        return first._replace(forwards=forwards, on_upload=0, heads=heads, layers=self.layers, last=last)

    def plan_lines(self) -> Lines:
        return self.first.plan_lines()

    def trial(self, loss: Loss, theta: Tensor, x: Tensor, labels: Tensor) -> None:
        self.last.trial(loss, theta, x, labels)
        self.first.trial(loss, theta, x, labels)
