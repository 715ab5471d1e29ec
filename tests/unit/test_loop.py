"""Rounds: when they are evaluated and saved, what their rows hold, how a run stops, fails and goes on."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Patch
from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import column
from zofl_mpi.engine.ledger import Row
from zofl_mpi.engine.setting import Method
from zofl_mpi.engine.watch import Watch
from zofl_mpi.errors import RunFailed, UserError
from zofl_mpi.run import records
from zofl_mpi.run.loop import rounds as loop
from zofl_mpi.run.loop.local import LocalClients
from zofl_mpi.run.loop.progress import Progress
from zofl_mpi.run.loop.rounds import Schedule
from zofl_mpi.run.loop.saving import LOST, CheckpointTimer
from zofl_mpi.run.loop.session import astray, closing
from zofl_mpi.run.loop.totals import Totals, note

M = 3


@dataclass(frozen=True)
class Add:
    a: Any
    k: int = 0


@dataclass(frozen=True)
class Sum:
    x: Any = column("1", "the vector")
    total: float = column("1", "the sum", 0.0)
    flag: bool = True
    kept: Any = field(default_factory=lambda: {"first": np.ones(2), "note": "text", "nothing": None})


@dataclass(frozen=True)
class Report:
    objective: float = column("nat", "sum of x")
    test_accuracy: float = math.nan
    absent: float | None = None
    scores: dict[str, float] = field(default_factory=dict)


@dataclass
class Counting:
    """Each client adds 1 to a number it keeps and sends it; the state is their sum so far."""

    setting: Any = field(default_factory=lambda: SimpleNamespace(m=M, fleet=None))
    fails_in: int = -1
    ends = Method.ends

    @cached_property
    def made(self) -> dict[str, list[int]]:
        return {}

    @property
    def evaluated(self) -> list[int]:
        return self.made.setdefault("evaluated", [])

    def start(self) -> Sum:
        return Sum(np.zeros(2))

    def directions(self, rounds: int) -> None:
        return None

    def round(self, state: Sum, r: int, clients: Clients) -> Sum:
        total = 0.0
        for _, reply in clients.ask(self.count, Add(state.x, r), to=[0, 2]):
            total += reply.a[0]
        if r == self.fails_in:
            raise UserError("smaller --gamma helps")
        return Sum(state.x + total, total)

    def count(self, client: Client, message: Add) -> Add:
        client.memory["calls"] = client.memory.get("calls", 0) + 1
        if client.i == 2 and message.k == self.fails_in - 100:
            raise ArithmeticError("broken")
        return Add(np.array([float(client.memory["calls"])]))

    def evaluate(self, state: Sum, r: int, clients: Clients) -> Report:
        self.evaluated.append(r)
        for _ in clients.ask(self.look, Add(state.x), counted=False):
            pass
        return Report(float(state.x.sum()), scores={"entry": 2.0})

    def look(self, client: Client, message: Add) -> Add:
        return Add(np.zeros(4))


@dataclass
class Diary(Progress):
    """Progress that is written down."""

    told: list[tuple[int, str]] = field(default_factory=list)

    def update(self, done: int, note: str, seconds: float) -> None:
        assert seconds > 0
        self.told.append((done, note))


def recorder(path: Path, rounds: int = 9) -> records.Recorder:
    return records.Recorder.create(path, attrs={"config": {"m": M}}, m=M, ranks=1, rounds=rounds)


def run(
    path: Path,
    method: Counting | None = None,
    rounds: int = 9,
    every: tuple[int, int] = (4, 0),
    stop: Callable[[], bool] = lambda: False,
    diary: Any = None,
) -> tuple[Totals, bool]:
    clients = LocalClients([None] * M, watch=Watch(stop=stop))
    schedule = Schedule(rounds, *every)
    return loop.Rounds(method or Counting(), clients, schedule, recorder(path), diary or Diary()).run(None)


def goes_on(path: Path, rounds: int, every: tuple[int, int] = (4, 0)) -> tuple[Totals, bool]:
    checkpoint = records.load_checkpoint(records.checkpoint_path(path))
    again = records.Recorder.reopen(path, int(checkpoint.attrs["round"]), rounds=rounds)
    clients, resumed = LocalClients([None] * M), loop.restored(checkpoint, Counting())
    return loop.Rounds(Counting(), clients, Schedule(rounds, *every), again, Diary()).run(resumed)


@given(st.integers(1, 50), st.integers(1, 60), st.integers(0, 60))
def test_checkpoints_come_every_so_many_rounds_and_last_or_never(rounds: int, eval_every: int, every: int) -> None:
    schedule = Schedule(rounds, eval_every, every)
    saved = {done for done in range(1, rounds + 1) if CheckpointTimer(every, rounds).is_due(done)}
    assert saved == ({d for d in range(1, rounds + 1) if d % every == 0} | {rounds} if every else set())
    evaluated = {done for done in range(1, rounds + 1) if schedule.evaluates(done)}
    assert evaluated == {1, rounds} | {d for d in range(1, rounds + 1) if d % eval_every == 0}


def test_a_row_holds_the_states_numbers_the_evaluation_and_the_bytes(tmp_path: Path) -> None:
    """And the totals are the sums of the rows. Mutations: a None that becomes a column; a dictionary's entries left
    out; the state's fields undescribed; progress that misses a round."""
    diary = Diary()
    totals, done = run(tmp_path / "a.h5", rounds=5, diary=diary)
    values = ("4.0000", "4.0000 (round 1)", "4.0000 (round 1)", "40.0000", "60.0000")
    assert diary.told == [(k + 1, f"objective {x}") for k, x in enumerate(values)]
    assert (totals.course, astray(totals.course, "objective")) == ([(1, 4.0), (4, 40.0), (5, 60.0)], "")
    found = records.load(tmp_path / "a.h5")
    assert done and found.attrs["status"] == "done" and found.length == 5
    assert found.rounds["round"].tolist() == [1, 2, 3, 4, 5]
    assert found.rounds["total"].tolist() == [2, 4, 6, 8, 10]  # in every round; truths are no columns
    assert set(found.rounds) == {"round", "seconds", "total", "objective", "test_accuracy", "entry"}
    np.testing.assert_array_equal(found.rounds["objective"], [4, np.nan, np.nan, 40, 60])
    assert (found.rounds["seconds"] > 0).all()
    assert found.steps == ("server", "count", "look")
    assert found.clients["bytes_down"][:, 1].tolist() == [[24, 0, 24]] * 5
    assert found.clients["bytes_up"][:, 1].tolist() == [[16, 0, 16]] * 5
    assert found.clients["messages"][:, 1].tolist() == [[1, 0, 1]] * 5
    assert found.clients["bytes_down"][:, 2].sum() == 0  # evaluations are not counted
    assert found.final["x"].tolist() == [30, 30] and found.final["total"] == 10
    assert {*found.final} == {"x", "total", "flag", "kept/first", "kept/note"} and found.final["kept/note"] == "text"
    assert (found.units["objective"], found.descriptions["objective"]) == ("nat", "sum of x")
    assert (found.units["total"], found.descriptions["total"]) == ("1", "the sum")
    assert (found.units["entry"], found.descriptions["entry"]) == ("", "")
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["final/x"].attrs["meaning"] == b"the vector"
    assert (totals.round, totals.rounds) == (5, 5)
    assert (totals.bytes_down, totals.bytes_up) == (5 * 48, 5 * 32)
    assert totals.wall == pytest.approx(found.rounds["seconds"].sum())
    assert totals.last["objective"] == 60 and totals.last["total"] == 10
    assert "test_accuracy" not in totals.last  # a number that is none says nothing
    kinds = [found.ranks[f"seconds_{kind}"].sum() for kind in ("compute", "wait", "comm")]
    np.testing.assert_allclose(totals.seconds, [kinds])


def test_totals_overlap_as_the_result_does_though_steps_come_later(tmp_path: Path) -> None:
    """Mutations: the steps of the first round; the rounds' order."""
    totals, zeros = Totals(0), np.zeros((1, 3), np.int64)
    for steps, wall in ((["server", "a"], 3.0), (["server", "a", "b"], 3.5)):
        seconds = np.zeros((len(steps), 3, 4))
        seconds[:, 1:, 0], seconds[0, 1:, 0], seconds[0, 0, 0] = [1, 2], 0, 1.5
        totals.add(Row(steps, zeros, zeros, zeros, seconds, zeros, zeros, zeros), wall, {})
    assert totals.both == 2  # 2 + 1.5 - 3, and 1.5 of 4 + 1.5 - 3.5
    told = [line for line in closing(totals, Path("a.h5")).splitlines() if line.startswith("server")]
    own = "computing 3.0 s, waiting 0.0 s, sending 0.0 s; 2.0 s of its computing while clients computed"
    assert told == [f"server    {own}"]

    totals, _ = run(tmp_path / "a.h5", rounds=5)
    assert totals.both == pytest.approx(records.load(tmp_path / "a.h5").overlap().both.sum())


def test_evaluations_that_take_more_than_a_tenth_are_told(tmp_path: Path) -> None:
    """Not of a run of some seconds. Mutations: never measured; a share of something else; told of each run."""
    totals, _ = run(tmp_path / "a.h5", rounds=5)
    assert 0 < totals.evaluating < totals.wall
    for evaluating, wall, told in ((0.9, 2.0, 0), (1.9, 20.0, 0), (3.0, 20.0, 1)):
        totals.evaluating, totals.wall = evaluating, wall
        assert closing(totals, Path("a.h5")).count("evaluated 3.0 s (15% of the run): --eval-every") == told


def test_the_server_waits_for_a_rank_that_is_late_in_every_round_and_for_no_other() -> None:
    """Hand-made rounds of two client ranks. Mutations: the server's whole wait; the longest rank's whole computing; the
    second rank's; a lost rank in the mean."""
    totals, zeros = Totals(0), np.zeros((1, 3), np.int64)
    for first, second, wait in ((1.0, 3.0, 9.0), (1.0, 3.0, 0.25), (2.0, 1.0, 9.0), (2.0, 2.0, 9.0)):
        seconds = np.zeros((1, 3, 4))
        seconds[0, :, 0], seconds[0, 0, 1] = [5, first, second], wait
        totals.add(Row(["server"], zeros, zeros, zeros, seconds, zeros, zeros, zeros), 10.0, {})
    assert totals.late == {2: 1.25, 1: 0.5}  # 3 - (1 + 3)/2, at most the wait of 0.25; 2 - (2 + 1)/2
    assert "for client rank" not in closing(totals, Path("a.h5"))  # 1.25 of 40 seconds
    totals.wall = 10.0
    words = next(line for line in closing(totals, Path("a.h5")).splitlines() if line.startswith("waited"))
    assert words.startswith("waited    the server 1.2 s (12% of the run) for client rank 2, which")
    totals.losses = [records.Loss(1, (2,), True)]
    totals.add(Row(["server"], zeros, zeros, zeros, seconds, zeros, zeros, zeros), 10.0, {})
    assert totals.late == {2: 1.25, 1: 0.5}  # one rank is left


def test_a_stop_ends_after_the_round_with_a_checkpoint(tmp_path: Path) -> None:
    path, asked = tmp_path / "a.h5", iter([False] * 4 + [True] * 9)  # the first account is the start's
    totals, done = run(path, stop=lambda: next(asked))
    assert not done and totals.round == 4
    found = records.load(path)
    assert found.length == 4 and found.attrs["status"] == "interrupted" and not found.final
    checkpoint = records.load_checkpoint(records.checkpoint_path(path))
    assert checkpoint.attrs["round"] == 4 and json.loads(checkpoint.attrs["config"]) == {"m": M}
    assert set(checkpoint.payload) == {"state", "memory/0", "memory/2"}, "client 1 has none"
    asked = iter([False] * 3 + [True])
    totals, done = run(tmp_path / "b.h5", rounds=3, stop=lambda: next(asked))  # in the last round: it is finished
    assert done and totals.round == 3 and records.load(tmp_path / "b.h5").attrs["status"] == "done"
    assert not records.checkpoint_path(tmp_path / "b.h5").exists()


@pytest.mark.parametrize("together", [False, True])
def test_a_run_that_goes_on_has_the_state_and_the_memories(tmp_path: Path, together: bool, monkeypatch: Patch) -> None:
    """The clients count on from where they were: without memories the totals would start at 2 again. Mutations: the
    memories of many clients are not read, or given to the wrong ones."""
    monkeypatch.setattr(loop, "MAX_SEPARATE_MEMORIES", 2 - int(together))
    asked = iter([False] * 4 + [True] * 9)
    run(tmp_path / "a.h5", stop=lambda: next(asked))
    payload = records.load_checkpoint(records.checkpoint_path(tmp_path / "a.h5")).payload
    assert set(payload) == {"state", "memories"} or not together
    totals, done = goes_on(tmp_path / "a.h5", 9)
    run(tmp_path / "b.h5")
    whole, parts = records.load(tmp_path / "b.h5"), records.load(tmp_path / "a.h5")
    assert done and (totals.round, totals.rounds) == (9, 5)
    for name in whole.rounds.keys() - {"seconds"}:
        np.testing.assert_array_equal(whole.rounds[name], parts.rounds[name])
    assert whole.final["x"].tolist() == parts.final["x"].tolist()
    assert whole.steps == parts.steps
    for name in whole.clients:
        np.testing.assert_array_equal(whole.clients[name], parts.clients[name])


def test_a_failing_round_says_which_and_what_is_safe(tmp_path: Path) -> None:
    with pytest.raises(
        RunFailed, match=r"round 4: smaller --gamma helps; the 3 finished rounds are in .*a\.h5"
    ) as caught:
        run(tmp_path / "a.h5", Counting(fails_in=3))
    assert caught.value.trace == ""
    words = r"round 3: client 2 \(rank 0\) failed in step 'count', item 0: Arith"
    with pytest.raises(RunFailed, match=words) as caught:
        run(tmp_path / "b.h5", Counting(fails_in=102))
    assert "in count" in caught.value.trace


NO_DATACLASS = r"round 1: TypeError: evaluate returned a \w+: it must return a dataclass"


@pytest.mark.parametrize(
    ("report", "words"),
    [
        *((lambda report=report: report, NO_DATACLASS) for report in ({"objective": 1.0}, None, Report, 1.0)),
        *((lambda n=n: Report(1.0, scores={n: 1.0}), f"column '{n}'") for n in ("round", "seconds", "a/b")),
        (lambda: 1 / 0, "round 1: ZeroDivisionError: division by zero"),
    ],
)
def test_a_mistake_in_a_report_is_told_with_its_round(tmp_path: Path, report: Any, words: str) -> None:
    method: Any = Counting()
    method.evaluate = lambda *_: report()
    with pytest.raises(RunFailed, match=words) as caught:
        run(tmp_path / "a.h5", method)
    assert "ZeroDiv" not in words or "Traceback" in caught.value.trace
    method.evaluate = lambda state, r, clients: next(clients.ask(method.count, Add(np.zeros(1), 0))) and Report(0.0)
    with pytest.raises(RunFailed, match="the round ended while replies to 'count' are unread"):
        run(tmp_path / "b.h5", method)


@pytest.mark.parametrize(
    ("name", "result"), [("a.h5", "a.h5"), ("a.ckpt.h5", "a.h5"), ("a.ckpt", "a.ckpt"), ("a.b.ckpt.h5", "a.b.h5")]
)
def test_a_checkpoint_and_its_result_name_each_other(name: str, result: str) -> None:
    assert loop.result_of(Path("x") / name) == Path("x") / result


@pytest.mark.parametrize(
    ("course", "words"),
    [
        ([1.0, 999.0], ""),
        ([1.0, 1001.0], "the objective went from 1 after its first round to 1001: smaller steps may help"),
        ([0.01, -1001.0], "the objective went from 0.01 after"),
        ([2.0, math.nan], "the objective went from 2 after its first round to nan"),
        ([1e100, 1e100], "the objective went from 1e+100 after its first round to 1e+100"),
        ([3.0, *[2.0] * 5], ""),
        ([3.0, *[2.0] * 6], "the objective is bit-identical in the last 50 rounds"),
        ([2.0] * 6, "the objective is bit-identical in the last 50 rounds"),
        ([2.0] * 6 + [1.0], ""),
    ],
    ids=str,
)
def test_a_run_that_went_astray_is_told_so(course: list[float], words: str) -> None:
    """Mutations: signs; a first value below 1 that makes any other far; one evaluation fewer; nan that passes."""
    told = astray([(1 + 10 * k, value) for k, value in enumerate(course)], "objective")
    assert told.startswith(words) and bool(told) == bool(words)
    totals = Totals(4, last={"objective": 4.79e118, "test_accuracy": 0.25}, measured=4)
    assert note(totals) == "test accuracy 0.2500  objective 4.79e+118"
    totals.round = 9  # mutation: an accuracy of round 4 shown at round 9 as if it were new
    assert note(totals) == "test accuracy 0.2500 (round 4)  objective 4.79e+118"
    assert note(Totals(3)) == ""


def test_the_state_of_a_run_that_is_not_done_is_its_last_checkpoints(tmp_path: Path) -> None:
    """Mutations: the result's rows without a state; the state of another run's checkpoint; none, and a KeyError."""
    path, asked = tmp_path / "a.h5", iter([False] * 4 + [True] * 9)
    run(path, stop=lambda: next(asked))
    final = records.load(path).final
    assert final["x"].tolist() == [20, 20] and final["total"] == 8 and final["flag"] is True
    with pytest.raises(KeyError, match="y"):
        final["y"]
    checkpoint = records.checkpoint_path(path)
    run(tmp_path / "b.h5", rounds=3, every=(4, 1))
    assert records.load(tmp_path / "b.h5").final["x"].tolist() == [12, 12]
    records.save_checkpoint(checkpoint, {"state": b"nonsense"}, {"run": records.load(path).attrs["run"], "round": 4})
    with pytest.raises(UserError, match="no state of the model yet, and it is damaged"):
        records.load(path).final["x"]
    records.save_checkpoint(checkpoint, {"state": b""}, {"run": "another", "round": 4})
    with pytest.raises(UserError, match="the checkpoint beside it is of another run"):
        records.load(path).final["x"]
    for file in tmp_path.glob("a.ckpt.h5*"):
        file.unlink()
    with pytest.raises(UserError, match="holds no state of the model yet, and there is no file"):
        records.load(path).final["x"]


@dataclass
class Diverging(Counting):
    """A method without a word on what must be finite, which averages by itself."""

    of: str = "x"
    value: float = math.nan
    at: int = 2

    def round(self, state: Sum, r: int, clients: Clients) -> Sum:
        x = np.mean([reply.a for _, reply in clients.ask(self.count, Add(state.x))], axis=0)
        bad = np.array([0.0, self.value if r == self.at else 1.0])
        if self.of == "x":
            return Sum(x + bad)
        if self.of == "total":
            return Sum(state.x, total=float(bad[1]))
        return Sum(state.x, kept={**state.kept, "deep": torch.from_numpy(bad)})


@pytest.mark.parametrize(("at", "round_"), [(2, 4), (3, 4), (8, 9)])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("of", "name"), [("x", "x"), ("kept", "kept/deep")])
def test_a_state_that_is_not_finite_ends_the_run_where_it_is_evaluated(
    tmp_path: Path, of: str, name: str, value: float, at: int, round_: int
) -> None:
    """It was done, with a final vector of NaN and no word. Mutations: arrays alone; dictionaries left out; NaN alone;
    the last round alone."""

    class Lasting(Diverging):
        def round(self, state: Sum, r: int, clients: Clients) -> Sum:
            new = super().round(state, r, clients)
            return replace(new, x=state.x, kept=state.kept) if r > self.at else new

    with pytest.raises(RunFailed, match=f"^round {round_}: the state's {name} is not finite: the run has diverged"):
        run(tmp_path / "run.h5", Lasting(of=of, value=value, at=at))
    assert records.load(tmp_path / "run.h5").rounds["round"].size == round_ - 1


def test_a_number_of_the_state_may_be_nan(tmp_path: Path) -> None:
    """As columns are that nobody computed. Mutation: numbers are looked at, too."""
    assert run(tmp_path / "run.h5", Diverging(of="total", at=8))[1]


def test_an_objective_of_nan_ends_the_run_though_the_state_is_finite(tmp_path: Path) -> None:
    """It was done, with a warning in its last line. Mutations: no look at the row; infinity, which is a number, too."""

    @dataclass
    class Measuring(Counting):
        value: float = math.nan

        def evaluate(self, state: Sum, r: int, clients: Clients) -> Report:
            return replace(super().evaluate(state, r, clients), objective=self.value if r > 2 else 1.0)

    words = r"^round 4: the objective is nan: the run has diverged; smaller steps may help"
    with pytest.raises(RunFailed, match=words):
        run(tmp_path / "run.h5", Measuring())
    assert records.load(tmp_path / "run.h5").rounds["round"].size == 3
    assert run(tmp_path / "infinite.h5", Measuring(value=math.inf))[1]


def saved_at(seconds: float, cost: float, rounds: int) -> list[float]:
    """The times at which a run by the clock, whose rounds take so long each, has begun to write checkpoints."""
    now, found = 0.0, list[float]()
    saving = CheckpointTimer("auto", 10**9, clock=lambda: now)

    def write() -> None:
        nonlocal now
        found.append(now)
        now += cost

    for done in range(1, rounds + 1):
        now += seconds
        if saving.is_due(done):
            saving.save(write)
    return found


def test_checkpoints_by_the_clock_take_two_percent_and_lose_ten_minutes_at_most() -> None:
    """Quick ones come every 30 s, slow ones as often as 2 % allows, very slow ones every ten minutes. Mutations: none
    before the share allows the second; the share without the one that is due; ten minutes that give way to it."""
    assert saved_at(1.0, 0.0, 100) == [30.0, 60.0, 90.0]
    times = saved_at(1.0, 2.0, 1000)
    assert times[0] == 30, "what one takes is not known yet"
    assert all((2 * k + 2) / t <= 0.02 for k, t in enumerate(times) if k) and len(times) > 8
    times = saved_at(7.0, 60.0, 600)
    assert all(LOST <= b - a - 60 < LOST + 7 for a, b in pairwise(times)) and times[0] < LOST + 7
    assert saved_at(1000.0, 500.0, 3) == [1000, 2500, 4000]
    last = CheckpointTimer("auto", 5)
    assert last.is_due(5) and not last.is_due(4), "a run may be made longer"


def test_memories_that_nobody_has_are_neither_asked_for_nor_written(tmp_path: Path) -> None:
    """Mutation: all m clients are asked."""
    run(tmp_path / "run.h5", every=(4, 3))
    saved = records.load_checkpoint(records.checkpoint_path(tmp_path / "run.h5"))
    assert sorted(saved.payload) == ["memory/0", "memory/2", "state"]
