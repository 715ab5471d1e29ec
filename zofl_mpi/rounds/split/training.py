"""`Training`: the flags of a round of split training, and the steps that follow from them in all split methods."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, final

import numpy as np

from zofl_mpi import Client, Clients, Loads, Purpose, Setting, UserError, at_least, demand, fraction
from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.engine.sharing import Given
from zofl_mpi.engine.staging import staging
from zofl_mpi.numerics.optimisers import Optimiser, copied
from zofl_mpi.numerics.schedules import Pace
from zofl_mpi.problems import Batch, Split
from zofl_mpi.rounds.base import Sampling, shares
from zofl_mpi.rounds.split.messages import Ask, Model, Network, Passed, ServerPart, Smashed, State, Update

M = TypeVar("M", Model, Network)


@final
@dataclass(frozen=True)
class Training:
    """A round of split training.

    Attributes:
        batch: samples of a local step.
        h: local steps of a round; 0: one pass over the client's data.
        k: the smashed samples of every k-th local step go up, from the first on.
        lr_client: step size of the clients.
        lr_server: step size of the server.
        rule: how clients and server step.
        pace: how their step sizes change with their own steps so far.
        state: a client's moments between rounds: keep, reset, or average, as the models (they travel with these).
        order: interleave (the server takes the q-th uploads of all, then the next; the clients in an order drawn each
            round) or client_major (client by client).
        merge: G: the server takes one step on the q-th uploads of G clients together (fewer where fewer are left),
            along the mean of their gradients; a client gets the gradient of its own loss back. 1: each in turn.
        weights: of the clients in the average: size (|D_i|) or uniform.
        beta: participating fraction of the clients.
        augment: none, or crop-flip (images padded by 4, cropped back, mirrored with probability 1/2).
        freeze: what of the local part does not train: none, client or auxiliary.
        batchnorm: what BatchNorm normalises by: batch (the running statistics move in unperturbed passes alone),
            every_pass (in perturbed ones too: the tested network then depends on mu and n_p), or running (the running
            statistics, which stay as they came: for networks that were trained before).
        client_parts: average (one local part, the mean of the clients'), or own (each client keeps and tests its own,
            which begins as the problem's and never travels).
    """

    setting: Setting[Split]
    batch: int = at_least(1, 256)
    h: int = at_least(0, 0, remark="(0: one pass over the data)")
    k: int = at_least(1, 1)
    lr_client: float = at_least(0, 1e-4, "a step size")
    lr_server: float = at_least(0, 1e-4, "a step size")
    rule: Optimiser = field(default_factory=Optimiser)
    pace: Pace = field(default_factory=Pace)
    state: Literal["keep", "reset", "average"] = "keep"
    order: Literal["interleave", "client_major"] = "interleave"
    merge: int = at_least(1, 1)
    weights: Literal["size", "uniform"] = "size"
    beta: float = fraction(1.0, "a fraction of the clients")
    augment: Literal["none", "crop-flip"] = "none"
    freeze: Literal["none", "client", "auxiliary"] = "none"
    batchnorm: Literal["batch", "every_pass", "running"] = "batch"
    client_parts: Literal["average", "own"] = "average"
    _last_past: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # of `_past`

    def __post_init__(self) -> None:
        if self.own and self.state == "average":
            raise UserError("--client-parts own: --state average averages what the clients hold; take keep or reset")
        if self.merge > 1 and self.order == "client_major":
            raise UserError(
                f"--merge {self.merge}: with --order client_major the server meets one client after the other, never "
                "uploads of several; take --order interleave"
            )
        if self.augment != "none":
            self.problem.augmentation(self.augment)
        least = min(len(data) for data in self.setting.data)
        demand(self.batch <= least, "batch", self.batch, f"at most {least}, the samples of the smallest client")
        for i in range(0 if self.problem.takes_one or self.running else self.setting.m):
            if any(self.samples(i, q) == 1 for q in range(self.steps(i))):
                who = "every batch" if self.batch == 1 else f"the last batch of client {i}"
                raise UserError(
                    f"--batch {self.batch}: {who} has one sample, which BatchNorm cannot normalise; take another batch"
                )

    def check_local(self) -> None:
        """Refuses a local part of which nothing trains; for methods that train the auxiliary head."""
        part = self.trainable()
        if part.start == part.stop:
            raise UserError(f"--freeze {self.freeze}: nothing of the local part is left to train")

    @property
    def problem(self) -> Split:
        """The network in its parts."""
        return self.setting.problem

    @property
    def running(self) -> bool:
        """Whether BatchNorm uses its running statistics."""
        return self.batchnorm == "running"

    @property
    def own(self) -> bool:
        """Whether each client has a local part of its own."""
        return self.client_parts == "own"

    # --- a client

    def batches(self, i: int, r: int) -> Iterator[Batch]:
        """Positions of each of client i's local steps: passes over the data, each shuffled, its rest last."""
        generator, left, size = self.setting.streams(Purpose.BATCH, r=r, i=i), self.steps(i), len(self.setting.data[i])
        while left > 0:
            order = generator.permutation(size)[: left * self.batch]
            starts = range(0, len(order), self.batch)
            yield from (order[start : start + self.batch] for start in starts)
            left -= len(starts)

    def samples(self, i: int, q: int) -> int:
        """Samples of local step q of client i."""
        size = len(self.setting.data[i])
        of_a_pass = -(-size // self.batch)
        return min(self.batch, size - q % of_a_pass * self.batch)

    def steps(self, i: int) -> int:
        """h of client i."""
        return self.h or -(-len(self.setting.data[i]) // self.batch)

    def uploads(self, q: int) -> bool:
        """Whether the smashed samples of local step q are uploaded."""
        return q % self.k == 0

    def loads(self) -> Loads:
        """The local steps of each client, whose uploads the server takes in turn."""
        return Loads([self.steps(i) for i in range(self.setting.m)], paced=True)

    def client_size(self, r: int, i: int, q: int) -> float:
        """The size of local step q of client i in round r."""
        if self.pace.still:
            return self.lr_client
        return self.pace.client(self.lr_client, self._past(r)[0].get(i, 0) * self.steps(i) + q)

    def uploads_before(self, r: int, clients: Iterable[int]) -> int:
        """Uploads of these clients before round r; 0 where no step size depends on their number."""
        rounds = {} if self.pace.still else self._past(r)[0]
        return sum(rounds.get(i, 0) * self._uploads(i) for i in clients)

    def server_steps_before(self, r: int) -> int:
        """The steps of a server with one part before round r; 0 where no step size depends on their number."""
        return 0 if self.pace.still else self._past(r)[2]

    def server_steps(self, r: int) -> int:
        """The steps of a server with one part in round r: of the q-th uploads each `merge`, for each q."""
        uploads = np.array([self._uploads(i) for i in self.participants(r)])
        still = np.bincount(uploads)[:0:-1].cumsum()  # clients with more than q uploads, from the last q on
        return int((-(-still // self.merge)).sum())

    def _uploads(self, i: int) -> int:
        """Uploads of client i in a round."""
        return -(-self.steps(i) // self.k)

    def latest(self, r: int) -> Mapping[int, int]:
        """{i: the last round before r in which client i took part}."""
        return self._past(r)[1]

    def _past(self, r: int) -> tuple[dict[int, int], dict[int, int], int]:
        """How often, and when last, each client took part before round r, and the server's steps by then; the seed
        gives them, so no state keeps them.
        """
        done, counts, latest, steps = self._last_past.get("past", (0, {}, {}, 0))
        if done != r:
            done, counts, latest, steps = (done, dict(counts), dict(latest), steps) if done < r else (0, {}, {}, 0)
            for earlier in range(done, r):
                steps += self.server_steps(earlier)
                for i in self.participants(earlier):
                    counts[i], latest[i] = counts.get(i, 0) + 1, earlier
            self._last_past["past"] = r, counts, latest, steps
        return counts, latest, steps

    def inputs(self, client: Client, positions: Batch, r: int, q: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of a local step, on the device."""
        x, labels = self.problem.samples(client.data, positions)
        x = self.problem.sensed(x, client.i)
        if self.augment == "none":
            return x, labels
        generator = self.setting.streams(Purpose.AUGMENT, r=r, i=client.i, t=q)
        return self.problem.augmentation(self.augment)(x, generator), labels

    def trainable(self, head: bool = True) -> slice:
        """Trained part of theta_l, with the auxiliary head if the method trains it (`head`)."""
        start, stop = 0, self.problem.local.n
        if self.freeze == "client":
            start = self.problem.n_client
        if self.freeze == "auxiliary" or not head:
            stop = self.problem.n_client
        return slice(start, stop)

    def with_own(self, client: Client, message: M) -> M:
        """The message with the client's own local part, where it has one: as the problem made it, or as it left it."""
        if not self.own:
            return message
        theta, buffers = (self.problem.placed(t) for t in self.problem.local.initial())
        if "theta" in client.memory:
            last, buffers = (self.problem.placed(client.memory[name]) for name in ("theta", "buffers"))
            theta[: len(last)] = last
        return replace(message, theta=theta, buffers=buffers)

    def moments(self, client: Client, message: Model, name: str = "moments") -> dict[str, Any]:
        """The client's optimiser state, in its memory by that name; only `moments` is ever averaged."""
        if self.state == "average":
            client.memory[name] = copied(message.moments)
        elif self.state == "reset" or name not in client.memory:
            client.memory[name] = {}
        return client.memory[name]  # type: ignore[no-any-return]

    def update(self, client: Client, message: Ask) -> Update:
        """The model after the local steps, which `LocalSteps.done` left; it need not be kept."""
        moments = client.memory.pop("moments") if self.state == "average" else {}
        return Update(client.memory.pop("theta"), client.memory.pop("buffers"), moments)

    # --- the server

    def start(self, head: bool = True) -> State:
        """The parts as the problem makes them; `head`: whether the method trains the auxiliary head."""
        theta, buffers = self.problem.local.initial()
        theta_s, buffers_s = self.problem.top.initial()
        moments = self.rule.memory(theta[self.trainable(head)]) if self.state == "average" else {}
        return State(theta, buffers, theta_s, buffers_s, {}, moments=moments)

    def client_part(self, state: State, r: int, head: bool = False) -> Model:
        """The message that begins a round: theta_c, with `head` theta_l; nothing of it where clients have their own."""
        n = self.problem.local.n if head else self.problem.n_client
        theta, buffers = (state.theta[:0], state.buffers[:0]) if self.own else (state.theta[:n], state.buffers)
        return Model(theta, buffers, r, state.moments)

    def server_pass(self, part: ServerPart) -> Callable[[Smashed], Given]:
        """The server's pass on an upload: from the same part for each upload of a step.

        It gives the gradient (n_s,) and the running statistics (b_s,); where the step is on one upload, the pass moves
        those of the part in place.
        """
        problem = self.problem
        theta, before = problem.placed(part.theta), problem.placed(part.buffers)
        host = staging(problem.device)

        def passed(item: Smashed) -> Given:
            # copied while the GPU still computes on the upload before
            smashed, labels = problem.placed(host.bring(item.s)), problem.placed(item.labels)
            if part.returned:
                smashed.requires_grad_()
            buffers = before if self.merge == 1 else before.clone()
            with problem.top.at(theta, buffers, self.running) as parameters:
                loss = problem.server_loss(smashed, labels)
                if not part.returned:
                    return Given((problem.top.gradient(loss), buffers), Passed(loss.detach(), None))
                slope, *parts = torch.autograd.grad(loss, [smashed, *parameters], materialize_grads=True)
            return Given((torch.cat([each.reshape(-1) for each in parts]), buffers), Passed(loss.detach(), slope))

        return passed

    def with_head(self, state: State, mean: Update) -> Update:
        """The mean of the clients' parts, with the head as it was."""
        theta = state.theta.clone()
        theta[: len(mean.theta)] = mean.theta
        return replace(mean, theta=theta)

    def participants(self, r: int) -> list[int]:
        """S_r, ascending."""
        return Sampling(self.setting, self.beta)(r)

    def shares(self) -> Mapping[int, float]:
        """{i: w_i} of all clients, summing to 1."""
        return shares(self.setting, self.weights)

    def groups(self, r: int) -> list[list[int]]:
        """S_r in groups that are asked one after the other, each in the order in which the server takes its uploads."""
        to = self.participants(r)
        if self.order == "client_major":
            return [[i] for i in to]
        return [self.setting.streams(Purpose.ORDER, r=r).permutation(to).tolist()]

    def mean(self, state: State, clients: Clients, to: list[int]) -> Update:
        """The mean of the models of the participants `to` by their weights; the server's where each has its own."""
        if self.own:
            return Update(state.theta, state.buffers)
        return clients.mean(self.update, Ask(), to=to, weights=self.shares())  # type: ignore[no-any-return]
