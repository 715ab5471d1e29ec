"""Tables and figures from tiny real results: the numbers are those computed by hand; nothing is averaged silently."""

from __future__ import annotations

import csv
import importlib
import json
import shutil
import statistics
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import matplotlib.pyplot as plt
import numpy as np
import pytest

from tests.conftest import ROOT, environment
from tests.produced import produce
from zofl_mpi.numerics import zo
from zofl_mpi.run import grid

SCRIPTS = ["a_table1", "a_fig1", "a_fig2", "a_fig3", "a_budget", "a_readings", "a_tuned"]
CELLS = {"a1000-b0.9": {"alpha": 1000.0, "beta": 0.9}, "a0.1-b0.5": {"alpha": 0.1, "beta": 0.5}}
METHODS = {"zo_hfl": {"method": "zo_hfl"}, "fedavg": {"method": "fedavg"}}
READINGS = {"default": {}, "mu-10": {"mu": 10.0}, "pixels-raw": {"pixels": "raw"}}
"""Of the second only ZO-HFL's runs: the grid leaves FedAvg's out."""
SEEDS = {"1": {"seed": 1}, "2": {"seed": 2}}
FLAGS = {
    "problem": "softmax",
    "data": "digits",
    "m": 4,
    "rounds": 3,
    "eval_every": 2,
    "beta": 1.0,
    "tau": 1,
    "gamma": 0.5,
}
GRIDS: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "table": {"seed": SEEDS, "method": METHODS, "cell": CELLS},
    "taus": {"cell": CELLS, "tau": {"2": {"tau": 2}, "9": {"tau": 9}}, "seed": SEEDS},
    "readings": {"cell": CELLS, "reading": READINGS, "method": METHODS, "seed": SEEDS},
    "steps": {
        "cell": CELLS,
        "method": METHODS,
        "step": {"low": {"gamma": 0.01}, "high": {"gamma": 1.0}},
        "seed": SEEDS,
    },
    "control": {"method": METHODS | {"server_sgd": {"method": "server_sgd"}}, "seed": SEEDS},
}
PAPER = {("digits", 1000.0, 0.9): {"zo_hfl": 50.0, "fedavg": 60.0}, ("digits", 0.1, 0.5): {"zo_hfl": 70.0}}
"""Stands for the paper's table."""


def toml(axes: dict[str, dict[str, dict[str, Any]]]) -> str:
    """A grid file."""
    lines = ['module = "zofl_mpi.zo_hfl"', 'optional = ["beta", "tau"]', "[fixed]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in FLAGS.items() if key not in axes]
    for axis, entries in axes.items():
        for entry, changes in entries.items():
            lines += [f'[axes.{axis}."{entry}"]', *(f"{key} = {json.dumps(value)}" for key, value in changes.items())]
    skip = ["[[skip]]", 'method = "fedavg"', 'reading = "mu-10"'] if "reading" in axes else []
    return "\n".join(lines + skip) + "\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the grid files and all their results. Who changes it takes a copy: `place`."""
    folder = tmp_path_factory.mktemp("made")
    for name, axes in GRIDS.items():
        (folder / f"{name}.toml").write_text(toml(axes))
    produce([folder / f"{name}.toml" for name in GRIDS], folder / "results")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of `made` that a test may damage."""
    return Path(shutil.copytree(made, tmp_path / "place"))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """The module of a script, imported as Python runs it: from its own folder; and the stand-in for the paper."""
    monkeypatch.syspath_prepend(str(ROOT / "analysis"))
    monkeypatch.setattr(importlib.import_module("study"), "PAPER", PAPER)
    return importlib.import_module


def words(folder: Path, name: str, out: Path, *more: str) -> list[str]:
    return ["--grid", str(folder / f"{name}.toml"), "--results", str(folder / "results"), "--out", str(out), *more]


def member(folder: Path, name: str, **where: str) -> Any:
    """The run of a grid at these coordinates."""
    (found,) = [
        run
        for run in grid.read(folder / f"{name}.toml", folder / "results").runs
        if all(run.coordinates[axis] == entry for axis, entry in where.items())
    ]
    return found


def column(folder: Path, grid_name: str, column_name: str, **where: str) -> list[list[float]]:
    """Straight from the files: the column, for each seed."""
    files = [member(folder, grid_name, **where, seed=seed).out for seed in SEEDS]
    found = []
    for path in files:
        with h5py.File(path) as file:
            found.append(list(map(float, file["rounds"][column_name][()])))
    return found


def accuracies(folder: Path, grid_name: str, **where: str) -> list[float]:
    """In %, after the last round, for each seed."""
    return [100 * values[-1] for values in column(folder, grid_name, "test_accuracy", **where)]


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def width_of(png: Path) -> int:
    """In pixels."""
    head = png.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    return int(struct.unpack(">I", head[16:20])[0])


def check_figure(stem: Path, inches: float) -> None:
    assert abs(width_of(stem.with_name(stem.name + ".png")) - 200 * inches) <= 1
    assert stem.with_name(stem.name + ".pdf").read_bytes().startswith(b"%PDF")


def refused(main: Callable[[list[str]], None], arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of a script that ends with status 2 and prints nothing else."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    told = capsys.readouterr()
    assert caught.value.code == 2 and told.out == "" and "Traceback" not in told.err
    return told.err.strip().split("\n")


# --- table 1


def test_table_1_has_mean_and_deviation_beside_the_papers_number(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script("a_table1").main(words(made, "table", tmp_path / "t"))
    told = capsys.readouterr()
    lines, tex = told.out.split("\n"), (tmp_path / "t.tex").read_text()
    rows = table_of(tmp_path / "t.csv")
    assert told.err == ""
    assert [(row["cell"], row["method"]) for row in rows] == [(c, m) for c in CELLS for m in METHODS]
    for row in rows:
        values = accuracies(made, "table", cell=row["cell"], method=row["method"])
        mean, sd = statistics.mean(values), statistics.stdev(values)
        paper = PAPER[("digits", *CELLS[row["cell"]].values())].get(row["method"])
        assert float(row["accuracy_mean_percent"]) == pytest.approx(mean, rel=1e-14)
        assert float(row["accuracy_sd_percent"]) == pytest.approx(sd, rel=1e-12)
        assert row["paper_percent"] == ("" if paper is None else str(paper))
        assert (row["data"], row["problem"], row["rounds"], row["seeds"]) == ("digits", "softmax", "3", "2")
        shown = [f"{mean:.2f}", "±", f"{sd:.2f}", "-" if paper is None else f"{paper:.2f}", "3", "2"]
        assert ["digits", row["cell"], row["method"], *shown] in [line.split() for line in lines]
        assert f" {mean:.2f} $\\pm$ {sd:.2f} & {shown[3]} &" in tex


def test_table_1_says_what_it_was_measured_with(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script("a_table1").main(words(made, "table", tmp_path / "t"))
    tex, text = (tmp_path / "t.tex").read_text(), " ".join(capsys.readouterr().out.split())
    for said in (
        "3 rounds; 2 seeds",
        "pixels unit; m 4",
        "tau 1; H schedule sqrt; batch 64",
        "gamma 0.5",
        "local step 0.1",
    ):
        assert said in text and said in tex
    for said in ("\\toprule", "\\bottomrule", "\\cmidrule(lr){2-3}", "ZO-HFL &", "FedAvg &", "$\\alpha$ = 0.1"):
        assert said in tex
    body = tex[tex.index("\\midrule") : tex.index("\\bottomrule")].split("\n")
    assert [line.count("&") for line in body if "FedAvg" in line or "ZO-HFL" in line] == [6, 6]


def test_a_missing_seed_is_named_and_nothing_is_written(
    place: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = member(place, "table", cell="a0.1-b0.5", method="zo_hfl", seed="2")
    gone.out.unlink()
    lines = refused(script("a_table1").main, words(place, "table", tmp_path / "t"), capsys)
    assert len(lines) == 2 and all(line.startswith("a_table1: ") for line in lines)
    assert gone.name in lines[0] and lines[1].endswith("1 of 8 results cannot be used; --partial goes on without them")
    assert list(tmp_path.glob("t.*")) == []


def test_a_run_that_failed_is_told_with_its_last_words(
    place: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = member(place, "table", cell="a0.1-b0.5", method="zo_hfl", seed="2")
    gone.out.unlink()
    gone.log.write_text("python -m ...\nzofl_mpi: round 1: client 3: the local solution is not finite\n\n")
    lines = refused(script("a_table1").main, words(place, "table", tmp_path / "t"), capsys)
    assert lines[0].endswith("; its log ends: zofl_mpi: round 1: client 3: the local solution is not finite")


def test_with_partial_a_missing_seed_is_marked_and_not_averaged_over(
    place: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = member(place, "table", cell="a0.1-b0.5", method="zo_hfl", seed="2")
    left = accuracies(place, "table", cell="a0.1-b0.5", method="zo_hfl")[0]
    gone.out.unlink()
    script("a_table1").main(words(place, "table", tmp_path / "t", "--partial"))
    told = capsys.readouterr()
    assert told.err.count("\n") == 1 and gone.name in told.err
    assert f"{left:.2f} (1 of 2 seeds)" in told.out and told.out.count("of 2 seeds") == 1
    assert (tmp_path / "t.tex").read_text().count(f"{left:.2f} (1 of 2 seeds)") == 1
    (row,) = [r for r in table_of(tmp_path / "t.csv") if r["seeds"] != "2"]
    assert float(row["accuracy_mean_percent"]) == left
    assert (row["seeds"], row["seeds_planned"], row["accuracy_sd_percent"]) == ("1", "2", "")


def test_a_cell_without_any_seed_stays_in_the_table(place: Path, tmp_path: Path, script: Any) -> None:
    for seed in SEEDS:
        member(place, "table", cell="a0.1-b0.5", method="zo_hfl", seed=seed).out.unlink()
    script("a_table1").main(words(place, "table", tmp_path / "t", "--partial"))
    (row,) = [r for r in table_of(tmp_path / "t.csv") if r["seeds"] == "0"]
    assert (row["cell"], row["accuracy_mean_percent"], row["paper_percent"]) == ("a0.1-b0.5", "", "70.0")


def damage(path: Path, how: str) -> None:
    """Make a good result into one that must not be averaged."""
    if how == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "text":
        path.write_text("not HDF5\n")
    else:
        with h5py.File(path, "r+") as file:
            config = json.loads(file.attrs["config"])
            file.attrs["schema"] = 99 if how == "schema" else file.attrs["schema"]
            file.attrs["status"] = "interrupted" if how == "interrupted" else "done"
            file.attrs["config"] = json.dumps(config | ({"eta": 0.7} if how == "configuration" else {}))


@pytest.mark.parametrize("how", ["truncated", "text", "schema", "interrupted", "configuration"])
@pytest.mark.parametrize(("name", "grid_name"), [("a_table1", "table"), ("a_fig2", "taus")])
def test_a_result_that_is_not_of_this_run_is_refused_by_name(
    place: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str], how: str, name: str, grid_name: str
) -> None:
    bad = grid.read(place / f"{grid_name}.toml", place / "results").runs[3]
    damage(bad.out, how)
    lines = refused(script(name).main, words(place, grid_name, tmp_path / "t"), capsys)
    assert len(lines) == 2 and lines[0].startswith(f"{name}: ") and bad.name in lines[0]
    assert "1 of 8 results cannot be used" in lines[1] and list(tmp_path.glob("t.*")) == []


def test_no_result_at_all_is_refused_with_partial_too(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--grid", str(made / "table.toml"), "--results", str(tmp_path), "--partial"]
    for name in ("a_table1", "a_budget"):
        lines = refused(script(name).main, [*arguments, "--out", str(tmp_path / "t")], capsys)
        assert len(lines) == 9 and lines[-1] == f"{name}: 8 of 8 results cannot be used"


def test_a_mistake_in_a_grid_is_one_sentence(
    place: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = place / "table.toml"
    good = path.read_text()
    for text in (good.replace("eval_every", "eval_evry"), good + "[colour]\nx = 1\n", good.replace("[", "[[", 1)):
        path.write_text(text)
        (line,) = refused(script("a_table1").main, words(place, "table", tmp_path / "t"), capsys)
        assert line.startswith("a_table1: ") and "table.toml" in line
    path.unlink()
    (line,) = refused(script("a_table1").main, words(place, "table", tmp_path / "t"), capsys)
    assert "table.toml" in line


@pytest.mark.parametrize(
    ("name", "grid_name", "sentence"),
    [
        ("a_table1", "readings", "has the axis reading, which would be averaged over"),
        ("a_fig2", "table", "has the axis method, which would be averaged over"),
        ("a_fig2", "readings", "has the axis reading, which would be averaged over"),
        ("a_budget", "taus", "has the axis tau, which would be averaged over"),
        ("a_readings", "table", "has no axis reading; it has seed, method, cell"),
        ("a_tuned", "table", "has no axis of steps"),
    ],
)
def test_a_grid_of_another_figure_is_refused(
    made: Path,
    tmp_path: Path,
    script: Any,
    capsys: pytest.CaptureFixture[str],
    name: str,
    grid_name: str,
    sentence: str,
) -> None:
    (line,) = refused(script(name).main, words(made, grid_name, tmp_path / "t"), capsys)
    assert line.startswith(f"{name}: ") and f"{grid_name}.toml {sentence}" in line


# --- figures


@pytest.mark.parametrize("columns", [1, 2])
def test_figure_1_is_drawn_from_a_grid_and_from_results(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    inches = 3.5 * columns
    script("a_fig1").main(words(made, "table", tmp_path / "f", "--columns", str(columns)))
    assert capsys.readouterr().out.split() == [str(tmp_path / "f_digits.pdf"), str(tmp_path / "f_digits.png")]
    check_figure(tmp_path / "f_digits", inches)
    result = member(made, "table", cell="a0.1-b0.5", method="zo_hfl", seed="1").out
    script("a_fig1").main([str(result), "--columns", str(columns), "--out", str(tmp_path / "one")])
    check_figure(tmp_path / "one", inches)


def test_the_areas_of_figure_1_are_the_counts(made: Path, script: Any) -> None:
    from zofl_mpi.run import records

    runs = [records.load(member(made, "table", cell=cell, method="zo_hfl", seed="1").out) for cell in CELLS]
    figure = script("a_fig1").draw(runs, 2)
    largest = max(int(run.counts.max()) for run in runs if run.counts is not None)
    for run, panel in zip(runs, figure.axes, strict=True):
        discs = panel.collections[0]
        clients, classes = np.nonzero(run.counts)
        assert np.array_equal(np.asarray(discs.get_offsets()), np.stack([clients, classes], axis=1))
        areas, counts = discs.get_sizes(), np.asarray(run.counts)[clients, classes]
        assert np.allclose(areas / areas.max(), counts / counts.max())
        assert np.allclose(areas / counts, figure.axes[0].collections[0].get_sizes().max() / runs[0].counts.max())
        assert f"({counts.sum():,} samples)" in panel.get_title()
    assert largest >= runs[0].counts.max()
    plt.close(figure)


def test_figure_1_needs_one_finished_result_a_cell(
    place: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    member(place, "table", cell="a0.1-b0.5", method="zo_hfl", seed="1").out.unlink()
    script("a_fig1").main(words(place, "table", tmp_path / "f"))
    member(place, "table", cell="a0.1-b0.5", method="fedavg", seed="1").out.unlink()
    (line,) = refused(script("a_fig1").main, words(place, "table", tmp_path / "g"), capsys)
    assert line.startswith("a_fig1: digits, alpha 0.1: no result is finished")
    script("a_fig1").main(words(place, "table", tmp_path / "g", "--partial"))
    check_figure(tmp_path / "g_digits", 7.0)


def test_the_axis_of_figure_2_is_logarithmic_on_demand(made: Path, script: Any) -> None:
    module = script("a_fig2")
    groups = read(module, made, "taus", "cell", "tau")
    for log, scale in ((False, "linear"), (True, "log")):
        figure = module.draw(groups, "tau", "test_accuracy", log)
        assert {panel.get_yscale() for panel in figure.axes} == {scale}
        assert figure.axes[0].get_ylabel() == "test accuracy (%)"
        assert max(figure.axes[0].get_lines()[0].get_ydata()) > 1
        plt.close(figure)


@pytest.mark.parametrize("more", [[], ["--column", "test_accuracy"], ["--column", "objective", "--log"]])
def test_figure_2_is_drawn(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    script("a_fig2").main(words(made, "taus", tmp_path / "f", *more))
    assert capsys.readouterr().err == ""
    check_figure(tmp_path / "f", 7.0)


def read(module: Any, folder: Path, name: str, *axes: str) -> Any:
    """A script's groups."""
    flags = importlib.import_module("study").parser("x", "", []).parse_args(words(folder, name, folder))
    return importlib.import_module("study").read("x", flags, axes)


def test_the_lines_and_bands_of_figure_2_are_mean_least_and_largest(made: Path, script: Any) -> None:
    module = script("a_fig2")
    figure = module.draw(read(module, made, "taus", "cell", "tau"), "tau", "train_loss", False)
    for panel, cell in zip(figure.axes, CELLS, strict=True):
        lines = {line.get_label(): line for line in panel.get_lines()}
        for line, band, tau in zip(lines.values(), panel.collections, ("2", "9"), strict=True):
            values = np.array(column(made, "taus", "train_loss", cell=cell, tau=tau))
            assert line.get_label() == f"τ = {tau}"
            assert line.get_xdata().tolist() == [1, 2, 3]  # the first, every second and the last round
            assert np.allclose(line.get_ydata(), values.mean(axis=0), rtol=1e-14)
            heights = band.get_paths()[0].vertices[:, 1]
            assert heights.min() == values.min() and heights.max() == values.max()
    plt.close(figure)


def test_figure_2_says_which_line_lacks_a_seed(place: Path, tmp_path: Path, script: Any) -> None:
    member(place, "taus", cell="a0.1-b0.5", tau="9", seed="1").out.unlink()
    module, study = script("a_fig2"), importlib.import_module("study")
    flags = study.parser("x", "", []).parse_args(words(place, "taus", tmp_path, "--partial"))
    figure = module.draw(study.read("x", flags, ("cell", "tau")), "tau", "train_loss", False)
    titles = [panel.get_title(loc="left") for panel in figure.axes]
    assert titles == ["digits, α = 1000, β = 0.9", "digits, α = 0.1, β = 0.5\nτ = 9 (1 of 2 seeds)"]
    plt.close(figure)


def test_figure_2_tells_the_last_numbers(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script("a_fig2").main(words(made, "taus", tmp_path / "f"))
    values = [v[-1] for v in column(made, "taus", "train_loss", cell="a0.1-b0.5", tau="9")]
    line = ["digits", "a0.1-b0.5", "9", f"{statistics.mean(values):.4g}", f"{statistics.stdev(values):.4g}", "2"]
    assert line in [line.split() for line in capsys.readouterr().out.split("\n")]


def test_figure_3_is_drawn(tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    script("a_fig3").main(["--steps", "20", "--out", str(tmp_path / "f")])
    assert capsys.readouterr().err == ""
    check_figure(tmp_path / "f", 7.0)


@pytest.mark.parametrize("eta", [0.1, 0.5])
def test_the_smoothing_of_figure_3_is_the_mean_over_the_ball_and_its_slope_the_estimate(
    script: Any, eta: float
) -> None:
    module = script("a_fig3")
    for x in (-1.3, -0.4, -0.05, 0.0, 0.05, 0.3, 0.7):
        ball = x + eta * (np.arange(4000) + 0.5) / 2000 - eta
        assert module.smoothed(np.array([x]), eta)[0] == pytest.approx(module.implicit(ball).mean(), abs=1e-7)
        around = module.smoothed(np.array([x - 1e-5, x + 1e-5]), eta)
        estimate = zo.central(lambda z: float(module.implicit(z)[0]), np.array([x]), np.array([-1.0]), eta)
        assert (around[1] - around[0]) / 2e-5 == pytest.approx(estimate[0], abs=1e-4)


def test_the_descent_of_figure_3_leaves_the_plateau_only_below_eta(script: Any) -> None:
    module = script("a_fig3")
    for eta, start, end in ((0.5, 0.3, -1.0), (0.1, 0.3, 0.3), (0.5, 0.8, 0.8), (0.1, -2.0, -1.0), (0.1, 0.05, -1.0)):
        points = module.descent(start, eta, 400, 0.05)
        assert len(points) == 401 and points[0] == start
        assert points[-1] == pytest.approx(end, abs=1e-6)


def test_the_budgets_are_sums_over_rounds(made: Path, script: Any) -> None:
    module = script("a_budget")
    for group in read(module, made, "table", "cell", "method"):
        path = member(made, "table", **group.where, seed="1").out
        with h5py.File(path) as file:
            sent = [sum(int(file["clients"][k][r].sum()) for k in ("bytes_down", "bytes_up")) for r in range(3)]
            steps = file["rounds/local_steps"][()]
        assert module.rounds(group).tolist() == [1, 2, 3]
        assert module.sent(group).tolist() == np.cumsum(sent).tolist()
        assert module.samples(group).tolist() == (64 * np.cumsum(steps)).tolist()
        assert sent[0] > 0 and steps[0] > 0


def test_the_budgets_are_drawn_and_told(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script("a_budget").main(words(made, "table", tmp_path / "f"))
    told = capsys.readouterr()
    assert told.err == "" and told.out.split()[-1] == str(tmp_path / "f_digits.png")
    check_figure(tmp_path / "f_digits", 7.0)


def test_the_lines_of_the_budgets_meet_the_accuracies(made: Path, script: Any) -> None:
    module = script("a_budget")
    groups = read(module, made, "control", "method")
    figure = module.draw(groups)
    accuracy = 100 * np.array(column(made, "control", "test_accuracy", method="zo_hfl")).mean(axis=0)
    budgets = [module.rounds(groups[0]), module.sent(groups[0]) / 2**10, module.samples(groups[0]) / 1e6]
    for panel, budget in zip(figure.axes, budgets, strict=True):
        line = panel.get_lines()[0]
        assert line.get_label() == "ZO-HFL"
        assert np.allclose(line.get_xdata(), budget) and np.allclose(line.get_ydata(), accuracy)
    assert [panel.get_xscale() for panel in figure.axes] == ["linear", "log", "log"]
    assert figure.axes[1].get_xlabel() == "sent down and up (KiB)"
    level = statistics.mean(accuracies(made, "control", method="server_sgd"))
    for panel in figure.axes[1:]:  # it sends nothing, and no client computes
        assert panel.get_lines()[2].get_ydata() == pytest.approx([level, level])
        assert panel.texts[0].get_text() == "server SGD: 0"
    plt.close(figure)


# --- readings, tuned steps


def test_the_readings_are_compared_with_the_paper(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script("a_readings").main(words(made, "readings", tmp_path / "r"))
    out = capsys.readouterr().out
    gaps: dict[str, list[float]] = {reading: [] for reading in READINGS}
    for row in table_of(tmp_path / "r.csv"):
        where = {axis: row[axis] for axis in ("cell", "reading", "method")}
        mean = statistics.mean(accuracies(made, "readings", **where))
        paper = PAPER[("digits", *CELLS[row["cell"]].values())].get(row["method"])
        assert float(row["accuracy_mean_percent"]) == pytest.approx(mean, rel=1e-14)
        if paper is None:
            assert row["difference_percent"] == ""
        else:
            assert float(row["difference_percent"]) == pytest.approx(mean - paper, rel=1e-12)
            assert f"({mean - paper:+.2f})" in out
            gaps[row["reading"]].append(abs(mean - paper))
            if (row["reading"], row["method"]) == ("default", "fedavg"):
                gaps["mu-10"].append(abs(mean - paper))  # a question that is none of FedAvg's
    means = {reading: statistics.mean(values) for reading, values in gaps.items()}
    best = min(means, key=lambda reading: means[reading])
    assert [len(values) for values in gaps.values()] == [3, 3, 3] and len(set(means.values())) == 3
    last = f"Nearest to the paper: {best}, mean |ours - paper| = {means[best]:.2f} points over 3 numbers."
    assert out.strip().split("\n")[-1] == last


@pytest.mark.parametrize("nearest", list(READINGS))
def test_the_nearest_reading_is_computed(
    made: Path, tmp_path: Path, script: Any, monkeypatch: pytest.MonkeyPatch, nearest: str, capsys: Any
) -> None:
    where = {"cell": "a1000-b0.9", "reading": nearest}
    there = {"zo_hfl": statistics.mean(accuracies(made, "readings", **where, method="zo_hfl"))}
    where["reading"] = nearest if nearest != "mu-10" else "default"
    there["fedavg"] = statistics.mean(accuracies(made, "readings", **where, method="fedavg"))
    monkeypatch.setattr(script("study"), "PAPER", {("digits", 1000.0, 0.9): there})
    script("a_readings").main(words(made, "readings", tmp_path / "r"))
    last = capsys.readouterr().out.strip().split("\n")[-1]
    assert last == f"Nearest to the paper: {nearest}, mean |ours - paper| = 0.00 points over 2 numbers."


def test_a_reading_without_all_its_results_is_not_ranked(
    place: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    member(place, "readings", cell="a1000-b0.9", reading="default", method="fedavg", seed="1").out.unlink()
    script("a_readings").main(words(place, "readings", tmp_path / "r", "--partial"))
    last = capsys.readouterr().out.strip().split("\n")[-1]
    assert "Nearest to the paper: pixels-raw" in last and "(not ranked, for want of results: default, mu-10)" in last


def test_the_best_step_is_that_of_the_highest_mean(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script("a_tuned").main(words(made, "steps", tmp_path / "s"))
    out, rows = capsys.readouterr().out, table_of(tmp_path / "s.csv")
    assert len(rows) == 8
    for cell in CELLS:
        for method in METHODS:
            means = {
                step: statistics.mean(accuracies(made, "steps", cell=cell, method=method, step=step))
                for step in ("low", "high")
            }
            best = max(means, key=lambda step: means[step])
            marked = {r["step"]: r["best"] for r in rows if r["cell"] == cell and r["method"] == method}
            assert marked == {step: str(step == best) for step in means}
            assert f"{means[best]:.2f} ±" in out.split("Each method")[1] and f"({best})" in out
            assert sum(f"{means[best]:.2f} ± " in line and " *" in line for line in out.split("\n")) == 1
    assert out.count(" *") - 2 == 4  # two titles say what the star means


def test_a_step_without_all_seeds_is_not_the_best(
    place: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    where = {"cell": "a1000-b0.9", "method": "zo_hfl"}
    low, high = (accuracies(place, "steps", **where, step=step) for step in ("low", "high"))
    assert statistics.mean(high) > statistics.mean(low)
    worst = "1" if high[0] < high[1] else "2"
    member(place, "steps", **where, step="high", seed=worst).out.unlink()
    script("a_tuned").main(words(place, "steps", tmp_path / "s", "--partial"))
    (row,) = [
        r
        for r in table_of(tmp_path / "s.csv")
        if r["best"] == "True" and r["cell"] == where["cell"] and r["method"] == where["method"]
    ]
    assert row["step"] == "low"


# --- all


def test_every_script_runs_from_any_folder_and_tells_its_flags(tmp_path: Path) -> None:
    started = {
        name: subprocess.Popen(
            [sys.executable, str(ROOT / "analysis" / f"{name}.py"), "--help"],
            cwd=tmp_path,
            env=environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for name in SCRIPTS
    }
    for name, process in started.items():
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0 and err == ""
        assert out.startswith(f"usage: {name} ") and f"analysis/results/{name}" in "".join(out.split())


def test_a_file_in_the_way_is_a_sentence(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for name, grid_name in (("a_fig2", "taus"), ("a_table1", "table")):
        with pytest.raises(SystemExit) as caught:
            script(name).main(words(made, grid_name, tmp_path / "file" / "t"))
        told = capsys.readouterr().err
        assert caught.value.code == 2 and told.startswith(f"{name}: cannot ") and told.count("\n") == 1
    plt.close("all")
