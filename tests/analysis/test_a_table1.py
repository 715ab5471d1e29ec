"""Table I of [A] from tiny real results: the numbers are those computed by hand; nothing is averaged silently."""

import statistics
from typing import Any

import pytest

from tests.analysis.made import CELLS, METHODS, PAPER, Grids

pytestmark = pytest.mark.usefixtures("stand_in_paper")


def test_table_1_has_mean_and_deviation_beside_the_papers_number(made: Grids, wrote: Any) -> None:
    told = wrote("a_table1", made("a_table"))
    lines, tex = told.out.split("\n"), told.path(".tex").read_text()
    rows = told.rows
    assert [(row["cell"], row["method"]) for row in rows] == [(c, m) for c in CELLS for m in METHODS]
    for row in rows:
        values = made("a_table").lasts(cell=row["cell"], method=row["method"])
        mean, sd = statistics.mean(values), statistics.stdev(values)
        paper = PAPER[("digits", *CELLS[row["cell"]])].get(row["method"])
        assert float(row["accuracy_mean_percent"]) == pytest.approx(mean, rel=1e-14)
        assert float(row["accuracy_sd_percent"]) == pytest.approx(sd, rel=1e-12)
        assert row["paper_percent"] == ("" if paper is None else str(paper))
        assert (row["data"], row["problem"], row["rounds"], row["seeds"]) == ("digits", "softmax", "3", "2")
        shown = [f"{mean:.2f}", "±", f"{sd:.2f}", "-" if paper is None else f"{paper:.2f}", "3", "2"]
        assert ["digits", row["cell"], row["method"], *shown] in [line.split() for line in lines]
        assert f" {mean:.2f} $\\pm$ {sd:.2f} & {shown[3]} &" in tex


def test_table_1_says_what_it_was_measured_with(made: Grids, wrote: Any) -> None:
    told = wrote("a_table1", made("a_table"))
    tex, text = told.path(".tex").read_text(), " ".join(told.out.split())
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


def test_a_run_that_failed_is_told_with_its_last_words(place: Grids, refuses: Any) -> None:
    gone = place("a_table").member(cell="a0.1-b0.5", method="zo_hfl", seed="2")
    gone.out.unlink()
    gone.log.write_text("python -m ...\nzofl_mpi: round 1: client 3: the local solution is not finite\n\n")
    lines = refuses("a_table1", place("a_table"))
    assert lines[0].endswith("; its log ends: zofl_mpi: round 1: client 3: the local solution is not finite")


def test_with_partial_a_missing_seed_is_marked_and_not_averaged_over(place: Grids, wrote: Any) -> None:
    gone = place("a_table").member(cell="a0.1-b0.5", method="zo_hfl", seed="2")
    left = place("a_table").lasts(cell="a0.1-b0.5", method="zo_hfl")[0]
    gone.out.unlink()
    told = wrote("a_table1", place("a_table"), "--partial")
    assert told.err.count("\n") == 1 and gone.name in told.err
    assert f"{left:.2f} (1 of 2 seeds)" in told.out and told.out.count("of 2 seeds") == 1
    assert told.path(".tex").read_text().count(f"{left:.2f} (1 of 2 seeds)") == 1
    (row,) = [r for r in told.rows if r["seeds"] != "2"]
    assert float(row["accuracy_mean_percent"]) == left
    assert (row["seeds"], row["seeds_planned"], row["accuracy_sd_percent"]) == ("1", "2", "")


def test_a_mistake_in_a_grid_is_one_sentence(place: Grids, refuses: Any) -> None:
    path = place("a_table").path()
    words = ["--grid", str(path), "--results", str(place("a_table").results)]
    good = path.read_text()
    for text in (good.replace("eval_every", "eval_evry"), good + "[colour]\nx = 1\n", good.replace("[", "[[", 1)):
        path.write_text(text)
        (line,) = refuses("a_table1", words)
        assert line.startswith("a_table1: ") and "table.toml" in line
    path.unlink()
    (line,) = refuses("a_table1", words)
    assert "table.toml" in line
