"""Ranks as threads of one process: a strict twin of an mpi4py communicator, and runs on it.

`run_ranks(3, program)` calls program(world) in three threads; their worlds are `MPIWorld`s whose communicator moves
arrays within the process. What MPI leaves undefined, or answers by waiting for ever, is an error here, in a sentence:
`Mismatch` where ranks call different collectives or sizes, two threads of a rank are in the communicator at once, a
buffer changes while a request owns it, or a rank ends with collectives left to make; `Stuck` where nothing moves.

A rank that raises ends them all, as a launcher would, and its exception is raised again by `run_ranks`. A rank that
raises `Vanished` is gone, and the others can do what ULFM offers: what waits for it raises `RankLost`; `Revoke`, by
which every call on that communicator raises `Revoked`; `Shrink` to those that are left; `Agree`. A `Fate` says which
call a rank does not survive. `synchronous`: whether no rank leaves a collective before all have come to it.
"""

import ast
import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from tests.communicator import Communicator
from tests.fates import Aborted, Fate, Group, Killed, Mismatch, RankLost, Ranks, Revoked, Stuck, Vanished
from zofl_mpi.engine.setting import Loads
from zofl_mpi.engine.watch import Watch
from zofl_mpi.run.command import cli
from zofl_mpi.run.loop.signals import Stop
from zofl_mpi.run.mpi.client import ClientRank
from zofl_mpi.run.mpi.server import MPIClients
from zofl_mpi.run.mpi.world import MPIWorld
from zofl_mpi.run.records import Recorder

PATIENCE = 60.0
"""Seconds without any movement after which the ranks are stuck."""
LOOK = 0.05
"""Seconds between two looks at whether something has moved. Looks without movement are counted, so that a process that
got no core for a while is not stuck."""
GRACE = 2.0
"""Seconds for the other threads to end once one rank has failed; one that waits in a queue never does."""


def run_ranks(
    size: int,
    program: Callable[[MPIWorld], Any],
    *,
    synchronous: bool = False,
    patience: float = PATIENCE,
    fate: Fate | None = None,
) -> list[Any]:
    """Calls program(world) on ranks 0 to size - 1, each a thread; returns their results, None for a rank that vanished.

    Args:
        fate: of the ranks of a world that may survive the loss of some.

    Raises:
        Aborted: a rank called Abort.
        Stuck, Mismatch: see above.
        Exception: whatever a rank raised first.
    """
    ranks = Ranks(size, synchronous, fate or Fate())
    groups = [Group(name, tuple(range(size))) for name in NAMES]
    results: list[Any] = [None] * size

    def work(rank: int) -> None:
        try:
            results[rank] = program(_world(ranks, groups, rank, fate is not None))
        except Killed:
            pass
        except Vanished:
            ranks.lose(rank)
        except BaseException as exc:
            ranks.fail(exc)
        with ranks.changed:
            ranks.move()

    def failed(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, Killed | Vanished):
            ranks.fail(args.exc_value)

    before = set(threading.enumerate())
    threads = [threading.Thread(target=work, args=(k,), name=f"rank {k}", daemon=True) for k in range(size)]
    with mock.patch.object(threading, "excepthook", failed):
        for thread in threads:
            thread.start()
        _watch(ranks, threads, patience)
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline and (ranks.failure or ranks.lost) and _working(before):
            time.sleep(0.002)
        _end_watches(before)
    if ranks.failure is not None or 0 in ranks.lost:
        _close_results()
    if ranks.failure is not None:
        raise ranks.failure
    if not ranks.lost:
        for group in [*groups, *ranks.made]:
            for k, call in group.calls.items() if not group.revoked else ():
                missing, place = sorted(set(range(len(group.members))) - call.left), f"collective {k} of {group.name}"
                raise Mismatch(f"the end: ranks {missing} have not completed {call.name}, {place}")
    return results


def _close_results() -> None:
    """Closes the result of a rank 0 that has ended, as its process would: its thread may wait in a queue for ever."""
    for found in gc.get_objects():
        if type(found) is Recorder and hasattr(found, "_let_go"):  # not one that was refused before it had a file
            found.abandon()


def _end_watches(before: set[threading.Thread]) -> None:
    """Ends the threads that look at a round's time, as the end of a process would, and waits for them."""
    looking = [thread for thread in set(threading.enumerate()) - before if Watch._look.__name__ in thread.name]
    for found in gc.get_objects() if looking else ():
        if type(found) is Watch:
            found.ends()
    deadline = time.monotonic() + GRACE
    for thread in looking:
        thread.join(max(0.0, deadline - time.monotonic()))


def _working(before: set[threading.Thread]) -> bool:
    """Whether a thread is still there that was not before; one that looks at a round's time, or a timer, may stay."""
    new = [thread for thread in set(threading.enumerate()) - before if not isinstance(thread, threading.Timer)]
    return any(Watch._look.__name__ not in thread.name for thread in new)


NAMES = ("comm", "node")


def _world(ranks: Ranks, groups: Sequence[Group], rank: int, ulfm: bool) -> MPIWorld:
    comm, node = (Communicator(ranks, group, rank) for group in groups)
    world = MPIWorld(comm, node, "threads", *(((RankLost, Revoked), "") if ulfm else ((), "ULFM")))

    def abort(text: str, stopped: Sequence[Any] = ()) -> None:
        with ranks.changed:
            ranks.check_alive(rank)  # a process that has been ended prints nothing more
        sys.stderr.write(f"{text}\n")
        if world.survival is None:
            comm.Abort(1)
        ranks.lose(rank)
        raise Vanished

    def survive(watch: Watch) -> None:
        MPIWorld.survive(world, watch)
        setattr(world.survival, "_give_up", give_up)  # noqa: B010
        begins = watch.begins

        def noted(following: bool = True) -> None:
            begins(following)
            if following:
                ranks.begins(rank)

        watch.begins = noted  # type: ignore[method-assign]

    def give_up() -> None:
        if rank not in ranks.lost:  # a process that is gone has no watch
            ranks.fail(Stuck(f"rank {rank} gives up"))

    world.survive = survive  # type: ignore[method-assign]
    world.abort = world.halt = abort  # type: ignore[method-assign]
    world.leave = lambda status, limit=0.0: None  # type: ignore[method-assign]
    return world


def _watch(ranks: Ranks, threads: Sequence[threading.Thread], patience: float) -> None:
    """Until all ranks have ended, or one has failed, or none moves."""
    moves, looks = -1, 0
    while not ranks.failure and (left := [t for k, t in enumerate(threads) if k not in ranks.lost and t.is_alive()]):
        left[0].join(LOOK)
        with ranks.changed:
            moves, looks = ranks.moves, looks + 1 if moves == ranks.moves else 0
            if looks * LOOK >= patience:
                ranks.fail(Stuck(f"nothing moved for {patience:g} s: " + "; ".join(_places(ranks, threads))))


TWIN = ("threading.py", "tests/threads.py", "tests/communicator.py")
"""Files in which every rank waits."""


def _places(ranks: Ranks, threads: Iterable[threading.Thread]) -> Iterator[str]:
    frames = sys._current_frames()
    for rank, thread in enumerate(threads):
        if thread.is_alive() and thread.ident in frames:
            stack = traceback.extract_stack(frames[thread.ident])
            own = [f for f in stack if not f.filename.endswith(TWIN)]
            where = f"{own[-1].name} ({own[-1].filename.rpartition('/')[2]}:{own[-1].lineno})" if own else "its start"
            waiting = f", waits for {ranks.waiting[rank]}" if rank in ranks.waiting else ""
            yield f"rank {rank} is in {where}{waiting}"
        else:
            yield f"rank {rank} has ended"


@contextmanager
def _one_draws() -> Iterator[None]:
    """Whoever sets torch's generator, which a process has one of, is alone with it until it has been put back."""
    if "torch" not in sys.modules:
        yield
        return
    import torch

    lock, fork = threading.RLock(), torch.random.fork_rng

    @contextmanager
    def alone(*given: Any, **named: Any) -> Iterator[None]:
        with lock, fork(*given, **named):
            yield

    with mock.patch.object(torch.random, "fork_rng", alone):
        yield


@contextmanager
def _one_parses() -> Iterator[None]:
    """Threads read arrays' headers one after the other: CPython 3.11 counts the depth of a syntax tree once for all."""
    lock, parse = threading.Lock(), ast.literal_eval

    def alone(text: str) -> Any:
        with lock:
            return parse(text)

    with mock.patch.object(ast, "literal_eval", alone):
        yield


def serve_or_ask(
    world: MPIWorld, method: Any, data: Sequence[Any], program: Callable[[Any], Any], loads: Loads | None = None
) -> Any:
    """At rank 0 the result of program(clients); the other ranks, which have the clients, serve it."""
    if world.rank:
        assert ClientRank(world, method, data, loads=loads).serve() == 0
        return None
    clients = MPIClients(world, len(data), loads=loads)
    result = program(clients)
    clients.close()
    return result


def run_module(
    ranks: int, module: str, *arguments: object, patience: float = PATIENCE, fate: Fate | None = None
) -> int:
    """`mpirun -n RANKS python -m MODULE ARGUMENTS`, and without mpirun for 1, in this process; its exit status.

    With a fate as under `mpirun --with-ft ulfm`, that of the ranks that are left; see `run_ranks`.
    """
    words = [str(word) for word in arguments]
    worlds = threading.local()  # signals, below, are the main thread's

    def program(world: MPIWorld | None) -> int:
        worlds.own = world
        try:
            cli.main(module, words)
        except SystemExit as exc:
            return int(exc.code or 0)

    with (
        mock.patch.object(Stop, "listen"),
        mock.patch.object(Stop, "ignore"),
        mock.patch.object(Stop, "tell"),
        _one_draws(),
        _one_parses(),
    ):
        if ranks == 1:
            return program(None)
        with mock.patch.object(cli, "connect", side_effect=lambda: worlds.own):
            try:
                statuses = run_ranks(ranks, program, patience=patience, fate=fate)
            except Aborted as exc:
                return exc.status
    left = {status for status in statuses if status is not None}  # a rank that is lost has none
    assert len(left) <= 1, statuses
    return int(left.pop()) if left else 1
