"""How many processes there are, and how all of them go on or end together."""

import ctypes
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import run_process
from tests.threads import run_ranks
from tests.unit.made import complaint
from zofl_mpi.engine.world import SingleProcess, World, launched, refuse_singletons, run_or_fail_all, speaks_first
from zofl_mpi.errors import UserError
from zofl_mpi.run.command import cli
from zofl_mpi.run.mpi import world
from zofl_mpi.run.mpi.communicator import LATE, wake_in_time
from zofl_mpi.run.mpi.world import MPIWorld, connect

PR_GET_TIMERSLACK = 30
"""Linux's number for the question how late a sleeping thread may be woken."""


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 0),
        ({"PATH": "/bin", "SLURM_NTASKS": "8"}, 0),  # an allocation is no launcher: python in a batch script
        ({"OMPI_COMM_WORLD_SIZE": "4"}, 4),
        ({"MPI_LOCALNRANKS": "2", "PMI_SIZE": "6"}, 6),
        ({"SLURM_STEP_NUM_TASKS": "11"}, 11),
        ({"PMIX_RANK": "3"}, 1),
        ({"PMIX_RANK": "3", "OMPI_COMM_WORLD_SIZE": "5"}, 5),
        ({"PMI_SIZE": "many"}, 0),
    ],
)
def test_launchers_say_how_many_processes_they_started(environment: dict[str, str], count: int) -> None:
    assert launched(environment) == count


def test_singletons_in_place_of_ranks_are_refused_with_the_remedy_and_one_speaks() -> None:
    assert isinstance(connect({}), SingleProcess)
    for size, environment in ((1, {}), (1, {"PMI_SIZE": "1"}), (4, {"PMI_SIZE": "4"}), (1, {"PMIX_RANK": "0"})):
        refuse_singletons(size, environment)
    with pytest.raises(UserError, match=r"started as 4 separate processes that do not see each other.* use the mpirun"):
        refuse_singletons(1, {"PMI_SIZE": "4"})
    assert [speaks_first(e) for e in ({}, {"PMI_RANK": "0"}, {"PMI_RANK": "2"}, {"OMPI_COMM_WORLD_RANK": "1"})] == [
        True, True, False, False,
    ]  # fmt: skip


def test_ranks_that_find_no_mpi_library_end_in_a_sentence() -> None:
    """Mutation: mpi4py's own error, whose traceback every rank prints."""
    lost = {"MPI4PY_LIBMPI": "/nowhere/libmpi.so", "OMPI_COMM_WORLD_SIZE": "2"}
    done = run_process([sys.executable, "-m", "zofl_mpi.zo_hfl", "--rounds", "1"], env=lost)
    assert done.returncode == 2 and "MPI cannot start" in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert "load the cluster's module" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("who", "told"),
    [([1], "no file 1 (rank 1 on {}; 2 of 3"), ([1, 2], "no file 1 (rank 1 on {}; 1 of 3"), ([0, 1, 2], "no file 0")],
)
def test_a_problem_of_some_ranks_is_told_alike_on_all(who: list[int], told: str) -> None:
    """With the first one's rank and host, but for a problem of all."""

    def work(world: World) -> int:
        if world.rank in who:
            raise UserError(f"no file {world.rank}")
        return 42

    sentences = set(run_ranks(3, lambda world: complaint(run_or_fail_all, world, lambda: work(world))))
    assert sentences == {told.format(platform.node()) + " ranks have no such problem)" * (len(who) < 3)}


def test_ranks_agree_on_no_mistakes() -> None:
    """A mistake of the program: the rank that meets one ends all."""
    assert run_ranks(2, lambda world: run_or_fail_all(world, lambda: 42)) == [42, 42]
    with pytest.raises(ZeroDivisionError):
        run_ranks(2, lambda world: run_or_fail_all(world, lambda: 1 / world.rank))
    assert run_or_fail_all(SingleProcess(), lambda: 42) == 42


def test_alone_shares_collects_and_aborts_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    alone = SingleProcess()
    assert (alone.bcast(3), alone.allgather(3), alone.neighbours(3)) == (3, [3], (0, [3]))
    with pytest.raises(SystemExit) as caught:
        alone.abort("zofl_mpi: why\n\n")
    assert caught.value.code == 1
    assert capsys.readouterr().err == "zofl_mpi: why\n"


class Aborting:
    """A communicator of three ranks that only keeps the statuses it is ended with."""

    rank, size = 1, 3

    def __init__(self) -> None:
        self.statuses: list[int] = []

    def Abort(self, status: int) -> None:
        self.statuses.append(status)


def test_an_exception_in_a_thread_ends_all_ranks_and_is_told_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    comm = Aborting()
    monkeypatch.setattr(threading, "excepthook", MPIWorld(comm, comm, "fake")._abort_for_thread)

    def fail() -> None:
        raise ArithmeticError("in a thread")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert comm.statuses == [1]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "zofl_mpi: rank 1 failed in its communication thread:"
    assert lines[-1] == "ArithmeticError: in a thread" and any("in fail" in line for line in lines)


@pytest.mark.parametrize("deaf", [False, True], ids=["hears", "hears nothing"])
def test_a_launcher_that_outlives_its_ranks_is_ended(deaf: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations: a signal that it may ignore alone; none."""
    script = "trap '' TERM; " * deaf + "echo ready; while :; do sleep 0.1; done"
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout and launcher.stdout.readline() == b"ready\n"  # else a signal might come before the trap
        monkeypatch.setattr(world, "outermost_launcher", lambda: launcher.pid)
        monkeypatch.setattr(world, "LAST", 0.1)
        world.end_launcher()
        assert launcher.wait(300) == -(signal.SIGKILL if deaf else signal.SIGTERM)


def test_slurms_launcher_is_left_to_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: srun ended too, whose job could then not be requeued."""
    (tmp_path / "srun").symlink_to(shutil.which("sleep") or "")
    with subprocess.Popen([str(tmp_path / "srun"), "2"]) as launcher:
        while Path(f"/proc/{launcher.pid}/comm").read_text() != "srun\n":  # Linux names it after its pipes are closed
            time.sleep(0.001)
        monkeypatch.setattr(world, "outermost_launcher", lambda: launcher.pid)
        monkeypatch.setattr(world, "LAST", 0.1)
        world.end_launcher()
        assert launcher.wait(300) == 0


@pytest.mark.skipif(platform.system() != "Linux", reason="other systems have no such setting")
def test_a_rank_wakes_in_time() -> None:
    """Mutation: sleeps that Linux draws out by 50 us, each longer than it was asked to be."""
    found = []

    def look() -> None:  # in a thread of its own: this process stays as it is
        wake_in_time()
        found.append(ctypes.CDLL(None).prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [LATE]


def test_a_loss_before_the_rounds_is_told_in_a_sentence_without_a_traceback() -> None:
    """Mutations: any other mistake told so; a mistake of the rounds, which the survivors take for one, too."""
    told, rank = [], SimpleNamespace(rank=1, faults=(OSError,))
    for exc in (OSError("gone"), ValueError("else")):
        try:
            raise exc
        except Exception as caught:
            told.append(cli._last_words(caught, rank, 0))
    assert told[0].count("\n") == 0 and "rank 1 ends, since another rank is lost" in told[0]
    assert "Traceback" in told[1] and "ValueError: else" in told[1]
