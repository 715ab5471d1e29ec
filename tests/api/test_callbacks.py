"""Callbacks of the package, against the real libraries."""

import math
import sys
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
