"""Table I of [A] from tiny real results: the numbers are those computed by hand; nothing is averaged silently."""

from typing import Any

import pytest

from tests.analysis.made import Grids

pytestmark = pytest.mark.usefixtures("stand_in_paper")


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
