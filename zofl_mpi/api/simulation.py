"""Runs from Python: `simulate`, `plan`, and `Simulation`, a run round by round."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, final

from zofl_mpi.api import isolation, ranks
from zofl_mpi.api.arguments import Arguments
from zofl_mpi.api.result import Result
from zofl_mpi.engine.world import SingleProcess, World, at_server, run_or_fail_all
from zofl_mpi.errors import RunFailed, UserError, mistake, root_of
from zofl_mpi.run.command import plan as plans
from zofl_mpi.run.command.build import Built, build, compile_kernel, opened
from zofl_mpi.run.loop.progress import Progress, progress
from zofl_mpi.run.loop.screen import show
from zofl_mpi.run.loop.signals import Stop

if TYPE_CHECKING:
    from zofl_mpi.run.loop.session import Session

REFUSED = {
    "dry_run": "call zofl_mpi.plan",
    "help": "python -m zofl_mpi.FAMILY --help lists all flags",
    "survive": "start the run from the command line",
    "track": "give callbacks=[zofl_mpi.TensorBoard(FOLDER)]",
}
"""{flag without meaning here: alternative}"""
EVENTS = ("on_start", "on_round", "on_end")
"""Functions of callbacks."""


@final
class Simulation:
    """A run, round by round: a context manager that yields each round's columns.

        with zofl_mpi.Simulation("zo_hfl", "softmax", "digits", m=5) as run:
            for row in run:
                ...

    Leaving the block early ends the run after the round in progress. Under mpirun all ranks execute the same code; only
    rank 0 gets rows.

    Attributes:
        rank: of this process.
        method: the method, as built.
        plan: the resolved configuration, {flag: value}.
        row: columns of the last round; {} before the first.
        result: a `Result`, once the run has ended; of a failed run, too.
    """

    def __init__(
        self,
        method: Any,
        problem: Any = None,
        data: Any = None,
        *,
        family: str = "",
        callbacks: Sequence[Any] = (),
        mpi: bool | None = None,
        **flags: Any,
    ) -> None:
        """Arguments as for `simulate`; the run starts with the `with` block."""
        self._given = _arguments(method, problem, data, family, flags)
        self._callbacks, self._mpi = callbacks, mpi
        self._call = (method, problem, data), {"family": family, "mpi": mpi, **flags}
        self.rank, self.row = 0, dict[str, float]()
        self.method: Any = None
        self.plan: Mapping[str, Any] = {}
        self._result: Result | None = None
        self._session: Session | None = None
        self._rows: Iterator[dict[str, float]] = iter(())
        self._served, self._started = False, list[Any]()  # callbacks whose on_start was called

    @property
    def result(self) -> Result:
        """The result of the run; UserError while it is in progress."""
        if self._result is None:
            raise UserError("the run has no result yet: read it after the `with` block, or in a callback's on_end")
        return self._result

    @property
    def state(self) -> Any:
        """The state after the last round; at rank 0 only."""
        return self._leads().rounds.state

    @property
    def rounds(self) -> int:
        """Number of finished rounds."""
        return int(self.row.get("round", 0))

    def stop(self, reason: str) -> None:
        """End the run after the round in progress, or after the one just yielded; at rank 0 only."""
        self._leads().rounds.stop(reason)

    def __enter__(self) -> Self:
        arguments, named = self._call
        ranks.announce(simulate, *arguments, **named)
        with ExitStack() as at_a_failure:
            at_a_failure.enter_context(isolation.alone())
            at_a_failure.enter_context(isolation.put_back())
            since = time.perf_counter()
            world = ranks.connect(self._mpi)
            at_a_failure.callback(world.free)
            with ranks.aborting(world):
                built = _built(world, self._given, self._given.flags.get("quiet", True), self._check)
                bar = at_a_failure.enter_context(progress(world.rank > 0 or built.plan.values["quiet"]))
                stop = Stop()
                at_a_failure.callback(stop.restore)
                self._job = opened(built, bar, stop)
                if self._job.recorder is not None:
                    from zofl_mpi.run.loop.session import Session  # HDF5 is for rank 0 only

                    self._session = Session(self._job, lambda: time.perf_counter() - since)
                    self._rows = self._session.rows()
            self.rank, self.method, self.plan = world.rank, built.method, built.plan.config
            self._end = at_a_failure.pop_all()
        return self

    def _check(self) -> None:
        """Refuse a second run, and callbacks that nobody would call."""
        if self.method is not None:
            raise UserError("this Simulation has run: make another one")
        allowed = f"objects with one or more of the functions {', '.join(EVENTS)}"
        if not isinstance(self._callbacks, Sequence):
            raise UserError(f"callbacks is a {type(self._callbacks).__name__}; it must be a list of {allowed}")
        for each in self._callbacks:
            if isinstance(each, type) or not any(hasattr(each, event) for event in EVENTS):
                what = f"the class {each.__name__}" if isinstance(each, type) else f"a {type(each).__name__}"
                raise UserError(f"callbacks has {what} in it; it must have {allowed}")

    def __iter__(self) -> Iterator[dict[str, float]]:
        if self.method is None:
            raise UserError("the run has not begun: iterate in a `with` block, with Simulation(...) as run:")
        if self._session is not None:
            self._session.rounds.interleaved = True
        yield from self._run()

    def _run(self) -> Iterator[dict[str, float]]:
        """Compute rounds, with callbacks."""
        if self._session is None:
            self._serve()
            return
        self._session.rounds.interleaved |= bool(self._callbacks)
        for callback in self._callbacks[len(self._started) :]:
            self._started.append(callback)
            _tell(callback, "on_start", self)
        while (row := self._next(self._session)) is not None:
            for callback in self._callbacks:
                _tell(callback, "on_round", self, row)
            yield row

    def _next(self, session: Session) -> dict[str, float] | None:
        """Compute a round; None after the last one."""
        try:
            row = next(self._rows, None)
        except RunFailed as failure:
            trace = root_of(failure).__traceback__
            raise failure.with_traceback(trace)  # a debugger begins where the fault is  # noqa: B904
        self.row = self.row if row is None else row
        return row

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._end:
            world = self._job.world
            if self._session is None:
                if exc is not None:  # the others wait for this rank
                    world.abort(ranks.last_words(exc))
                with ranks.aborting(world):
                    self._serve()
                    result = world.bcast(None)
                self._learn(result)
                return
            try:
                if exc is None and not self._session.rounds.ended:
                    self.stop("the script ended it")
                    while self._next(self._session) is not None:
                        pass
                if exc is None:
                    self._ended(self._session, world)
            except BaseException as failure:
                self._failed(self._session, world, failure)
                raise
            if exc is not None:
                self._failed(self._session, world, exc)
                return
            # all ranks have the result: an exception of a callback affects no other rank
            with ExitStack() as at_the_end:
                for callback in reversed(self._started):
                    at_the_end.callback(_tell, callback, "on_end", self)
                if not self._job.plan.values["quiet"]:
                    show(self._session.closing())

    def _ended(self, session: Session, world: World) -> None:
        """Give all ranks the result of a run that is done, stopped or interrupted by a signal."""
        session.clients.close()
        session.job.watch.ends()
        ended, reason = session.rounds.ended, session.rounds.reason if session.rounds.ended == "stopped" else ""
        self._share(session, world, ended, reason)

    def _share(self, session: Session, world: World, status: str, reason: str) -> None:
        """Send the result to all ranks."""
        config = json.loads(json.dumps(self.plan))  # as the file has it
        result = Result(str(session.recorder.path), status, self.row, config, reason=reason)
        self._result = replace(result, built=self._given, problem=self.method.setting.problem)
        world.bcast(result)

    def _failed(self, session: Session, world: World, exc: BaseException) -> None:
        """Close the result of a failed run and end callbacks; raise on all ranks, or end those that cannot respond."""
        session.break_off(exc)
        status = "interrupted" if isinstance(exc, KeyboardInterrupt) else "failed"
        reason = str(exc) if isinstance(exc, UserError) else f"{type(exc).__name__}: {exc}".removesuffix(": ")
        responds = isinstance(exc, Exception) and session.clients.give_up()
        if responds:
            session.clients.close(1)
        self._share(session, world if responds else SingleProcess(), status, reason)
        try:
            for callback in self._started:
                try:
                    _tell(callback, "on_end", self)
                except Exception as second:  # the caller gets the run's own failure
                    exc.add_note(f"{type(callback).__name__}.on_end failed, too: {mistake(second)}")
        finally:
            if world.size > 1 and not responds:
                world.abort(ranks.last_words(exc))

    def _serve(self) -> None:
        if not self._served:
            self._served = True
            self._job.serve()
            self._job.watch.ends()

    def _learn(self, result: Result) -> None:
        """Receive rank 0's outcome."""
        own = replace(result, rank=self.rank, built=self._given, problem=self.method.setting.problem)
        self._result, self.row = own, dict(result.row)
        if result.status == "failed":
            raise RunFailed(f"rank 0: {result.reason}")

    def _leads(self) -> Session:
        if self._session is None:
            where = f"rank {self.rank}" if self.rank else "a run that has not begun"
            raise UserError(f"{where} has no state and cannot stop a run: use rank 0, within the `with` block")
        return self._session


def _tell(callback: Any, event: str, *arguments: Any) -> None:
    """Call a callback's function for the event, if it has one."""
    getattr(callback, event, lambda *_: None)(*arguments)


def simulate(
    method: Any,
    problem: Any = None,
    data: Any = None,
    *,
    family: str = "",
    callbacks: Sequence[Any] = (),
    mpi: bool | None = None,
    **flags: Any,
) -> Result:
    """Run a federated method; under mpirun all ranks call it, and rank 0 gets the whole result.

    Args:
        method: a name listed by `python -m zofl_mpi`, your class, or a `Result` to continue.
        problem: a name, your class, a `TorchProblem` or a `SplitProblem`; None: the method's default.
        data: a name or a file's path, as for --data, or a `Federation` in memory; None: the default.
        family: zo_hfl, fedrzo or heron_sfl; needed if method and problem belong to several.
        callbacks: objects with some of on_start(run), on_round(run, row) and on_end(run), called at rank 0: before the
            first round, after each round and before its checkpoint, and once the result is closed. A failed run ends,
            too (`run.result.status`). Their time counts for no round.
        mpi: False: this process alone, even under a launcher; True: MPI in any case.
        flags: those of `python -m zofl_mpi.FAMILY --help`, with underscores; quiet is True by default.

    Raises:
        UserError: a mistake, found before the first round; nothing was written.
        RunFailed: a round failed; the result file has the earlier rounds. Raised on all ranks.
    """
    with Simulation(method, problem, data, family=family, callbacks=callbacks, mpi=mpi, **flags) as run:
        for _ in run._run():
            pass
    return run.result


@final
@dataclass(frozen=True)
class Planned:
    """Plan of a run that is not executed.

    Attributes:
        config: the resolved configuration, {flag: value}.
        expected: costs known to the method, and measured seconds, {description: value}.
    """

    config: Mapping[str, Any]
    expected: Mapping[str, Any]

    def __str__(self) -> str:
        return plans.in_words(self.config, self.expected)


def plan(
    method: Any, problem: Any = None, data: Any = None, *, family: str = "", mpi: bool | None = None, **flags: Any
) -> Planned:
    """Resolved configuration and expected cost of a run, as printed by --dry-run; arguments as for `simulate`.

    Seconds are measured at rank 0; the other ranks get the configuration only.
    """
    ranks.announce(plan, method, problem, data, family=family, mpi=mpi, **flags)
    with isolation.alone(), isolation.put_back(), ExitStack() as end:
        world = ranks.connect(mpi)
        end.callback(world.free)
        with ranks.aborting(world):
            built = _built(world, _arguments(method, problem, data, family, flags), quiet=True, dry_run=True)
            compile_kernel(world, built.method)
            return Planned(built.plan.config, built.expected() if world.rank == 0 else {})


def _arguments(method: Any, problem: Any, data: Any, family: str, flags: Mapping[str, Any]) -> Arguments:
    """The arguments, completed by those of a result to continue."""
    for name, advice in REFUSED.items():
        if flags.get(name):
            raise UserError(f"{name}: has no effect in a script; {advice}")
    if isinstance(method, Result):
        return method.continued(problem, data, family, flags)
    return Arguments(method, problem, data, family, dict(flags))


def _built(
    world: World, given: Arguments, quiet: bool, check: Callable[[], None] = lambda: None, dry_run: bool = False
) -> Built:
    """The run on all ranks, after a comparison of their arguments; `check`: UserError for further ones."""
    own = {**given.flags, "quiet": quiet, **({"dry_run": True} if dry_run else {})}
    given = replace(given, flags=own, data=ranks.shared(world, given.data))

    def words() -> list[str]:
        check()
        return given.words()

    ranks.compare(world, run_or_fail_all(world, words))
    family = run_or_fail_all(world, given.chosen)
    plan = world.bcast(at_server(world, lambda: given.planned(family)))
    return build(world, family, plan, Progress())
