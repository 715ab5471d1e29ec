"""Client ranks that are lost cost no bit and at most their round; all else ends with a sentence that names --resume."""

import importlib
import itertools
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Capsys, Completed, Mpirun, Patch, environment, run_process
from tests.e2e.planted import FAMILY, HERE, LAUNCHER, OWN, RUN, planted
from tests.fates import Death, Fate
from tests.threads import run_module
from zofl_mpi.engine import watch
from zofl_mpi.engine.watch import Watch
from zofl_mpi.report.same import compared, differences
from zofl_mpi.run import records

SMALL = ["--problem", "toy", "--rounds", "3", "--checkpoint-every", "2", "--eval-every", "2", "--quiet"]
CASES = {
    "zo_hfl": [*SMALL, "--m", "5", "--tau", "2", "--y0", "last"],
    "sums": [*SMALL, "--m", "32", "--tau", "2", "--y0", "last"],
    "scaffold": [*SMALL, "--m", "5", "--beta", "0.6", "--method", "scaffold", "--tau", *"91213"],
}
"""Clients that remember something; streams, sums at ranks, means; of unequal work, so that placement is not i mod P."""
RANKS = 4
END = 4
"""The round after the last one: its calls are the last question and the agreement that all have heard it."""


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A run's name, and its undisturbed result in one process, which is the one on 4 ranks, too."""
    folder, fate = tmp_path_factory.mktemp("undisturbed"), Fate()
    run = CASES[request.param]
    assert run_module(1, FAMILY, *run, "--out", folder / "run.h5") == 0
    assert run_module(RANKS, FAMILY, *run, "--survive", "--out", folder / "ranks.h5", fate=fate) == 0
    assert differences(folder / "run.h5", folder / "ranks.h5") == []
    assert "lost" not in records.load(folder / "ranks.h5").attrs
    assert set(fate.begun.values()) == {END} and len(fate.begun) == RANKS
    return request.param, folder / "run.h5"


@cache
def known(whole: Path) -> tuple[records.Run, Any]:
    """A result that no run writes any more, and its checkpoint."""
    return records.load(whole), records.load_checkpoint(records.checkpoint_path(whole))


def same(whole: Path, out: Path) -> records.Run:
    """The result, which is that of `whole` bit for bit, and so is its checkpoint."""
    expected, one = known(whole)
    run, other = records.load(out), records.load_checkpoint(records.checkpoint_path(out))
    assert compared(expected, run) == []
    assert one.payload.keys() == other.payload.keys()
    assert all(one.payload[name].size == other.payload[name].size for name in one.payload)
    assert (one.attrs["round"], one.attrs["steps"]) == (other.attrs["round"], other.attrs["steps"])
    return run


def survived(case: tuple[str, Path], folder: Path, fate: Fate, *more: object) -> list[Any]:
    """What a run noted that met this fate; its bits are those of the undisturbed one, its seconds of the ranks left."""
    name, whole = case
    out = folder / f"run{len(list(folder.glob('*.h5')))}.h5"
    assert run_module(RANKS, FAMILY, *CASES[name], "--survive", "--out", out, *more, fate=fate) == 0
    run = same(whole, out)
    losses: list[Any] = json.loads(run.attrs.get("lost", "[]"))
    assert run.attrs.get("repeated_rounds", 0) == sum(loss["repeated"] for loss in losses)
    waited, left = run.ranks["seconds_wait"].sum(axis=1) > 0, set(range(RANKS))
    for loss in losses:
        left -= set(loss["ranks"])
        assert not waited[loss["round"] :, loss["ranks"]].any()
    assert waited[-1, sorted(left)].all()
    return losses


@pytest.mark.parametrize("deceived", [-1, 0, 1], ids=["all hear of it", "rank 0 gets garbage", "rank 1 gets garbage"])
def test_a_rank_lost_at_any_moment_costs_its_round_and_no_bit(
    case: tuple[str, Path], tmp_path: Path, deceived: int
) -> None:
    """Fails without `agree` (garbage is recorded), with memories not given back, a ledger or steps not forgotten. Every
    ninth call of a round until the round has fewer: another number with each run, since what goes together in a wave
    depends on what is ready."""
    for k in itertools.count(deceived + 1, 9):
        fate = Fate({2: Death(2, k, after=bool(k % 2))}, deceived)
        losses = survived(case, tmp_path, fate)
        if fate.begun[2] > 2:
            assert k > 9
            break
        assert [(loss["ranks"], loss["round"]) for loss in losses] == [([2], 2)]
    for k in (0, 1):
        losses = survived(case, tmp_path, Fate({2: Death(END, k, after=bool(k % 2))}, deceived))
        assert [loss["ranks"] for loss in losses] in ([], [[2]])


@pytest.mark.parametrize("between", [1, 3, 12])
def test_a_second_loss_in_the_recovery_and_soon_after_is_survived_too(
    case: tuple[str, Path], tmp_path: Path, between: int
) -> None:
    losses = survived(case, tmp_path, Fate({2: Death(2, 4, False), 1: Death(2, 4 + between, True)}))
    assert sorted(rank for loss in losses for rank in loss["ranks"]) == [1, 2]
    if between == 1:  # in two rounds; one client rank is enough
        losses = survived(case, tmp_path, Fate({1: Death(3, 3, True), 2: Death(2, 0, True)}))
        assert [(loss["ranks"], loss["round"]) for loss in losses] == [([2], 2), ([1], 3)]
    for call in (8, 10) if between == 3 else ():  # ranks have told memories of a round that does not count
        survived(case, tmp_path, Fate({1: Death(3, 3, True), 2: Death(2, call, True)}))


@pytest.mark.parametrize("lost", [(0,), (1, 2, 3)], ids=["rank 0", "all client ranks"])
def test_where_nobody_can_go_on_the_run_ends_and_is_resumed(
    case: tuple[str, Path], tmp_path: Path, lost: tuple[int, ...], capsys: Capsys
) -> None:
    name, whole = case
    out, fate = tmp_path / "run.h5", Fate({rank: Death(3, 3, True) for rank in lost})
    status = run_module(RANKS, FAMILY, *CASES[name], "--survive", "--out", out, fate=fate)
    assert status == 1
    assert f"--resume {out}" in capsys.readouterr().err
    assert run_module(3, FAMILY, "--resume", out, "--quiet") == 0
    same(whole, out)


@pytest.mark.parametrize("ranks", [1, 3])
def test_without_ulfm_a_sentence_says_what_is_missing(ranks: int, tmp_path: Path, capsys: Capsys) -> None:
    out = tmp_path / "run.h5"
    assert run_module(ranks, FAMILY, *SMALL, "--survive", "--out", out) == 2
    told = capsys.readouterr().err
    assert re.fullmatch(r"zofl_mpi: --survive needs .*ULFM.*\n|zofl_mpi: --survive needs .*--with-ft ulfm.*\n", told)
    assert not out.exists()
    if ranks > 1:  # ULFM without --survive, where a lost rank's garbage might be recorded
        assert run_module(ranks, FAMILY, *SMALL, "--out", out, fate=Fate()) == 2
        told = capsys.readouterr().err
        assert "--with-ft ulfm keeps the job alive after a lost rank and needs --survive" in told


class Leap:
    """A clock of the watches that goes only as far as the ranks have come: none is late because it got no core.

    It stands still until all have begun the round and a step is stuck. It is then beyond the round's limit, and beyond
    the time for reports, from where on it goes, once all have looked at it and rank 0 knows of `waiting` others, all
    but the one that is stuck.
    """

    perf_counter, sleep = staticmethod(time.perf_counter), staticmethod(time.sleep)
    process_time = staticmethod(lambda: 1e6 * time.monotonic())  # no process of these is ever stopped

    def __init__(self, monkeypatch: Patch, stuck: list[float], limit: float, round_: int, waiting: int) -> None:
        self.stuck, self.limit, self.waiting = stuck, limit, waiting
        self.watches, self.since = list[Watch](), 0.0
        begins = Watch.begins

        def noted(own: Watch, following: bool = True) -> None:
            begins(own, following)
            if own.round == round_ and own not in self.watches:
                self.watches.append(own)

        monkeypatch.setattr(Watch, "begins", noted)
        monkeypatch.setattr(watch, "time", self)

    def monotonic(self) -> float:
        if not self.stuck or len(self.watches) < self.waiting + 2:
            return 0.0
        if all(each._said for each in self.watches) and any(len(e._waiting) == self.waiting for e in self.watches):
            self.since = self.since or time.monotonic()
        return self.limit + 0.1 + (watch.GRACE + time.monotonic() - self.since if self.since else 0.0)


@pytest.mark.parametrize("survive", [False, True])
def test_a_round_that_takes_too_long_ends_with_the_late_ranks_named(
    tmp_path: Path, monkeypatch: Patch, capsys: Capsys, survive: bool
) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PLANT", "stuck")
    stuck = importlib.import_module("planted").STUCK
    stuck.clear()
    Leap(monkeypatch, stuck, limit=6, round_=6, waiting=1)
    out = tmp_path / "run.h5"
    fate = {"fate": Fate()} if survive else {}
    before = set(threading.enumerate())
    flags = ["--survive"] * survive + ["--round-timeout", 6]
    assert run_module(3, FAMILY, *RUN, *flags, "--out", out, **fate) == 1  # type: ignore[arg-type]
    told = capsys.readouterr().err
    assert re.search(r"zofl_mpi: rank 2 on \S+ is late: computing step 'solve' since \d", told), told
    assert re.search(r"zofl_mpi: round 6 takes longer than --round-timeout 6 s; late: rank 2 on \S+ \(1 of 2", told), (
        told
    )
    assert re.search(rf"continue with: .*--resume {out} .*--round-timeout 6", told) and ("--survive" in told) == survive
    assert 4 <= records.load(out).length <= 5  # those of the checkpoint; the row after it may wait
    assert not [thread for thread in set(threading.enumerate()) - before if "_look" in thread.name]  # none is left


@pytest.fixture
def run_mortal() -> Callable[..., Completed]:
    """A job under `mpirun --with-ft ulfm`, with --survive."""
    told = subprocess.run([LAUNCHER, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"\(Open MPI\) (\d+)", told)
    if not version or int(version[1]) < 5:
        pytest.skip(f"lost ranks are survived by Open MPI 5 or later, this is {told.splitlines()[:1]}")

    def run(ranks: int, *arguments: object, kind: str) -> Completed:
        words = [LAUNCHER, "--with-ft", "ulfm", "-n", ranks, sys.executable, "-m", FAMILY, *arguments, "--survive"]
        return run_process([*map(str, words)], cwd=HERE, env=environment() | planted({"kind": kind}))

    return run


def test_a_killed_client_rank_is_survived(run_mortal: Mpirun, unharmed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.h5"
    done = run_mortal(4, *RUN, "--quiet", "--out", out, kind="kill_once")
    assert done.returncode == 0, done.stderr
    same(unharmed, out)
    assert json.loads(records.load(out).attrs["lost"]) == [{"round": 6, "ranks": [1], "repeated": True}]
    assert "survived  the loss of ranks 1; 1 rounds begun again" in done.stdout


def test_a_rank_lost_before_the_rounds_ends_the_job_as_failed(run_mortal: Mpirun, tmp_path: Path) -> None:
    """Mutation: the others kill themselves, of which Open MPI's launcher makes status 0."""
    done = run_mortal(3, *RUN, "--quiet", "--out", tmp_path / "run.h5", kind="kill_early")
    assert done.returncode != 0
    assert "another rank is lost and --survive takes losses from the first round on; start the command" in done.stderr


def test_a_killed_server_ends_the_job_with_the_way_to_go_on(
    run_mortal: Mpirun, unharmed: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    out = tmp_path / "run.h5"
    done = run_mortal(4, *RUN, "--quiet", "--out", out, kind="kill_server")
    assert done.returncode != 0
    assert "rank 0, which leads the run, is lost; continue with: " in done.stderr
    monkeypatch.syspath_prepend(str(HERE))
    assert run_module(3, FAMILY, "--resume", out, *OWN) == 0
    same(unharmed, out)
