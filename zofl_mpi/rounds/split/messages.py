"""Messages of split training, the state of its server, and the columns of its evaluations."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zofl_mpi import column
from zofl_mpi.engine.lazy import Tensor
from zofl_mpi.engine.messages import APART

DIVERGED = "the model is not finite after the round; smaller --lr-client or --lr-server, or a larger --mu, may help"


@dataclass(frozen=True)
class Model:
    """Server to client."""

    theta: Tensor  # (n_l,) theta_c, then theta_a if it travels
    buffers: Tensor  # (b_l,) BatchNorm's running statistics
    r: int  # the round
    moments: dict[str, Any] = field(default_factory=dict)  # of the optimiser, with --state average


@dataclass(frozen=True)
class Smashed:
    """Client to server, an upload."""

    s: Tensor  # (B, *smashed_shape)
    labels: Tensor = field(metadata=APART)  # (B,)


@dataclass(frozen=True)
class ServerPart:
    """Between the server's ranks: the server's part before a step on uploads."""

    theta: Tensor  # (n_s,)
    buffers: Tensor  # (b_s,) BatchNorm's running statistics
    returned: bool  # True if gradients at the cut are needed


@dataclass(frozen=True)
class Passed:
    """Between the server's ranks: results of a pass on an upload, beside its gradient and statistics."""

    loss: Tensor  # ()
    slope: Tensor | None  # (B, *smashed_shape) gradient of the loss at the smashed samples, if it is returned


@dataclass(frozen=True)
class Trained:
    """Client to server: the local steps are done."""

    loss: float | None  # mean local loss over the local steps; None: no step computes it


def mean_loss(losses: Iterable[float | None]) -> float:
    """Mean of the clients' losses; NaN if there is none, or if steps compute none."""
    known = [math.nan if loss is None else loss for loss in losses]
    return math.fsum(known) / len(known) if known else math.nan


@dataclass(frozen=True)
class Update:
    """Client to server, of which it gets the mean: the model after the local steps."""

    theta: Tensor  # the averaged part of theta_l
    buffers: Tensor  # (b_l,)
    moments: dict[str, Any] = field(default_factory=dict)  # of the optimiser, with --state average


@dataclass(frozen=True)
class Scalars(Trained):
    """Client to server, with --uplink seeds: the model as scalars of its steps."""

    differences: NDArray[np.float64]  # (h, n_p) loss differences of each step's perturbed passes
    buffers: Tensor  # (b_l,) statistics of the data, which seeds cannot reproduce
    last: Tensor  # last entries of theta_l, if they follow a gradient, which seeds cannot reproduce; else empty
    arithmetic: str = field(metadata=APART)  # a check, not communication that the method needs


@dataclass(frozen=True)
class NetworkParts:
    """Server to client at an evaluation: all parts."""

    theta: Tensor
    buffers: Tensor
    theta_s: Tensor
    buffers_s: Tensor
    r: int  # the round


@dataclass(frozen=True)
class SplitState:
    """The server's state after a round."""

    theta: Tensor = column("1", "theta_c and theta_a, flat", finite=DIVERGED)  # (n_l,)
    buffers: Tensor = column("1", "BatchNorm's running statistics of the client's part")  # (b_l,)
    theta_s: Tensor = column("1", "the server's part, flat", finite=DIVERGED)  # (n_s,)
    buffers_s: Tensor = column("1", "BatchNorm's running statistics of the server's part")  # (b_s,)
    optimiser: dict[str, Any] = column("1", "the server's moments")
    server_steps: int = column("1", "the server's steps in this round", 0)
    server_loss: float = column("nat", "mean over the server's steps of this round of the loss before each", math.nan)
    local_loss: float = column(
        "nat", "mean over clients and local steps of the loss that the client itself sees", math.nan
    )
    label_bytes: int = column("B", "labels that went up in this round; no part of bytes_up", 0)
    moments: dict[str, Any] = field(default_factory=dict)  # the clients', with --state average
    replayed: dict[str, Any] = field(default_factory=dict)  # {i: moments of client i}, if the server replays steps

    def network(self, r: int) -> NetworkParts:
        """The message with which clients evaluate round r."""
        return NetworkParts(self.theta, self.buffers, self.theta_s, self.buffers_s, r)


@dataclass(frozen=True)
class SplitReport:
    """Quality of the network on test samples, and on validation samples if there are any.

    Fields follow `problems.Split.quality`; None if a problem does not provide one.
    """

    test_accuracy: float | None = column(
        "1", "share of test samples, of texts: of their tokens, that server(client(x)) predicts correctly", None
    )
    test_loss: float | None = column(
        "nat", "its mean cross-entropy on the test samples, of texts: on their tokens", None
    )
    test_perplexity: float | None = column("1", "exp(test_loss)", None)
    test_perplexity_batches: float | None = column(
        "1", "exp of the mean over batches of test samples of each one's mean cross-entropy of a token", None
    )
    validation_accuracy: float | None = column("1", "test_accuracy on the validation samples in place of test's", None)
    validation_loss: float | None = column("nat", "test_loss on the validation samples in place of test's", None)
    validation_perplexity: float | None = column("1", "exp(validation_loss)", None)
    validation_perplexity_batches: float | None = column(
        "1", "test_perplexity_batches on the validation samples in place of test's", None
    )
    test_accuracy_clean: float | None = column("1", "test_accuracy of the clients with this sensor, by --shift", None)
    test_accuracy_invert: float | None = column("1", "likewise", None)
    test_accuracy_gain: float | None = column("1", "likewise", None)
    test_accuracy_tint: float | None = column("1", "likewise", None)
    test_accuracy_contrast: float | None = column("1", "likewise", None)
    test_accuracy_blur: float | None = column("1", "likewise", None)
    further: Mapping[str, float] = field(default_factory=dict)  # {column: number} of the scores that a user has given
    estimate_cosine: float | None = column(
        "1",
        "cosine of a client's step direction with its gradient in theta_c, mean over clients; --probe-gradient",
        None,
    )
    head_over_client: float | None = column(
        "1", "norm of a local gradient in theta_a over that in theta_c, mean over clients; --probe-gradient", None
    )
