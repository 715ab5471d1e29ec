"""[C]'s budgets from tiny real results: bytes by formula, work as the results tell it."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import h5py
import pytest

from tests.analysis.made import Grids, expected_bytes
from zofl_mpi.errors import UserError
from zofl_mpi.rounds.split.costs import STEP_BYTES, STEP_MACS


def test_budgets_are_those_of_the_formulas(made: Grids, script: Any, wrote: Any) -> None:
    """Mutations: labels left out of the figure, or in the bytes; steps of one client; those of a round for all."""
    module = script("c_budget")
    grids = made("c_methods", cell="iid")
    told = wrote("c_budget", grids, "--partial")
    rows = [row for row in told.rows if row["setting"] == "iid"]
    assert "counted here" not in told.out and len(rows) == 6
    for row in rows:
        method = row["method"].split("-")[0]
        size, labels, _ = expected_bytes(method, 5)
        assert (float(row["bytes_without_labels"]), float(row["bytes_of_labels"])) == (size, labels)
        kept = json.loads(grids.loaded(cell=row["setting"], method=row["method"])[0].attrs["costs"])
        assert float(row["client_macs_a_step"]) == kept[STEP_MACS]
        assert float(row["client_peak_bytes"]) == kept[STEP_BYTES]
        assert float(row["client_macs"]) == 5 * 3 * 2 * kept[STEP_MACS]
    figure = module.draw(module.STUDY.rows(grids.groups(*module.STUDY.axes, words=("--partial",))))
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    dots = [line for line in figure.axes[1].lines if line.get_marker() == "o"]
    gib = sum(expected_bytes("heron", 5)[:2]) / 2**30
    assert dots[names.index("HERON")].get_xdata() == pytest.approx([gib])


def test_costs_that_a_result_does_not_tell_are_counted_again(place: Grids, script: Any, wrote: Any) -> None:
    """To the same numbers. Mutation: the passes of one direction for all n_p."""
    split = script("shared.split_costs")
    for grids, module, cell in (
        (place("c_methods", cell="iid"), "c_budget", "iid"),
        (place("c_estimates", cell="np3", seed="1"), "c_fig4", "np3"),
    ):
        read = partial(grids.groups, *script(module).STUDY.axes, words=("--partial",))
        groups = [group for group in read() if group.entry("cell") == cell][:2]
        before = [split.step(group) for group in groups]
        for group in groups:
            for run in group.runs:
                with h5py.File(run.path, "r+") as file:
                    del file.attrs["costs"]
        entries = [group.where for group in groups]
        after = [split.step(group) for group in read() if group.where in entries]
        assert [(s.macs, s.peak) for s in after] == [(s.macs, s.peak) for s in before]
        assert {s.recorded for s in before} == {True} and {s.recorded for s in after} == {False}
    told = " ".join(wrote("c_budget", place("c_methods"), "--partial").out.split())
    assert "Steps counted here, as the results do not tell: HERON / HERON, frozen client. " in told


def test_local_steps_of_passes_over_the_data(script: Any, made: Grids) -> None:
    """h = 0: the server's steps, if all are uploaded; else they are not known."""
    split = script("shared.split_costs")
    (run, _) = made("c_methods", cell="iid").loaded(cell="iid", method="heron")
    assert split.local_steps(run).tolist() == [6.0] * 5
    whole = replace(run, config=run.config | {"h": 0})
    assert split.local_steps(whole).tolist() == run.rounds["server_steps"].tolist()
    with pytest.raises(UserError, match="does not tell its local steps: --h 0 --k 2"):
        split.local_steps(replace(run, config=whole.config | {"k": 2}))
