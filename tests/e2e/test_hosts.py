"""Runs over three hosts of two ranks each, which are network namespaces of this one."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import LIMIT, ROOT, UNDER_MPI, run_process
from tests.e2e.made import rounds_of
from tests.launch import here
from tests.tools.cluster import wait_for
from tests.tools.hosts import Hosts, hosts, pythons, why_not
from zofl_mpi.report.same import differences
from zofl_mpi.run import records

FAMILY = "zofl_mpi.zo_hfl"
RUN = ["--data", "digits", "--m", "7", "--tau", "2", "--rounds", "4", "--eval-every", "2", "--dtype", "float64"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def three() -> Iterator[Hosts]:
    reason = "launchers cannot be started under mpirun" if UNDER_MPI else why_not()
    if reason:
        pytest.skip(reason)
    with hosts(3) as found:
        yield found


@pytest.fixture(params=["openmpi", "mpich"])
def mpi(request: pytest.FixtureRequest) -> str:
    if request.param not in pythons():
        pytest.skip(f"needs the wheel of {request.param} in this environment; TEST_MPICH may name another one's Python")
    return str(request.param)


def test_three_hosts_give_the_bits_of_one_process_each_with_data_of_its_own(
    three: Hosts, tmp_path: Path, mpi: str
) -> None:
    """Mutations: data made at rank 0 only, or by every rank of a host; a client on a host that has no place for it."""
    out, alone = tmp_path / "run.h5", tmp_path / "alone.h5"
    variables = {**three.variables(mpi), "ZOFL_CACHE": str(three.folder / "local" / mpi)}
    words = ["-m", FAMILY, *RUN, "--quiet", "--out", out]
    done = run_process(three.command(mpi, pythons()[mpi], 6, *words), LIMIT, tmp_path, variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert here(FAMILY, *RUN, "--quiet", "--out", alone) == 0
    assert differences(alone, out) == []
    places = records.load(out).placements
    assert [row["host"] for row in places] == ["h1", "h1", "h2", "h2", "h3", "h3"]
    assert [row["clients"] for row in places] == [0, 2, 2, 1, 1, 1]
    entries = [[entry.name for entry in (three.folder / f"local-{k}" / mpi).iterdir()] for k in (1, 2, 3)]
    assert entries[0] == entries[1] == entries[2] and len(entries[0]) == 1


def test_a_host_that_is_cut_off_ends_the_run_with_a_sentence_and_the_run_resumes(
    three: Hosts, tmp_path: Path, mpi: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: the launcher is left to itself, Open MPI's waits for ever."""
    out, alone, told = three.folder / f"cut-{mpi}.h5", tmp_path / "alone.h5", tmp_path / "told.txt"
    own = ["--method", "planted:Planted"]
    words = [*RUN, *own, "--rounds", "40", "--checkpoint-every", "5"]
    variables = {**three.variables(mpi), "PLANT": "slow", "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"}
    launch = three.command(
        mpi, pythons()[mpi], 6, "-m", FAMILY, *words, "--round-timeout", "8", "--quiet", "--out", out
    )
    with told.open("w") as log:
        run = subprocess.Popen(launch, env=variables, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_for(lambda: rounds_of(out) > 6, told.read_text)
            three.cut(3)
            assert run.wait(LIMIT) != 0
        finally:
            three.mend(3)
            run.kill()
    # Rank 0 may be within a blocking collective as the link is cut; it then hears of none, and the others are named.
    late = r"late: (rank [123] on h[12], )*rank 4 on h3, rank 5 on h3( \([2-4] of 5|, or some of them)"
    assert re.search(f"takes longer than --round-timeout 8 s; {late}", told.read_text()), told.read_text()
    monkeypatch.syspath_prepend(Path(__file__).parent)
    assert here(FAMILY, "--resume", out, *own, "--quiet") == 0
    assert here(FAMILY, *words, "--quiet", "--out", alone) == 0
    assert differences(alone, out) == []
