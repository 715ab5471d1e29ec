"""Rounds of a run: run, evaluate, record, checkpoint, stop at a signal."""

import json
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

from zofl_mpi.engine import device, memory, messages
from zofl_mpi.engine.clients import ClientError, Clients
from zofl_mpi.engine.fields import (
    DIVERGED,
    check_finite,
    demand_losses,
    described,
    is_finite,
    reported,
    scalar_fields,
    without_warnings,
)
from zofl_mpi.engine.fleet import BY_CLIENT
from zofl_mpi.engine.hidden import Unchanged
from zofl_mpi.engine.lazy import is_tensor
from zofl_mpi.engine.ledger import TIME_KINDS, Row
from zofl_mpi.engine.ownership import own_state
from zofl_mpi.engine.roles import program_of
from zofl_mpi.engine.setting import Method
from zofl_mpi.errors import RunFailed, UserError
from zofl_mpi.paths import user_path
from zofl_mpi.run import records
from zofl_mpi.run.command import unread
from zofl_mpi.run.loop.client_memory import STEPS, Acknowledged, Memory
from zofl_mpi.run.loop.progress import Progress, with_progress
from zofl_mpi.run.loop.saving import CheckpointTimer, Every
from zofl_mpi.run.loop.totals import Totals, note


@final
@dataclass(frozen=True)
class Schedule:
    """Rounds to evaluate and to checkpoint after, by the flags of these names (`run_flags.RunFlags`)."""

    rounds: int
    eval_every: int
    checkpoint_every: Every

    def evaluates(self, done: int) -> bool:
        """True if the run evaluates after `done` rounds."""
        return done in (1, self.rounds) or done % self.eval_every == 0


MAX_SEPARATE_MEMORIES = 1000
"""Maximum number of clients with a data set each in a checkpoint: creating one in HDF5 costs more than writing it."""


@final
@dataclass(frozen=True)
class Restored:
    """State restored from a checkpoint: finished rounds, step names so far, state, {i: memory of client i}."""

    round: int
    steps: list[str]
    state: Any
    memories: dict[int, Memory]
    outline: dict[str, Any]  # of the state that `start` returned


@final
@dataclass
class Rounds:
    """The rounds of a run, led by rank 0."""

    method: Method[Any]
    clients: Clients
    schedule: Schedule
    recorder: records.Recorder
    progress: Progress
    age: Callable[[], float] = device.age  # seconds since the run's beginning
    totals: Totals = field(init=False)  # of the rounds so far
    state: Any = field(default=None, init=False)  # after the last round
    # done, interrupted (by a signal), stopped (by `stop`, or by the method); "" during the run
    ended: str = field(default="", init=False)
    reason: str = field(default="", init=False)  # of the stop
    interleaved: bool = field(default=False, init=False)  # True if a user's code runs between rounds

    def stop(self, reason: str) -> None:
        """End the run after the round in progress, or after the one just yielded."""
        self.reason = self.reason or reason or "no reason was given"

    def run(self, resumed: Restored | None) -> tuple[Totals, bool]:
        """Run all rounds, or until a signal or a stop; return totals, and True if the run is done. Raises as `rows`."""
        for _ in self.rows(resumed):
            pass
        return self.totals, self.ended == "done"

    def rows(self, resumed: Restored | None) -> Iterator[dict[str, float]]:
        """Run from the start or from a checkpoint; yield each round's columns before writing a checkpoint.

        RunFailed: a round failed, the result has the finished ones; WriteError: the result cannot be written.
        """
        clients, recorder, schedule = self.clients, self.recorder, self.schedule
        parts = unread.begin(self.method) if resumed is None else {}
        with unread.noting(parts):
            try:
                done, state = clients.retry_on_rank_loss(partial(self._begin, resumed))
                outline = messages.outline(state) if resumed is None else resumed.outline
            except UserError:
                raise
            except (Exception, SystemExit) as exc:
                raise _failed(0, exc, self.method, recorder) from exc
        self.state = state
        unchanged, first = Unchanged(self.method), done + 1
        self.progress.begin(done, schedule.rounds)
        self.totals, since = Totals(done, start=self.age(), servers=clients.sharing.ranks), time.perf_counter()
        recorder.begins(self.totals.start)
        saving, stop = CheckpointTimer(schedule.checkpoint_every, schedule.rounds), False
        while done < schedule.rounds and not (stop or self.reason):
            checks = done + 1 == first or schedule.evaluates(done + 1)
            if checks and self.interleaved:
                unchanged = Unchanged(self.method)  # changes between rounds are the user's
            try:
                state, columns, (row, stop) = clients.retry_on_rank_loss(partial(self._round, state, done, parts))
                _check_state(state, outline)
                if parts and row.bytes_up.any():  # a round without participants has few of them
                    clients.retry_on_rank_loss(partial(unread.check_read, self.method, parts, clients))
                    parts = {}
                if checks:
                    unchanged.check()
                if reason := self.method.ends(state, done):
                    self.stop(f"the method ended it: {reason}")
            except (Exception, SystemExit) as exc:
                raise _failed(done + 1, exc, self.method, recorder) from exc
            now = time.perf_counter()
            wall, since, done = now - since, now, done + 1  # recording counts toward the next round
            self.state = state
            columns = self._record(done, wall, row, columns)
            began = time.perf_counter()
            yield columns
            since += time.perf_counter() - began  # the caller's work on a row counts for no round
            ends = stop or (bool(self.reason) and saving.every != 0)
            if saving.is_due(done) or (ends and done < schedule.rounds):
                saving.save(partial(clients.retry_on_rank_loss, partial(self._save, done, state)))
                self._survived(repeated=False)
        if stop and done < schedule.rounds and not self.reason:
            self.ended = "interrupted"
            recorder.close("interrupted", **self.totals.count_directions(self.method))
            return
        self._finish(done, state)

    def _record(self, done: int, wall: float, row: Row, columns: dict[str, float]) -> dict[str, float]:
        """Write the row of a round that took `wall` seconds; return its columns, including these two."""
        self.totals.add(row, wall, columns)
        columns = {"round": float(done), "seconds": wall, **columns}
        tables = {name: value for name, value in vars(row).items() if name != "seconds"}
        tables |= {f"seconds_{kind}": row.seconds[:, :, k] for k, kind in enumerate(TIME_KINDS)}
        self.recorder.append(columns, **tables)
        self._survived(repeated=True)
        self.progress.update(done, note(self.totals), wall)
        return columns

    def _finish(self, done: int, state: Any) -> None:
        """Write the last state of a run that is done or stopped."""
        stopped = self.reason if done < self.schedule.rounds else ""
        final = messages.named(messages.leaves(state))
        if fleet := self.method.setting.fleet:
            self.recorder.describe({f"clients/{name}": about for name, about in BY_CLIENT.items()})
            final |= {f"clients/{name}": value for name, value in fleet.by_client(done).items()}
        ended, why = ("stopped", {"stopped": stopped}) if stopped else ("done", {})
        try:
            self.recorder.finish(final, ended, **self.totals.count_directions(self.method), **why)
        except records.DamagedError:
            if not self.schedule.checkpoint_every:  # otherwise its last checkpoint is this one
                self.clients.retry_on_rank_loss(partial(self._save, done, state))
            raise
        self.ended = ended

    def _begin(self, resumed: Restored | None) -> tuple[int, Any]:
        """Number of finished rounds, and the state after them."""
        with without_warnings():
            done, state = (0, messages.copy(self.method.start())) if resumed is None else (resumed.round, resumed.state)
        if resumed is not None:
            memories = resumed.memories
            for _ in self.clients.ask_each(STEPS["<restore>"], memories, counted=False) if memories else ():
                pass
            self.clients.ledger.steps[:] = resumed.steps
        self.clients.account()  # costs so far belong to no round
        return done, state

    def _round(self, state: Any, r: int, parts: unread.Unusual) -> tuple[Any, dict[str, float], tuple[Row, bool]]:
        """Run round r and its evaluation if due; return the new state, the row's columns, and its `account`.

        Reads of `parts` are recorded.
        """
        method, clients = self.method, self.clients
        # a repeated round must start from an unchanged state
        state = messages.copy(state) if clients.survives else state
        with unread.noting(parts):
            state = finite_round(method, state, r, clients)
        fleet, evaluates, columns = method.setting.fleet, self.schedule.evaluates(r + 1), dict[str, float]()
        accounts = [each.columns(r + 1, evaluates) for each in program_of(method).between]
        for each in (state, fleet and fleet.columns(r + 1), *accounts):
            if each is not None:
                columns |= dict(scalar_fields(each))
                self.recorder.describe(described(each))
        if evaluates:
            check_arrays(state)
            name = f"evaluation after round {r + 1}"
            self.progress.step(name)
            begin = time.perf_counter()
            with without_warnings(), unread.noting(parts):
                report = method.evaluate(state, r, with_progress(clients, self.progress, name))
            self.totals.evaluating += time.perf_counter() - begin
            self.progress.step("")
            columns |= reported(report)
            demand_losses(columns, type(method).evaluate)
            self.recorder.describe(described(report))
        return state, columns, clients.account()

    def _survived(self, repeated: bool) -> None:
        """Record in the result the ranks lost during a round, or during its checkpoint (then nothing is `repeated`)."""
        totals = self.totals
        if new := self.clients.lost[len(totals.losses) :]:
            totals.losses += [records.Loss(totals.round, tuple(ranks), repeated) for ranks in new]
            self.recorder.survived(totals.losses[-len(new) :])

    def _save(self, done: int, state: Any) -> None:
        """Write a checkpoint: the state, existing memories, number of rounds; no random state.

        RunFailed: it cannot be written; DamagedError: it is written, but the result is no longer readable.
        """
        clients, recorder = self.clients, self.recorder
        recorder.flush()  # its rows first: their failure is not the checkpoint's
        try:
            holders = clients.holders()
            recalled = (
                clients.ask(STEPS["<recall>"], Acknowledged(), to=holders, counted=False) if holders else iter(())
            )
            if len(holders) <= MAX_SEPARATE_MEMORIES:
                payload = {f"memory/{i}": messages.pack(memory) for i, memory in recalled}
            else:
                entries = {str(i): memory.entries for i, memory in recalled}
                payload = {"memories": messages.pack(Memory(entries))}
            payload["state"] = messages.pack(state)
            attrs = {**recorder.origin, "round": done, "steps": clients.ledger.steps}
            recorder.sync()
            records.save_checkpoint(records.checkpoint_path(recorder.path), payload, attrs)
            if done < self.schedule.rounds:  # else the result is verified when it is finished, which follows
                recorder.verify()
        except records.DamagedError:
            raise
        except (UserError, ClientError) as exc:
            cause = f"the memory of client {exc.i}: {exc.sentence}" if isinstance(exc, ClientError) else str(exc)
            raise RunFailed(f"the checkpoint after round {done} failed: {cause}; {_safe(recorder)}") from exc


def finite_round(method: Method[Any], state: Any, r: int, clients: Clients) -> Any:
    """The state after round r; UserError: a value is not finite, or the state has another class."""
    with without_warnings():
        new = method.round(state, r, clients)
    if type(new) is not type(state):
        raise UserError(
            f"round returned a {type(new).__name__} for a {type(state).__name__}: start and round must return states "
            "of one class"
        )
    check_finite(new)
    return own_state(new)


def _check_state(state: Any, like: dict[str, Any]) -> None:
    """Refuse a state that --resume would refuse."""
    try:
        messages.check_like(state, like)
    except UserError as exc:
        raise UserError(
            f"round returned a state that is not like the one of start ({exc}), which --resume needs: keep classes, "
            "dtypes and shapes"
        ) from exc


def check_arrays(state: Any) -> None:
    """Refuse a state with a non-finite array, declared or not; its numbers may be NaN."""
    for path, value in messages.leaves(state):
        is_array = (isinstance(value, np.ndarray) and value.dtype.kind in "fc") or (
            is_tensor(value) and value.is_floating_point()
        )
        if is_array and not is_finite(value):
            raise UserError(f"the state's {'/'.join(path)} is not finite: {DIVERGED}")


def restored(checkpoint: records.Checkpoint, method: Method[Any]) -> Restored:
    """Read a checkpoint of this method; UserError: damaged, or its state is unlike the one of `start`."""
    payload = checkpoint.payload
    try:
        with without_warnings():
            start = method.start()
        state, outline = messages.read(payload["state"], like=start), messages.outline(start)
        del start  # as large as the model
        each = {name: messages.read(block, Memory({})) for name, block in payload.items() if name.startswith("memor")}
        if "memories" in each:
            together = each.pop("memories").entries
            memories = {int(i): Memory(dict(entries)) for i, entries in together.items()}
        else:
            memories = {int(name.removeprefix("memory/")): memory for name, memory in each.items() if memory.entries}
        done, steps = int(checkpoint.attrs["round"]), [str(name) for name in json.loads(checkpoint.attrs["steps"])]
        if done < 0 or not all(0 <= i < method.setting.m for i in memories):
            raise ValueError(f"round {done}, memories of clients {sorted(memories)}")
    except (UserError, KeyError, TypeError, ValueError, AttributeError) as exc:
        reason = str(exc) if isinstance(exc, UserError) else f"it is damaged ({type(exc).__name__}: {exc})"
        raise UserError(f"the checkpoint cannot be continued from: {reason}") from exc
    return Restored(done, steps, state, memories, outline)


def result_of(text: str) -> Path:
    """The result in --resume, given by its own path or its checkpoint's; UserError: an impossible path."""
    path = user_path(text, "--resume")
    records.check_name(path, "--resume")
    return path.with_name(path.name.removesuffix(".ckpt.h5") + ".h5") if path.name.endswith(".ckpt.h5") else path


def _failed(round_: int, exc: BaseException, method: Method[Any], recorder: records.Recorder) -> RunFailed:
    """The error of a round: a client's, the user's, out of memory, or the method's."""
    cause, trace, place = str(exc), "", dict[str, Any]()
    if isinstance(exc, ClientError):
        cause, trace = f"{exc}; {memory.remedy(method)}" if exc.short else str(exc), exc.trace
        place = {"client": exc.i, "step": exc.step, "rank": exc.rank}
    elif short := memory.shortage(exc):
        cause = f"the server is {short}; {memory.remedy(method, at_server=True)}"
    elif not isinstance(exc, UserError):
        cause, trace = f"{type(exc).__name__}: {exc}", traceback.format_exc()
    kept = _safe(recorder)
    sentence = f"{f'round {round_}' if round_ else 'the start'}: {cause}; {kept}"
    return RunFailed(sentence, round_=round_, cause=cause, kept=kept, trace=trace, **place)


def _safe(recorder: records.Recorder) -> str:
    with suppress(records.WriteError):
        recorder.flush()
    return f"the {recorder.rounds} finished rounds are in {recorder.path}"
