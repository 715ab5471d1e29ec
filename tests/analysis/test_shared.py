"""What the scripts share: means over seeds, notes of missing seeds, the paper's numbers, words, tables."""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.made import group_of
from tests.conftest import ROOT
from zofl_mpi.errors import UserError
from zofl_mpi.report.groups import half_width, t_half_width

NAN = math.nan


def test_one_value_has_no_deviation_and_no_value_no_mean(script: Any) -> None:
    mean, sd = script("shared.groups").mean_sd(np.array([3.0]))
    assert mean == 3.0 and math.isnan(sd)
    assert all(map(math.isnan, script("shared.groups").mean_sd(np.array([]))))


def test_the_accuracy_is_that_of_the_last_round_in_percent(script: Any) -> None:
    mean, sd = group_of([0.9, NAN, 0.5], [0.1, NAN, 0.7]).accuracy()
    assert mean == pytest.approx(60.0) and sd == pytest.approx(math.sqrt(200.0))


def test_a_result_without_its_last_number_is_named(script: Any) -> None:
    with pytest.raises(UserError, match=r"2\.h5 has no test_accuracy in its last round"):
        group_of([0.5, 0.5], [0.5, NAN]).accuracy()
    with pytest.raises(UserError, match=r"1\.h5 has no column f1; it has test_accuracy"):
        group_of([0.5]).last("f1")


def test_a_curve_has_the_rounds_that_all_seeds_have(script: Any) -> None:
    rounds, values = group_of([0.1, NAN, 0.3, 0.4], [0.5, NAN, NAN, 0.8]).curve("test_accuracy")
    assert rounds.tolist() == [1, 4]
    assert values.tolist() == [[0.1, 0.4], [0.5, 0.8]]


def test_seeds_of_different_lengths_are_refused(script: Any) -> None:
    unequal = group_of([0.5], [0.5, 0.5])
    for ask in (lambda: unequal.rounds, lambda: unequal.curve("test_accuracy")):
        with pytest.raises(UserError, match=r"zo_hfl: the seeds differ in their rounds, \[1, 2\]"):
            ask()


def test_missing_seeds_are_noted(script: Any) -> None:
    assert group_of([0.5], [0.5]).note == ""
    assert group_of([0.5], [0.5], planned=3).note == "(2 of 3 seeds)"
    assert script("shared.wording").percent(74.234, 0.306, "(2 of 3 seeds)") == "74.23 ± 0.31 (2 of 3 seeds)"
    assert script("shared.wording").percent(74.234, NAN, "(1 of 3 seeds)") == "74.23 (1 of 3 seeds)"
    assert script("shared.wording").percent(NAN, NAN, "(0 of 3 seeds)") == "- (0 of 3 seeds)"


def test_the_papers_table_is_complete_and_says_what_its_text_says(script: Any) -> None:
    """Best in 5 of 6 heterogeneous cells as printed; the exception is MNIST, alpha = 1."""
    table = script("shared.paper").TABLE_1
    assert len(table) == 9 and all(len(cell) == 4 for cell in table.values())
    best = {key: max(cell, key=cell.get) for key, cell in table.items()}
    assert [key for key in best if best[key] != "zo_hfl" and key[1] < 1000] == [("mnist", 1.0, 0.5)]
    assert all(best[key] == "scaffold" for key in best if key[1] == 1000)
    assert math.fsum(sum(cell.values()) for cell in table.values()) == pytest.approx(2413.90)


def test_the_papers_number_is_found_by_data_alpha_and_beta(script: Any) -> None:
    printed = script("shared.paper").printed
    config = {"data": "mnist", "alpha": 1000.0, "beta": 0.9}
    assert printed(group_of([0.5], **config)) == 90.82
    assert printed(group_of([0.5], **config, where={"method": "fedavg"})) == 87.17
    assert printed(group_of([0.5], **config, where={"cell": "a", "problem": "features", "method": "fedavg"})) == 87.17
    assert math.isnan(printed(group_of([0.5], **config, where={"method": "fedavg+server"})))
    assert math.isnan(printed(group_of([0.5], **{**config, "beta": 0.5})))
    assert math.isnan(printed(group_of([0.5], data="mnist", alpha=1000.0)))


def test_a_caption_tells_values_and_whose_they_are(script: Any) -> None:
    ours = group_of([0.5, 0.5], batch=64, gamma=0.01, mu=[1.0], where={"method": "zo_hfl"})
    other = group_of([0.5, 0.5], batch=64, gamma=0.0, where={"method": "fedavg"})
    words = script("shared.wording").caption([ours, other]).split("; ")
    assert words == ["2 rounds", "1 seed", "batch 64", "gamma 0.01 (ZO-HFL), 0 (FedAvg)", "mu 1"]


def test_a_table_is_aligned(script: Any) -> None:
    text = script("shared.wording").text_table(("name", "n"), [["a", "10.25"], ["longer", "-"]])
    assert text.split("\n") == ["name        n", "------  -----", "a       10.25", "longer      -"]


def test_latex_has_no_bare_special_characters(script: Any) -> None:
    assert script("shared.wording").latex("zo_hfl 5 % ± α & #") == r"zo\_hfl 5 \% $\pm$ $\alpha$ \& \#"


def test_lines_are_told_apart_by_more_than_colour(script: Any) -> None:
    looks = [script("shared.figures").look(k) for k in range(len(script("shared.figures").LOOKS))]
    for key in ("color", "linestyle", "marker"):
        assert len({str(look[key]) for look in looks}) == len(looks) >= 6


def test_a_csv_has_all_digits_and_nothing_for_nan(script: Any, tmp_path: Path) -> None:
    script("shared.files").write_csv(tmp_path / "made" / "a.b", [{"x": 1 / 3, "y": NAN, "z": 'a "b", c'}])
    assert (tmp_path / "made" / "a.b.csv").read_text() == 'x,y,z\n0.3333333333333333,,"a ""b"", c"\n'


def test_all_scripts_share_their_flags(script: Any) -> None:
    flags = script("shared.command").parser("a_x", "About.\n\nMore.", ["a_x.toml"]).parse_args(["--partial"])
    assert flags == argparse.Namespace(
        grid=[ROOT / "jobs" / "a_x.toml"], results=None, partial=True, out=Path("results/a_x")
    )


def test_only_out_names_a_kept_table(script: Any) -> None:
    """Mutations: analysis/results as the default, for any grid or with --partial; --out ignored."""
    parser = script("shared.command").parser
    made = parser("c_x", "About.", ["a.toml", "b.toml"])
    for words in ([], ["--partial"], ["--grid", "jobs/b.toml"], ["--results", "mine"]):
        assert made.parse_args(words).out == Path("results/c_x")
    assert made.parse_args(["--out", "analysis/results/c_x"]).out == Path("analysis/results/c_x")
    assert parser("scaling/x", "About.").parse_args([]).out == Path("results/scaling/x")


@pytest.mark.parametrize(("n", "t"), [(2, 12.706), (3, 4.303), (11, 2.228), (12, 2.201), (31, 2.042), (1001, 1.962)])
def test_the_intervals_are_students(n: int, t: float) -> None:
    """Mutations: n for n - 1 degrees of freedom; sd/n; the normal's 1.96."""
    assert t_half_width(2.0, n) == pytest.approx(2 * t / math.sqrt(n), rel=2e-3)
    values = np.linspace(0.0, 1.0, n)[:, None]
    assert half_width(values) == pytest.approx(t * values.std(ddof=1) / math.sqrt(n), rel=2e-3)
    assert math.isnan(t_half_width(2.0, 1)) and np.isnan(half_width(values[:1])).all()


def test_a_difference_of_independent_means_has_the_freedom_of_both() -> None:
    """Two means of three values each: t of 4 degrees of freedom, 2.776, times sqrt((3^2 + 4^2)/3).

    Mutations: the seeds' own 2 degrees; one deviation alone."""
    assert t_half_width(math.hypot(3.0, 4.0), 3, 4) == pytest.approx(2.776 * 5 / math.sqrt(3), rel=2e-4)
