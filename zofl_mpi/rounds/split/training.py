"""Flags of split training: participants and mini-batches of each round."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeVar, final

import numpy as np

from zofl_mpi import Client, Purpose, Setting, UserError, at_least, demand, fraction
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.numerics.schedules import Pace
from zofl_mpi.problems import Batch, Split
from zofl_mpi.problems.saving import Saving, saving_of
from zofl_mpi.rounds.base import ClientWeights, Sampling
from zofl_mpi.rounds.split.messages import Model, NetworkParts

M = TypeVar("M", Model, NetworkParts)


@final
@dataclass(frozen=True)
class Training:
    """A round of split training.

    Attributes:
        batch: samples of a local step.
        h: local steps of a round; 0: one pass over the client's data.
        k: upload interval: the smashed samples of every k-th local step go up, from the first on.
        lr_client: step size of the clients.
        lr_server: step size of the server.
        optimiser: optimiser of clients and server.
        pace: schedule of their step sizes over their own steps.
        state: optimiser moments of a client between rounds: keep, reset, or average like the models, with which they
            travel.
        order: order of uploads at the server: interleave (the q-th uploads of all clients, then the next; clients in an
            order drawn each round) or client_major (client by client).
        merge: G: the server takes one step on the q-th uploads of G clients together (fewer at the end), along the mean
            of their gradients; each client receives the gradient of its own loss. 1: one step per upload.
        weights: weights of the clients in the average: size (|D_i|) or uniform.
        beta: participating fraction of the clients.
        augment: changes of training images: none, or crop-flip (padded by 4, cropped back, mirrored with probability
            1/2).
        freeze: frozen part of the client's model: none, client or auxiliary.
        batchnorm: statistics in BatchNorm: batch (the running statistics move in unperturbed passes only); every_pass
            (in perturbed ones too: the tested network depends on mu and n_p); running (fixed running statistics, for
            pretrained networks).
        client_parts: clients' parts: average (one part, the mean of the clients'), or own (each client keeps and tests
            its own, starting from the problem's; it never travels).
        client_memory: activations held for a client's backward pass: none (all of them); checkpoint (the inputs of each
            block, which is recomputed); accumulate:PARTS (one part of the mini-batch at a time; the parts' gradients
            add up to the same gradient, to rounding).
    """

    setting: Setting[Split]
    batch: int = at_least(1, 32, paper=256)
    h: int = at_least(0, 0, remark="(0: one pass over the data)")
    k: int = at_least(1, 1)
    lr_client: float = at_least(0, 1e-4, "a step size")
    lr_server: float = at_least(0, 1e-4, "a step size")
    optimiser: Optimiser = field(default_factory=Optimiser)
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
    client_memory: str = "none"

    def __post_init__(self) -> None:
        if self.own_parts and self.state == "average":
            raise UserError("--client-parts own: --state average averages what the clients hold; take keep or reset")
        if self.merge > 1 and self.order == "client_major":
            met = "with --order client_major the server meets one client after the other, never uploads of several"
            raise UserError(f"--merge {self.merge}: {met}; take --order interleave")
        if self.augment != "none":
            self.problem.augmentation(self.augment)
        least = min(len(data) for data in self.setting.data)
        demand(self.batch <= least, "batch", self.batch, f"at most {least}, the samples of the smallest client")
        for i in range(0 if self.problem.allows_batch_of_one or self.running else self.setting.m):
            if any(self.samples(i, q) == 1 for q in range(self.steps(i))):
                who = "every batch" if self.batch == 1 else f"the last batch of client {i}"
                fault = f"{who} has one sample, which BatchNorm cannot normalise"
                raise UserError(f"--batch {self.batch}: {fault}; take another batch")

    def check_local(self) -> None:
        """Refuse a local part without trained parameters; for methods that train the auxiliary head."""
        part = self.trainable()
        if part.start == part.stop:
            raise UserError(f"--freeze {self.freeze}: no part of the client's model is left to train")

    @property
    def problem(self) -> Split:
        """The split network."""
        return self.setting.problem

    @cached_property
    def saving(self) -> Saving:
        """Memory scheme of a client's backward pass."""
        return saving_of(self.client_memory)

    @property
    def running(self) -> bool:
        """True if BatchNorm uses its running statistics."""
        return self.batchnorm == "running"

    @property
    def own_parts(self) -> bool:
        """True if each client has a local part of its own."""
        return self.client_parts == "own"

    def trainable(self, head: bool = True) -> slice:
        """Trained part of theta_l, including the auxiliary head if the method trains it (`head`)."""
        start, stop = 0, self.problem.client_side.n
        if self.freeze == "client":
            start = self.problem.n_client
        if self.freeze == "auxiliary" or not head:
            stop = self.problem.n_client
        return slice(start, stop)

    def client_weights(self) -> Mapping[int, float]:
        """{i: w_i} of all clients, summing to 1."""
        return ClientWeights(self.setting, self.weights)

    # --- rounds, a function of the seed

    @cached_property
    def participants(self) -> Sampling:
        """S_r of round r, ascending."""
        return Sampling(self.setting, self.beta)

    def groups(self, r: int) -> list[list[int]]:
        """S_r in groups that are asked one after the other, each in the server's order of uploads."""
        to = self.participants(r)
        if self.order == "client_major":
            return [[i] for i in to]
        return [self.setting.streams(Purpose.ORDER, r=r).permutation(to).tolist()]

    # --- a client

    def batches(self, i: int, r: int) -> Iterator[Batch]:
        """Positions of each of client i's local steps: shuffled passes over the data, the remainder last."""
        setting, batch = self.setting, self.batch
        generator, left, size = setting.streams(Purpose.BATCH, r=r, i=i), self.steps(i), len(setting.data[i])
        while left > 0:
            order = generator.permutation(size)[: left * batch]
            starts = range(0, len(order), batch)
            yield from (order[start : start + batch] for start in starts)
            left -= len(starts)

    def samples(self, i: int, q: int) -> int:
        """Samples of local step q of client i."""
        size, batch = len(self.setting.data[i]), self.batch
        of_a_pass = -(-size // batch)
        return min(batch, size - q % of_a_pass * batch)

    def steps(self, i: int) -> int:
        """h of client i."""
        return self.h or -(-len(self.setting.data[i]) // self.batch)

    def uploads(self, q: int) -> bool:
        """True if the smashed samples of local step q are uploaded."""
        return q % self.k == 0

    def client_size(self, r: int, i: int, q: int) -> float:
        """The size of local step q of client i in round r."""
        if self.pace.still:
            return self.lr_client
        return self.pace.client(self.lr_client, self._past(r)[0].get(i, 0) * self.steps(i) + q)

    def with_own_part(self, client: Client, message: M) -> M:
        """The message with the client's own local part, where it has one: as the problem made it, or as it left it."""
        if not self.own_parts:
            return message
        to_device = self.problem.to_device
        theta, buffers = map(to_device, self.problem.client_side.initial())
        if "theta" in client.memory:
            last, buffers = (to_device(client.memory[name]) for name in ("theta", "buffers"))
            theta[: len(last)] = last
        return replace(message, theta=theta, buffers=buffers)

    # --- rounds before

    def latest(self, r: int) -> Mapping[int, int]:
        """{i: last round before r with client i}."""
        return self._past(r)[1]

    def uploads_before(self, r: int, i: int) -> int:
        """Uploads of client i before round r; 0 if no step size depends on them."""
        return 0 if self.pace.still else self._past(r)[0].get(i, 0) * self._uploads(i)

    def server_steps_before(self, r: int) -> int:
        """Steps of a server with one part before round r; 0 if no step size depends on them."""
        return 0 if self.pace.still else self._past(r)[2]

    def server_steps(self, r: int) -> int:
        """Steps of a server with one part in round r: one for each `merge` of the q-th uploads, for each q."""
        uploads = np.array([self._uploads(i) for i in self.participants(r)], np.int64)
        still = np.bincount(uploads)[:0:-1].cumsum()  # clients with more than q uploads, from the last q on
        return int((-(-still // self.merge)).sum())

    def _uploads(self, i: int) -> int:
        """Uploads of client i in a round."""
        return -(-self.steps(i) // self.k)

    def _past(self, r: int) -> tuple[dict[int, int], dict[int, int], int]:
        """Each client's number of rounds and last round before round r, and the server's steps by then.

        The seed determines them, hence no state stores them.
        """
        kept = self.setting.context.of(self)
        done, counts, latest, steps = kept.get("past", (0, {}, {}, 0))
        if done != r:
            done, counts, latest, steps = (done, dict(counts), dict(latest), steps) if done < r else (0, {}, {}, 0)
            for earlier in range(done, r):
                steps += self.server_steps(earlier)
                for i in self.participants(earlier):
                    counts[i], latest[i] = counts.get(i, 0) + 1, earlier
            kept["past"] = r, counts, latest, steps
        return counts, latest, steps
