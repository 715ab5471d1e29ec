"""[C]'s figures and table from tiny real results: the numbers are those computed by hand from the files."""

from __future__ import annotations

import csv
import importlib
import json
import math
import shutil
import statistics
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import matplotlib.pyplot as plt
import numpy as np
import pytest

from tests.conftest import ROOT, environment
from tests.produced import produce
from zofl_mpi.errors import UserError
from zofl_mpi.rounds.split.costs import STEP_BYTES, STEP_MACS
from zofl_mpi.run import grid, records

HEAD = """module = "zofl_mpi.heron_sfl"
[fixed]
data = "digits"
width = 2
batch = 16
lr-server = 1e-2
lr-client = 1e-2
"""
GRIDS = {
    "methods": f"""{HEAD}stages = [1, 1]
m = 3
h = 2
rounds = 5
eval-every = 2
min-samples = 16
[axes]
seed = [1, 2]
[axes.cell]
iid = {{}}
"alpha0.3" = {{ alpha = 0.3 }}
[axes.method]
heron = {{ method = "heron" }}
heron-frozen = {{ method = "heron", freeze = "client" }}
heron-still = {{ method = "heron", lr-client = 0.0 }}
cse_fsl = {{ method = "cse_fsl" }}
fsl_sage = {{ method = "fsl_sage", buffer = 40, align-epochs = 2, l = 3 }}
sflv2 = {{ method = "sflv2" }}
[[skip]]
cell = "alpha0.3"
method = ["heron-still", "cse_fsl", "fsl_sage"]
""",
    "clients": f"""{HEAD}stages = [1, 1]
method = "heron"
rounds = 2
eval-every = 2
min-samples = 16
[axes]
seed = [1, 2]
[axes.cell]
"alpha0.3" = {{ m = 4, h = 3, alpha = 0.3 }}
alpha10 = {{ m = 4, h = 3, alpha = 10.0 }}
m4 = {{ m = 4, h = 3 }}
m6 = {{ m = 6, h = 2 }}
"beta0.5" = {{ m = 6, h = 4, beta = 0.5 }}
[axes.method]
heron = {{}}
heron-frozen = {{ freeze = "client" }}
""",
    "estimates": f"""{HEAD}stages = [1, 1, 1]
method = "heron"
m = 3
h = 2
rounds = 2
eval-every = 2
[axes]
seed = [1, 2]
[axes.size]
size1 = {{ cut = 1 }}
size2 = {{ cut = 2 }}
[axes.cell]
frozen = {{ freeze = "client" }}
"mu1e-3" = {{ mu = 1e-3 }}
mu10 = {{ mu = 10.0 }}
np3 = {{ mu = 1e-3, n-p = 3 }}
""",
}
SCRIPTS = dict.fromkeys(("c_fig2", "c_budget", "c_table2"), "methods") | {"c_fig3": "clients", "c_fig4": "estimates"}
EVALUATED = [1, 2, 4, 5]
N_CLIENT, N_HEAD, N_BUFFERS, Q_S = 102, 1290, 12, 128
"""Of width 2 and one block at the client: see tests/e2e/test_heron.py."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the grid files, and the results of each in a folder of its name."""
    folder = tmp_path_factory.mktemp("made")
    for name, text in GRIDS.items():
        path = folder / f"{name}.toml"
        path.write_text(text)
        produce([path], folder / name, timeout=300)
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of `made` that a test may damage."""
    return Path(shutil.copytree(made, tmp_path / "place"))


def words(folder: Path, name: str, out: Path, *more: str) -> list[str]:
    return ["--grid", str(folder / f"{name}.toml"), "--results", str(folder / name), "--out", str(out), *more]


def results(folder: Path, name: str, **where: str) -> list[records.Run]:
    """The results of a group, one per seed."""
    runs = grid.read(folder / f"{name}.toml", folder / name).runs
    found = [run.out for run in runs if all(run.coordinates[axis] == entry for axis, entry in where.items())]
    assert len(found) == 2
    return [loaded(path, path.stat().st_mtime_ns) for path in found]


@cache
def loaded(path: Path, changed: int) -> records.Run:
    return records.load(path)


def lasts(folder: Path, name: str, **where: str) -> list[float]:
    """The last test accuracies in per cent, seed by seed."""
    return [100 * float(run.rounds["test_accuracy"][-1]) for run in results(folder, name, **where)]


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def groups_of(module: Any, folder: Path, name: str) -> list[Any]:
    """A script's groups."""
    study = importlib.import_module("study")
    flags = study.parser("x", "", []).parse_args(words(folder, name, folder))
    return study.read("x", flags, module.AXES)  # type: ignore[no-any-return]


def same(told: str, value: float) -> bool:
    """Whether a cell of a CSV has this number; nothing stands for nan."""
    return (told == "" and math.isnan(value)) or (told != "" and float(told) == pytest.approx(value, rel=1e-12))


def check_difference(row: dict[str, str], keys: tuple[str, str], one: list[float], other: list[float]) -> None:
    """Seed by seed. Mutation: the deviation of a difference of means."""
    less = [a - b for a, b in zip(one, other, strict=True)]
    assert float(row[keys[0]]) == pytest.approx(statistics.mean(less), abs=1e-9)
    assert float(row[keys[1]]) == pytest.approx(statistics.stdev(less), abs=1e-9)


# --- figure 2


def test_figure_2_has_the_accuracies_the_paired_differences_and_the_local_losses(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutations: HERON of the other setting; the control less HERON; the loss of the first round told as the last."""
    script("c_fig2").main(words(made, "methods", tmp_path / "f"))
    told = capsys.readouterr()
    assert told.err == "" and (tmp_path / "f.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "f.txt").read_text().strip() in told.out and (tmp_path / "f.png").exists()
    rows = table_of(tmp_path / "f.csv")
    assert len(rows) == 6 + 3
    for row in rows:
        where = {"cell": row["setting"], "method": row["method"]}
        mine = lasts(made, "methods", **where)
        assert same(row["accuracy_mean_percent"], statistics.mean(mine))
        assert same(row["accuracy_sd_percent"], statistics.stdev(mine))
        heron = lasts(made, "methods", cell=row["setting"], method="heron")
        check_difference(row, ("heron_less_it_mean", "heron_less_it_sd"), heron, mine)
        losses = np.mean([run.rounds["local_loss"][[0, -1]] for run in results(made, "methods", **where)], axis=0)
        assert same(row["local_loss_first"], losses[0]) and same(row["local_loss_last"], losses[1])
        assert (row["local_loss_last"] == "") == (row["method"] == "sflv2")
    lines = [line for line in told.out.splitlines() if line.startswith("digits, iid")]
    assert len(lines) == 6 and "HERON, client step 0" in told.out and "digits, α = 0.3" in told.out


def test_a_client_that_does_not_move_is_the_same_however_it_is_held(made: Path) -> None:
    """A frozen client and one with step 0 send the same: the markers lie on the line. (The program's doing.)"""
    frozen, still = (results(made, "methods", cell="iid", method=f"heron-{word}") for word in ("frozen", "still"))
    for one, other in zip(frozen, still, strict=True):
        assert np.array_equal(one.rounds["test_accuracy"], other.rounds["test_accuracy"], equal_nan=True)
        assert not np.array_equal(one.rounds["local_loss"], other.rounds["local_loss"])


def test_the_lines_and_bands_of_figure_2(made: Path, script: Any) -> None:
    module = script("c_fig2")
    figure = module.draw(groups_of(module, made, "methods"))
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["digits, iid", "digits, α = 0.3"]
    names = importlib.import_module("c_split").NAMES
    for panel, cell in zip(figure.axes, ("iid", "alpha0.3"), strict=True):
        lines = {line.get_label(): line for line in panel.get_lines()}
        assert len(lines) == (6 if cell == "iid" else 3)
        for method in ("heron", "heron-still", "sflv2") if cell == "iid" else ("heron", "heron-frozen"):
            values = [run.rounds["test_accuracy"] for run in results(made, "methods", cell=cell, method=method)]
            line = lines[names[method]]
            assert line.get_xdata().tolist() == EVALUATED
            expected = 100 * np.mean(values, axis=0)[np.array(EVALUATED) - 1]
            assert np.allclose(line.get_ydata(), expected, rtol=1e-12)
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in figure.axes[0].get_lines()}
    assert len(looks) == 6
    plt.close(figure)


def test_lines_that_lack_seeds_are_named_in_few_lines(script: Any) -> None:
    """Mutation: a line for each, which leaves no room for the panel."""
    split, study = script("c_split"), importlib.import_module("study")
    one, two, none = (
        study.Group({"method": method}, 1 + lacking, {}, (object(),))
        for method, lacking in (("heron", 2), ("cse_fsl", 2), ("sflv2", 0))
    )
    figure, panel = plt.subplots()
    for groups, told in (
        ([one, two, none], "t\n1 of 3 seeds: HERON; CSE-FSL"),
        ([one, two], "t\n1 of 3 seeds: all"),
        ([one] * 7 + [two, none], "t\n1 of 3 seeds: 8 of the points"),
        ([none], "t"),
    ):
        split.titled(panel, "t", groups, split.name)
        assert panel.get_title(loc="left") == told
    plt.close(figure)


# --- budgets


def expected_bytes(method: str, rounds: int) -> tuple[int, int, int]:
    """Of 3 clients: without labels, the labels, the heads; 2 uploads of 16 samples in each round."""
    heads = {"heron": 2 * 3 * rounds, "cse_fsl": 2 * 3 * rounds, "fsl_sage": 3 * -(-rounds // 3)}.get(method, 0)
    smashed = 3 * rounds * 2 * 16 * 4 * Q_S * (2 if method == "sflv2" else 1)
    models = 2 * 3 * rounds * 4 * (N_CLIENT + N_BUFFERS)
    return models + smashed + heads * 4 * N_HEAD + 16 * 3 * rounds, 3 * rounds * 2 * 16 * 8, heads * 4 * N_HEAD


def test_budgets_are_those_of_the_formulas(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutations: labels left out of the figure, or in the bytes; steps of one client; those of a round for all."""
    module = script("c_budget")
    module.main(words(made, "methods", tmp_path / "b"))
    told = capsys.readouterr()
    assert told.err == "" and "counted here" not in told.out
    for row in table_of(tmp_path / "b.csv"):
        method = row["method"].split("-")[0]
        size, labels, _ = expected_bytes(method, 5)
        assert (float(row["bytes_without_labels"]), float(row["bytes_of_labels"])) == (size, labels)
        kept = json.loads(results(made, "methods", cell=row["setting"], method=row["method"])[0].attrs["costs"])
        assert float(row["client_macs_a_step"]) == kept[STEP_MACS]
        assert float(row["client_peak_bytes"]) == kept[STEP_BYTES]
        assert float(row["client_macs"]) == 5 * 3 * 2 * kept[STEP_MACS]
    figure = module.draw(groups_of(module, made, "methods"))
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    sizes = [sum(expected_bytes("heron", r)[:2]) / 2**10 for r in EVALUATED]
    assert lines["HERON"].get_xdata() == pytest.approx(sizes)
    assert figure.axes[2].get_xlabel() == "sent down and up, with labels (KiB)"
    plt.close(figure)


def test_costs_that_a_result_does_not_tell_are_counted_again(
    place: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the same numbers. Mutation: the passes of one direction for all n_p."""
    for name, module in (("methods", "c_budget"), ("estimates", "c_fig4")):
        split, groups = script("c_split"), groups_of(script(module), place, name)
        before = [split.step(group) for group in groups]
        for group in groups:
            for run in group.runs:
                with h5py.File(run.path, "r+") as file:
                    del file.attrs["costs"]
        after = [split.step(group) for group in groups_of(script(module), place, name)]
        assert [(s.macs, s.peak) for s in after] == [(s.macs, s.peak) for s in before]
        assert {s.recorded for s in before} == {True} and {s.recorded for s in after} == {False}
    script("c_budget").main(words(place, "methods", tmp_path / "b"))
    told = " ".join(capsys.readouterr().out.split())
    assert "Steps counted here, as the results do not tell: HERON / HERON, frozen client / " in told


def test_local_steps_of_passes_over_the_data(script: Any, made: Path) -> None:
    """h = 0: the server's steps, if all are uploaded; else they are not known."""
    split = script("c_split")
    (run, _) = results(made, "methods", cell="iid", method="heron")
    assert split.local_steps(run).tolist() == [6.0] * 5
    whole = replace(run, config=run.config | {"h": 0})
    assert split.local_steps(whole).tolist() == run.rounds["server_steps"].tolist()
    with pytest.raises(UserError, match="does not tell its local steps: --h 0 --k 2"):
        split.local_steps(replace(run, config=whole.config | {"k": 2}))


# --- table II


def plant(folder: Path, **accuracies: list[list[float]]) -> None:
    """Test accuracies of the iid results: {method: a list per seed, of the evaluated rounds}."""
    for method, seeds in accuracies.items():
        for run, values in zip(results(folder, "methods", cell="iid", method=method), seeds, strict=True):
            with h5py.File(run.path, "r+") as file:
                column = np.full(5, np.nan)
                column[np.array(EVALUATED) - 1] = values
                file["rounds/test_accuracy"][...] = column


def test_what_it_took_until_the_target(
    place: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutations: above the target for at least; the bytes of one round more; a mean over the seeds that reach it."""
    plant(
        place,
        heron=[[0.1, 0.4, 0.2, 0.2], [0.1, 0.2, 0.2, 0.5]],
        fsl_sage=[[0.1, 0.2, 0.4, 0.5], [0.4, 0.2, 0.3, 0.3]],
        sflv2=[[0.1, 0.4, 0.5, 0.5], [0.1, 0.2, 0.3, 0.39]],
        cse_fsl=[[0.1] * 4, [0.1] * 4],
    )
    script("c_table2").main(words(place, "methods", tmp_path / "t", "--target", "0.4"))
    told = capsys.readouterr()
    assert told.err == "" and "Until 40 % of digits, iid: measured" in told.out
    rows = {row["method"]: row for row in table_of(tmp_path / "t.csv")}
    reached = {"heron": (2, 5), "fsl_sage": (4, 1)}
    for method, ends in reached.items():
        row = rows[method]
        assert row["rounds_to_target"] == f"{ends[0]}, {ends[1]}" and row["seeds_that_reach"] == "2"
        assert float(row["rounds_to_target_mean"]) == statistics.mean(ends)
        sizes = np.mean([expected_bytes(method, end) for end in ends], axis=0) / 2**30
        for key, size in zip(("gib", "gib_of_labels", "gib_of_heads"), sizes, strict=True):
            assert float(row[key]) == pytest.approx(size, rel=1e-12), (method, key)
    assert rows["sflv2"]["rounds_to_target"] == "2, >5" and rows["sflv2"]["seeds_that_reach"] == "1"
    assert rows["cse_fsl"]["rounds_to_target"] == ">5, >5"
    for method in ("sflv2", "cse_fsl"):
        assert [rows[method][key] for key in ("rounds_to_target_mean", "gib", "gib_of_heads")] == [""] * 3


def test_the_papers_table_is_beside_ours(script: Any) -> None:
    """ALGORITHMS, section 18. Mutations: any of its numbers."""
    module = script("c_table2")
    expected = {
        "sflv2": (16, 390.670, 390.670),
        "heron": (20, 244.197, 244.685),
        "fsl_sage": (20, 244.197, 244.246),
        "cse_fsl": (21, 256.407, 256.920),
        "sflv1": (49, 1196.428, 1196.428),
    }
    for method, (rounds, *sizes) in expected.items():
        assert module.PAPER[method].rounds == rounds
        assert module.formula(method, rounds) == pytest.approx(sizes, abs=5e-4)
    lines = {line.split()[0]: line.split()[1:] for line in module.printed().splitlines()[3:8]}
    assert lines["HERON"][:4] == ["20", "244.19", "244.197", "244.685"] and lines["HERON"][-2:] == ["39.90", "39.896"]
    assert lines["FSL-SAGE"][:4] == ["20", "244.24", "244.197", "244.246"]
    assert lines["SFLV2"][:4] == ["16", "390.67", "390.670", "390.670"] and lines["CSE-FSL"][-2:] == ["59.85", "59.844"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--target", "80"], "target 80.0: must be a test accuracy, above 0 and at most 1"),
        (["--cell", "non-iid"], "--cell non-iid: must be one of iid, alpha0.3"),
    ],
)
def test_what_table_2_refuses(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str], more: list[str], sentence: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        script("c_table2").main(words(made, "methods", tmp_path / "t", *more))
    told = capsys.readouterr()
    assert caught.value.code == 2 and told.out == "" and sentence.split(":")[1] in told.err and "Trace" not in told.err


# --- figures 3 and 4


def test_figure_3_has_a_panel_for_each_thing_that_changes(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """m = 6 with all clients is a point of two. Mutations: non-iid cells in the panel of m; the control of another."""
    module = script("c_fig3")
    module.main(words(made, "clients", tmp_path / "f"))
    assert capsys.readouterr().err == ""
    rows = table_of(tmp_path / "f.csv")
    points = {"alpha": ["0.3", "10.0"], "m": ["4.0", "6.0"], "beta": ["0.5", "1.0"]}
    assert [(row["panel"], row["value"]) for row in rows[::2]] == [(k, x) for k, each in points.items() for x in each]
    cells = ["alpha0.3", "alpha10", "m4", "m6", "beta0.5", "m6"]
    for row, cell in zip(rows, [cell for cell in cells for _ in range(2)], strict=True):
        mine = lasts(made, "clients", cell=cell, method=row["method"])
        assert same(row["accuracy_mean_percent"], statistics.mean(mine))
        if row["method"] == "heron":
            frozen = lasts(made, "clients", cell=cell, method="heron-frozen")
            check_difference(row, ("less_frozen_mean", "less_frozen_sd"), mine, frozen)
        else:
            assert row["less_frozen_mean"] == ""
    figure = module.draw(module.panels_of(groups_of(module, made, "clients")))
    assert [panel.get_xlabel() for panel in figure.axes] == list(module.PANELS.values())
    for k, (key, panel) in enumerate(zip(points, figure.axes, strict=True)):
        heron, frozen = panel.get_lines()
        assert [heron.get_label(), frozen.get_label()] == ["HERON", "HERON, frozen client"]
        assert heron.get_xdata().tolist() == [float(x) for x in points[key]]
        means = [statistics.mean(lasts(made, "clients", cell=c, method="heron")) for c in cells[2 * k : 2 * k + 2]]
        assert np.allclose(heron.get_ydata(), means)
    plt.close(figure)


def test_figure_4_has_mu_and_n_p_and_a_level_for_each_control(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutations: the control of the other size; all n_p in the panel of mu."""
    module = script("c_fig4")
    module.main(words(made, "estimates", tmp_path / "f"))
    assert capsys.readouterr().err == ""
    rows = table_of(tmp_path / "f.csv")
    assert len(rows) == 2 * 4
    where = [(size, cell) for size in ("size1", "size2") for cell in ("frozen", "mu1e-3", "mu10", "np3")]
    for row, (size, cell) in zip(rows, where, strict=True):
        mine, frozen = (lasts(made, "estimates", size=size, cell=c) for c in (cell, "frozen"))
        assert same(row["accuracy_mean_percent"], statistics.mean(mine)) and row["cut"] == size[-1]
        if cell != "frozen":
            check_difference(row, ("less_frozen_mean", "less_frozen_sd"), mine, frozen)
            assert (float(row["mu"]), float(row["n_p"])) == (
                10.0 if cell == "mu10" else 1e-3,
                3 if cell == "np3" else 1,
            )
    groups = groups_of(module, made, "estimates")
    for group in groups:
        other = module.control(group, groups)
        assert (other is None) == (group.entry("cell") == "frozen")
        assert other is None or other.where == {"size": group.entry("size"), "cell": "frozen"}
    figure = module.draw(groups)
    for panel, x, pair in zip(figure.axes, ([1e-3, 10.0], [1, 3]), ("mu10", "np3"), strict=True):
        lines = {line.get_label(): line for line in panel.get_lines()}
        for size, word in (("size1", "1 block at the client"), ("size2", "2 blocks at the client")):
            assert lines[f"HERON, {word}"].get_xdata().tolist() == x
            means = [statistics.mean(lasts(made, "estimates", size=size, cell=c)) for c in ("mu1e-3", pair)]
            assert np.allclose(lines[f"HERON, {word}"].get_ydata(), means)
            level = statistics.mean(lasts(made, "estimates", size=size, cell="frozen"))
            assert np.allclose(lines[f"frozen client, {word}"].get_ydata(), level)
    plt.close(figure)


# --- all


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_missing_seed_is_refused_and_marked_with_partial(
    place: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    study = grid.read(place / f"{SCRIPTS[name]}.toml", place / SCRIPTS[name])
    gone = study.runs[0]
    gone.out.unlink()
    with pytest.raises(SystemExit) as caught:
        script(name).main(words(place, SCRIPTS[name], tmp_path / "t"))
    told = capsys.readouterr()
    assert caught.value.code == 2 and told.out == "" and list(tmp_path.glob("t.*")) == []
    first, last = told.err.strip().split("\n")
    assert gone.name in first and f"1 of {len(study.runs)} results cannot be used" in last
    script(name).main(words(place, SCRIPTS[name], tmp_path / "t", "--partial"))
    told = capsys.readouterr()
    assert gone.name in told.err and "1 of 2" in told.out
    assert "1" in [row["seeds"] for row in table_of(tmp_path / "t.csv")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_group_without_any_seed_stays_in_the_table(place: Path, tmp_path: Path, script: Any, name: str) -> None:
    first = grid.read(place / f"{SCRIPTS[name]}.toml", place / SCRIPTS[name]).runs[0]
    where = {axis: entry for axis, entry in first.coordinates.items() if axis != "seed"}
    for run in results(place, SCRIPTS[name], **where):
        run.path.unlink()
    script(name).main(words(place, SCRIPTS[name], tmp_path / "t", "--partial"))
    assert "0" in [row["seeds"] for row in table_of(tmp_path / "t.csv")]


def test_the_grids_of_the_repository_are_those_of_the_scripts(script: Any) -> None:
    """All that they have is drawn. Mutation: a cell that no panel has."""
    names = script("c_split").NAMES
    for name in ("c_fig2", "c_fig3", "c_table2_full"):
        assert set(grid.read(ROOT / "jobs" / f"{name}.toml").axes["method"]) <= set(names)
    assert set(grid.read(ROOT / "jobs" / "c_fig2.toml").axes["method"]) == set(names) - {"heron-group"}
    third, study = script("c_fig3"), importlib.import_module("study")
    runs = grid.read(ROOT / "jobs" / "c_fig3.toml").runs[:27]
    groups = [study.Group(run.coordinates, 3, dict(run.flags), ()) for run in runs]
    assert {key: len(each) for key, each in third.panels_of(groups).items()} == {"alpha": 10, "m": 11, "beta": 8}
    for group in groups:
        other, is_heron = third.control(group, groups), group.entry("method") == "heron"
        assert (other is not None) == is_heron
        assert other is None or (other.entry("cell"), other.entry("method")) == (group.entry("cell"), "heron-frozen")
    steps = {g.config["h"] * g.config["m"] * g.config.get("beta", 1.0) for g in groups}
    assert steps == {100}, "local steps of a round"
    fourth, runs = script("c_fig4"), grid.read(ROOT / "jobs" / "c_fig4.toml").runs[:20]
    groups = [study.Group(run.coordinates, 3, dict(run.flags), ()) for run in runs]
    assert {key: len(each) for key, each in fourth.panels_of(groups).items()} == {"mu": 12, "n_p": 8}
    assert [fourth.control(g, groups) is None for g in groups].count(True) == 2


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_from_any_folder_and_tells_its_flags(tmp_path: Path, name: str) -> None:
    told = subprocess.run(
        [sys.executable, str(ROOT / "analysis" / f"{name}.py"), "--help"],
        cwd=tmp_path,
        env=environment(),
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert told.returncode == 0 and told.stderr == ""
    assert told.stdout.startswith(f"usage: {name} ") and f"analysis/results/{name}" in "".join(told.stdout.split())
