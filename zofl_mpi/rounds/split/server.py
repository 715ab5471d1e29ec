"""The server of split training: a step for each upload, and the recent uploads that a method keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

from zofl_mpi import UserError
from zofl_mpi.engine.clients import Replies
from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.engine.sharing import Begin, PassResult, SharedServerStep, UploadPass
from zofl_mpi.engine.staging import staging
from zofl_mpi.numerics.optimisers import copied
from zofl_mpi.rounds.split.messages import Passed, ServerPart, Smashed, SplitState, Update
from zofl_mpi.rounds.split.training import Training

DIVERGED_AT_SERVER = "the server's gradient on its upload is not finite; smaller --lr-client or --lr-server may help"


@final
class Server:
    """The server's part, theta (n_s,) and buffers (b_s,), while a round goes on.

    It takes a step for each upload, or with --merge G for G of them, along the mean of their gradients at the same
    theta. They start from the same running statistics, which are then averaged. Both means are exact (`engine.mean`).
    Until the step the server holds G gradients.

    Args:
        begin: the method's step `server_pass`, known by name on the server's ranks.
        before: its number of steps in earlier rounds, on which the step size may depend.
        sharing: shares out the uploads of a step among the server's ranks; this rank alone moves theta.

    Attributes:
        slopes: {i: (B, *smashed_shape) gradient at client i's smashed samples}, for those who ask for it.
    """

    def __init__(
        self,
        training: Training,
        begin: Begin,
        theta: Tensor,
        buffers: Tensor,
        moments: Mapping[str, Any],
        before: int = 0,
        sharing: SharedServerStep | None = None,
    ) -> None:
        self.problem, self.training, self.begin = training.problem, training, begin
        self.theta, self.buffers = (self.problem.to_device(t).clone() for t in (theta, buffers))
        self.moments = copied(moments)
        self.before, self.staging = before, staging(self.problem.device)
        self.steps, self.label_bytes = 0, 0
        self.sharing = sharing or SharedServerStep()
        self.slopes = dict[int, Tensor]()
        self._waiting = list[int]()  # clients with uploads for the next step
        self.losses = self.theta.new_zeros((), dtype=torch.float64)  # computes here, as at the clients

    @classmethod
    def mean_of(cls, replicas: Mapping[int, Server], shares: Mapping[int, float]) -> Server:
        """Mean of replicas, weighted by their `client_weights`, with the sum of their steps.

        With --state average its moments are the mean of theirs, else {i: those of replica i}.
        """
        total = math.fsum(shares[i] for i in replicas)
        weights = [shares[i] / total for i in replicas]
        first, every = next(iter(replicas.values())), replicas.values()
        moments: dict[str, Any] = {str(i): replica.moments for i, replica in replicas.items()}
        if first.training.state == "average":
            moments = {name: _weighted(weights, [replica.moments[name] for replica in every]) for name in first.moments}
        theta = _weighted(weights, [replica.theta for replica in every])
        buffers = _weighted(weights, [replica.buffers for replica in every])
        main = cls(first.training, first.begin, theta, buffers, moments)
        main.steps = sum(replica.steps for replica in every)
        main.losses = sum((replica.losses for replica in every), start=main.losses)
        main.label_bytes = sum(replica.label_bytes for replica in every)
        return main

    def train(self, replies: Replies) -> Replies:
        """Take the steps on the uploads among streamed replies, and pass all replies on."""
        met = set[int]()
        for i, item in replies:
            if i in met:  # the next item of the first client that still has one
                self.move()
                met.clear()
            met.add(i)
            if isinstance(item, Smashed):
                self.step(i, item)
            yield i, item
        self.move()

    def step(self, i: int, item: Smashed, returned: bool = False) -> None:
        """Add client i's upload, and take the step once there are --merge uploads.

        If `returned`, `slopes` gets the gradient at client i's smashed samples, taken before the step.
        """
        if not self._waiting:
            self.sharing.begin(self.begin, ServerPart(self.theta, self.buffers, returned))
        self._waiting.append(i)
        self.label_bytes += item.labels.numel() * item.labels.element_size()
        self.sharing.add(item)
        if len(self._waiting) == self.training.merge:
            self.move()

    def move(self) -> None:
        """Take a step on the waiting uploads, if there are any."""
        if not self._waiting:
            return
        try:
            (g, buffers), results = self.sharing.end()
        except FloatingPointError as error:
            raise UserError(f"client {self._waiting[error.args[0]]}: {DIVERGED_AT_SERVER}") from error
        slopes = zip(self._waiting, (result.slope for result in results), strict=True)
        self.slopes.update((i, slope) for i, slope in slopes if slope is not None)
        self._waiting.clear()
        losses = [result.loss.to(self.theta.device) for result in results]
        loss = losses[0] if len(losses) == 1 else torch.stack(losses).double().mean()
        if self.training.merge > 1:
            self.buffers.copy_(buffers)
        size = self.training.pace.server(self.training.lr_server, self.before + self.steps)
        self.training.optimiser.step(self.theta, g, self.moments, size)
        self.steps += 1
        self.losses = self.losses + loss

    def state(self, average: Update, local_loss: float, replayed: dict[str, Any] | None = None) -> SplitState:
        """The state after the round; `average`, the clients' mean model, has all of theta_l."""
        self.staging.rest()
        loss = float(self.losses) / self.steps if self.steps else math.nan
        own = self.theta, self.buffers, self.moments, self.steps, loss, local_loss, self.label_bytes
        return SplitState(average.theta, average.buffers, *own, average.moments, replayed or {})


def passes_at(training: Training, part: ServerPart) -> UploadPass:
    """Function of an upload: its gradient (n_s,) and running statistics (b_s,), from the same `part` for each upload.

    Without --merge the pass moves the running statistics of `part` in place.
    """
    problem = training.problem
    theta, before = problem.to_device(part.theta), problem.to_device(part.buffers)
    host = staging(problem.device)

    def pass_on(item: Smashed) -> PassResult:
        # copied while the GPU still computes on the previous upload
        smashed, labels = problem.to_device(host.bring(item.s)), problem.to_device(item.labels)
        if part.returned:
            smashed.requires_grad_()
        buffers = before if training.merge == 1 else before.clone()
        with problem.server_side.bound_to(theta, buffers, training.running) as parameters:
            loss = problem.server_loss(smashed, labels)
            if not part.returned:
                return PassResult((problem.server_side.gradient(loss), buffers), Passed(loss.detach(), None))
            slope, *parts = torch.autograd.grad(loss, [smashed, *parameters], materialize_grads=True)
        return PassResult((torch.cat([each.reshape(-1) for each in parts]), buffers), Passed(loss.detach(), slope))

    return pass_on


def _weighted(weights: Sequence[float], values: Sequence[Any]) -> Any:
    """Weighted sum of tensors (in their own precision) or of numbers (in float64)."""
    pairs = list(zip(weights, values, strict=True))
    if isinstance(values[0], int | float):
        return math.fsum(weight * value for weight, value in pairs)
    return sum(weight * value.double() for weight, value in pairs).to(values[0].dtype)


@final
class RecentUploads:
    """Last uploads of each client, with which FSL-SAGE aligns its head.

    They stay where they arrived: on the host with several ranks, on the network's device in one process. Samples of
    equal shape are joined, {i: (N, *smashed_shape)}. Others are padded to the longest of their mini-batch, by an
    amount unknown to the method, hence mini-batches stay separate, {i: {number: (B, ...)}}, the oldest first.
    """

    def __init__(
        self, smashed: Mapping[str, Any], labels: Mapping[str, Any], size: int, equal_sizes: bool = True
    ) -> None:
        self.smashed, self.labels = dict(smashed), dict(labels)
        self.size, self.equal_sizes = size, equal_sizes

    def add(self, i: int, item: Smashed) -> None:
        """Append an upload of client i, and drop the oldest samples beyond the size."""
        for kept, newest in ((self.smashed, item.s), (self.labels, item.labels)):
            uploads = [*in_order(kept.get(str(i), {})), newest.detach().clone()]
            if self.equal_sizes:
                kept[str(i)] = torch.cat([upload.to(newest.device) for upload in uploads])[-self.size :]
            else:
                excess = sum(map(len, uploads)) - self.size
                while excess >= len(uploads[0]):
                    excess -= len(uploads.pop(0))
                uploads[0] = uploads[0][max(0, excess) :]
                kept[str(i)] = {str(number): upload for number, upload in enumerate(uploads)}

    def uploads(self, i: int) -> list[tuple[Tensor, Tensor]]:
        """Smashed samples and labels of client i, in the alignment's mini-batches."""
        return list(zip(in_order(self.smashed[str(i)]), in_order(self.labels[str(i)]), strict=True))


def in_order(uploads: Tensor | Mapping[str, Tensor]) -> list[Tensor]:
    """Uploads by ascending number: a checkpoint sorts them by name."""
    return [uploads[n] for n in sorted(uploads, key=int)] if isinstance(uploads, Mapping) else [uploads]
