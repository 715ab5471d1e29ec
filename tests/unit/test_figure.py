"""Figures and pages of groups of runs: means over seeds, differences, choices of steps, and what is refused."""

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.conftest import Capsys
from tests.launch import here
from zofl_mpi.report import charts, figure, groups, means
from zofl_mpi.report.__main__ import main
from zofl_mpi.report.best import best
from zofl_mpi.report.wording import label_of, latex
from zofl_mpi.run import grid, records
from zofl_mpi.run.grid.file import arguments

FAMILY = "zofl_mpi.zo_hfl"
GRID = f"""module = "{FAMILY}"
[fixed]
method = "fedavg"
problem = "softmax"
data = "digits"
m = 4
tau = 1
rounds = 4
eval-every = 2
eval-samples = 0
validation = 0.2
quiet = true
[axes]
seed = [1, 2, 3]
[axes.local]
"local-0.01" = {{ gamma-local = 0.01 }}
"local-0.1" = {{ gamma-local = 0.1 }}
"""
T = 4.302652729911275
"""Student's t, two-sided 95 %, 2 degrees of freedom."""
Made = Callable[[], Path]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grid")
    (folder / "small.toml").write_text(GRID)
    for run in grid.read(folder / "small.toml", folder).runs:
        assert here(*[FAMILY, *arguments(FAMILY, run.flags), "--out", str(run.out)]) == 0
    return folder


@pytest.fixture
def small(original: Path, tmp_path: Path) -> Path:
    """A copy of a grid of 2 groups x 3 seeds and its results, which a test may damage."""
    for path in original.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def reported(folder: Path, *words: str, out: str = "fig.pdf") -> list[dict[str, str]]:
    """The CSV's rows of the grid's figure."""
    main([str(folder / "small.toml"), "--results", str(folder), "--out", str(folder / out), *words])
    with (folder / "fig.csv").open() as file:
        return list(csv.DictReader(file))


def refusal(capsys: Capsys, folder: Path, *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        reported(folder, *words)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()
    return line


def runs_of(folder: Path, local: str) -> list[records.Run]:
    return [records.load(folder / f"{seed}-local-{local}.h5") for seed in (1, 2, 3)]


def damaged(path: Path, change: Callable[[Any], None]) -> None:
    with h5py.File(path, "r+") as file:
        change(file)


def test_the_csv_has_mean_and_t_interval_over_seeds(small: Path) -> None:
    """Mutations: the normal's 1.96; deviation by n; a group's first seed alone; bytes of one direction."""
    rows = reported(small, "--y", "test_loss", "--x", "bytes")
    assert [(row["group"], row["round"]) for row in rows[:4]] == [("local-0.01", r) for r in ("1", "2", "4")] + [
        ("local-0.1", "1")
    ]
    for row in rows:
        runs, k = runs_of(small, row["local"].removeprefix("local-")), int(row["round"]) - 1
        values = np.array([run.rounds["test_loss"][k] for run in runs])
        mean, sd = sum(values) / 3, np.sqrt(sum((values - sum(values) / 3) ** 2) / 2)
        sent = [run.clients[name][: k + 1].sum() for run in runs for name in ("bytes_up", "bytes_down")]
        assert float(row["test_loss_mean"]) == pytest.approx(mean)
        assert float(row["test_loss_sd"]) == pytest.approx(sd)
        assert float(row["test_loss_high"]) == pytest.approx(mean + T * sd / np.sqrt(3))
        assert float(row["test_loss_low"]) == pytest.approx(mean - T * sd / np.sqrt(3))
        assert float(row["MiB sent up and down so far"]) == pytest.approx(sum(sent) / 3 / 2**20)
        assert (row["seeds"], row["seeds_planned"]) == ("3", "3")
    assert (small / "fig.pdf").read_bytes().startswith(b"%PDF")
    assert r"local-0.01 & 4 &" in (small / "fig.tex").read_text()


def test_differences_are_paired_by_seed(small: Path) -> None:
    """Mutations: a difference of means' deviations; other seeds subtracted; the control's own curve stays."""
    rows = reported(small, "--y", "test_loss", "--control", "local-0.01")
    assert {row["group"] for row in rows} == {"local-0.1"}
    pairs = zip(runs_of(small, "0.1"), runs_of(small, "0.01"), strict=True)
    less = np.array([one.rounds["test_loss"][3] - other.rounds["test_loss"][3] for one, other in pairs])
    assert float(rows[-1]["test_loss_difference_mean"]) == pytest.approx(less.mean())
    assert float(rows[-1]["test_loss_difference_sd"]) == pytest.approx(less.std(ddof=1))


def test_steps_are_chosen_on_validation_samples_and_an_edge_is_told(small: Path, capsys: Capsys) -> None:
    """Mutations: the lowest accuracy; a choice by the test's samples; an edge in no word."""
    rows = reported(small, "--best", "validation_accuracy")
    told = capsys.readouterr().err
    ended = {local: [run.rounds["validation_accuracy"] for run in runs_of(small, local)] for local in ("0.01", "0.1")}
    score = {local: np.mean([np.nanmean(values) for values in each]) for local, each in ended.items()}
    assert {row["group"] for row in rows} == {f"local-{max(score, key=lambda local: score[local])}"}
    assert {row["at_edge"] for row in rows} == {"local"}
    assert "the best of 2 by validation_accuracy" in told and "at an edge of local" in told
    assert float(rows[0]["best_validation_accuracy"]) == pytest.approx(max(score.values()))


def test_the_best_of_two_methods_are_compared_whatever_their_steps(small: Path) -> None:
    """Mutation: the chosen step tells a group from its control."""
    own = [(method, local, tuple(runs_of(small, local))) for method, local in (("fedavg", "0.01"), ("scaffold", "0.1"))]
    made = [
        groups.Group({"method": method, "local": local}, f"{method}, {local}", 3, runs, {"gamma_local": float(local)})
        for method, local, runs in own
    ]
    sets = {"method": frozenset(["method"]), "local": frozenset(["gamma_local"])}
    chosen = best(groups.Groups(tuple(made), sets, (), ()), "validation_accuracy")
    (less,), _ = means.differences(means.curves(chosen, "test_loss", "rounds")[0], chosen, "fedavg")
    assert (less.group.label, less.group.told["local"]) == ("scaffold, 0.1", "0.1")
    ends = [np.array([run.rounds["test_loss"][3] for run in runs]) for *_, runs in own]
    assert less.mean[-1] == pytest.approx((ends[1] - ends[0]).mean())


def test_runs_that_are_missing_unfinished_or_diverged_are_told_and_in_no_mean(small: Path, capsys: Capsys) -> None:
    """Mutations: a run that goes on in a mean; a diverged one in it; n as planned."""
    (small / "1-local-0.01.h5").unlink()
    damaged(small / "2-local-0.1.h5", lambda file: file.attrs.modify("status", "interrupted"))
    damaged(small / "3-local-0.1.h5", lambda file: file["rounds/test_loss"].__setitem__(-1, 1e12))
    rows = reported(small, "--y", "test_accuracy")
    told = capsys.readouterr().err.splitlines()
    assert {row["group"]: row["seeds"] for row in rows} == {"local-0.01": "2", "local-0.1": "1"}
    assert [line.partition(":")[0] for line in told] == ["1-local-0.01", "2-local-0.1", "3-local-0.1"]
    assert "diverged: test_loss went from" in told[2]
    assert rows[-1]["test_accuracy_low"] == ""
    assert "% 1-local-0.01: there is no result" in (small / "fig.tex").read_text()


def test_what_cannot_be_drawn_is_one_sentence(small: Path, capsys: Capsys) -> None:
    for words, sentence in (
        (("--y", "test_los"), "unknown column 'test_los'; the nearest is test_loss"),
        (("--x", "joules"), "no run has a number of test_accuracy against --x joules; --devices gives them"),
        (("--control", "fedavg"), "--control fedavg: unknown group 'fedavg'"),
        (("--control", "local-0.1", "--x", "bytes"), "--control compares at equal rounds"),
        (("--best", "test_accuracy"), "must be a column validation_..."),
        (("--best", "validation_accuracy", "--over", "server"), "unknown axis 'server'"),
        (("--over", "local"), "names axes for --best"),
        (("--only", "local=local-3"), "unknown entry of the axis local 'local-3'"),
        (("--results", str(small / "none")), "none of its 6 runs can be drawn"),
    ):
        assert sentence in refusal(capsys, small, *words), words
        assert not (small / "fig.pdf").exists() and not (small / "fig.csv").exists()


STUDY = """
[figure]
y = "test_loss"
x = "rounds"
[table]
columns = ["test_loss", "test_accuracy"]
control = "local-0.01"
"""


def test_a_study_describes_its_figure_and_its_table(small: Path, monkeypatch: Any) -> None:
    """Mutations: the flag --y overruled; a difference of means; the control less the group; the first round's."""
    (small / "small.toml").write_text(GRID + STUDY)
    monkeypatch.chdir(small)
    main(["small.toml", "--results", "."])
    assert "test_loss_mean" in Path("small.csv").read_text() and Path("small.pdf").exists()
    with Path("small_table.csv").open() as file:
        first, second = csv.DictReader(file)
    assert (first["local"], second["local"], second["seeds"]) == ("local-0.01", "local-0.1", "3")
    for y in ("test_loss", "test_accuracy"):
        own, control = (np.array([run.rounds[y][3] for run in runs_of(small, local)]) for local in ("0.1", "0.01"))
        assert float(second[f"{y}_mean"]) == pytest.approx(own.mean())
        assert float(second[f"{y}_difference_mean"]) == pytest.approx((own - control).mean())
        assert float(second[f"{y}_difference_sd"]) == pytest.approx((own - control).std(ddof=1))
        assert first[f"{y}_difference_mean"] == ""
    text = Path("small_table.txt").read_text().splitlines()
    assert text[0].split("  ")[0] == "local" and text[0].count("less local-0.01") == 2
    assert text[2].split()[-4:] == ["-", "3", "of", "3"] and "t interval" in text[-1]
    main(["small.toml", "--results", ".", "--y", "test_accuracy", "--out", "other.svg"])
    assert "test_accuracy_mean" in Path("other.csv").read_text()


@pytest.mark.parametrize(
    ("now", "sentence"),
    [
        (('"rounds"', '"round"'), "unknown --x 'round'; the nearest is rounds"),
        (('y = "test_loss"', "y = 3"), "small.toml: figure: y = 3: must be a word"),
        (('["test_loss", "test_accuracy"]', "[3]"), "small.toml: table: columns = [3]: must be a list of words"),
        (("columns", "colums"), "small.toml: table: unknown key 'colums'; the nearest is columns"),
        (("columns", 'rows = ["seed"]\ncolumns'), "table: rows: unknown axis 'seed'; there are local"),
        (('"local-0.01"\n', '"fedavg"\n'), "--control fedavg: unknown group 'fedavg'"),
    ],
)
def test_a_wrong_description_is_one_sentence(small: Path, capsys: Capsys, now: tuple[str, str], sentence: str) -> None:
    (small / "small.toml").write_text(GRID + STUDY.replace(*now))
    assert sentence in refusal(capsys, small)
    assert {path.suffix for path in small.iterdir()} == {".toml", ".h5"}


def test_no_file_is_replaced_without_force(small: Path, capsys: Capsys) -> None:
    """Mutation: the CSV beside the figure is replaced."""
    (small / "fig.csv").write_text("mine")
    assert "fig.csv exists" in refusal(capsys, small)
    assert (small / "fig.csv").read_text() == "mine" and not (small / "fig.pdf").exists()
    assert reported(small, "--force")


def test_names_of_a_stranger_s_grid_are_text(small: Path, capsys: Capsys) -> None:
    """Mutations: an escape sequence reaches the terminal or the CSV; a $ that is read as mathematics, and fails."""
    hostile = r"a\u001b[31m$\\frac\nb"
    (small / "small.toml").write_text(GRID.replace('"local-0.01"', f'"{hostile}"'))
    for seed in (1, 2):
        os.rename(small / f"{seed}-local-0.01.h5", small / f"{seed}-a\x1b[31m$\\frac\nb.h5")
    reported(small)
    (line,) = capsys.readouterr().err.splitlines()  # on the third seed
    assert line.isprintable() and line.startswith("3-a")
    assert "\x1b" not in (small / "fig.csv").read_text() + (small / "fig.tex").read_text()
    named = groups.Group({"a": "\x1b$\\frac"}, label_of({"a": "\x1b$\\frac\n"}, {}), 1, (runs_of(small, "0.1")[0],), {})
    curves, _ = means.curves(groups.Groups((named,), {}, (), ()), "test_loss", "rounds")
    figure.draw(curves, "test_loss", "rounds").savefig(small / "hostile.png")


def test_a_page_takes_any_number_of_runs_as_groups(small: Path) -> None:
    """Mutations: a limit on runs; a curve a run; a band of one seed."""
    results = [str(path) for path in sorted(small.glob("*.h5")) if ".ckpt" not in path.name]
    main([*results, "--out", str(small / "page.html")])
    text = (small / "page.html").read_text()
    assert "6 runs in 2 groups" in text and "3 of 3" in text
    found = groups.of_results([records.load(path) for path in results], whole=False)
    drawn = charts.curves(found.groups)["groups"]
    assert [group["label"] for group in drawn] == [f"FedAvg, gamma_local {step} (n = 3)" for step in ("0.01", "0.1")]
    values = [run.rounds["test_loss"][3] for run in runs_of(small, "0.01")]
    assert drawn[0]["y"]["test_loss"][3] == pytest.approx(np.mean(values), rel=1e-5)
    assert drawn[0]["high"]["test_loss"][3] == pytest.approx(
        np.mean(values) + T * np.std(values, ddof=1) / np.sqrt(3), rel=1e-5
    )


def test_words_of_labels_and_latex() -> None:
    assert label_of({"tau": "5", "method": "zo_hfl", "server": "server-none"}, {}) == "τ 5, ZO-HFL"
    assert label_of({"cell": "a1-b0.5"}, {"alpha": 1, "beta": 0.5}) == "α 1, β 0.5"
    assert latex("a_b % {x} \\") == r"a\_b \% \{x\} \textbackslash{}"
