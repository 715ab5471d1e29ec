"""The checks of the engine on a GPU, made on the CPU: they fit the package, and find what is wrong on a device."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench import gpu, gpu_networks, gpu_split
from tests.gpu import correct, report, selfcheck, speed, table2
from tests.gpu.report import Bench


@pytest.fixture
def on_gpu() -> Bench:
    """As if its device were a GPU; nothing is computed there."""
    return Bench("cuda:0", tiny=False)


@pytest.mark.slow
def test_all_of_it_runs_on_a_cpu_and_says_what_a_gpu_has_to_tell(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow it is.

    Mutations: a section that no longer fits the package; a call for GPUs that is passed over in silence.
    """
    run, out = Bench.run, tmp_path / "new" / "bench.json"
    monkeypatch.setattr(Bench, "run", lambda own, title, section, limit: run(own, title, section, 100 * limit))
    status = gpu.main(["--device", "cpu", "--tiny", "--json", str(out)])
    found = json.loads(out.read_text())
    assert (status, found["status"], found["failed"]) == (0, 0, [])
    assert len(found["checks"]) >= 18 and all(check["right"] for check in found["checks"])
    left = {each["name"]: each["why"] for each in found["left_out"]}
    calls = (*selfcheck.CALLS, *gpu_networks.CALLS, *gpu_split.CALLS)
    assert {left[selfcheck.named(call)] for call in calls} == {report.NO_GPU}
    judged = [each["name"] for each in found["figures"] if each["wanted"]] + list(left)
    for word in ("launch-bound floor", "over plain", "forward rate", "HERON over SFLV2"):
        assert any(word in name for name in judged), word
    assert {each["verdict"] for each in found["figures"] if each["wanted"]} == {"not judged: tiny shapes"}
    assert {"date", "device", "CPU", "versions"} <= set(found["machine"])
    titles = [*correct.SECTIONS, *selfcheck.SECTIONS, *speed.SECTIONS]
    assert list(found["seconds"]) == titles
    text = out.with_suffix(".txt").read_text()
    assert capsys.readouterr().out == text and "measured\n" in text


def wrong(factor: float, device: str = "cuda:0") -> correct.Solve:
    """Float32 as it is on a CPU; on the device all is wrong by a factor."""
    x = np.linspace(-1, 2, 1000)

    def solve(place: str, dtype: str) -> correct.Vector:
        found = x.astype(dtype).astype(np.float64)
        return found * factor if place == device else found

    return solve


@pytest.mark.parametrize(("error", "status"), [(0.0, 0), (1e-3, 1), (np.nan, 1)])
def test_what_is_wrong_on_the_device_is_found(on_gpu: Bench, error: float, status: int) -> None:
    """1e-3 is about TF32's rounding. Mutations: a bound from the device's own error; nan taken for right."""
    correct.compared(on_gpu, "x", wrong(1 + error))
    assert [check.name for check in on_gpu.checks] == ["x, float64", "x, float32"]
    assert [check.right for check in on_gpu.checks] == [not status] * 2
    assert on_gpu.status == status
    assert on_gpu.table().count("WRONG") == 2 * status


def test_float32_is_no_float64(on_gpu: Bench) -> None:
    """Mutation: one bound for both."""
    correct.compared(on_gpu, "x", wrong(1 + 1e-7))
    assert [check.right for check in on_gpu.checks] == [False, True]


def test_the_arithmetic_of_table_2s_grid_is_as_its_head_says() -> None:
    """Steps of a client until [C]'s 80 %, their GFLOP by [C]'s own counts, and what an hour then asks of a GPU."""
    head = " ".join(table2.GRID.read_text().partition("module =")[0].replace("#", " ").split())
    grid = table2.file.read(table2.GRID)
    m, batch = (int(grid.runs[0].flags[name]) for name in ("m", "batch"))
    each = m * math.ceil(table2.TRAIN / m / batch)
    pair, all_of_them = 2 * each * table2.ROUNDS["heron"], each * sum(table2.ROUNDS.values())
    full = each * sum(int(run.flags["rounds"]) for run in grid.runs)
    assert f"are {pair:,} steps of a client and of the server" in head and f"at most {3600 / pair:.2f} s" in head
    assert f"until 80 %, of which SFLV1 takes a third, are {all_of_them:,} steps, the grid {full:,}" in head
    assert round(all_of_them / each / table2.ROUNDS["sflv1"]) == 3
    local, network = 39.896e9 / 2, 555.4e6 * batch  # client and head; client and server
    client = local - 655_360 * batch
    flop = 2 * (2 * local + 3 * (network - client))
    assert f"They are {flop / 1e9:.0f} GFLOP" in head and f"{flop * pair / 3600 / 1e12:.1f} TFLOP/s" in head
