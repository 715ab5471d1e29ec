"""Runs in other processes, single or under mpirun, of methods known in this one; for `check_method`.

Arguments are pickled by value into a private folder. Many runs share one start of Python, which costs more than a small
run.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from zofl_mpi.api import ranks
from zofl_mpi.api.arguments import Arguments
from zofl_mpi.api.simulation import simulate
from zofl_mpi.engine.world import RANKS
from zofl_mpi.errors import RunFailed, UserError, mistake

RUN = """import json, sys
sys.path[:] = json.load(open(sys.argv[1] + "/path.json"))
from zofl_mpi.api.processes import perform
perform(sys.argv[1])"""
LAUNCHERS = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "MPI_LOCAL", "SLURM_", "HYDI_", "HYDRA_", "PALS_", "FLUX_")
"""Prefixes of launcher variables, which child processes must not inherit."""
OPEN_MPI = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
"""Settings for oversubscription with Open MPI; other MPIs need none."""
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
PATIENCE, GRACE = 300.0, 5.0
"""Seconds that a run may take, and those between SIGTERM and SIGKILL."""


def mpirun() -> str | None:
    """Path of mpirun: this Python's own, else the first in PATH; None: not found."""
    return shutil.which("mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


class Outcome(NamedTuple):
    """Outcome of a run."""

    fault: str = ""  # reason of failure
    unsent: bool = False  # True if it never began: its arguments cannot be sent, or no process starts


def run_all(calls: Sequence[Arguments], count: int, folder: Path) -> list[Outcome]:
    """Run all calls in order on `count` ranks (1: one process).

    If a run ends its processes, the next ones start new ones. `folder` must exist and is for this call only.
    """
    outcomes = [Outcome()] * len(calls)
    waiting = list[int]()
    (folder / "path.json").write_text(json.dumps(sys.path))
    for k, call in enumerate(calls):
        try:
            _refuse_main(call)
            content = ranks.sent((call.method, call.problem, call.data, call.family, count > 1, dict(call.flags)))
        except UserError as exc:
            outcomes[k] = Outcome(str(exc), unsent=True)
        else:
            (folder / f"{k}.pickle").write_bytes(content)
            waiting.append(k)
    while waiting:
        (folder / "waiting.json").write_text(json.dumps(waiting))
        said = _start(count, folder, PATIENCE * len(waiting))
        while waiting and (done := folder / f"{waiting[0]}.json").exists():
            outcomes[waiting.pop(0)] = Outcome(*json.loads(done.read_text()))
        if waiting and (folder / f"{waiting[0]}.begun").exists():
            outcomes[waiting.pop(0)] = Outcome(said)  # it ended its processes
        else:
            for k in waiting:
                outcomes[k] = Outcome(f"no {count} processes can be started: {said}", unsent=True)
            break
    return outcomes


def perform(folder: str) -> None:
    """Execute the waiting runs of a folder, on every rank of this start."""
    is_first = next((os.environ[name] for name in RANKS if name in os.environ), "0") == "0"
    for k in json.loads((Path(folder) / "waiting.json").read_text()):
        outcome = Outcome()
        if is_first:
            (Path(folder) / f"{k}.begun").touch()
        try:
            method, problem, data, family, mpi, flags = ranks.received((Path(folder) / f"{k}.pickle").read_bytes())
        except Exception as exc:  # a user's module may raise anything
            outcome = Outcome(f"it cannot be loaded in another process: {mistake(exc)}", unsent=True)
        else:
            try:
                simulate(method, problem, data, family=family, mpi=mpi, **flags)
            except RunFailed as exc:
                outcome = Outcome(exc.cause)
            except UserError as exc:
                outcome = Outcome(str(exc))
        if is_first:
            whole = Path(folder) / f"{k}.json.part"
            whole.write_text(json.dumps(outcome))
            whole.rename(whole.with_suffix(""))


def _refuse_main(call: Arguments) -> None:
    """Refuse a class defined in the script itself if it cannot be pickled by value."""
    own = [each for each in (call.method, call.problem) if getattr(each, "__module__", "") == "__main__"]
    if own and not ranks.by_value():
        name = getattr(own[0], "__qualname__", type(own[0]).__name__)
        raise UserError(
            f"{name} is defined in the script itself: move it to a module, or install cloudpickle: "
            "pip install 'zofl_mpi[script]'"
        )


def _start(count: int, folder: Path, patience: float) -> str:
    """Start the processes and wait for their end; return the last output of failed ones."""
    launcher = mpirun()
    command = [sys.executable, "-c", RUN, str(folder)]
    if count > 1:
        assert launcher is not None
        command = [launcher, "-n", str(count), *command]
    with (folder / "said.txt").open("w+", errors="replace") as said:
        process = subprocess.Popen(
            command, env=_environment(), stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
        )
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            return f"no end after {patience:.0f} s"
        finally:
            _end(process)
        said.seek(0)
        lines = [line.strip() for line in said.read().splitlines() if line.strip(" -")]
    ours = [line.removeprefix("zofl_mpi: ") for line in lines if line.startswith("zofl_mpi: ")]
    return (ours or lines or [f"its processes ended with status {process.returncode}"])[-1]


def _end(process: subprocess.Popen[Any]) -> None:
    """End remaining processes: SIGTERM first, because mpirun needs it to end its ranks."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(GRACE)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return kept | OPEN_MPI | (AS_ROOT if os.geteuid() == 0 else {})
