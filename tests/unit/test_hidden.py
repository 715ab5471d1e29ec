"""State that hides outside the state and the clients' memories is refused after the first round."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.threads import run_ranks, serve_or_ask
from zofl_mpi.engine.clients import Client, ClientError, Clients
from zofl_mpi.engine.fields import column
from zofl_mpi.engine.hidden import Unchanged
from zofl_mpi.engine.setting import Method
from zofl_mpi.errors import RunFailed
from zofl_mpi.run import records
from zofl_mpi.run.loop import rounds as loop
from zofl_mpi.run.loop.local import LocalClients
from zofl_mpi.run.loop.progress import Progress
from zofl_mpi.run.loop.rounds import Schedule
from zofl_mpi.run.loop.totals import Totals

M = 4
COUNT = 0
GENERATOR = np.random.default_rng(3)
COUNTS, BY_NAME = [0, 0], {"rounds": 0.0}
KNOWN: dict[int, float] = {}
"""Of what can be computed again: each step adds an entry."""


@dataclass(frozen=True)
class Message:
    x: Any


@dataclass(frozen=True)
class State:
    x: Any = column("1", "the vector")
    total: float = 0.0
    kept: Any = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    objective: float


class Helper:
    calls = 0


@dataclass(frozen=True)
class Counting:
    """Each round adds a number that should have been state; `hide` says where it is kept."""

    setting: Any = field(default_factory=lambda: SimpleNamespace(m=M, fleet=None))
    hide: Callable[[Any], None] = lambda method: None
    end: Callable[[Any], Any] = lambda state: state
    history: list[int] = field(default_factory=list)
    table: dict[str, Any] = field(
        default_factory=lambda: {"deep": [np.zeros(2), torch.zeros(2)], "dice": random.Random(1), "met": {0}}
    )
    helper: Any = field(default_factory=Helper)
    ends = Method.ends

    @cached_property
    def made(self) -> dict[str, Any]:
        return {}

    @cached_property
    def large(self) -> Any:
        return np.arange(5)

    def start(self) -> State:
        return State(np.zeros(2, np.float32))

    def directions(self, rounds: int) -> None:
        return None

    def round(self, state: State, r: int, clients: Clients) -> State:
        found = clients.mean(self.step, Message(state.x))
        return self.end(State(found.x, state.total + 1, {"v": found.x * 2}))  # type: ignore[no-any-return]

    def step(self, client: Client, message: Message) -> Message:
        self.hide(self)
        self.made["sum"] = float(self.large.sum())  # which can be computed again
        KNOWN[len(KNOWN)] = 1.0
        return Message(message.x + np.float32(client.i))

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        return Report(0.0)


class Undecorated(Counting):
    seen = 0


def count(method: Any) -> None:
    global COUNT
    COUNT += 1


HIDDEN: dict[str, Callable[[Any], Any]] = {
    "attribute count of Undecorated": lambda method: object.__setattr__(method, "count", vars(method).get("count", 0)),
    "attribute history of Undecorated": lambda method: method.history.append(1),
    "attribute table of Undecorated": lambda method: method.table.update(x=1),
    "attribute table of Undecorated ": lambda method: np.add(method.table["deep"][0], 1, out=method.table["deep"][0]),
    "attribute table of Undecorated  ": lambda method: method.table["deep"][1].add_(1),
    "attribute table of Undecorated   ": lambda method: method.table["dice"].random(),
    "attribute table of Undecorated    ": lambda method: method.table["met"].add(len(method.table["met"])),
    "attribute helper of Undecorated": lambda method: vars(method.helper).update(calls=1),
    "class's attribute seen of Undecorated": lambda method: setattr(Undecorated, "seen", Undecorated.seen + 1),
    f"COUNT of the module {__name__}": count,
    f"COUNTS of the module {__name__}": lambda method: COUNTS.__setitem__(1, COUNTS[1] + 1),
    f"BY_NAME of the module {__name__}": lambda method: BY_NAME.__setitem__("rounds", BY_NAME["rounds"] + 1),
    f"GENERATOR of the module {__name__}": lambda method: GENERATOR.random(),
    "Python's own random numbers": lambda method: random.random(),
    "NumPy's own random numbers": lambda method: np.random.random(),  # noqa: NPY002
    "torch's own random numbers": lambda method: torch.rand(1),
}


def run(path: Path, method: Any, rounds: int = 3) -> Totals:
    recorder = records.Recorder.create(path, attrs={"config": {"m": M}}, m=M, ranks=1, rounds=rounds)
    clients, schedule = LocalClients([None] * M, method), Schedule(rounds, 9, 0)
    return loop.Rounds(method, clients, schedule, recorder, Progress()).run(None)[0]


@pytest.mark.parametrize("where", HIDDEN)
def test_state_that_hides_ends_the_run_and_is_named(where: str, tmp_path: Path) -> None:
    """Mutations: attributes alone; identities without contents; a class's, a module's, a generator's; in one process or
    on ranks alone."""
    hide = HIDDEN[where]
    with pytest.raises(RunFailed, match=f"round 1: a round changed [a-z ]*{where.strip()}.*no checkpoint") as told:
        run(tmp_path / "run.h5", Undecorated(hide=hide))
    assert not told.value.trace and "\n" not in str(told.value)

    def on_ranks(world: Any) -> Any:
        return serve_or_ask(world, method, [None] * M, lambda clients: failure(clients, method))

    def failure(clients: Clients, method: Any) -> str:
        with pytest.raises(ClientError) as found:
            method.round(method.start(), 0, clients)
        return str(found.value)

    method = Undecorated(hide=hide)
    assert f"{where.strip()}" in run_ranks(2, on_ranks)[0]


def test_what_can_be_computed_again_is_no_state(tmp_path: Path) -> None:
    """Mutations: a cached property, or a field declared by `cache`, is refused; the check costs rounds their result."""
    totals = run(tmp_path / "run.h5", Undecorated())
    assert totals.round == 3 and records.load(tmp_path / "run.h5").final["x"].tolist() == [4.5, 4.5]


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda state: State(state.x.astype(np.float64)), r"its x is ndarray of float64 \(2,\).*float32 \(2,\)"),
        (lambda state: State(state.x[:1]), r"its x is ndarray of float32 \(1,\).*\(2,\)"),
        (lambda state: State(torch.zeros(2)), r"its x is Tensor of torch.float32 \(2,\)"),
        (lambda state: State(state.x, total="1"), r"its total is str, .*number"),  # type: ignore[arg-type]
        (lambda state: State(state.x, kept=None), r"its kept is NoneType, .*dict"),
    ],
)
def test_a_state_unlike_the_first_is_refused_in_its_round(end: Callable[[Any], Any], told: str, tmp_path: Path) -> None:
    """It ran, and --resume refused it. Mutations: classes, dtypes or shapes not compared; further entries refused."""
    with pytest.raises(RunFailed, match=f"round 1: round returned a state that is not like the one of start .{told}"):
        run(tmp_path / "run.h5", Counting(end=end))


def test_scratch_lasts_for_a_round() -> None:
    """Hidden there, a number gave other bits after --resume. Mutation: not emptied, in one process or on ranks."""

    class Steps:
        def step(self, client: Client, message: Message) -> Message:
            client.scratch["calls"] = client.scratch.get("calls", 0) + 1
            return Message(np.array([float(client.scratch["calls"])]))

    def program(clients: Clients) -> list[float]:
        found = []
        for _ in range(3):
            for _ in range(2):
                found.append(float(clients.mean(Steps().step, Message(np.zeros(1))).x[0]))
            clients.account()
        return found

    assert program(LocalClients([None] * M)) == [1, 2] * 3
    assert run_ranks(3, lambda world: serve_or_ask(world, Steps(), [None] * M, program))[0] == [1, 2] * 3


def test_the_setting_and_with_it_the_clients_data_are_not_looked_at() -> None:
    """Data may change, and looking at them would take long. Mutation: the setting as any other attribute."""
    method = Counting(setting=SimpleNamespace(m=M, fleet=None, data=[np.zeros(4)]))
    unchanged = Unchanged(method)
    method.setting.data[0][:] = 1.0
    unchanged.check()
