"""Base classes of problems, with defaults for optional members.

A user's own class inherits one of them, too.
"""

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
    """Optional members of any problem, with their defaults."""

    @overridable
    def n(self) -> int:
        """Length of x."""

    @overridable
    def x0(self) -> str:
        """Start for --x0 auto: zero or random."""
        return "zero"

    def initial(self, generator: np.random.Generator) -> Array:
        """(n,) a random start, for --x0 random: standard normal entries times 0.01."""
        return np.asarray(0.01 * generator.standard_normal(self.n))

    def kernel_name(self, batch_size: int) -> str:
        """Name of the code that computes on batches of this size, for the record: kernels agree to rounding only."""
        return "own"

    def score(self, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        """Quality of a model on data, by name; see the `score` of each role. Empty by default."""
        return {}

    def descend(
        self, data: Any, y: Array, batches: Batch, stepsizes: Vector, *, mu: float = 0.0, shift: Array | None = None
    ) -> Array:
        """From y_0 = y (n,) take the steps y <- y - stepsizes[t] (gradient(y; batches[t]) + mu (y - y_0) + shift).

        One call takes all local steps of a client's round, for the sake of fast kernels, with batches (H, B) positions
        in `data` and stepsizes (H,). mu > 0 is FedProx's proximal term, shift (n,) the correction of SCAFFOLD and
        Scaffnew. Returns a new (n,). By default along a `Smooth` problem's `gradient`.
        """
        slope, own = cast(Any, self).gradient, None if shift is None else np.asarray(shift, y.dtype)
        with without_warnings():
            return local_descent(y, lambda z, t: np.asarray(slope(z, data, batches[t]), y.dtype), stepsizes, mu, own)

    @overridable
    def hits(self) -> Callable[..., Any] | None:
        """hits(x, data): (C,) number of correctly classified samples of each class, for the model x (n,).

        With it both accuracies of a personal model take one pass, without losses.
        """
        return None

    @overridable
    def metric_names(self) -> tuple[str, ...]:
        """Names of the user's metrics, beside the problem's own scores."""
        return ()

    @overridable
    def client_memory(self) -> str:
        """Memory scheme of a backward pass, see `problems.saving`."""
        return "none"

    @overridable
    def smooth_twin(self) -> bool:
        """True if `loss` and `gradient` belong to a smooth approximation of the problem's `losses`."""
        return False

    @overridable
    def constrained(self) -> bool:
        """True if some X_i is a proper subset of R^n."""
        return False

    @overridable
    def lipschitz(self) -> float | None:
        """L_0, a Lipschitz constant of all f_i; None: unknown."""
        return None

    def flops_evaluation(self, batch_size: int) -> float:
        """FLOPs of a mini-batch's loss at one point; nan: unknown."""
        return math.nan

    def client_bytes(self, batch_size: int, gradient: bool) -> float:
        """Bytes that a client needs for its model and a step on a mini-batch, by gradient or by the loss alone; 0:
        unknown.

        On two levels: for x, and for y and a step of it.
        """
        return 0.0


class NumPyProblem(Problem, Protocol):
    """A problem that NumPy computes."""

    def kernel_name(self, batch_size: int) -> str:
        return "numpy"


class BilevelProblem(Problem, Protocol):
    """Optional members of a bilevel problem, with their defaults."""

    @overridable
    def n_lower(self) -> int:
        """Length of y."""

    def parts(self, data: Any) -> tuple[Any, Any]:
        """(upper, lower): the samples of f_i and of h_i; both are all samples by default."""
        return data, data

    def project(self, i: int, x: Array) -> Array:
        """(n,) the nearest point of X_i to x (n,); x itself where there is no constraint."""
        return x

    def initial_lower(self) -> Array:
        """(n_lower,) start of the first lower solve."""
        return np.zeros(self.n_lower)

    @overridable
    def project_lower(self) -> Callable[[Array, Array], Array] | None:
        """project_lower(x, y): (n_lower,) the nearest point of Y(x) to y; None: Y(x) is everything."""
        return None

    @overridable
    def margin(self) -> float:
        """Distance from the X_i beyond which the lower level may lack a solution; smoothing radii must be smaller."""
        return math.inf

    @overridable
    def solution(self) -> Callable[[Array, Sequence[Any]], Array | None] | None:
        """solution(x, data): (n_lower,) the exact y(x), from the data of all clients; None: unknown."""
        return None

    @overridable
    def solution_only(self) -> bool:
        """True if the lower level only provides `solution`, without gradients and curvature."""
        return False

    @overridable
    def homogeneous(self) -> bool:
        """True if the mean of the clients' own minimisers is y(x), as for h_i equal in distribution."""
        return False
