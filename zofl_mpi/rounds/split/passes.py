"""--passes-abreast: several perturbed passes as one, tried before a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zofl_mpi.errors import UserError
from zofl_mpi.rounds.split.training import Training

if TYPE_CHECKING:
    from torch import Tensor

    from zofl_mpi.problems.stacked import Stacked


def check_abreast(count: int, estimate: str, directions: str, estimates: bool, training: Training) -> None:
    """Refuses several passes as one where there are none, or where each begins with what the one before has left.

    Args:
        count: of them.
        estimates: whether anything is estimated.

    Raises:
        UserError: it is so.
    """
    if count == 1:
        return
    flag, leave = f"--passes-abreast {count}", "or --passes-abreast 1"
    if estimate in ("exact", "jvp"):
        raise UserError(f"{flag}: --estimate {estimate} has no perturbed passes; take one-sided or central, {leave}")
    if not estimates:
        raise UserError(f"{flag}: nothing is estimated here; take 1")
    if directions != "global":
        raise UserError(f"{flag}: with --directions {directions} passes go one by one; take global, {leave}")
    if training.batchnorm == "every_pass" and training.problem.local.b:
        raise UserError(
            f"{flag}: with --batchnorm every_pass each pass moves the running statistics that the one before has left; "
            f"take batch or running, {leave}"
        )


def stacked(training: Training, part: slice, head: bool, count: int, central: bool) -> Stacked:
    """What passes at several points of a part of theta_l carry, after a pass that tries them.

    Args:
        training: of the problem whose local loss is estimated.
        part: of theta_l, what directions are of.
        head: whether the loss depends on the auxiliary head; else the labels are the gradient at the cut.
        count: of points.
        central: whether two of them lie along one direction.

    Raises:
        UserError: torch cannot stack some operation, or parameters are used past the modules that hold them.
    """
    from zofl_mpi.problems.stacked import Stacked

    found = Stacked(training.problem.local, part, count, math.ceil(count / (1 + central)))
    _try(found, training, part, head, f"--passes-abreast {count}")
    return found


def _try(found: Stacked, training: Training, part: slice, head: bool, flag: str) -> None:
    import torch

    problem = training.problem
    theta, buffers = (problem.placed(t).clone() for t in problem.local.initial())
    x, labels = problem.example(2)
    x = found.inputs(x)

    def loss() -> Tensor:
        smashed = problem.smash(x)
        return problem.local_loss(smashed, labels if head else torch.ones_like(smashed))

    with torch.no_grad(), problem.local.at(theta, buffers, training.running):
        alone = loss()
        points = theta[part].repeat(2, 1)
        theta[part] = math.nan  # which the modules hold, and no pass may meet
        try:
            losses = found.losses(points, loss)
        except (NotImplementedError, RuntimeError, ValueError) as exc:
            raise UserError(
                f"{flag}: torch cannot compute this network at several points at once ({str(exc).splitlines()[0]}); "
                "take --passes-abreast 1"
            ) from exc
    if alone.isfinite() and not losses.isfinite().all():
        raise UserError(
            f"{flag}: this network uses parameters past the modules that hold them, so that points at once cannot be "
            "told apart; take --passes-abreast 1"
        )
