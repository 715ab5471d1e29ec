"""`Training`: the flags of a round of split training."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Literal, final

from zofl_mpi import Loads, Setting, UserError, at_least, demand, fraction
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.numerics.schedules import Pace
from zofl_mpi.problems import Split
from zofl_mpi.problems.saving import Saving, saving_of
from zofl_mpi.rounds.base import shares
from zofl_mpi.rounds.split.timetable import Timetable


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
        optimiser: how clients and server step.
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
        client_memory: activations that a client's backward pass holds: none (all of them), checkpoint (the inputs of
            each block, which is computed once more), or accumulate:PARTS (those of one part of the mini-batch at a
            time, and the parts' gradients are added up: the same gradient, to rounding).
    """

    setting: Setting[Split]
    batch: int = at_least(1, 256)
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
    timetable: Timetable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = {f.name: getattr(self, f.name) for f in fields(Timetable) if f.init}
        timetable = vars(self)["timetable"] = Timetable(**given)
        if self.own_parts and self.state == "average":
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
            if any(timetable.samples(i, q) == 1 for q in range(timetable.steps(i))):
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

    @cached_property
    def saving(self) -> Saving:
        """How a client's backward pass holds its activations."""
        return saving_of(self.client_memory)

    @property
    def running(self) -> bool:
        """Whether BatchNorm uses its running statistics."""
        return self.batchnorm == "running"

    @property
    def own_parts(self) -> bool:
        """Whether each client has a local part of its own."""
        return self.client_parts == "own"

    def trainable(self, head: bool = True) -> slice:
        """Trained part of theta_l, with the auxiliary head if the method trains it (`head`)."""
        start, stop = 0, self.problem.local.n
        if self.freeze == "client":
            start = self.problem.n_client
        if self.freeze == "auxiliary" or not head:
            stop = self.problem.n_client
        return slice(start, stop)

    def shares(self) -> Mapping[int, float]:
        """{i: w_i} of all clients, summing to 1."""
        return shares(self.setting, self.weights)

    def loads(self) -> Loads:
        """The local steps of each client, whose uploads the server takes in turn."""
        return Loads([self.timetable.steps(i) for i in range(self.setting.m)], paced=True)
