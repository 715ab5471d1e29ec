"""[C]'s Table II from tiny real results: what it took until a target, and the paper's numbers."""

import statistics
from typing import Any

import h5py
import numpy as np
import pytest

from tests.analysis.made import EVALUATED, Grids, Made, expected_bytes


def plant(grids: Made, **accuracies: list[list[float]]) -> None:
    """Test accuracies of the iid results: {method: a list per seed, of the evaluated rounds}."""
    for method, seeds in accuracies.items():
        for run, values in zip(grids.loaded(cell="iid", method=method), seeds, strict=True):
            with h5py.File(run.path, "r+") as file:
                column = np.full(5, np.nan)
                column[np.array(EVALUATED) - 1] = values
                file["rounds/test_accuracy"][...] = column


def test_what_it_took_until_the_target(place: Grids, wrote: Any, script: Any, monkeypatch: Any) -> None:
    """Mutations: above the target for at least; the bytes of one round more; a mean over the seeds that reach it."""
    plant(
        place("c_methods", cell="iid"),
        heron=[[0.1, 0.4, 0.2, 0.2], [0.1, 0.2, 0.2, 0.5]],
        fsl_sage=[[0.1, 0.2, 0.4, 0.5], [0.4, 0.2, 0.3, 0.3]],
        sflv2=[[0.1, 0.4, 0.5, 0.5], [0.1, 0.2, 0.3, 0.39]],
        cse_fsl=[[0.1] * 4, [0.1] * 4],
    )
    monkeypatch.setattr(script("c_table2"), "TARGET", 0.4)
    told = wrote("c_table2", place("c_methods"), "--partial")
    assert "Until 40 % of digits, iid: measured" in told.out
    rows = {row["method"]: row for row in told.rows}
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
    """By the formulas of bytes and steps that the tests of the dry run have. Mutations: any of its numbers."""
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
