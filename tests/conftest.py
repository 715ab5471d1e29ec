"""For all tests: nothing hangs, a rank that fails ends the others, and `mpirun` runs from inside a test.

Time limits are for what hangs: a machine that is ten times slower, because it is busy, must not meet them.
"""

import faulthandler
import fcntl
import gc
import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]
Capsys = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
DEADLINE = float(os.environ.get("MPI_TEST_DEADLINE", "300"))
LIMIT = 300.0
"""Seconds after which a process that a test has started counts as hanging; below pytest's faulthandler_timeout."""
LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "SLURM_STEP_NUM_TASKS")
UNDER_MPI = any(name in os.environ for name in LAUNCHED)
"""Started by mpirun or srun. Importing mpi4py to find out would start MPI in a process that may then start mpirun."""
# Files of tests run side by side, and threads that wait for each other starve them; read by libraries when they load.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Compiled modules are kept, as they are for users: else each of the suite's thousands of processes compiles them anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A secret of the tests' own in place of the user's: see run/command/stored.py.
os.environ["XDG_STATE_HOME"] = str(Path(tempfile.gettempdir()) / f"zofl-tests-{os.getuid()}")
for terminal in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(terminal, None)  # lines are as long and as plain for everyone
# The same examples each time: a test that fails once in a thousand runs would fail somebody who has changed nothing.
# Others: `pytest --hypothesis-profile=search`.
hypothesis.settings.register_profile("search", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("same", hypothesis.settings.get_profile("search"), derandomize=True, database=None)
hypothesis.settings.load_profile("same")


def world() -> Any:
    """COMM_WORLD under a launcher, else None."""
    if not UNDER_MPI:
        return None
    from mpi4py import MPI

    return MPI.COMM_WORLD if MPI.COMM_WORLD.size > 1 else None


def _one_at_a_time_in_numbas_folder() -> None:
    """Two processes that compile other types of a function at once might leave one's code under the other's name."""
    from numba.core.caching import IndexDataCacheFile

    def alone(call: Callable[..., Any]) -> Callable[..., Any]:
        def locked(self: Any, *given: Any) -> Any:
            folder = Path(self._cache_path)
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "numba.lock").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                return call(self, *given)

        return locked

    for name in ("load", "save"):
        setattr(IndexDataCacheFile, name, alone(getattr(IndexDataCacheFile, name)))


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # while tests are collected: all that they import stays, and looking at it takes a third
    if "PYTEST_XDIST_WORKER" in os.environ and importlib.util.find_spec("numba"):
        _one_at_a_time_in_numbas_folder()
    config.addinivalue_line("markers", "gpu: needs a CUDA device; skipped where there is none")
    config.addinivalue_line("markers", "slow: takes more than about ten seconds; leave out with -m 'not slow'")


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        from zofl_mpi.engine import device

        if not device.visible("auto"):
            pytest.skip("no CUDA device that torch sees here")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Under mpirun a mismatched collective blocks in C, where only faulthandler's own thread can end the process."""
    if world():
        faulthandler.dump_traceback_later(DEADLINE, exit=True)
    try:
        return (yield)
    finally:
        if world():
            faulthandler.cancel_dump_traceback_later()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One rank's failure would leave the others in their next collective for ever: end them all, with the reason."""
    ranks = world()
    if report.failed and ranks:
        stream = sys.__stderr__ or sys.stderr
        stream.write(f"\n[rank {ranks.rank}] {report.nodeid} failed\n{report.longreprtext}\n")
        stream.flush()
        ranks.Abort(1)


@pytest.fixture(autouse=True)
def same_initial_parameters() -> None:
    """What torch draws without a generator, as for a new module, is the same whichever tests ran before."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(0)  # torch.manual_seed keeps a stack for each kind of device that may come
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)


@pytest.fixture(scope="module", autouse=True)
def earlier_files_cost_no_collection() -> None:
    """The garbage collector skips what earlier files of tests keep: in a worker soon a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def small_runs_start_soon() -> Iterator[None]:
    """The disk's own time is a part of a small run, and a reader waits for the end of a write, which none is here."""
    from zofl_mpi.run.records import hdf5

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda number: None)  # no test cuts the power
        patch.setattr(hdf5, "time", SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 50)))
        yield


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where a test computes: "cpu", and once more on "cuda" where there is a GPU (`pytest -m gpu` for these alone)."""
    return str(request.param)


@pytest.fixture
def comm() -> Iterator[Any]:
    """A duplicate of COMM_WORLD, so that a stray message of one test cannot meet the next test's."""
    from mpi4py import MPI

    duplicate = MPI.COMM_WORLD.Dup()
    yield duplicate
    duplicate.Free()


def data_folder() -> Path:
    """The folder with mnist/, cifar10/ and so on: $ZOFL_DATA, or ../shared/data beside the checkout."""
    return Path(os.environ.get("ZOFL_DATA") or ROOT.parent / "shared" / "data")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """`data_folder`, where there is one."""
    folder = data_folder()
    if not folder.is_dir():
        pytest.skip(f"no data folder {folder}: set ZOFL_DATA to one with mnist/, fashion-mnist/, cifar10/, e2e/")
    return folder


Completed = subprocess.CompletedProcess[str]


def environment() -> dict[str, str]:
    """For a process that a test starts: none of this process's launcher's variables, and this Python's mpirun first."""
    taken = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "MPI_LOCAL", "SLURM_", "HYDI_", "HYDRA_", "COV_CORE_", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(taken)}
    kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    kept["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    # What jobs/environment.sh writes into the environment's own files; here too, for a cluster's Open MPI.
    kept |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "PRTE_MCA_hwloc_default_binding_policy": "none"}
    kept |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_rmaps_base_oversubscribe": "1", "PYTHONUNBUFFERED": "1"}
    if os.geteuid() == 0:
        kept |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return kept


def run_process(
    command: list[str],
    timeout: float = LIMIT,
    cwd: str | os.PathLike[str] | None = None,
    env: dict[str, str] | None = None,
) -> Completed:
    """Run `command` in a process group of its own; at the timeout that is killed, and the test fails."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment() | (env or {}),
        text=True,
        errors="replace",
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except BaseException as error:
        _kill(process)
        stdout, stderr = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            pytest.fail(f"{' '.join(command)}: no end after {timeout:.0f} s\n{stdout}\n{stderr}")
        raise
    return Completed(command, process.returncode, stdout, stderr)


def _kill(process: subprocess.Popen[str]) -> None:
    """First the polite signal: mpirun puts ranks into groups of their own, and ends them only if it may."""
    for number, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
        try:
            os.killpg(process.pid, number)
            process.wait(patience)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def start(
    n: int, *args: object, timeout: float = LIMIT, cwd: Any = None, env: dict[str, str] | None = None
) -> Completed:
    """Python with these arguments on n ranks; n = 0 is without mpirun."""
    if UNDER_MPI:
        pytest.skip("mpirun cannot be started under mpirun")
    command = [sys.executable, *map(str, args)]
    if n:
        launcher = shutil.which("mpirun", path=environment()["PATH"])
        if not launcher:
            pytest.skip("no mpirun in this environment")
        command = [launcher, "-n", str(n), *command]
    return run_process(command, timeout, cwd, env)


Mpirun = Callable[..., Completed]


@pytest.fixture
def mpirun() -> Mpirun:
    """`mpirun(n, "-m", "zofl_mpi.zo_hfl", "--rounds", 3)`: on n ranks; n = 0 is without mpirun."""
    return start


class Terminal:
    """A terminal of the test's own: others write to the file `name`, or to `writer`."""

    def __enter__(self) -> "Terminal":
        self.reader, self.writer = os.openpty()
        self.name = os.ttyname(self.writer)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.reader)

    def read(self, until: str) -> str:
        """What is written up to these words; without them until all writers have gone."""
        deadline, text = time.monotonic() + LIMIT, ""
        if not until:
            os.close(self.writer)
        with suppress(OSError):  # nobody writes any more
            while not (until and until in text) and time.monotonic() < deadline:
                text += os.read(self.reader, 65536).decode(errors="replace")
        return text


class Hands:
    """A clock that is set by hand, and looked at every 10 ms: no busy machine lets anything last too long."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    process_time = perf_counter = monotonic  # this process computes all the time

    def sleep(self, seconds: float) -> None:
        time.sleep(0.01)
