"""The doctor tells what a run would find."""

from __future__ import annotations

from collections.abc import Callable

from tests.conftest import Completed


def test_every_rank_is_listed_and_an_exchange_is_timed(mpirun: Callable[..., Completed]) -> None:
    done = mpirun(3, "-m", "zofl_mpi.doctor")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("rank")] == [["rank", str(k)] for k in range(3)]
    assert sum("to 2 clients and back" in line for line in lines) == 3


def test_singletons_are_refused_with_the_remedy(mpirun: Callable[..., Completed]) -> None:
    done = mpirun(0, "-m", "zofl_mpi.doctor", env={"PMI_SIZE": "4"})
    assert done.returncode == 2
    assert "started as 4 separate processes" in done.stderr
    assert "srun --mpi=pmi2" in done.stderr


def test_the_flag_that_moved_to_a_script_is_refused_by_name(mpirun: Callable[..., Completed]) -> None:
    done = mpirun(0, "-m", "zofl_mpi.doctor", "--json", "costs.json")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("zofl_mpi: --json is no longer a flag: python analysis/exchange.py FILE")
