"""Base class of methods, and the setting of a run: problem, data, random numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from zofl_mpi.arrays import Array
from zofl_mpi.engine.between import Between, Trait
from zofl_mpi.engine.clients import Clients
from zofl_mpi.engine.context import RunContext
from zofl_mpi.engine.fleet import Fleet, Needs, RoundWork
from zofl_mpi.engine.roles import Backend, ClientProgram, overridable
from zofl_mpi.engine.streams import Purpose, Streams

P = TypeVar("P", covariant=True, default=Any)
S = TypeVar("S")


@final
@dataclass(frozen=True)
class Setting(Generic[P]):
    """Problem, data and random numbers of a run, built alike on every rank from the configuration.

    Attributes:
        problem: has one of the roles of `zofl_mpi.problems`.
        data: data of each client, D_0, ..., D_{m-1}; `server`: the server's.
        test, validation: held out from all; by the second, parameters are chosen.
        counts: (m, C) realised label counts; None where data have no labels.
        dtype: floating-point type of all vectors.
        fingerprint: checksum of the data; equal on every rank, and in a run and its continuation.
        eval_clients: maximum number of clients in an evaluation; 0: all.
        eval_samples: maximum number of samples of each client, of the server, and of `test` and `validation`, in an
            evaluation; 0: all.
        fleet: the clients' devices, with --devices.
        about: numbers of samples of server, clients and held-out parts, printed at the start; "" without data.
        between: wrappers between the method and its clients.
        context: caches of the run.
    """

    problem: P
    streams: Streams
    data: tuple[Any, ...]
    server: Any = None
    test: Any = None
    counts: NDArray[np.int64] | None = None
    dtype: Any = np.float32
    fingerprint: str = ""
    eval_clients: int = 0
    validation: Any = None
    eval_samples: int = 0
    fleet: Fleet | None = None
    about: str = ""
    between: tuple[Between, ...] = ()
    context: RunContext = field(default_factory=RunContext, repr=False, compare=False)

    def any_between(self, trait: Trait) -> bool:
        """True if an active wrapper of the clients has this trait (`engine.between.Between`)."""
        return any(each.active and getattr(each, trait) for each in self.between)

    @property
    def m(self) -> int:
        """Number of clients."""
        return len(self.data)

    @cached_property
    def samples(self) -> int:
        """Number of all clients' samples."""
        return sum(map(len, self.data))

    def first_model(self, start: Literal["auto", "zero", "random"] = "auto") -> Array:
        """(n,) x_0 from the seed; auto: zero, or random if the problem cannot start at zero (a network)."""
        problem: Any = self.problem
        if (problem.x0 if start == "auto" else start) == "random":
            return np.asarray(problem.initial(self.streams(Purpose.START)), self.dtype)
        return np.zeros(problem.n, self.dtype)

    def participants(self, r: int, count: int) -> list[int]:
        """`count` clients of round r, ascending, drawn without replacement; with --devices the punctual ones."""
        if self.fleet is not None:
            return self.fleet.participants(r, count)
        if count == self.m:
            return list(range(self.m))
        return sorted(self.streams(Purpose.PARTICIPANTS, r=r).permutation(self.m)[:count].tolist())

    def participants_count(self, r: int, count: int) -> int:
        """Number of `participants`."""
        return count if self.fleet is None else self.fleet.number(r, count)

    def way_of(self, i: int) -> int:
        """Index of client i's way to take a step among `device_needs`; with --devices the first that fits."""
        return 0 if self.fleet is None else int(self.fleet.way[i])

    def eval_participants(self, r: int) -> list[int]:
        """The clients that the evaluation after round r asks, ascending: all, or `eval_clients` of them drawn anew."""
        if not 0 < self.eval_clients < self.m:
            return list(range(self.m))
        drawn = self.streams(Purpose.AUDIENCE, r=r).choice(self.m, size=self.eval_clients, replace=False)
        return sorted(drawn.tolist())


def drawn(data: Any, most: int, generator: np.random.Generator) -> Any:
    """At most `most` samples of a `data.Dataset`, drawn without replacement (0: all); other data as they are."""
    return data.drawn(most, generator) if hasattr(data, "drawn") else data


@final
@dataclass(frozen=True)
class Work:
    """Sizes of local steps, from which a problem chooses its kernel; independent of a run's length."""

    batch: int  # samples of a step


@final
@dataclass(frozen=True)
class Loads:
    """The work that a method plans for each client, by which clients are placed on ranks (`run.mpi.placement`).

    Attributes:
        work: (m,) of a round in which the client takes part, in any unit, each at least 0.
        paced: whether the server reads one upload of each client at a time, in turn. Ranks then get equally many
            clients with uploads left; otherwise sums of work that are as equal as possible.
    """

    work: Sequence[float]
    paced: bool = False


class Directions(NamedTuple):
    """Directions of a zeroth-order method's estimates in a run.

    Attributes:
        drawn: number of different directions; clients that share one count once.
        dimension: number of parameters that they perturb.
    """

    drawn: int
    dimension: int

    @property
    def per_parameter(self) -> float:
        """Directions per parameter; far below 1, most descent directions were never tried."""
        return self.drawn / self.dimension

    def __str__(self) -> str:
        return f"{self.drawn:,} directions for {self.dimension:,} parameters ({self.per_parameter:.2g} each)"


class Method(ClientProgram, Protocol[S]):
    """A federated method: a frozen dataclass with a field `setting`, and the paper's parameters, which are flags.

    Its state is a frozen dataclass of tensors and numbers; a round changes nothing but the state and `client.memory`,
    which is checked after the first one (`engine.hidden`). The state's numbers are recorded after every round, its
    tensors at the end of the run. Fields of the state and of `evaluate`'s report declare units and meanings
    (`engine.fields.column`).

    A class must have `setting`, `start`, `round` and `evaluate`; the other members have defaults here.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    uploads: ClassVar[str] = "replies"
    """Description of what leaves its clients unclipped, if that cannot be clipped; "": nothing."""
    holds_all: ClassVar[bool] = False
    """True if each client of a split network holds all parts."""
    computes: ClassVar[str] = ""
    """Computation that clients must be capable of: "values of ...", "gradients of ..." or "nothing"."""
    travels: ClassVar[str] = ""
    """Content of messages to and from a client: "... down, ... up"."""
    needs: ClassVar[type[Any] | str | None] = None
    """The role of a problem that the method runs on, a protocol of `zofl_mpi.problems` or its name; None: any."""

    @overridable
    def setting(self) -> Setting[Any]:
        """Problem, data and random numbers."""

    @overridable
    def sampling(self) -> Any:
        """Sampling of participants, as `rounds.base.Sampling`; None: all clients, or unknown."""
        return None

    @overridable
    def example_reply(self) -> Any:
        """An example of a participant's reply; None: unknown."""
        return None

    @overridable
    def between(self) -> tuple[Between, ...]:
        return self.setting.between

    @overridable
    def backend(self) -> Backend:
        return self.setting.problem  # type: ignore[no-any-return]

    @overridable
    def kernel(self) -> str:
        """Name of the step's kernel, if there are several: kernels agree to rounding only."""
        return ""

    @overridable
    def server_uploads(self) -> int:
        """Number of uploads in a server step, which ranks can share (`engine.sharing`); 0: no server step."""
        return 0

    def work(self) -> Work | None:
        """Sizes of local steps, for the choice of a kernel; None: unknown."""
        return None

    def loads(self) -> Loads | None:
        """Each client's work, by the configuration, for placement on ranks; None: client i on rank i mod P."""
        return None

    def plan(self, rounds: int) -> Mapping[str, str | float]:
        """Lines of --dry-run: {description: value}."""
        return {"clients": self.setting.m}

    def costs(self) -> Mapping[str, Any]:
        """Measured costs of a client's step, {description: value}, for --dry-run and the result's attribute `costs`."""
        return {}

    def directions(self, rounds: int) -> Directions | None:
        """Directions of the estimates in `rounds` rounds; None if nothing is estimated."""
        return None

    def device_needs(self) -> Sequence[Needs]:
        """Operations and memory of a client's step, for --devices; measured at rank 0. Empty: not known.

        Each client uses the first way that fits its device's memory (`Fleet.way`).
        """
        return ()

    def round_work(self, r: int, clients: Sequence[int] | None = None) -> RoundWork:
        """Work of these clients in round r (None: of its participants), for --devices."""
        raise NotImplementedError

    def start(self) -> S:
        """The state before round 0."""

    def round(self, state: S, r: int, clients: Clients) -> S:
        """The state after round r: the server's program."""

    def ends(self, state: S, r: int) -> str:
        """Reason to end the run after round r, before its last one; "": continue."""
        return ""

    def evaluate(self, state: S, r: int, clients: Clients) -> Any:
        """The report after round r, a dataclass whose fields are columns. Asks with counted=False."""
