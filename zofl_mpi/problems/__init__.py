"""Roles of problems: each protocol lists the members that one family of methods needs.

Vectors are flat; on the CPU they are NumPy arrays. A problem holds parameters, never data, state or random numbers.
Data come with each call; a batch is an array of positions in them. A problem must define `n`, the length of x (and of
every y_i); other members that a role inherits from its base class in `problems.base` are optional.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from zofl_mpi.arrays import Array as Array
from zofl_mpi.arrays import Vector as Vector
from zofl_mpi.engine.roles import Backend, overridable
from zofl_mpi.problems.base import Batch as Batch
from zofl_mpi.problems.base import BilevelProblem, Problem

if TYPE_CHECKING:
    from torch import Tensor, nn

    from zofl_mpi.problems.flat import Flat


class Hierarchical(Problem, Protocol):
    """[A]: min_x f_1(x) + (1/m) sum_i f_{2,i}(x, y_i(x)) with y_i(x) = argmin over Y_i(x) of h_i(x, y).

    `data` are the server's (f_1) or client i's (h_i), a `Dataset` for most problems. Arrays (k, n) hold k points, one a
    row: Algorithm 2 runs for x + eta v and x - eta v together.
    """

    def f1(self, x: Array, data: Any) -> float:
        """f_1(x) on all of the server's data."""

    def gradient_f1(self, x: Array, data: Any, batch: Batch) -> Array:
        """Stochastic gradient (n,) of f_1 at x on the mini-batch at positions `batch` (B,)."""

    def f2(self, i: int, x: Array, y: Array) -> float:
        """f_{2,i}(x, y) for x (n,) and y (n,), computed in float64."""

    def solve_client(self, i: int, data: Any, x: Array, y: Array, batches: Batch, stepsizes: Vector) -> Array:
        """Runs Algorithm 2 from y (k, n) at k points x (k, n); returns a new (k, n).

        Steps y <- project(i, x, y - stepsizes[t] * grad_y h_i(x, y; batches[t])), t = 0..H-1. All k points use the same
        mini-batches, (H, B) positions in `data`, and stepsizes (H,).
        """

    def flops(self, batch_size: int) -> float:
        """FLOPs of a step of `solve_client` at one point; a multiplication and an addition count two."""

    def project(self, i: int, x: Array, y: Array) -> Array:
        """Projects each row of y (k, n) onto Y_i of the same row of x (k, n); returns (k, n)."""

    def solution(self, i: int, data: Any, x: Array) -> Array | None:
        """Exact y_i(x) (n,), or None without a closed form."""

    def score(self, x: Array, data: Any, mix: Vector | None = None) -> Mapping[str, float]:
        """Quality of the model x on all of `data`: {"loss": ..., "accuracy": ...}, as far as they apply.

        Class proportions `mix` (C,) replace the class shares in `data` as weights.
        """


class Smooth(Problem, Protocol):
    """Role for first-order methods: min_x sum_i w_i F_i(x), F_i the mean loss over client i's data.

    `Problem.descend` takes local steps by `gradient`.
    """

    def loss(self, x: Array, data: Any) -> float:
        """F(x), the mean loss over all of `data`."""

    def gradient(self, x: Array, data: Any, batch: Batch | None = None) -> Array:
        """Gradient (n,) at x of the mean loss over the samples at positions `batch` (B,); None: over all."""

    def flops(self, batch_size: int) -> float:
        """FLOPs of a step; a multiplication and an addition count two."""

    def score(self, x: Array, data: Any, mix: Vector | None = None) -> Mapping[str, float]:
        """Quality of the model x on all of `data`; see `Hierarchical.score`."""


class Split(Backend, Protocol):
    """Role for split learning, [C]: a network in three parts, with its loss, its batches and its scores.

        smashed = client(inputs),   local loss = loss(auxiliary(smashed)),   server's loss = loss(server(smashed))

    Methods hold flat vectors theta_l = (theta_c, theta_a) and theta_s; `client_side` and `server_side` are functions
    of them. Call `smash` and `local_loss` within `client_side.bound_to`, `server_loss` within `server_side.bound_to`,
    `score` within both. If samples differ in length, as texts do, a batch is as long as its longest sample.
    """

    @overridable
    def client_side(self) -> Flat:
        """Client part with auxiliary head, as a function of theta_l (n_l,) and buffers (b_l,)."""

    @overridable
    def server_side(self) -> Flat:
        """Server part, as a function of theta_s (n_s,) and buffers (b_s,)."""

    @overridable
    def n_client(self) -> int:
        """Length of theta_c, the first entries of theta_l; the rest is theta_a."""

    @overridable
    def allows_batch_of_one(self) -> bool:
        """True if a batch may have a single sample; BatchNorm cannot normalise one."""

    @overridable
    def smashed_shape(self) -> tuple[int, ...]:
        """Shape of a smashed sample; of the longest if they differ."""

    # --- batches

    def samples(self, data: Any, positions: Batch) -> tuple[Tensor, Tensor]:
        """Inputs (B, ...) and labels (B, ...) of the samples of `data` at `positions` (B,), on the device."""

    def augmentation(self, kind: str) -> Callable[[Tensor, np.random.Generator], Tensor]:
        """Augmentation of this kind: (inputs (B, ...), generator) -> inputs of the same shape (UserError: none)."""

    def example(self, count: int) -> tuple[Tensor, Tensor]:
        """Dummy inputs and labels of `count` samples of maximum size, for counting a step's cost."""

    @overridable
    def equal_sizes(self) -> bool:
        """True if all samples have one size: a batch's bytes depend only on their number."""

    def upload_bytes(self, data: Any, positions: Batch) -> int:
        """Message bytes of a batch's smashed samples, without labels."""

    def label_bytes(self, data: Any, positions: Batch) -> int:
        """Message bytes of a batch's labels."""

    # --- computing

    @overridable
    def arithmetic(self) -> str:
        """Hardware on which the bits of draws and elementwise steps depend: a GPU's name, a CPU's instruction set."""

    def kernel_name(self, batch_size: int) -> str:
        """Name of the code that computes a step on batches of this size, for the record."""

    def to_device(self, value: Tensor) -> Tensor:
        """Moves a received tensor to the device."""

    def smash(self, inputs: Tensor) -> Tensor:
        """Outputs (B, *smashed_shape) of the client part."""

    def local_loss(self, smashed: Tensor, labels: Tensor) -> Tensor:
        """Mean training loss () of the auxiliary head; summed in float64 if no gradient is needed."""

    def server_loss(self, smashed: Tensor, labels: Tensor) -> Tensor:
        """Mean training loss () of the server part; summed in float64 if no gradient is needed."""

    # --- reports

    def evaluating(self) -> AbstractContextManager[None]:
        """Context manager: BatchNorm uses running statistics, dropout is off, no graph is kept."""

    def score(self, inputs: Tensor, labels: Tensor) -> Mapping[str, float | Tensor]:
        """Sums over a batch of test samples, by name: numbers, or tensors () in float64 on the device."""

    def quality(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        """Quality from the sums of `score` over all test samples, by column of `SplitReport`."""

    # --- optional members of a split network, with their defaults

    @overridable
    def metric_names(self) -> tuple[str, ...]:
        """Names of the user's metrics; if any, `score` takes a list and appends (outputs, targets) to it."""
        return ()

    def measured(self, outputs: Tensor, targets: Tensor) -> Mapping[str, float]:
        """Values of the metrics `metric_names` on all outputs and targets."""
        return {}

    def pieces_like_batch_of(self, batch: int) -> AbstractContextManager[None]:
        """Context manager: smaller batches are computed in as many pieces as one of `batch` samples."""
        return nullcontext()

    @overridable
    def blocks(self) -> Sequence[nn.Module]:
        """Modules of client and auxiliary, in order, that a backward pass may recompute to save memory."""
        return ()

    def forward_loss(self, smashed: Tensor, labels: Tensor) -> Tensor:
        """`server_loss` () in passes without a graph; may round differently."""
        return self.server_loss(smashed, labels)

    def loss_count(self, labels: Tensor) -> int:
        """Number of terms in the mean loss of a mini-batch with these labels."""
        return len(labels)

    def evaluation_samples(self, data: Any, positions: Batch) -> tuple[Tensor, Tensor]:
        """Inputs and labels that a report scores for the samples at `positions`."""
        return self.samples(data, positions)

    @overridable
    def report_batch(self) -> int:
        """Number of consecutive samples that one client scores together in a report."""
        return 1

    @overridable
    def sensors(self) -> Sequence[str]:
        """Names of the clients' sensors; client i has number i modulo their count. (): inputs are unchanged."""
        return ()

    def sensed(self, inputs: Any, i: int) -> Any:
        """Inputs as client i's sensor sees them."""
        return inputs

    @overridable
    def local_losses(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """local_losses(smashed, labels): each sample's contribution (B,) to the local loss; None if unknown."""
        return None

    @overridable
    def head_gradient(self) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
        """head_gradient(smashed, labels): local loss () and its gradient (n_a,) in theta_a, forward only; or None."""
        return None


class Lipschitz(Problem, Protocol):
    """Role for nonsmooth problems, [B]: min_x (1/m) sum_i f_i(x) over the intersection of sets X_i.

    f_i is the mean of a locally Lipschitz loss; no gradient is needed. `score(x, data)` is for reports.
    """

    def losses(self, i: int, x: Array, data: Any, batch: Batch | None = None) -> Vector:
        """f_i (k,) at the rows of x (k, n), all on the same samples, at positions `batch` (B,); None: all.

        Sum over samples in float64: differences are divided by a small radius.
        """

    def project(self, i: int, x: Array) -> Array:
        """Nearest point (n,) of X_i to x (n,); x itself without a constraint."""


class Bilevel(BilevelProblem, Protocol):
    """Role for bilevel problems, [B]: min_x (1/m) sum_i f_i(x, y(x)), y(x) = argmin_y (1/m) sum_i h_i(x, y).

    The lower level is strongly convex in y. Minimax, min_x max_y (1/m) sum_i f_i(x, y), has h_i = -f_i.
    `score(x, y, data)` is for reports.
    """

    @overridable
    def n_lower(self) -> int:
        """Length of y."""

    def f(self, i: int, x: Array, y: Array, data: Any, batch: Batch | None = None) -> Vector:
        """f_i (k,) at the row pairs of x (k, n) and y (k, n_lower), all on the same samples of the upper part.

        Sum over samples in float64: differences are divided by a small radius.
        """

    def gradient_h(self, i: int, x: Array, y: Array, data: Any, batch: Batch | None = None) -> Array:
        """Gradient (n_lower,) in y of h_i at x (n,), y (n_lower,), over samples of the lower part."""

    def curvature(self, x: Array) -> tuple[float, float]:
        """Strong convexity mu_h and smoothness L_h of (1/m) sum_i h_i(x, .) (UserError: not strongly convex)."""


class SecondOrder(Bilevel, Protocol):
    """A bilevel problem with the derivatives that hypergradients need."""

    def gradients_f(self, i: int, x: Array, y: Array, data: Any, batch: Batch | None = None) -> tuple[Array, Array]:
        """Gradients of f_i in x (n,) and in y (n_lower,), over samples of the upper part."""

    def hessian_h(self, i: int, x: Array, y: Array, u: Array, data: Any, batch: Batch | None = None) -> Array:
        """Hessian of h_i in y times u (n_lower,), over samples of the lower part."""

    def cross_h(self, i: int, x: Array, y: Array, u: Array, data: Any, batch: Batch | None = None) -> Array:
        """Gradient (n,) in x of <grad_y h_i(x, y), u>, over samples of the lower part."""
