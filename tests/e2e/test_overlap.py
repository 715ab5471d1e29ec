"""The server trains while the clients compute, and the result says so; compute = sleep, so that cores do not matter."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.agreement import bits
from tests.bench_overlap import SEVERAL, USUAL
from tests.conftest import UNDER_MPI, Completed
from zofl_mpi.run import records

Mpirun = Callable[..., Completed]
H, TRIES = 20, 3
SLEEPING = f"{USUAL} --problem tests.bench_overlap:Sleeping --m 2 --h {H} --rounds 4 --eval-every 9"
"""HERON: two passes of 10 ms a step at each of two clients, two steps of 10 ms at the server. First order: one pass."""
RUNS = {
    "heron": "--method heron",
    "cse_fsl": "--method cse_fsl",
    "fsl_sage": "--method fsl_sage --l 9",  # the head is aligned in round 0 only
    "streaming": "--method tests.bench_overlap:Measured",
    "lockstep": "--method tests.bench_overlap:Measured --asks lockstep",
}


def started(mpirun: Mpirun, ranks: int, folder: Path, names: list[str]) -> tuple[dict[str, records.Run], Completed]:
    runs = [("0.01 0.01 16", f"{SLEEPING} {RUNS[name]} --out {folder / name}.h5".split()) for name in names]
    ended = mpirun(ranks, "-c", SEVERAL, json.dumps(runs), timeout=200, env={"OMP_NUM_THREADS": "1"})
    assert ended.returncode == 0, ended.stderr
    return {name: records.load(folder / f"{name}.h5") for name in names}, ended


Tries = dict[int, tuple[dict[str, records.Run], Completed]]


@pytest.fixture(scope="module")
def tries() -> Tries:
    """What earlier tests have run; on 3 ranks, one start a try."""
    if UNDER_MPI:
        pytest.skip("mpirun cannot be started under mpirun")
    return {}


def attempt(k: int, tries: Tries, mpirun: Mpirun, folder: Path) -> dict[str, records.Run]:
    if k not in tries:
        tries[k] = started(mpirun, 3, folder, list(RUNS))
    return tries[k][0]


def middle(run: records.Run) -> dict[str, np.ndarray]:
    """Rounds without evaluation."""
    found = run.overlap()
    return {name: getattr(found, name)[1:-1] for name in ("wall", "clients", "server", "share")}


@pytest.mark.parametrize("name", ["heron", "cse_fsl", "fsl_sage", "streaming"])
def test_a_round_takes_no_longer_than_the_slower_side_and_the_filling_of_the_pipe(
    mpirun: Mpirun, tries: Tries, tmp_path: Path, name: str
) -> None:
    """1.15 of the longer side, and the first step of the clients and the last of the server, which nothing can hide.

    The best round of three starts: the machine may be busy. Lockstep takes the sum of both, 2 or 1.5 of the longer.
    Mutations: the server reads all uploads before it trains; a client rank computes all items before it sends the
    first.
    """
    seen = []
    for k in range(TRIES):
        found = middle(attempt(k, tries, mpirun, tmp_path)[name])
        longer = np.maximum(found["clients"], found["server"])
        assert (found["clients"] > H * 0.01).all() and (found["server"] > 2 * H * 0.01).all()
        fill = (found["clients"] + found["server"]) / H
        if (found["wall"] <= 1.15 * longer + fill).any() and (found["share"] > 0.5).any():
            return
        seen.append((found["wall"] / longer, found["share"]))
    pytest.fail(f"wall time in units of the longer side, and overlap: {seen}")


def test_lockstep_takes_the_sum_and_overlaps_nothing(mpirun: Mpirun, tries: Tries, tmp_path: Path) -> None:
    """The measure of the same items in the same order, asked for one by one: the same model, in twice the time.

    Mutations: lockstep that streams after all; `both` without the wall time.
    """
    runs = attempt(0, tries, mpirun, tmp_path)
    found = middle(runs["lockstep"])
    assert (found["wall"] >= 0.98 * (found["clients"] + found["server"])).all()
    assert (found["share"] <= 0.05).all()
    for name in ("theta", "buffers", "theta_s", "buffers_s"):
        assert len({bits(runs[which].final[name]) for which in ("lockstep", "streaming", "heron")}) == 1, name


def test_the_end_of_a_run_says_how_long_both_sides_computed_at_once(
    mpirun: Mpirun, tries: Tries, tmp_path: Path
) -> None:
    """Mutations: the clients' times in place of the server's; the share of the longer side."""
    heron, ended = attempt(0, tries, mpirun, tmp_path)["heron"], tries[0][1]
    seconds = r"(\d+\.\d)"
    told = re.findall(
        rf"^server    computing {seconds} s, waiting {seconds} s, sending {seconds} s; "
        rf"computing at once with the clients {seconds} s \((\d\.\d\d) of the shorter\)$",
        ended.stdout,
        re.MULTILINE,
    )
    assert len(told) >= len(RUNS) - 1, ended.stdout  # lockstep has no such share
    total, ranks = heron.overlap().total(), heron.ranks
    kinds = [ranks[f"seconds_{kind}"][:, :, 0].sum() for kind in ("compute", "wait", "comm")]
    right = [f"{value:.1f}" for value in (*kinds, total.both)] + [f"{total.share:.2f}"]
    assert list(told[0]) == right
    assert kinds[0] == pytest.approx(total.server)


def test_one_process_overlaps_nothing(mpirun: Mpirun, tmp_path: Path) -> None:
    """The clients' times are booked on rank 0 then, and no line speaks of a server."""
    runs, ended = started(mpirun, 0, tmp_path, ["heron"])
    found = middle(runs["heron"])
    assert (found["clients"] > 4 * H * 0.01).all() and (found["server"] > 2 * H * 0.01).all()
    assert (found["share"] < 0.01).all()
    assert not re.search("^server", ended.stdout, re.MULTILINE)
