"""The roles of problems: each protocol lists the members that one family of methods needs.

Vectors are flat. On the CPU they are NumPy arrays. A problem holds parameters, never data, state or random numbers:
data come with each call, and a batch is an array of positions in them. Beside `n`, the length of x (and of every y_i),
a problem may leave out the members that a role inherits from its base class in `problems.base`.
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

    `data` are those of the server (f_1) or of client i (h_i), a `Dataset` for most problems. Arrays (k, n) hold k
    points as rows: Algorithm 2 runs for x + eta v and x - eta v together.
    """

    def f1(self, x: Array, data: Any) -> float:
        """f_1(x) on all of the server's data."""

    def gradient_f1(self, x: Array, data: Any, batch: Batch) -> Array:
        """(n,) stochastic gradient of f_1 at x on the mini-batch at positions `batch` (B,)."""

    def f2(self, i: int, x: Array, y: Array) -> float:
        """f_{2,i}(x, y), formed in float64, for one x (n,) and one y (n,)."""

    def solve_client(self, i: int, data: Any, x: Array, y: Array, batches: Batch, stepsizes: Vector) -> Array:
        """Algorithm 2 at k points x (k, n) at once: from y (k, n) take the steps
        y <- project(i, x, y - stepsizes[t] * grad_y h_i(x, y; batches[t])), t = 0..H-1; returns a new (k, n).

        All k points use the same mini-batches, (H, B) positions in `data`, and stepsizes (H,).
        """

    def flops(self, batch_size: int) -> float:
        """FLOPs of a step of `solve_client` at one point; a multiplication and an addition count two."""

    def project(self, i: int, x: Array, y: Array) -> Array:
        """(k, n) the projection of the rows of y onto Y_i(x), the rows of x."""

    def solution(self, i: int, data: Any, x: Array) -> Array | None:
        """(n,) the exact y_i(x) where there is a closed form, else None."""

    def score(self, x: Array, data: Any, mix: Vector | None = None) -> Mapping[str, float]:
        """Quality of the model x on all of `data`: {"loss": ..., "accuracy": ...}, or fewer where they have no meaning.

        With class proportions `mix` (C,) each class counts by its share in them in place of its share in `data`.
        """


class Smooth(Problem, Protocol):
    """min_x sum_i w_i F_i(x), F_i the mean loss over client i's data: the role in first-order methods.

    Local steps follow from `gradient` (`Problem.descend`).
    """

    def loss(self, x: Array, data: Any) -> float:
        """F(x): the mean loss over all of `data`."""

    def gradient(self, x: Array, data: Any, batch: Batch | None = None) -> Array:
        """(n,) the gradient at x of the mean loss over the samples at positions `batch` (B,); None: over all."""

    def flops(self, batch_size: int) -> float:
        """FLOPs of a step; a multiplication and an addition count two."""

    def score(self, x: Array, data: Any, mix: Vector | None = None) -> Mapping[str, float]:
        """Quality of the model x on all of `data`; see `Hierarchical.score`."""


class Split(Backend, Protocol):
    """[C]: a network in three parts, with its loss, its batches and its scores.

        smashed = client(inputs),   local loss = loss(auxiliary(smashed)),   server's loss = loss(server(smashed))

    Methods hold flat vectors theta_l = (theta_c, theta_a) and theta_s; `client_side` and `server_side` are functions
    of them. Call `smash` and `local_loss` within `client_side.bound_to`, `server_loss` within `server_side.bound_to`,
    `score` within both. Samples may differ in length, as texts do: a batch is as long as its longest sample.
    """

    @overridable
    def client_side(self) -> Flat:
        """The client's part and its auxiliary head, of theta_l (n_l,) and buffers (b_l,)."""

    @overridable
    def server_side(self) -> Flat:
        """The server's part, of theta_s (n_s,) and buffers (b_s,)."""

    @overridable
    def n_client(self) -> int:
        """|theta_c|, how much of theta_l is the client's part; the rest is the auxiliary's."""

    @overridable
    def allows_batch_of_one(self) -> bool:
        """True if a batch may have one sample; BatchNorm cannot normalise that."""

    @overridable
    def smashed_shape(self) -> tuple[int, ...]:
        """Shape of a smashed sample; the longest one's if they differ."""

    # --- batches

    def samples(self, data: Any, positions: Batch) -> tuple[Tensor, Tensor]:
        """Inputs (B, ...) and labels (B, ...) of the samples of `data` at `positions` (B,), on the device."""

    def augmentation(self, kind: str) -> Callable[[Tensor, np.random.Generator], Tensor]:
        """Function of inputs (B, ...) and a generator that returns changed inputs of the same shape; or a UserError."""

    def example(self, count: int) -> tuple[Tensor, Tensor]:
        """Dummy inputs and labels of `count` samples of maximum size, to count the cost of a step."""

    @overridable
    def equal_sizes(self) -> bool:
        """True if all samples have one size: the bytes of a batch depend on their number alone."""

    def upload_bytes(self, data: Any, positions: Batch) -> int:
        """Bytes of one batch's smashed samples in a message, without labels."""

    def label_bytes(self, data: Any, positions: Batch) -> int:
        """Bytes of one batch's labels in a message."""

    # --- computing

    @overridable
    def arithmetic(self) -> str:
        """Hardware that determines the bits of draws and elementwise steps: a GPU's name, a CPU's instructions."""

    def kernel_name(self, batch_size: int) -> str:
        """Name of the code that computes a step on batches of this size, for the record."""

    def to_device(self, value: Tensor) -> Tensor:
        """A received tensor, on the device."""

    def smash(self, inputs: Tensor) -> Tensor:
        """(B, *smashed_shape) outputs of the client's part."""

    def local_loss(self, smashed: Tensor, labels: Tensor) -> Tensor:
        """() the mean training loss of the auxiliary head; summed in float64 if no gradient is needed."""

    def server_loss(self, smashed: Tensor, labels: Tensor) -> Tensor:
        """() the mean training loss of the server's part; summed in float64 if no gradient is needed."""

    # --- reports

    def evaluating(self) -> AbstractContextManager[None]:
        """Context manager: BatchNorm uses its running statistics, dropout is off, and no graph is kept."""

    def score(self, inputs: Tensor, labels: Tensor) -> Mapping[str, float | Tensor]:
        """Sums over a batch of test samples, by name: numbers, or tensors () in float64 on the device."""

    def quality(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        """Quality from the sums of `score` over all test samples, by the columns of `SplitReport`."""

    # --- members that a split network may leave out, with their defaults

    @overridable
    def metric_names(self) -> tuple[str, ...]:
        """Names of the user's metrics; `score` then takes a list, to which it adds (outputs, targets)."""
        return ()

    def measured(self, outputs: Tensor, targets: Tensor) -> Mapping[str, float]:
        """The scores of `metric_names`, of all outputs and targets."""
        return {}

    def pieces_like_batch_of(self, batch: int) -> AbstractContextManager[None]:
        """Context manager in which a smaller batch is computed in as many pieces as one of `batch` samples."""
        return nullcontext()

    @overridable
    def blocks(self) -> Sequence[nn.Module]:
        """Modules of client and auxiliary, in order, that a backward pass may recompute to save memory."""
        return ()

    def forward_loss(self, smashed: Tensor, labels: Tensor) -> Tensor:
        """() `server_loss` in passes without a graph, which may round differently."""
        return self.server_loss(smashed, labels)

    def loss_count(self, labels: Tensor) -> int:
        """Number of terms in the mean that is the loss of a mini-batch with these labels."""
        return len(labels)

    def evaluation_samples(self, data: Any, positions: Batch) -> tuple[Tensor, Tensor]:
        """Inputs and labels that a report scores for the samples of `data` at `positions`."""
        return self.samples(data, positions)

    @overridable
    def report_batch(self) -> int:
        """Consecutive samples of a report that one client scores together."""
        return 1

    @overridable
    def sensors(self) -> Sequence[str]:
        """Names of the clients' sensors, client i's at i modulo their number; () for unchanged inputs."""
        return ()

    def sensed(self, inputs: Any, i: int) -> Any:
        """Inputs as client i's sensor returns them."""
        return inputs

    @overridable
    def local_losses(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """local_losses(smashed, labels): (B,) contribution of each sample to the local loss; None: unknown."""
        return None

    @overridable
    def head_gradient(self) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
        """head_gradient(smashed, labels): local loss () and its gradient (n_a,) in theta_a, forward only; or None."""
        return None


class Lipschitz(Problem, Protocol):
    """[B]: min_x (1/m) sum_i f_i(x) over the intersection of sets X_i, f_i the mean of a locally Lipschitz loss.

    No gradient is asked for. `score(x, data)` is for reports.
    """

    def losses(self, i: int, x: Array, data: Any, batch: Batch | None = None) -> Vector:
        """(k,) f_i at the rows of x (k, n), each on the same samples: those at positions `batch` (B,), or all.

        Their differences are divided by a small radius: sum over samples in float64.
        """

    def project(self, i: int, x: Array) -> Array:
        """(n,) the nearest point of X_i to x (n,); x itself where there is no constraint."""


class Bilevel(BilevelProblem, Protocol):
    """[B]: min_x (1/m) sum_i f_i(x, y(x)) with y(x) = argmin_y (1/m) sum_i h_i(x, y), strongly convex in y.

    Minimax, min_x max_y (1/m) sum_i f_i(x, y), has h_i = -f_i. `score(x, y, data)` is for reports.
    """

    @overridable
    def n_lower(self) -> int:
        """Length of y."""

    def f(self, i: int, x: Array, y: Array, data: Any, batch: Batch | None = None) -> Vector:
        """(k,) f_i at the pairs of rows of x (k, n) and y (k, n_lower), each on the same samples of the upper part.

        Differences of these numbers are divided by a small radius: sum over samples in float64.
        """

    def gradient_h(self, i: int, x: Array, y: Array, data: Any, batch: Batch | None = None) -> Array:
        """(n_lower,) the gradient in y of h_i at x (n,), y (n_lower,), over samples of the lower part."""

    def curvature(self, x: Array) -> tuple[float, float]:
        """mu_h and L_h, the strong convexity (UserError if missing) and smoothness of (1/m) sum_i h_i(x, .)."""


class SecondOrder(Bilevel, Protocol):
    """A bilevel problem with the derivatives that hypergradients need."""

    def gradients_f(self, i: int, x: Array, y: Array, data: Any, batch: Batch | None = None) -> tuple[Array, Array]:
        """(n,) and (n_lower,) the gradients of f_i in x (n,) and in y (n_lower,), over samples of the upper part."""

    def hessian_h(self, i: int, x: Array, y: Array, u: Array, data: Any, batch: Batch | None = None) -> Array:
        """(n_lower,) the Hessian of h_i in y times u (n_lower,), over samples of the lower part."""

    def cross_h(self, i: int, x: Array, y: Array, u: Array, data: Any, batch: Batch | None = None) -> Array:
        """(n,) the gradient in x of <grad_y h_i(x, y), u>, over samples of the lower part."""
