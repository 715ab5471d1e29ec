"""Base classes of problems, with defaults of optional members; a user's own problem inherits from one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.arrays import Array, Vector
from zofl_mpi.engine.fields import without_warnings
from zofl_mpi.engine.roles import Backend, overridable
from zofl_mpi.numerics.descent import local_descent

Batch = NDArray[np.int64]


class Problem(Backend, Protocol):
    """Base class of all problems: optional members with their defaults."""

    @overridable
    def n(self) -> int:
        """Length of x."""

    @overridable
    def x0(self) -> str:
        """Start for --x0 auto: zero or random."""
        return "zero"

    def initial(self, generator: np.random.Generator) -> Array:
        """Random start (n,) for --x0 random; by default normal entries with deviation 0.01."""
        return np.asarray(0.01 * generator.standard_normal(self.n))

    def kernel_name(self, batch_size: int) -> str:
        """Name of the code that computes batches of this size, for the record: kernels agree only up to rounding."""
        return "own"

    def score(self, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        """Quality of a model on data, by name; see the `score` of each role. Empty by default."""
        return {}

    def descend(
        self, data: Any, y: Array, batches: Batch, stepsizes: Vector, *, mu: float = 0.0, shift: Array | None = None
    ) -> Array:
        """Takes all local steps of a client's round from y (n,); returns a new (n,).

        Steps y <- y - stepsizes[t] (gradient(y; batches[t]) + mu (y - y_0) + shift), y_0 the start. One call, so that a
        fast kernel can run them. The default uses a `Smooth` problem's `gradient`.

        Args:
            batches: (H, B) positions in `data`; stepsizes: (H,).
            mu: weight of FedProx's proximal term.
            shift: (n,) correction of SCAFFOLD and Scaffnew.
        """
        slope, own = cast(Any, self).gradient, None if shift is None else np.asarray(shift, y.dtype)
        with without_warnings():
            return local_descent(y, lambda z, t: np.asarray(slope(z, data, batches[t]), y.dtype), stepsizes, mu, own)

    @overridable
    def hits(self) -> Callable[..., Any] | None:
        """hits(x, data): number of samples of each class (C,) that the model x (n,) classifies correctly; or None.

        Both accuracies of a personal model then take one pass, without losses.
        """
        return None

    @overridable
    def metric_names(self) -> tuple[str, ...]:
        """Names of the user's additional metrics."""
        return ()

    @overridable
    def client_memory(self) -> str:
        """Storage of activations in a backward pass, see `problems.saving`."""
        return "none"

    @overridable
    def smooth_twin(self) -> bool:
        """True if `loss` and `gradient` belong to a smooth approximation of `losses`."""
        return False

    @overridable
    def constrained(self) -> bool:
        """True if some X_i is a proper subset of R^n."""
        return False

    @overridable
    def lipschitz(self) -> float | None:
        """Lipschitz constant L_0 of all f_i; None if unknown."""
        return None

    def flops_evaluation(self, batch_size: int) -> float:
        """FLOPs of a mini-batch's loss at one point; nan if unknown."""
        return math.nan

    def client_bytes(self, batch_size: int, gradient: bool) -> float:
        """Bytes that a client needs for its model and a step on a mini-batch, with or without `gradient`; 0 if unknown.

        Bilevel problems: bytes of x, of y, and of a step in y.
        """
        return 0.0


class NumPyProblem(Problem, Protocol):
    """A problem computed by NumPy."""

    def kernel_name(self, batch_size: int) -> str:
        return "numpy"


class BilevelProblem(Problem, Protocol):
    """Base class of bilevel problems: optional members with their defaults."""

    @overridable
    def n_lower(self) -> int:
        """Length of y."""

    def parts(self, data: Any) -> tuple[Any, Any]:
        """Samples (upper, lower) of a client for f_i and h_i; by default both use all."""
        return data, data

    def project(self, i: int, x: Array) -> Array:
        """Nearest point (n,) of X_i to x (n,); x itself without a constraint."""
        return x

    def initial_lower(self) -> Array:
        """Start (n_lower,) of the first lower solve."""
        return np.zeros(self.n_lower)

    @overridable
    def project_lower(self) -> Callable[[Array, Array], Array] | None:
        """project_lower(x, y): nearest point (n_lower,) of Y(x) to y; None if Y(x) is the whole space."""
        return None

    @overridable
    def margin(self) -> float:
        """Distance from the X_i at which the lower level may lack a solution; the smoothing radius must be smaller."""
        return math.inf

    @overridable
    def solution(self) -> Callable[[Array, Sequence[Any]], Array | None] | None:
        """solution(x, data): exact y(x) (n_lower,) from all clients' data; None if unknown."""
        return None

    @overridable
    def solution_only(self) -> bool:
        """True if the lower level has only `solution`, neither gradients nor curvature."""
        return False

    @overridable
    def homogeneous(self) -> bool:
        """True if y(x) is the mean of the clients' own minimisers, as for h_i equal in distribution."""
        return False
