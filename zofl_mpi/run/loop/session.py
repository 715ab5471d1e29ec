"""Rank 0's part of a run: result file, clients, closing lines, and an orderly end in every case."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine import device
from zofl_mpi.engine.between import composed
from zofl_mpi.engine.clients import Clients
from zofl_mpi.engine.ledger import bytes_in_words
from zofl_mpi.errors import RunFailed, UserError, warn
from zofl_mpi.run import records
from zofl_mpi.run.command.build import Job
from zofl_mpi.run.loop import rounds as loop
from zofl_mpi.run.loop.divergence import has_diverged
from zofl_mpi.run.loop.local import LocalClients
from zofl_mpi.run.loop.screen import show
from zofl_mpi.run.loop.signals import STATUS
from zofl_mpi.run.loop.totals import Totals, short
from zofl_mpi.run.loop.tracking import TensorBoard, tracker
from zofl_mpi.run.mpi.world import MPIWorld

NOTABLE = 0.1
"""Minimum share of a run's time for the closing lines to mention late ranks or evaluations."""
STALLED_EVALUATIONS = 6
"""Number of consecutive evaluations with identical bits that counts as no progress."""


@final
class Session:
    """Rank 0's part of a run: clients, rounds, result; the result is closed in every case."""

    def __init__(self, job: Job, age: Callable[[], float] = device.age) -> None:
        """`age`: seconds since the start of the run."""
        assert job.recorder is not None
        world, method, watch, values = job.world, job.method, job.watch, job.plan.values
        self.job, self.recorder = job, job.recorder
        if world.size == 1:
            self.clients: Clients = LocalClients(list(method.setting.data), method, watch)
        else:
            from zofl_mpi.run.mpi.server import MPIClients

            assert isinstance(world, MPIWorld)
            self.clients = MPIClients(world, method.setting.m, method, watch, job.loads)
        watch.before = 0 if job.resumed is None else job.resumed.round
        schedule = loop.Schedule(values["rounds"], values["eval_every"], values["checkpoint_every"])
        self.rounds = loop.Rounds(method, composed(self.clients, method), schedule, job.recorder, job.bar, age)

    def rows(self) -> Iterator[dict[str, float]]:
        """Columns of each round, as `Rounds.rows`; at any exception the result is closed, or its rows are safe."""
        try:
            with self.job.bar:
                yield from self.rounds.rows(self.job.resumed)
        except UserError as exc:
            self.break_off(exc)
            raise
        except BaseException:  # such as Ctrl-C: rows may wait
            with suppress(UserError):
                self.recorder.flush()
            raise

    def break_off(self, exc: BaseException) -> None:
        """Close the result of a failing run."""
        if isinstance(exc, records.WriteError) or isinstance(exc.__cause__, records.WriteError):
            self.recorder.abandon()
        with suppress(UserError):  # report the run's own failure
            self.recorder.close("interrupted")
        self.job.watch.ends()

    def closing(self) -> str:
        """The closing lines."""
        watch, rounds, stopped = self.job.watch, self.rounds, ""
        if rounds.ended == "interrupted":
            stopped = f"(by {watch.stop() or 'a signal to another rank'}); {watch.remedy()}"
        elif rounds.ended == "stopped":
            stopped = f"({rounds.reason})"
        return closing(rounds.totals, self.recorder.path, stopped, watch.resume)


def lead(job: Job) -> int:
    """Run the rounds and close everything; return the exit status. A failure ends all ranks with one message."""
    session = Session(job)
    track: TensorBoard | None = None

    def end_tracking() -> None:
        if track is not None:
            track.on_end(session)

    try:
        track = tracker(job.plan.values["track"], session.recorder.path)
        for row in session.rows():
            if track is not None:
                track.on_round(session, row)
    except UserError as exc:
        session.break_off(exc)
        with suppress(UserError):  # report the run's own failure
            end_tracking()
        remedy = f"; {job.watch.remedy()}" if job.watch.has_checkpoint else ""
        job.world.abort(f"{exc.trace if isinstance(exc, RunFailed) else ''}zofl_mpi: {exc}{remedy}")
        return 1
    status = STATUS if session.rounds.ended == "interrupted" else 0
    session.clients.close(status)
    show(session.closing())
    try:
        end_tracking()
    except UserError as exc:  # the result is complete
        warn(str(exc))
    return status


def closing(totals: Totals, path: Path, stopped: str = "", resume: str = "") -> str:
    """Closing lines of a run: measures reached, times, bytes sent, path of the result.

    Args:
        stopped: reason of an early end and how to continue; "" for a complete run.
        resume: the command that continues the run.
    """
    lines = [f"stopped after round {totals.round} {stopped}"] if stopped else []
    measures = ("test_accuracy", "personal_accuracy", "test_loss", "objective")
    reached = [f"{k.replace('_', ' ')} {short(v)}" for k, v in totals.last.items() if k in measures]
    if reached:
        lines.append("reached   " + "  ".join(reached))
    if totals.directions:
        lines.append(f"drawn     {totals.directions}")
    if not (stopped or totals.rounds):
        lines.append(f"finished  nothing was left to do; for more rounds: {resume} --rounds {totals.round + 100}")
        return "\n".join([*lines, f"result    {path}"])
    lines.append(f"start     {totals.start:.1f} s before the first round")
    seconds, S = totals.seconds.reshape(-1, 3), totals.servers
    servers, clients = seconds[:S], seconds[S:]
    spent = _spent(np.mean(clients if len(clients) else servers, axis=0))
    who = "each client rank on average" if len(clients) else "in one process"
    lines.append(f"time      {totals.wall:.1f} s for {totals.rounds} rounds; {who}: {spent}")
    if len(clients):
        who = f"{S} ranks, each on average: " if S > 1 else ""
        own = _spent(np.mean(servers, axis=0))
        lines.append(f"server    {who}{own}; {totals.both:.1f} s of its computing while clients computed")
    if totals.evaluating > max(1.0, NOTABLE * totals.wall):  # a short run need not be shorter
        lines.append(
            f"evaluated {totals.evaluating:.1f} s ({totals.evaluating / totals.wall:.0%} of the run): --eval-every "
            "makes evaluations rarer, --eval-samples and --eval-clients smaller"
        )
    slowest, late = max(totals.late.items(), key=lambda item: item[1], default=(0, 0.0))
    if late > NOTABLE * totals.wall:
        lines.append(
            f"waited    the server {late:.1f} s ({late / totals.wall:.0%} of the run) for client rank {slowest}, which "
            "computes longer than the others on average: give it fewer clients, or a core of its own"
        )
    down, up = bytes_in_words(totals.bytes_down), bytes_in_words(totals.bytes_up)
    lines.append(f"sent      {down} down to clients, {up} up to the server, as the method's protocol has it")
    if totals.transport:
        lines.append(f"moved     {bytes_in_words(totals.transport)} between the ranks, as this run carried it out")
    if totals.losses:
        lost = ", ".join(str(rank) for loss in totals.losses for rank in loss.ranks)
        repeated = sum(loss.repeated for loss in totals.losses)
        lines.append(f"survived  the loss of ranks {lost}; {repeated} rounds begun again")
    lines.append(f"result    {path}")
    if warning := astray(totals.course, "objective" if "objective" in totals.last else "test loss"):
        lines.append(f"warning   {warning}")
    return "\n".join(lines)


def astray(course: Sequence[tuple[int, float]], called: str) -> str:
    """Warning if a quantity, by its (round, value), diverges or stagnates; else ""."""
    values = [value for _, value in course]
    if len(values) < 2:
        return ""
    first, last = values[0], values[-1]
    if has_diverged(first, last):
        return f"the {called} went from {first:.4g} after its first round to {last:.4g}: smaller steps may help"
    since = next((k for k in range(len(values) - 1, -1, -1) if values[k] != last), -1) + 1
    if len(values) - since < STALLED_EVALUATIONS:
        return ""
    rounds = course[-1][0] - course[since][0]
    return f"the {called} is bit-identical in the last {rounds} rounds: larger steps, or --dtype float64?"


def _spent(seconds: NDArray[np.float64]) -> str:
    compute, wait, comm = seconds
    return f"computing {compute:.1f} s, waiting {wait:.1f} s, sending {comm:.1f} s"
