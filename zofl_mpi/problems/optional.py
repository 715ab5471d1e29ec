"""What a problem may have besides the members of its protocol, and what stands for each where it has not.

Methods ask here, so that a user's problem may leave out all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.problems import Array, Bilevel

if TYPE_CHECKING:
    from torch import nn

Lower = Callable[[Array, Array], Array]

# --- any problem


def x0(problem: Any) -> Literal["zero", "random"]:
    """`x0`: the start that --x0 auto stands for; zero where it is missing."""
    return cast(Literal["zero", "random"], getattr(problem, "x0", "zero"))


def initial(problem: Any, generator: np.random.Generator) -> Array:
    """`initial(generator)`: (n,) a random start; standard normal entries times 0.01 where it is missing."""
    if hasattr(problem, "initial"):
        return np.asarray(problem.initial(generator))
    return np.asarray(0.01 * generator.standard_normal(problem.n))


def gradient(problem: Any) -> Callable[[Array, Any, Any], Array]:
    """`gradient_f1(x, data, batch)`, else `gradient`: (n,) that of the loss on the server's data."""
    return cast(
        Callable[[Array, Any, Any], Array],
        problem.gradient_f1 if hasattr(problem, "gradient_f1") else problem.gradient,
    )


def kernel_name(problem: Any, batch_size: int) -> str:
    """`kernel_name(batch_size)`: what computes, for the record; own where it is missing."""
    return str(problem.kernel_name(batch_size)) if hasattr(problem, "kernel_name") else "own"


def score(problem: Any, *arguments: Any) -> Mapping[str, float]:
    """`score(x, data)`, `score(x, y, data)` of a bilevel problem; nothing where it is missing or there are no data."""
    if hasattr(problem, "score") and arguments[-1]:
        return cast(Mapping[str, float], problem.score(*arguments))
    return {}


def hits(problem: Any) -> Callable[[Array, Any], Array] | None:
    """`hits(x, data)`: (C,) how many samples of each class x (n,) classifies correctly; None where it is missing.

    With it both accuracies of a personal model take one pass, without losses.
    """
    return getattr(problem, "hits", None)


def smooth_twin(problem: Any) -> bool:
    """`smooth_twin`: whether `loss` and `gradient` are those of a smooth twin of the problem's `losses`; else not."""
    return bool(getattr(problem, "smooth_twin", False))


# --- a split problem


def as_for(problem: Any, batch: int) -> AbstractContextManager[None]:
    """`as_for(batch)`: context manager in which a smaller batch has as many pieces as one of `batch` samples.

    Nothing to do where it is missing.
    """
    return cast("AbstractContextManager[None]", problem.as_for(batch)) if hasattr(problem, "as_for") else nullcontext()


def blocks(problem: Any) -> Sequence[nn.Module]:
    """`blocks`: modules of client and auxiliary, one behind the other, each of which a client that is short of memory
    may compute anew in a backward pass; none where it is missing.
    """
    return cast("Sequence[nn.Module]", getattr(problem, "blocks", ()))


def lengths(problem: Any, data: Any) -> NDArray[np.int64] | None:
    """`lengths(data)`: (N,) how long each sample is, where the bytes of a mini-batch depend on their number and on the
    longest of them alone; None where it is missing.
    """
    return np.asarray(problem.lengths(data), np.int64) if hasattr(problem, "lengths") else None


def report_batch(problem: Any) -> int:
    """`report_batch`: consecutive samples of a report that one client scores together; 1 where it is missing."""
    return int(getattr(problem, "report_batch", 1))


def local_losses(problem: Any) -> Callable[[Any, Any], Any] | None:
    """`local_losses(smashed, labels)`: (B,) what each sample adds to the local loss; None where it is missing."""
    return cast("Callable[[Any, Any], Any] | None", getattr(problem, "local_losses", None))


def head_gradient(problem: Any) -> Callable[[Any, Any], tuple[Any, Any]] | None:
    """`head_gradient`: a function of (smashed, labels) to the local loss () and its gradient (n_a,) in theta_a
    by forward passes; None where it is missing, or None.
    """
    return cast("Callable[[Any, Any], tuple[Any, Any]] | None", getattr(problem, "head_gradient", None))


# --- a Lipschitz or bilevel problem


def constrained(problem: Any) -> bool:
    """`constrained`: whether some X_i is not the whole space; else not."""
    return bool(getattr(problem, "constrained", False))


def lipschitz(problem: Any) -> float | None:
    """`lipschitz`: L_0, a Lipschitz constant of all f_i; None where it is missing."""
    constant = getattr(problem, "lipschitz", None)
    return None if constant is None else float(constant)


def flops_evaluation(problem: Any, batch_size: int) -> float:
    """`flops_evaluation(batch_size)`: FLOPs of a mini-batch's loss at one point; nan where it is missing."""
    return float(problem.flops_evaluation(batch_size)) if hasattr(problem, "flops_evaluation") else math.nan


# --- a bilevel problem


def parts(problem: Bilevel, data: Any) -> tuple[Any, Any]:
    """`parts(data)`: (upper, lower), the samples of a client that f_i and h_i see; both see all where it is missing."""
    if hasattr(problem, "parts"):
        return cast(tuple[Any, Any], problem.parts(data))
    return data, data


def initial_lower(problem: Bilevel) -> Array:
    """`initial_lower()`: (n_lower,) where the first lower solve starts; 0 where it is missing."""
    return problem.initial_lower() if hasattr(problem, "initial_lower") else np.zeros(problem.n_lower)


def project_lower(problem: Bilevel) -> Lower | None:
    """`project_lower(x, y)`: (n_lower,) the nearest point of Y(x) to y; None where Y(x) is everything."""
    return cast("Lower | None", getattr(problem, "project_lower", None))


def solution_only(problem: Bilevel) -> bool:
    """`solution_only`: whether `solution` is all that is known of the lower level; else gradients and curvature are."""
    return bool(getattr(problem, "solution_only", False))


def solution(problem: Bilevel) -> Callable[[Array, Sequence[Any]], Array | None] | None:
    """`solution(x, data)`: (n_lower,) the exact y(x), from the data of all clients; None where it is missing."""
    return cast("Callable[[Array, Sequence[Any]], Array | None] | None", getattr(problem, "solution", None))


def homogeneous(problem: Bilevel) -> bool:
    """`homogeneous`: whether the mean of the clients' own minimisers is y(x), as for h_i equal in distribution."""
    return bool(getattr(problem, "homogeneous", False))
