"""The benchmark of a GPU, on the CPU: what it finds wrong, what it leaves out, and that a part costs no other."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench import gpu, gpu_networks, gpu_small, gpu_split
from tests.gpu import clock, correct, report, selfcheck, speed, table2
from tests.gpu.report import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench("cpu", tiny=True)


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
    assert len(found["checks"]) >= 24 and all(check["right"] for check in found["checks"])
    left = {each["name"]: each["why"] for each in found["left_out"]}
    calls = (*selfcheck.CALLS, *gpu_small.CALLS, *gpu_networks.CALLS, *gpu_split.CALLS)
    assert {left[selfcheck.named(call)] for call in calls} == {report.NO_GPU}
    judged = [each["name"] for each in found["figures"] if each["wanted"]] + list(left)
    for word in ("launch-bound floor", "of m = 6 over m = 2", "over plain", "forward rate", "HERON over SFLV2"):
        assert any(word in name for name in judged), word
    assert {each["verdict"] for each in found["figures"] if each["wanted"]} == {"not judged: tiny shapes"}
    assert {"date", "device", "CPU", "versions"} <= set(found["machine"])
    titles = [*correct.SECTIONS, *selfcheck.SECTIONS, *speed.SECTIONS]
    assert list(found["seconds"]) == titles
    text = out.with_suffix(".txt").read_text()
    assert capsys.readouterr().out == text and "measured\n" in text


def test_no_section_may_take_so_long_that_all_take_more_than_eight_minutes() -> None:
    sections = [*correct.SECTIONS.values(), *selfcheck.SECTIONS.values(), *speed.SECTIONS.values()]
    assert sum(limit for _, limit in sections) <= 8 * 60 - 20, "and the start"


def test_cuda_where_there_is_none_is_refused(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.device, "NODES", ())
    with pytest.raises(SystemExit) as caught:
        gpu.main(["--device", "cuda"])
    assert caught.value.code == 2
    assert "--device cuda: this node has no GPU driver" in capsys.readouterr().err


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


def test_a_section_that_fails_costs_no_other(bench: Bench) -> None:
    """Mutations: what it found before is lost; status 0."""

    def fails(bench: Bench) -> None:
        bench.figure("before", 1.0, "s")
        raise RuntimeError("CUDA error: out of memory\nand so on")

    bench.run("one", fails, 10)
    bench.run("two", lambda bench: bench.figure("after", 2.0, "s"), 10)
    assert [each.name for each in bench.figures] == ["before", "after"]
    [failed] = bench.failed
    assert failed.section == "one" and failed.sentence.startswith("out of memory on the GPU") and failed.trace
    assert bench.status == 1 and "failed\n  one" in bench.table()


@pytest.mark.parametrize("swallowed", [False, True])
def test_a_section_that_takes_too_long_is_broken_off(bench: Bench, swallowed: bool) -> None:
    """Also where what it calls makes another exception of it, as a client's step does."""

    def endless(bench: Bench) -> None:
        bench.figure("before", 1.0, "s")
        try:
            while True:
                time.sleep(0.001)
        except report.Late:
            if swallowed:
                raise ValueError("client 0 failed") from None
            raise

    bench.run("one", endless, 0.25)
    assert not bench.failed and bench.status == 0
    assert [(each.name, each.why) for each in bench.left] == [("the rest of one", "0.25 s were over")]
    assert len(bench.figures) == 1


def test_a_section_without_time_left_measures_nothing_more(bench: Bench) -> None:
    """Mutations: what took too long to be done twice is lost; another piece of work is begun all the same."""
    done = []

    def slow(bench: Bench) -> None:
        bench.figure("x", clock.timed(bench, lambda: done.append(time.sleep(0.51))), "s")
        clock.timed(bench, lambda: done.append(None))

    bench.run("one", slow, 0.5)
    assert [each.name for each in bench.left] == ["the rest of one"]
    assert len(done) == len(bench.figures) == 1 and bench.figures[0].value >= 0.51


@pytest.mark.parametrize(
    ("value", "sense", "verdict"),
    [(3.0, "at most", "met"), (3.1, "at most", "not met"), (3.0, "at least", "met"), (2.9, "at least", "not met")],
)
def test_a_demand_is_judged_on_a_gpu_alone(on_gpu: Bench, bench: Bench, value: float, sense: Any, verdict: str) -> None:
    on_gpu.demand("x", value, sense, 3.0)
    bench.demand("x", value, sense, 3.0)
    full = Bench("cpu", tiny=False)
    full.demand("x", value, sense, 3.0)
    assert [each.figures[0].verdict for each in (on_gpu, bench, full)] == [
        verdict,
        "not judged: tiny shapes",
        "not judged: no GPU",
    ]
    assert on_gpu.status == 0, "a demand that is not met is a finding, no mistake"


def test_a_demand_on_what_was_not_measured_is_left_out(on_gpu: Bench, bench: Bench) -> None:
    on_gpu.demand("x", None, "at most", 3.0)
    bench.demand("x", None, "at most", 3.0)
    assert [each.left[0].why for each in (on_gpu, bench)] == ["not measured", "no GPU"]


def test_hours_are_rounds_times_samples_over_samples_a_second() -> None:
    """Mutations: seconds; evaluations left out; the control left out; a seed for all."""
    hour = dict.fromkeys(("HERON", "SFLV1", "SFLV2", "CSE-FSL"), 50_000 / 3600)
    assert [*table2.hours(hour, 1e12).values()] == pytest.approx([40, 146, 6 * 60, 18 * 60])
    slower = {**hour, "HERON": hour["HERON"] / 2}
    assert [*table2.hours(slower, 10_000 / 3600).values()] == pytest.approx([120, 332, 6 * 120 + 120, 18 * 120 + 360])


def test_the_arithmetic_of_table_2s_grid_is_as_its_head_says() -> None:
    """Steps of a client until [C]'s 80 %, their GFLOP by [C]'s own counts, and what an hour then asks of a GPU."""
    told = " ".join(table2.GRID.read_text().partition("module =")[0].replace("#", " ").split())
    grid = table2.file.read(table2.GRID)
    m, batch = (int(grid.runs[0].flags[name]) for name in ("m", "batch"))
    each = m * math.ceil(table2.TRAIN / m / batch)
    pair, all_of_them = 2 * each * table2.ROUNDS["heron"], each * sum(table2.ROUNDS.values())
    whole = each * sum(int(run.flags["rounds"]) for run in grid.runs)
    assert f"are {pair:,} steps of a client and of the server" in told and f"at most {3600 / pair:.2f} s" in told
    assert f"until 80 %, of which SFLV1 takes a third, are {all_of_them:,} steps, the grid {whole:,}" in told
    assert round(all_of_them / each / table2.ROUNDS["sflv1"]) == 3
    local, network = 39.896e9 / 2, 555.4e6 * batch  # client and head; client and server
    client = local - 655_360 * batch
    flop = 2 * (2 * local + 3 * (network - client))
    assert f"They are {flop / 1e9:.0f} GFLOP" in told and f"{flop * pair / 3600 / 1e12:.1f} TFLOP/s" in told


def test_what_only_a_gpu_shows_is_told_call_by_call(on_gpu: Bench) -> None:
    """Mutations: a call that fails hides the others; the exception is lost."""

    def fails() -> None:
        raise RuntimeError("no such kernel\nand so on")

    selfcheck.each(on_gpu, [("one", fails), ("two", lambda: None)])
    assert [(check.name, check.right, check.source) for check in on_gpu.checks] == [
        ("one", False, "RuntimeError: no such kernel"),
        ("two", True, "it holds or not"),
    ]


@pytest.mark.parametrize("call", [selfcheck.repeated_split, selfcheck.repeated_small, selfcheck.company])
def test_a_call_that_a_cpu_can_make_holds_there(bench: Bench, call: Any) -> None:
    call(bench)
