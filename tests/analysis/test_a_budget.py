"""[A]'s budgets from tiny real results: rounds, bytes and samples are sums over rounds."""

import statistics
from typing import Any

import h5py
import numpy as np
import pytest

from tests.analysis.made import Grids, check_figure


def test_the_budgets_are_sums_over_rounds(made: Grids, script: Any) -> None:
    module = script("a_budget")
    for group in made("a_table").groups("cell", "method"):
        path = made("a_table").member(**group.where, seed="1").out
        with h5py.File(path) as file:
            sent = [sum(int(file["clients"][k][r].sum()) for k in ("bytes_down", "bytes_up")) for r in range(3)]
            steps = file["rounds/local_steps"][()]
        assert module.rounds(group).tolist() == [1, 2, 3]
        assert module.sent(group).tolist() == np.cumsum(sent).tolist()
        assert module.samples(group).tolist() == (64 * np.cumsum(steps)).tolist()
        assert sent[0] > 0 and steps[0] > 0


def test_the_budgets_are_drawn_and_told(made: Grids, wrote: Any) -> None:
    told = wrote("a_budget", made("a_table"))
    assert told.out.split()[-1] == str(told.path("_digits.png"))
    check_figure(told.path("_digits"), 7.0)


def test_the_lines_of_the_budgets_meet_the_accuracies(made: Grids, script: Any) -> None:
    module = script("a_budget")
    groups = made("a_control").groups("method")
    figure = module.draw(groups)
    accuracy = 100 * made("a_control").column("test_accuracy", method="zo_hfl").mean(axis=0)
    budgets = [module.rounds(groups[0]), module.sent(groups[0]) / 2**10, module.samples(groups[0]) / 1e6]
    for panel, budget in zip(figure.axes, budgets, strict=True):
        line = panel.get_lines()[0]
        assert line.get_label() == "ZO-HFL"
        assert np.allclose(line.get_xdata(), budget) and np.allclose(line.get_ydata(), accuracy)
    assert [panel.get_xscale() for panel in figure.axes] == ["linear", "log", "log"]
    assert figure.axes[1].get_xlabel() == "sent down and up (KiB)"
    level = statistics.mean(made("a_control").lasts(method="server_sgd"))
    for panel in figure.axes[1:]:  # it sends nothing, and no client computes
        assert panel.get_lines()[2].get_ydata() == pytest.approx([level, level])
        assert panel.texts[0].get_text() == "server SGD: 0"
