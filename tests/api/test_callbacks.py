"""Callbacks of the package, against the real libraries."""

import math
import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import zofl_mpi as zofl
from tests.api.conftest import FedSGD
from tests.conftest import Patch
from zofl_mpi import Federation, UserError
from zofl_mpi.run import records


def run(data: Federation, out: Path, *callbacks: Any, **flags: Any) -> zofl.Result:
    same: dict[str, Any] = {"family": "zo_hfl", "rounds": 6, "out": out, "callbacks": callbacks, **flags}
    return zofl.simulate(FedSGD, "softmax", data, **same)


def fed(callback: Any, name: str, values: list[float]) -> int:
    """The round in which a callback ends a run with these values; 0: none."""
    said: list[str] = []
    seen: Any = SimpleNamespace(stop=said.append, plan={"rounds": len(values), "eval_every": 2})
    callback.on_start(seen)
    for r, value in enumerate(values, 1):
        callback.on_round(seen, {"round": r, "seconds": 0.1} | ({} if math.isnan(value) else {name: value}))
        if said:
            return r
    return 0


NAN = math.nan


@pytest.mark.parametrize(
    ("name", "given", "values", "ends"),
    [
        ("test_accuracy", {"patience": 2}, [0.1, 0.2, 0.2, 0.19, 0.3], 4),
        ("test_accuracy", {"patience": 2}, [0.1, NAN, 0.1, NAN, 0.1], 5),  # rounds without a value do not count
        ("test_accuracy", {"patience": 2}, [0.1, 0.2, 0.1, 0.3, 0.2], 0),
        ("test_loss", {"patience": 1}, [2.0, 1.0, 1.5], 3),
        ("test_loss", {"patience": 1, "smallest": False}, [2.0, 1.0], 2),
        ("test_accuracy", {"patience": 2, "min_delta": 0.25}, [0.0, 0.2, 0.25, 0.9], 3),
        ("test_accuracy", {"patience": 2, "min_delta": 0.25}, [0.0, 0.2, 0.5, 0.7], 0),
    ],
)
def test_early_stopping_ends_in_the_right_round(name: str, given: Any, values: list[float], ends: int) -> None:
    """Also of a second run. Mutations: >= for >; another direction; NaN that counts; a best that outlives its run."""
    callback = zofl.EarlyStopping(name, **given)
    assert fed(callback, name, values) == ends
    assert fed(callback, name, values) == ends


def test_early_stopping_ends_a_run_with_its_reason(tmp_path: Path, data: Federation) -> None:
    """No value is better by 9. Mutation: a stop without a reason."""
    result = run(data, tmp_path / "a.h5", zofl.EarlyStopping("test_accuracy", patience=2, min_delta=9.0), eval_every=1)
    assert (result.status, result.row["round"]) == ("stopped", 3)
    assert "test_accuracy has not been better than" in result.reason and "for 2 evaluations" in result.reason
    assert records.load(tmp_path / "a.h5").attrs["stopped"] == result.reason


def test_bad_arguments_are_told(tmp_path: Path, data: Federation, monkeypatch: Patch) -> None:
    """Mutation: a column that is never there, and is never told."""
    for given in ({"patience": 0}, {"min_delta": -1.0}, {"min_delta": math.nan}):
        with pytest.raises(UserError, match="must be >= 1, and >= 0"):
            zofl.EarlyStopping("test_loss", **given)
    with pytest.raises(UserError, match=r"no column 'test_acuracy'; there are round, .*test_accuracy"):
        run(data, tmp_path / "a.h5", zofl.EarlyStopping("test_acuracy"))
    assert records.load(tmp_path / "a.h5").length == 1
    for name, call in {
        "optuna": lambda: zofl.OptunaPruning(None, "test_loss"),
        "tensorboard": lambda: zofl.TensorBoard("tb"),
    }.items():
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(UserError, match=rf"needs {name}, which is not installed: pip install 'zofl_mpi\[{name}\]'"):
            call()


def test_tensorboards_own_reader_finds_every_column(tmp_path: Path, data: Federation) -> None:
    """Also of a run that is continued. Mutations: a column left out; steps that count from 0; a file not flushed."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def written() -> dict[str, list[tuple[int, float]]]:
        found = EventAccumulator(str(tmp_path / "tb")).Reload()
        return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}

    result = run(data, tmp_path / "a.h5", zofl.TensorBoard(tmp_path / "tb"), eval_every=2)
    longer = zofl.simulate(result, rounds=8, callbacks=[zofl.TensorBoard(tmp_path / "tb")])
    rounds = longer.run.rounds
    columns = {name: values for name, values in rounds.items() if name != "round"}
    assert {"seconds", "test_accuracy"} <= columns.keys() and written().keys() == columns.keys()
    for name, values in columns.items():
        kept = [(r, value) for r, value in enumerate(values, 1) if not math.isnan(value)]
        assert written()[name] == [(r, pytest.approx(value, rel=1e-6)) for r, value in kept], name


class Ends:
    """Sees the end, and what the file then holds; fails itself there."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.seen = fails, list[tuple[str, str, str, int]]()

    def on_end(self, run: zofl.Simulation) -> None:
        kept = records.load(run.result.path)
        self.seen.append((run.result.status, run.result.reason, str(kept.attrs["status"]), kept.length))
        assert run.rounds == kept.length and not run.result.rank
        if self.fails:
            raise OSError("a tracker's server is away")


class Failing(FedSGD):
    """Fails in round 3."""

    def gradient(self, client: Any, model: Any) -> Any:
        assert model.r < 2, "planted"
        return super().gradient(client, model)


class At:
    """Does something after round 2."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def on_round(self, run: zofl.Simulation, row: Any) -> None:
        if row["round"] == 2:
            self.what(run)


def raising(exc: BaseException) -> Any:
    def now(run: Any) -> None:
        raise exc

    return now


@pytest.mark.parametrize(
    ("method", "now", "raised", "status", "reason"),
    [
        (FedSGD, lambda run: None, None, "done", ""),
        (FedSGD, lambda run: run.stop("enough"), None, "stopped", "enough"),
        (FedSGD, lambda run: os.kill(os.getpid(), signal.SIGTERM), None, "interrupted", ""),
        (FedSGD, raising(KeyboardInterrupt()), KeyboardInterrupt, "interrupted", "KeyboardInterrupt"),
        (FedSGD, raising(ValueError("of a callback")), ValueError, "failed", "ValueError: of a callback"),
        (FedSGD, raising(UserError("a sentence")), UserError, "failed", "a sentence"),
        (Failing, lambda run: None, zofl.RunFailed, "failed", "round 3: client 0 "),
    ],
)
def test_callbacks_learn_every_end(
    tmp_path: Path, data: Federation, method: Any, now: Any, raised: Any, status: str, reason: str
) -> None:
    """All of them once, after the file is closed, and none hides the run's failure. Mutations: on_end after a success
    only; before the rows are written; the first to fail keeps others from it; its exception in place of the run's."""
    first, second = Ends(fails=raised is not None), Ends()
    flags: dict[str, Any] = {"family": "zo_hfl", "rounds": 4, "out": tmp_path / "a.h5"}
    callbacks = [At(now), first, second]
    if raised is None:
        assert zofl.simulate(method, "softmax", data, callbacks=callbacks, **flags).status == status
    else:
        with pytest.raises(raised) as caught:
            zofl.simulate(method, "softmax", data, callbacks=callbacks, **flags)
        assert caught.type is raised and [note.partition(" (")[0] for note in caught.value.__notes__] == [
            "Ends.on_end failed, too: OSError: a tracker's server is away"
        ]
    length = 4 if status == "done" else 3 if reason == "" else 2
    assert first.seen == second.seen and len(first.seen) == 1
    (found,) = first.seen
    assert found[0] == status and found[1].startswith(reason) and found[3] == length
    assert found[2] == ("interrupted" if status == "failed" else status)
    assert run(data, tmp_path / "b.h5").status == "done"


def test_a_script_s_failure_and_one_at_the_start_are_ends_too(tmp_path: Path, data: Federation) -> None:
    """A callback that was never started does not end. Mutations: on_end without on_start; none for the block's
    exception; the run that has no result after it."""
    flags: dict[str, Any] = {"family": "zo_hfl", "rounds": 4}
    ends = Ends()
    with (
        pytest.raises(ZeroDivisionError),
        zofl.Simulation(FedSGD, "softmax", data, callbacks=[ends], out=tmp_path / "a.h5", **flags) as sim,
    ):
        for row in sim:
            1 / (row["round"] - 3)
    assert ends.seen == [("failed", "ZeroDivisionError: float division by zero", "interrupted", 3)]
    assert (sim.result.status, sim.result.row["round"]) == ("failed", 3)
    before, after = Ends(), Ends()
    with pytest.raises(LookupError, match="at the start"):
        run(data, tmp_path / "b.h5", before, SimpleNamespace(on_start=raising(LookupError("at the start"))), after)
    assert before.seen == [("failed", "LookupError: at the start", "interrupted", 0)] and after.seen == []
    with zofl.Simulation(FedSGD, "softmax", data, callbacks=[after], out=tmp_path / "c.h5", **flags):
        pass  # no round is begun
    with pytest.raises(UserError, match="unknown flag"):
        run(data, tmp_path / "d.h5", after, tua=1)
    assert after.seen == []


def test_tensorboard_closes_its_file_when_a_run_fails(tmp_path: Path, data: Federation) -> None:
    """Mutation: a writer that stays open, whose thread lives on."""
    board = zofl.TensorBoard(tmp_path / "tb")
    with pytest.raises(zofl.RunFailed):
        zofl.simulate(Failing, "softmax", data, family="zo_hfl", rounds=4, out=tmp_path / "a.h5", callbacks=[board])
    assert board._writer is None
    assert not [each for each in threading.enumerate() if "EventWriter" in type(each).__name__ or "_Async" in str(each)]


def test_a_pruned_trial_leaves_a_closed_result(tmp_path: Path, data: Federation) -> None:
    """The second trial stands still, worse than the first. Mutations: a value never reported; a run
    that is broken off; another callback's end that is left out."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    ends: list[str] = []

    class Looks:
        def on_end(self, run: zofl.Simulation) -> None:
            ends.append(run.result.status)

    def objective(trial: Any) -> float:
        gamma, out = trial.suggest_float("gamma", 0.0, 0.5), tmp_path / f"{trial.number}.h5"
        callbacks = [zofl.OptunaPruning(trial, "test_accuracy"), Looks()]
        return run(data, out, *callbacks, gamma=gamma, eval_every=2).row["test_accuracy"]

    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(1, 0))
    study.enqueue_trial({"gamma": 0.5})
    study.enqueue_trial({"gamma": 0.0})
    study.optimize(objective, 2)
    first, second = study.trials
    assert [each.state.name for each in (first, second)] == ["COMPLETE", "PRUNED"]
    values = records.load(tmp_path / "0.h5").rounds["test_accuracy"]
    assert first.intermediate_values == {r: values[r - 1] for r in (1, 2, 4, 6)}
    kept = records.load(tmp_path / "1.h5")
    assert kept.attrs["status"] == "stopped" and "Optuna pruned the trial at test_accuracy" in kept.attrs["stopped"]
    assert kept.length == max(second.intermediate_values) < 6
    assert ends == ["done", "stopped"]
