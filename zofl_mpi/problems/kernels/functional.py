"""Batched gradients and losses of many models of one module, by torch.func."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import log_softmax

from zofl_mpi.problems.module import Function

Named = dict[str, Tensor]  # {parameter name: values of all models, stacked along the first axis}


def slopes(function: Function) -> Callable[[Named, Tensor, Tensor], Named]:
    """Returns a batched gradient function: mean-loss gradients of R models, each on its own mini-batch.

    Its arguments are parameters (R, *shape), inputs (R, B, *input_shape) and targets (R, B, ...). The plain
    cross-entropy takes one-hot targets (R, B, C): products need a dozen operations fewer than torch's gather and
    scatter.
    """

    def loss(parameters: Named, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs: Tensor = functional_call(function.module, parameters, (inputs,))
        if function.objective.plain:
            return -(targets * log_softmax(outputs, dim=-1)).sum(dim=-1).mean()
        return function.objective.mean(outputs, targets, inputs)

    return vmap(grad(loss), randomness="different")  # `_try` admits no random numbers but those of dropout with p = 0


def costs(function: Function) -> Callable[[Named, Tensor, Tensor], Tensor]:
    """Returns a batched loss function: loss sums (R,) float64 of R models, each on its own mini-batch; see `slopes`."""

    def cost(parameters: Named, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs: Tensor = functional_call(function.module, parameters, (inputs,))
        if function.objective.plain:
            return -(targets * log_softmax(outputs.to(torch.float64), dim=-1)).sum()
        return function.objective.total(outputs, targets, inputs)

    return vmap(cost, randomness="different")


def step_bytes(function: Function, batch_size: int) -> int:
    """Approximate bytes of a step: point, gradient, step, inputs, and twice the tensors saved for the backward pass."""
    kept = 0

    def noted(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(noted, lambda tensor: tensor), torch.enable_grad():
        inputs, point = function.step_of_zeros(batch_size)
    return 3 * point.nbytes + inputs.nbytes + 2 * kept


def why_not_batchable(function: Function) -> str:
    """Reason why many models cannot be computed at once, in torch's words; "": they can. Tries two models.

    A batched form that loops over the models counts as a failure.
    """
    targets = function.examples.targets(4)
    own = targets.view(2, 2, *targets.shape[1:])
    if function.objective.plain:
        own = torch.ones((2, 2, function.classes), dtype=function.dtype)
    inputs = function.examples.inputs(4).view(2, 2, *function.input_shape)
    try:
        with warnings.catch_warnings(), function.bound_to(function.vector(function.initial())):
            trained = {name: p for name, p in function.module.named_parameters() if p.requires_grad}
            both = {name: torch.stack([p.detach()] * 2) for name, p in trained.items()}
            warnings.filterwarnings("error", message="There is a performance drop")
            slopes(function)(both, inputs.to(function.device), own.to(function.device))
    except Exception as error:  # the user's code, or an operation that has no batched form
        return str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
    return ""
