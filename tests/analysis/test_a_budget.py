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
        assert module.sent(group).tolist() == np.cumsum(sent).tolist()
        assert module.samples(group).tolist() == (64 * np.cumsum(steps)).tolist()
        assert sent[0] > 0 and steps[0] > 0


def test_the_budgets_are_drawn_and_told(made: Grids, wrote: Any) -> None:
    told = wrote("a_budget", made("a_table"))
    assert told.out.split()[-1] == str(told.path("_digits.png"))
    check_figure(told.path("_digits"), 7.0)


def test_the_dots_are_the_last_numbers(made: Grids, script: Any) -> None:
    """Mutations: the first round's; bytes of one way; a method that sends nothing at 1."""
    module = script("a_budget")
    groups = made("a_control").groups("method")
    figure = module.draw([module.row(group) for group in groups])
    accuracy, sent, samples = figure.axes
    assert next(label.get_text() for label in accuracy.get_yticklabels()) == "ZO-HFL"
    last = statistics.mean(made("a_control").lasts(method="zo_hfl"))
    assert accuracy.lines[0].get_xdata() == pytest.approx([last])
    assert sent.lines[0].get_xdata() == pytest.approx([module.sent(groups[0])[-1] / 2**20])
    assert samples.lines[0].get_xdata() == pytest.approx([module.samples(groups[0])[-1] / 1e6])
    assert [panel.get_xscale() for panel in figure.axes] == ["linear", "log", "log"]
    for panel in (sent, samples):  # server SGD sends nothing, and no client computes
        assert [text.get_text() for text in panel.texts] == ["0"]
