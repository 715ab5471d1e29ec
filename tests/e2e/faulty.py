"""Methods with one mistake each, and a sound one; what `check_method` has to find in them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zofl_mpi import Array, Client, Clients, Method, Purpose, Setting, column

SEEN: list[int] = []
LEFT: dict[str, Array] = {}
MOMENTA: dict[int, Array] = {}
TABLE = np.linspace(0.5, 1, 256)


@dataclass(frozen=True)
class Model:
    x: Array
    r: int = 0


@dataclass(frozen=True)
class Gradient:
    g: Array


@dataclass(frozen=True)
class Report:
    length: float = column("1", "length of x")


@dataclass(frozen=True)
class Sound(Method[Model]):
    """A mini-batch gradient of each client a round, averaged.

    Attributes:
        gamma: step size.
    """

    needs = "Smooth"
    setting: Setting[Any]
    gamma: float = 0.1

    def start(self) -> Model:
        return Model(np.ones(self.setting.problem.n, self.setting.dtype))

    def round(self, model: Model, r: int, clients: Clients) -> Model:
        return self.stepped(model, r, clients.mean(self.gradient, model).g)

    def stepped(self, model: Model, r: int, g: Array) -> Model:
        return Model((model.x - self.gamma * g).astype(model.x.dtype), r + 1)

    def gradient(self, client: Client, model: Model) -> Gradient:
        batch = self.setting.streams(Purpose.BATCH, r=model.r, i=client.i).integers(len(client.data), size=4)
        return Gradient(np.asarray(self.setting.problem.gradient(model.x, client.data, batch), model.x.dtype))

    def evaluate(self, model: Model, r: int, clients: Clients) -> Report:
        return Report(float(np.linalg.norm(model.x)))

    def plan(self, rounds: int) -> Mapping[str, str | float]:
        x = self.start().x.nbytes
        each = {"down": x + 8, "up": x}
        return {f"bytes {way}, for each participant and round": size for way, size in each.items()}


@dataclass(frozen=True)
class Mistyped(Sound):
    """A plain mistake in the code."""

    def round(self, model: Model, r: int, clients: Clients) -> Model:
        return self.stepped(model, r, clients.mean(self.gradient, model).gradient)


@dataclass(frozen=True)
class InPlace(Sound):
    """torch's way of a step, in place, in the memory that other clients read."""

    def gradient(self, client: Client, model: Model) -> Gradient:
        import torch  # here: a script with a class of this module need not load it

        x = torch.from_numpy(model.x)
        x -= 0.1 * client.i
        return super().gradient(client, model)


@dataclass(frozen=True)
class ReadOnly(Sound):
    """The same in NumPy, whose arrays of a message are read-only."""

    def gradient(self, client: Client, model: Model) -> Gradient:
        model.x[:] -= 0.1
        return super().gradient(client, model)


@dataclass(frozen=True)
class Counts(Sound):
    """A counter on the frozen method."""

    def round(self, model: Model, r: int, clients: Clients) -> Model:
        object.__setattr__(self, "count", getattr(self, "count", 0) + 1)
        return super().round(model, r, clients)


@dataclass(frozen=True)
class DrawsGlobally(Sound):
    """NumPy's own generator."""

    def gradient(self, client: Client, model: Model) -> Gradient:
        found = super().gradient(client, model)
        return Gradient(found.g + np.random.normal())  # noqa: NPY002


@dataclass(frozen=True)
class DrawsAnew(Sound):
    """A generator without a seed, which nobody else sees."""

    def gradient(self, client: Client, model: Model) -> Gradient:
        found = super().gradient(client, model)
        return Gradient(found.g + np.random.default_rng().normal())


@dataclass(frozen=True)
class Remembers(Sound):
    """A list of the server's module, begun anew by each run."""

    def start(self) -> Model:
        SEEN.clear()
        return super().start()

    def stepped(self, model: Model, r: int, g: Array) -> Model:
        SEEN.append(r)
        return super().stepped(model, r, g * len(SEEN))


@dataclass(frozen=True)
class KeepsBeside(Sound):
    """A momentum of each client, in a dictionary of the module in place of client.memory."""

    def gradient(self, client: Client, model: Model) -> Gradient:
        g = super().gradient(client, model).g + 0.5 * (MOMENTA.get(client.i, 0) if model.r else 0)
        MOMENTA[client.i] = g
        return Gradient(g)


@dataclass(frozen=True)
class Neighbour(Sound):
    """What the client before has left in the process."""

    def gradient(self, client: Client, model: Model) -> Gradient:
        if client.i == 0:
            LEFT.clear()
        g = super().gradient(client, model).g
        before = LEFT.get("g", 0)
        LEFT["g"] = g
        return Gradient(g + 0.1 * before)


@dataclass(frozen=True)
class PlansLess(Sound):
    """A plan that forgets that the round's number travels."""

    def plan(self, rounds: int) -> Mapping[str, str | float]:
        return {**super().plan(rounds), "bytes down, for each participant and round": self.start().x.nbytes}


@dataclass(frozen=True)
class Conceals(Sound):
    """Numbers that are none become 0."""

    def gradient(self, client: Client, model: Model) -> Gradient:
        return Gradient(np.nan_to_num(super().gradient(client, model).g))


@dataclass(frozen=True)
class Spread(Sound):
    """The variance of the clients' gradients, which one client has not."""

    def round(self, model: Model, r: int, clients: Clients) -> Model:
        g = np.stack([reply.g for _, reply in clients.ask(self.gradient, model)])
        spread = float(((g - g.mean(0)) ** 2).sum()) / (clients.m - 1)
        return self.stepped(model, r, g.mean(0) / (1 + spread))


@dataclass(frozen=True)
class Table(Sound):
    """A number of each client, of which there are 256."""

    def gradient(self, client: Client, model: Model) -> Gradient:
        return Gradient((super().gradient(client, model).g * TABLE[client.i]).astype(model.x.dtype))


FAULTS: Mapping[type[Sound], set[str]] = {
    Sound: set(),
    Mistyped: {"one process"},
    InPlace: {"messages"},
    ReadOnly: {"messages"},
    Counts: {"hidden state"},
    DrawsGlobally: {"random numbers"},
    DrawsAnew: {"a second run", "cut and resumed", "3 ranks", "resumed on 3 ranks"},
    Remembers: {"cut and resumed", "resumed on 3 ranks"},
    KeepsBeside: {"cut and resumed", "resumed on 3 ranks"},
    Neighbour: {"3 ranks", "resumed on 3 ranks"},
    PlansLess: {"planned bytes"},
    Conceals: {"NaN"},
    Spread: {"m = 1"},
    Table: {"m = 1,000"},
}
"""{method: the names of the checks that fail}"""
