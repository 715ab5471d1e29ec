"""DeComFL's curves beside the printed ones; rounds and bytes of methods that send scalars or parts of models."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.made import group_of


def planted(*columns: list[float], method: str = "decomfl") -> Any:
    """Runs with a test accuracy a round, two seconds a round."""
    runs = group_of(*columns, method=method).runs
    return [
        replace(run, rounds={**run.rounds, "seconds": np.full(len(run.rounds["test_accuracy"]), 2.0)}) for run in runs
    ]


def test_a_run_that_was_stopped_counts_as_far_as_it_got(script: Any) -> None:
    """Mutations: another round's accuracy; the other method's runs; a shorter run beside longer ones."""
    module = script("c_decomfl_mnist")
    ours = planted([*[0.1] * 99, 0.82, 0.9], [*[0.1] * 99, 0.84])
    theirs = planted([*[0.1] * 99, 0.96], method="fedavg")
    first, second = (module.row("decomfl", at, [*ours, *theirs]) for at in (100, 200))
    assert (first["least_percent"], first["largest_percent"], first["seeds"]) == pytest.approx((82, 84, 2))
    assert (first["printed_least_percent"], first["seconds_largest"]) == (81.1, 2.0)
    assert second["seeds"] == 0 and math.isnan(second["largest_percent"])
    last = module.text([first, second]).split("\n")[-1]
    assert re.split(r"\s{2,}", last)[2:] == ["87.5 to 89.6", "not run", "-", "0"]


def test_a_folder_for_each_grid(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        script("c_decomfl_mnist").main(["--results", str(tmp_path), "--out", str(tmp_path / "t")])
    told = capsys.readouterr().err
    assert caught.value.code == 2 and told.startswith("c_decomfl_mnist: --results: 1 folders for 2 grids")
