"""[C]'s figure 2 from tiny real results: the numbers are those computed by hand from the files."""

import statistics
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from tests.analysis.made import EVALUATED, Grids, check_difference, same


def test_figure_2_has_the_accuracies_the_paired_differences_and_the_local_losses(made: Grids, wrote: Any) -> None:
    """Mutations: HERON of the other setting; the control less HERON; the loss of the first round told as the last."""
    told = wrote("c_fig2", made("c_methods"))
    assert told.path(".pdf").read_bytes().startswith(b"%PDF")
    assert told.path(".txt").read_text().strip() in told.out and told.path(".png").exists()
    rows = told.rows
    assert len(rows) == 6 + 3
    for row in rows:
        where = {"cell": row["setting"], "method": row["method"]}
        mine = made("c_methods").lasts(**where)
        assert same(row["accuracy_mean_percent"], statistics.mean(mine))
        assert same(row["accuracy_sd_percent"], statistics.stdev(mine))
        heron = made("c_methods").lasts(cell=row["setting"], method="heron")
        check_difference(row, ("heron_less_it_mean", "heron_less_it_sd"), heron, mine)
        losses = np.mean([run.rounds["local_loss"][[0, -1]] for run in made("c_methods").loaded(**where)], axis=0)
        assert same(row["local_loss_first"], losses[0]) and same(row["local_loss_last"], losses[1])
        assert (row["local_loss_last"] == "") == (row["method"] == "sflv2")
    lines = [line for line in told.out.splitlines() if line.startswith("digits, iid")]
    assert len(lines) == 6 and "HERON, client step 0" in told.out and "digits, α = 0.3" in told.out


def test_the_lines_and_bands_of_figure_2(made: Grids, script: Any) -> None:
    module = script("c_fig2")
    figure = module.draw(made("c_methods").groups(*module.STUDY.axes))
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["digits, iid", "digits, α = 0.3"]
    names = script("shared.heron").NAMES
    for panel, cell in zip(figure.axes, ("iid", "alpha0.3"), strict=True):
        lines = {line.get_label(): line for line in panel.get_lines()}
        assert len(lines) == (6 if cell == "iid" else 3)
        for method in ("heron", "heron-still", "sflv2") if cell == "iid" else ("heron", "heron-frozen"):
            values = [run.rounds["test_accuracy"] for run in made("c_methods").loaded(cell=cell, method=method)]
            line = lines[names[method]]
            assert line.get_xdata().tolist() == EVALUATED
            expected = 100 * np.mean(values, axis=0)[np.array(EVALUATED) - 1]
            assert np.allclose(line.get_ydata(), expected, rtol=1e-12)
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in figure.axes[0].get_lines()}
    assert len(looks) == 6


def test_lines_that_lack_seeds_are_named_in_few_lines(script: Any) -> None:
    """Mutation: a line for each, which leaves no room for the panel."""
    heron, groups = script("shared.heron"), script("shared.groups")
    one, two, none = (
        groups.Group({"method": method}, 1 + lacking, {}, (object(),))
        for method, lacking in (("heron", 2), ("cse_fsl", 2), ("sflv2", 0))
    )
    panel = plt.figure().gca()
    for those, told in (
        ([one, two, none], "t\n1 of 3 seeds: HERON; CSE-FSL"),
        ([one, two], "t\n1 of 3 seeds: all"),
        ([one] * 7 + [two, none], "t\n1 of 3 seeds: 8 of the points"),
        ([none], "t"),
    ):
        heron.titled(panel, "t", those, heron.name)
        assert panel.get_title(loc="left") == told
