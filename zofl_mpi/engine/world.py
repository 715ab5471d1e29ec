"""Processes of a run: their number, this one's rank, and how all end together."""

import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast, final

from zofl_mpi.engine.processes import Process
from zofl_mpi.engine.watch import Watch
from zofl_mpi.errors import UserError, plain_lines

T = TypeVar("T")
Faults = tuple[type[Exception], ...]
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""Variables in which launchers store the number of processes."""
RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
"""Variables in which launchers store a process's rank."""
SIGNS = ("PMIX_RANK", "PALS_RANKID", "FLUX_TASK_RANK")  # variables of launchers without that number


class Ended(SystemExit):
    """Raised by `SingleProcess.abort` to end the process."""


class World(Protocol):
    """Processes of a run, for the command line and the loop; the default is one process without MPI."""

    rank: int = 0  # this process's; rank 0 is the server
    size: int = 1  # number of processes
    library: str = "none"  # name and version of the MPI library
    # missing requirements of --survive; "" if ranks may be lost
    missing: str = "clients on ranks of their own, started by mpirun --with-ft ulfm -n RANKS"
    faults: Faults = ()  # exceptions after the loss of a rank that the others survive

    def bcast(self, value: Any) -> Any:
        """Rank 0's `value` on all ranks."""
        return value

    def allgather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on all ranks."""
        return [value]

    def neighbours(self, value: Any) -> tuple[int, list[Any]]:
        """This process's index among the ranks of its node, and all their values."""
        return 0, [value]

    def abort(self, text: str) -> None:
        """Print the text and end all ranks at once, with a non-zero status that the launcher chooses."""
        sys.stdout.flush()
        print(plain_lines(text.rstrip()), file=sys.stderr)
        raise Ended(1)

    def halt(self, text: str, stopped: Sequence[Process] = ()) -> None:
        """Like `abort`, from any thread; ends `stopped` processes, and this one even if others cannot be reached."""
        sys.stdout.flush()
        print(plain_lines(text.rstrip()), file=sys.stderr, flush=True)
        os._exit(1)

    def survive(self, watch: Watch) -> None:
        """Enable the run to survive lost client ranks, if nothing is `missing`."""
        return

    @property
    def is_server(self) -> bool:
        """True if this rank belongs to the server."""
        return self.rank == 0

    def split(self, server_ranks: int) -> None:
        """Makes the ranks 0..server_ranks - 1 the server; the clients live on the others. All ranks call it."""
        return

    def free(self) -> None:
        """Release what connecting allocated, after a script's run; all ranks call it."""
        return

    def leave(self, status: int, limit: float = 0.0) -> None:
        """End this process if MPI's own end would hang; else limit that end to `limit` seconds (0: no limit)."""
        return


@final
class SingleProcess(World):
    """The world of one process, without MPI."""


def launched(environment: Mapping[str, str]) -> int:
    """Number of processes that the launcher reports; 0: no launcher found."""
    sizes = [int(environment[k]) for k in SIZES if environment.get(k, "").isdigit()]
    if environment.keys() & set(SIGNS):
        sizes.append(1)
    return max(sizes, default=0)


def speaks_first(environment: Mapping[str, str] = os.environ) -> bool:
    """True if this process should print messages before MPI is initialised."""
    return next((environment[name] for name in RANKS if name in environment), "0") == "0"


def refuse_singletons(size: int, environment: Mapping[str, str]) -> None:
    """Refuse N separate runs in place of one on N ranks: all would write the same result file."""
    started = launched(environment)
    if size == 1 and started > 1:
        raise UserError(
            f"started as {started} separate processes that do not see each other, not as {started} ranks: launcher and "
            "MPI library do not match; use the mpirun of the MPI in this environment, or srun --mpi=pmi2 or --mpi=pmix"
        )


def run_or_fail_all(world: World, work: Callable[[], T]) -> T:
    """Result of `work`, which every rank does; a UserError on one rank is raised on all."""
    result, problem = _tried(work)
    place = f"rank {world.rank} on {platform.node()}"
    problems = [each for each in world.allgather(None if problem is None else (place, str(problem))) if each]
    if not problems:
        return cast(T, result)
    where, sentence = problems[0]
    if len(problems) < world.size:
        sentence += f" ({where}; {world.size - len(problems)} of {world.size} ranks have no such problem)"
    raise UserError(sentence)


def at_server(world: World, work: Callable[[], T]) -> T | None:
    """Result of `work` at rank 0, None on the others; its UserError is raised on all ranks."""
    result, problem = _tried(work) if world.rank == 0 else (None, None)
    problem = world.bcast(problem)
    if problem is not None:
        raise problem
    return result


def once_a_node(world: World, work: Callable[[], T]) -> T:
    """Result of `work`, done by one rank of each node for all its ranks; its UserError is raised on all."""
    place, _ = world.neighbours(None)
    result, problem = _tried(work) if place == 0 else (None, None)
    _, (told, *_) = world.neighbours((result, None if problem is None else str(problem)))

    def known() -> T:
        if told[1] is not None:
            raise UserError(told[1])
        return cast(T, told[0])

    return run_or_fail_all(world, known)


def _tried(work: Callable[[], T]) -> tuple[T | None, UserError | None]:
    """The result of `work`, or its UserError."""
    try:
        return work(), None
    except UserError as exc:
        return None, exc
