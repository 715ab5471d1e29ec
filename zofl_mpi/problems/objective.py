"""A torch loss with weights and metrics: means over mini-batches, sums in float64, losses of single samples."""

import copy
import math
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from zofl_mpi.errors import UserError, mistake

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs (B, ...), targets (B, ...)) -> (), a mean over samples
Metric = Callable[[Tensor, Tensor], Any]  # (outputs (N, ...) in float64, targets (N, ...)) -> a number
Weight = Callable[[Tensor, Tensor], Tensor]  # (inputs (B, ...), targets (B, ...)) -> (B,)
ROUNDING = 1e-3
"""Relative difference up to which two float32 losses count as equal."""
METRICS = "{name: function (outputs, targets) -> number}, names of letters, digits and _, not loss"
"""Allowed `metrics`, for messages."""


@final
class Objective:
    """A loss with sample weights and metrics: F(x) = (1/N) sum_j w_j l(outputs_j, targets_j), w_j = 1 without weights.

    Some losses are no mean over samples: a class-weighted cross-entropy divides by the sum of weights. They are used
    unchanged on a mini-batch, and averaged over blocks on more samples.

    Attributes:
        name: of the loss, for messages.
        classifies: True for a cross-entropy with class labels (not class shares); the largest output is the prediction.
        plain: True for the cross-entropy of one class per sample without further terms; its gradient is softmax - y.
        separate: True if it is the mean of the samples' losses; known after `check`.
        differentiable: True if it has a gradient; known after `check`.
    """

    def __init__(
        self, loss: Any = None, metrics: Mapping[str, Metric] | None = None, weight: Weight | None = None
    ) -> None:
        """`loss`: None for the cross-entropy (UserError: no valid loss, or an invalid name of a metric)."""
        own = nn.CrossEntropyLoss() if loss is None else loss
        if not isinstance(metrics or {}, Mapping):
            raise UserError(f"metrics is a {type(metrics).__name__}; it must be {METRICS}")
        self.name, self.metrics, self.weight = called(own), dict(metrics or {}), weight
        if isinstance(own, type) or not callable(own):
            shown = f"{own.__name__}, a class: give an instance, {own.__name__}()" if isinstance(own, type) else own
            raise UserError(f"loss={shown}: must be a torch loss or a function (outputs, targets) -> scalar tensor")
        if isinstance(own, nn.Module) and next(own.parameters(), None) is not None:
            raise UserError(f"loss {self.name} has parameters of its own to train: put them into the module")
        for name, metric in self.metrics.items():
            if not re.fullmatch(r"[A-Za-z]\w*", str(name)) or name == "loss" or not callable(metric):
                raise UserError(f"metrics: {name!r}: {metric!r} must be {METRICS}")
        self.classifies = self.plain = isinstance(own, nn.CrossEntropyLoss)
        if isinstance(own, nn.CrossEntropyLoss):
            bare = type(own) is nn.CrossEntropyLoss and own.weight is None and weight is None
            self.plain = bare and own.label_smoothing == 0 and own.ignore_index == -100
        self.differentiable = True
        self.separate, self._wide_works, self._sums, self._joins = True, True, True, False
        self._floats = False  # True if the loss needs integer targets as floats
        self._forms = {dtype: _Form(own, dtype) for dtype in (torch.float32, torch.float64)}

    def to(self, device: torch.device) -> None:
        """Moves the loss's constants to the device of the outputs."""
        for form in self._forms.values():
            form.to(device)

    # --- in training, with a graph

    def mean(self, outputs: Tensor, targets: Tensor, inputs: Tensor) -> Tensor:
        """Mean () over a mini-batch, in the outputs' dtype."""
        targets, form = self._given(targets, outputs.dtype), self._form(outputs)
        if self.weight is None:
            return form.loss(outputs, targets)
        return (self._weights(inputs, targets).to(outputs.dtype) * self._each(form, outputs, targets)).mean()

    def sum(self, outputs: Tensor, targets: Tensor, inputs: Tensor) -> Tensor:
        """Sum () over a mini-batch."""
        if self.weight is None and self._sums:
            form = self._form(outputs)
            return form.summed(outputs, self._given(targets, outputs.dtype))  # type: ignore[misc]
        return self.mean(outputs, targets, inputs) * len(outputs)

    # --- in reports and zeroth-order estimates

    def wide(self, outputs: Tensor) -> Tensor:
        """The outputs in float64, or unchanged if the loss's constants are float32."""
        return outputs.double() if self._wide_works else outputs

    def total(self, outputs: Tensor, targets: Tensor, inputs: Tensor) -> Tensor:
        """Sum () over a mini-batch, in float64."""
        return self.sum(self.wide(outputs), targets, inputs).double()

    def each(self, outputs: Tensor, targets: Tensor, inputs: Tensor, exact: bool = True) -> Tensor:
        """Loss (B,) of each sample, in float64.

        Each gets the mini-batch's mean if the loss is no mean over samples; also if not `exact` and the loss is a
        function, which would need a call per sample.
        """
        outputs = self.wide(outputs)
        form = self._form(outputs)
        if not self.separate or (form.apart is None and not exact):
            return (self.total(outputs, targets, inputs) / len(outputs)).expand(len(outputs))
        targets = self._given(targets, outputs.dtype)
        each = self._each(form, outputs, targets).double()
        return each if self.weight is None else each * self._weights(inputs, targets)

    def by_class(self, targets: Tensor) -> bool:
        """True if each sample has one class, and the loss takes one output per class."""
        return self.classifies and targets.dim() == 1 and not targets.is_floating_point()

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Hits (B,): 1 if the sample's class has the largest output, else 0; a share for several classes a sample."""
        if not self.classifies:
            return torch.zeros(len(outputs), dtype=torch.float64, device=outputs.device)
        return (outputs.argmax(dim=1) == targets).double().reshape(len(outputs), -1).mean(dim=1)

    def measured(self, outputs: Tensor, targets: Tensor, known: bool) -> dict[str, float]:
        """Metrics of all outputs (N, ...) and targets (N, ...) (UserError: no number; if `known`, also nan)."""
        found, needs = dict[str, float](), "a function (outputs (N, ...), targets (N, ...)) -> number"
        outputs, targets = outputs.double().cpu(), self._given(targets, torch.float64).cpu()
        for name, metric in self.metrics.items():
            try:
                value = metric(outputs, targets)
                value = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
                number = float(value) if value.ndim == 0 else math.nan
            except Exception as exc:  # the user's code
                raise UserError(f"metric {name} must be {needs}: {mistake(exc)}") from exc
            if value.ndim:
                raise UserError(f"metric {name} gives an array of shape {value.shape}; it must be {needs}")
            if known and math.isnan(number):
                raise UserError(
                    f"metric {name} of the first model is nan on {len(outputs)} held-out samples: repair it"
                )
            found[name] = number
        return found

    # --- checks

    def check(self, outputs: Tensor, targets: Tensor, inputs: Tensor) -> None:
        """Tries the loss on the initial model's outputs, in their dtype (UserError: it gives no mean loss)."""
        outputs = outputs.detach()
        if self.classifies and outputs.dim() < 2:
            raise UserError(f"loss {self.name} needs outputs of shape (B, C), one a class; they are {outputs.dim()}-D")
        self.plain = self.plain and outputs.dim() == 2 and self.by_class(targets)
        self.classifies = self.classifies and not targets.is_floating_point()
        value = self._first(outputs, targets)
        targets, form = self._given(targets, outputs.dtype), self._form(outputs)
        shapes = f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}"
        if not isinstance(value, Tensor) or value.numel() != 1 or value.is_complex():
            got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"loss {self.name} gives {got} for {shapes}; it must give a scalar tensor, a mean loss")
        if not torch.isfinite(value):
            raise UserError(f"loss {self.name} is {value.item()} at the first model, for {shapes}; it must be finite")
        self._find_form(form, outputs, targets, value)
        if not self.separate:
            both = form.loss(torch.cat([outputs] * 2), torch.cat([targets] * 2))
            if value != 0 and _close(both, 2 * value):
                raise UserError(f"loss {self.name} is a sum over samples; it must be their mean (reduction='mean')")
            if outputs.shape != targets.shape and outputs.numel() == targets.numel():
                raise UserError(f"loss {self.name} broadcasts {shapes}; give both the same shape")
        if self.weight is not None:
            if not self.separate:
                raise UserError(f"weight needs a loss that is a mean over samples; {self.name} is none")
            weights = self._weights(inputs, targets)
            if not (torch.isfinite(weights) & (weights >= 0)).all():
                raise UserError("weight gives a number that is negative or not finite; it must give (B,) weights >= 0")

    def _first(self, outputs: Tensor, targets: Tensor) -> Any:
        """First value of the loss; finds out if integer targets must be floats."""
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Using a target size")
            for self._floats in (False, True):
                try:
                    return self._differentiated(outputs, self._given(targets, outputs.dtype))
                except Exception as exc:  # the user's code, or torch's refusal of shapes and dtypes
                    if self._floats or targets.is_floating_point():
                        shapes = f"{tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}"
                        fault = f"loss {self.name} does not take outputs of shape {shapes}"
                        raise UserError(f"{fault}: {mistake(exc)}") from exc
        return None

    def _differentiated(self, outputs: Tensor, targets: Tensor) -> Any:
        """Value of the loss, after trying its gradient: some losses refuse integer targets only there."""
        with torch.enable_grad():
            leaf = outputs.clone().requires_grad_()
            value = self._form(outputs).loss(leaf, targets)
            self.differentiable = isinstance(value, Tensor) and value.requires_grad
            if self.differentiable and value.dim() == 0:
                torch.autograd.grad(value, leaf)
        return value.detach() if isinstance(value, Tensor) else value

    def _find_form(self, form: "_Form", outputs: Tensor, targets: Tensor, value: Tensor) -> None:
        """Finds out how the mean follows from the samples' losses, and if the loss works in float64."""
        self.separate = False
        for self._joins in (False, True):
            try:
                self.separate = _close(self._each(form, outputs, targets).mean(), value)
            except Exception:  # the user's code, which may need more than one sample
                break
            if self.separate:
                break
        self._sums = form.summed is not None and _close(form.summed(outputs, targets), len(outputs) * value)
        try:
            wide = outputs.double()
            self._forms[torch.float64].loss(wide, self._given(targets, torch.float64))
        except Exception:  # a function may hold constants in float32
            self._wide_works = False

    # --- parts

    def _form(self, outputs: Tensor) -> "_Form":
        return self._forms[torch.float64 if outputs.dtype == torch.float64 else torch.float32]

    def _given(self, targets: Tensor, dtype: torch.dtype) -> Tensor:
        """Targets for the loss; floats get the outputs' dtype."""
        return targets.to(dtype) if targets.is_floating_point() or self._floats else targets

    def _each(self, form: "_Form", outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss (B,) of each sample, without weights."""
        if form.apart is None:
            return torch.stack([form.loss(o, t) for o, t in zip(outputs[:, None], targets[:, None], strict=True)])
        each = form.apart(outputs, targets)
        if each.dim() == 1:
            return each
        each = each.reshape(len(outputs), -1)
        return each.sum(dim=1) if self._joins else each.mean(dim=1)

    def _weights(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Sample weights (B,) (UserError: another shape)."""
        try:
            weights = self.weight(inputs, targets).detach()  # type: ignore[misc]
        except Exception as exc:  # the user's code
            raise UserError(f"weight must be a function (inputs, targets) -> (B,) weights: {mistake(exc)}") from exc
        if weights.shape != (len(targets),):
            raise UserError(f"weight gives the shape {tuple(weights.shape)} for {len(targets)} samples; must be (B,)")
        return weights


@final
class _Form:
    """A loss in one dtype: its mean; and, if it has a `reduction`, each sample's loss and the sum."""

    def __init__(self, loss: Any, dtype: torch.dtype) -> None:
        self.loss: Loss = loss
        self.apart: Loss | None = None
        self.summed: Loss | None = None
        if not isinstance(loss, nn.Module):
            return
        self.loss = copy.deepcopy(loss).to(dtype)
        if isinstance(getattr(loss, "reduction", None), str):
            self.apart, self.summed = _reduced(self.loss, "none"), _reduced(self.loss, "sum")

    def to(self, device: torch.device) -> None:
        """Moves its constants to the device."""
        for form in (self.loss, self.apart, self.summed):
            if isinstance(form, nn.Module):
                form.to(device)


def _reduced(loss: Any, reduction: str) -> Loss:
    """Copy of a loss with another `reduction`."""
    other: Any = copy.deepcopy(loss)
    other.reduction = reduction
    return other  # type: ignore[no-any-return]


def called(function: Any) -> str:
    """Name of a callable, equal on all ranks."""
    if isinstance(function, nn.Module):
        return repr(function).removesuffix("()")
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs() <= ROUNDING * b.abs() + 1e-12)
