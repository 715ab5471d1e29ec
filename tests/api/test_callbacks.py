"""Early stopping, Optuna's pruning, TensorBoard: each against the real library."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zofl_mpi as zofl
from tests.launch import here
from zofl_mpi import Federation, UserError
from zofl_mpi.run import records


class Row:
    """A run whose column takes these values."""

    def __init__(self) -> None:
        self.reason, self.plan = "", dict[str, Any]()

    def stop(self, reason: str) -> None:
        self.reason = self.reason or reason

    def course(self, callback: Any, column: str, values: list[float]) -> int:
        """The round in which it is stopped; 0: in none."""
        callback.on_start(self)
        for k, value in enumerate(values, 1):
            callback.on_round(self, {"round": float(k), **({column: value} if value == value else {})})
            if self.reason:
                return k
        return 0


@pytest.mark.parametrize(
    ("column", "values", "how", "stops"),
    [
        ("validation_accuracy", [0.1, 0.5, 0.4, 0.5, 0.3, 0.9], {"patience": 3}, 5),
        ("validation_accuracy", [0.1, 0.5, np.nan, 0.4, np.nan, 0.5, np.nan, 0.3], {"patience": 3}, 8),
        ("validation_loss", [9.0, 5.0, 6.0, 5.0], {"patience": 2}, 4),
        ("validation_loss", [1.0, 2.0, 3.0, 4.0], {"patience": 2, "smallest": False}, 0),
        ("test_macro_f1", [0.1, 0.15, 0.2, 0.25], {"patience": 2, "min_delta": 0.2}, 3),
        ("test_accuracy", [0.1, 0.2, 0.3], {}, 0),
    ],
)
def test_early_stopping_waits_for_patience(column: str, values: list[float], how: Any, stops: int) -> None:
    """Mutations: equal values that improve; rounds without an evaluation that count; losses that should grow."""
    assert Row().course(zofl.EarlyStopping(column, **how), column, values) == stops


def test_early_stopping_ends_a_run_and_a_column_that_is_not_there_is_named(tmp_path: Path, data: Federation) -> None:
    same: dict[str, Any] = {"family": "zo_hfl", "gamma_local": 1e-9, "rounds": 50, "eval_every": 1}
    early = zofl.EarlyStopping("validation_accuracy", patience=3)
    result = zofl.simulate("fedavg", "softmax", data, callbacks=[early], out=tmp_path / "a.h5", **same)
    assert result.status == "stopped" and result.reason == "validation_accuracy has not improved since round 1"
    assert result.run.length == 4
    with pytest.raises(UserError, match=r"no column 'validation_acuracy'; there are .*nearest is validation_accuracy"):
        wrong = zofl.EarlyStopping("validation_acuracy")
        zofl.simulate("fedavg", "softmax", data, callbacks=[wrong], out=tmp_path / "b.h5", **same)


def test_optuna_prunes_a_trial_and_goes_on(tmp_path: Path, data: Federation) -> None:
    """A real study. Mutations: a pruned run that ends as done; a trial that fails."""
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    results: dict[int, Any] = {}

    def objective(trial: Any) -> float:
        step = trial.suggest_categorical("gamma_local", [0.3, 1e-9, 0.5])
        prunes, out = zofl.OptunaPruning(trial, "validation_loss"), tmp_path / f"{trial.number}.h5"
        same: dict[str, Any] = {"family": "zo_hfl", "rounds": 6, "eval_every": 1, "gamma_local": step}
        result = zofl.simulate("fedavg", "softmax", data, callbacks=[prunes], out=out, **same)
        results[trial.number] = result.status
        return result.best("validation_loss")["validation_loss"]

    pruner = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=1)
    sampler = optuna.samplers.GridSampler({"gamma_local": [0.3, 1e-9, 0.5]}, seed=3)
    study = optuna.create_study(sampler=sampler, pruner=pruner)
    study.optimize(objective, n_trials=3)
    states = {trial.params["gamma_local"]: trial.state.name for trial in study.trials}
    assert states[1e-9] == "PRUNED" or study.trials[0].params["gamma_local"] == 1e-9
    assert study.best_trial.params["gamma_local"] != 1e-9
    for trial in study.trials:
        stored = records.load(tmp_path / f"{trial.number}.h5").attrs
        assert stored["status"] == ("stopped" if trial.state.name == "PRUNED" else "done")
        assert trial.state.name != "PRUNED" or stored["stopped"] == "Optuna pruned it by validation_loss"


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard's own reader finds."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.mark.parametrize("way", ["python", "command line"])
def test_tensorboard_reads_back_what_the_result_has(way: str, tmp_path: Path, data: Federation) -> None:
    """Mutations: rounds from 0; rounds without a value."""
    folder, out = tmp_path / "tb", tmp_path / "a.h5"
    if way == "python":
        same: dict[str, Any] = {"family": "zo_hfl", "rounds": 5, "eval_every": 2}
        zofl.simulate("fedavg", "softmax", data, out=out, callbacks=[zofl.TensorBoard(folder)], **same)
    else:
        words = ("--method", "fedavg", "--rounds", 5, "--eval-every", 2, "--out", out, "--quiet")
        assert here("zofl_mpi.zo_hfl", *words, "--track", f"tensorboard:{folder}") == 0
    run, told = records.load(out), scalars(folder)
    assert [step for step, _ in told["seconds"]] == [1, 2, 3, 4, 5]
    assert [step for step, _ in told["test_accuracy"]] == [1, 2, 4, 5]
    kept = run.rounds["test_accuracy"]
    np.testing.assert_allclose([value for _, value in told["test_accuracy"]], kept[~np.isnan(kept)], rtol=1e-6)
    assert run.attrs["status"] == "done"


def test_what_track_cannot_be_is_refused(tmp_path: Path, capsys: Any) -> None:
    assert here("zofl_mpi.zo_hfl", "--rounds", 1, "--track", "wandb", "--out", tmp_path / "a.h5") == 2
    assert "--track wandb: must be tensorboard, or tensorboard:FOLDER" in capsys.readouterr().err
