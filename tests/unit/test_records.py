"""Results: what is written is read, and neither a kill nor a full disk takes a finished round."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.unit.made import complaint
from zofl_mpi.errors import UserError
from zofl_mpi.run import records
from zofl_mpi.run.records import Recorder, WriteError, output_path, rows
from zofl_mpi.run.records.provenance import PACKAGES, _git
from zofl_mpi.run.records.staged import StagedFile

M, RANKS = 4, 3
TRANSPORT = ("transport_sent", "transport_received")


def started(path: Path, **more: Any) -> Recorder:
    return Recorder.create(path, **{"attrs": {"config": {"m": M}}, "m": M, "ranks": RANKS, "rounds": 20, **more})


def add(recorder: Recorder, r: int, steps: tuple[str, ...] = ("solve",), **row: float) -> None:
    ones = np.ones((len(steps), M), np.int64)
    times = np.full((len(steps), RANKS), 0.25)
    recorder.append(
        {"round": r, **row},
        steps=steps,
        bytes_down=r * ones,
        bytes_up=2 * r * ones,
        messages=ones,
        seconds_compute=times,
        seconds_wait=2 * times,
        seconds_comm=3 * times,
        peak_bytes=times * 4000,
        transport_sent=times * 400,
        transport_received=times * 800,
    )


def test_a_heading_reads_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is what `load` tells. Mutations: a row that is read; another length than that of the rows."""
    recorder = started(tmp_path / "a.h5")
    for r in range(3):
        add(recorder, r, loss=0.5 * r)
    recorder.close("interrupted")
    run = records.load(tmp_path / "a.h5")
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda *_: pytest.fail("a table is read"))
    found = records.heading(tmp_path / "a.h5")
    assert found == (run.path, run.attrs, run.config, run.length) and found.length == 3
    with pytest.raises(pytest.fail.Exception):
        records.load(tmp_path / "a.h5")


def test_a_finished_run_is_read_back_whole(tmp_path: Path) -> None:
    recorder = started(tmp_path / "a.h5")
    recorder.describe({"loss": ("1", "test loss")})
    recorder.partition(np.arange(8).reshape(M, 2))
    for r in range(3):
        add(recorder, r, loss=0.5 * r)
    recorder.describe({"x": ("1", "the model")})
    recorder.finish({"x": np.arange(5.0), "gamma": 0.1}, kernel="numpy")
    run = records.load(tmp_path / "a.h5")
    assert run.attrs["status"] == "done" and run.attrs["schema"] == 1 and run.attrs["kernel"] == "numpy"
    assert run.config == {"m": M} and run.steps == ("solve",) and run.length == 3
    np.testing.assert_array_equal(run.rounds["loss"], [0, 0.5, 1])
    np.testing.assert_array_equal(run.clients["bytes_up"], 2 * np.arange(3).reshape(3, 1, 1) * np.ones((3, 1, M)))
    np.testing.assert_array_equal(run.ranks["seconds_comm"], np.full((3, 1, RANKS), 0.75))
    np.testing.assert_array_equal(run.ranks["transport_received"], np.full((3, 1, RANKS), 200))
    assert run.ranks["peak_bytes"].dtype == np.int64 and run.clients["messages"].dtype == np.int64
    np.testing.assert_array_equal(run.counts, np.arange(8).reshape(M, 2))
    np.testing.assert_array_equal(run.final["x"], np.arange(5.0))
    assert run.final["gamma"] == 0.1
    assert run.units["loss"] == "1" and run.descriptions["loss"] == "test loss"
    with h5py.File(tmp_path / "a.h5") as file:  # the paths that scripts rely on
        assert file["rounds/loss"].shape == (3,)
        assert [file[f"clients/{name}"].shape for name in ("bytes_down", "bytes_up", "messages")] == [(3, 1, M)] * 3
        names = ("seconds_compute", "seconds_wait", "seconds_comm", "peak_bytes", *TRANSPORT)
        assert [file[f"ranks/{name}"].shape for name in names] == [(3, 1, RANKS)] * 6
        assert list(file["clients"].attrs["steps"]) == list(file["ranks"].attrs["steps"]) == [b"solve"]
        assert file["final/x"].attrs["meaning"] == b"the model"
        assert json.loads(file.attrs["config"]) == {"m": M}
    table = run.table()
    assert list(table["bytes_down"]) == [0, M, 2 * M] and list(table["loss"]) == [0, 0.5, 1]


@pytest.mark.parametrize("m", [1000, 1001, 2345])
def test_the_tables_of_many_clients_are_sums_and_as_wide_as_those_of_few(tmp_path: Path, m: int) -> None:
    """Mutations: `clients` summed at 1000 too, or not at all; the last column cut off; `counts` or a resume forgotten;
    /ranks summed too."""
    path, counts = tmp_path / "a.h5", np.arange(2 * m).reshape(m, 2)
    sent = np.random.default_rng(m).integers(0, 9, (2, m))
    recorder = started(path, m=m, ranks=m)
    recorder.partition(counts)
    for r in range(2):
        recorder.append(
            {"round": r},
            steps=("a", "b"),
            bytes_down=sent,
            bytes_up=3 * sent,
            messages=sent,
            seconds_wait=np.ones((2, m)),
        )
        recorder.close()
        recorder = Recorder.reopen(path, r + 1, ranks=m)
    recorder.close()
    run = records.load(path)
    assert run.ranks["seconds_wait"].shape == (2, 2, m)
    with h5py.File(path) as file:
        told = dict(file["clients"].attrs)
    if m <= 1000:
        assert run.first_clients is None and "aggregated" not in told
        np.testing.assert_array_equal(run.clients["bytes_up"], np.stack([3 * sent] * 2))
        np.testing.assert_array_equal(run.counts, counts)
        return
    first = run.first_clients
    assert first is not None and len(first) == 100 and first[0] == 0
    ends = [*first[1:], m]
    columns = np.stack([sent[:, low:high].sum(axis=1) for low, high in zip(first, ends, strict=True)], axis=1)
    np.testing.assert_array_equal(run.clients["bytes_down"], np.stack([columns] * 2))
    np.testing.assert_array_equal(run.clients["bytes_up"], np.stack([3 * columns] * 2))
    np.testing.assert_array_equal(
        run.counts, np.stack([counts[low:high].sum(axis=0) for low, high in zip(first, ends, strict=True)])
    )
    assert max(ends[k] - first[k] for k in range(100)) - min(ends[k] - first[k] for k in range(100)) <= 1
    assert told["clients"] == m and b"first_clients" in told["aggregated"]


def test_columns_steps_and_more_rounds_than_planned_may_come_later(tmp_path: Path) -> None:
    """In a growing file, which can be read meanwhile."""
    recorder = started(tmp_path / "a.h5", rounds=2)
    add(recorder, 0)
    add(recorder, 1, ("train", "solve"), accuracy=0.75)
    recorder.flush()
    assert (records.load(tmp_path / "a.h5").length, records.load(tmp_path / "a.h5").attrs["status"]) == (2, "running")
    add(recorder, 2, ("train",))
    recorder.flush()
    run = records.load(tmp_path / "a.h5")
    np.testing.assert_array_equal(run.rounds["accuracy"], [np.nan, 0.75, np.nan])
    assert run.steps == ("solve", "train")
    np.testing.assert_array_equal(run.clients["messages"][:, :, 0], [[1, 0], [1, 1], [0, 1]])


def test_rows_that_wait_with_other_steps_are_blocks_of_their_own(tmp_path: Path) -> None:
    """Mutation: all that wait are written with the first one's steps."""
    recorder = started(tmp_path / "a.h5")
    for r, steps in enumerate([("solve",), ("solve",), ("train", "solve"), ("train",), ("solve",)]):
        add(recorder, r, steps)
    recorder.flush()
    sent = records.load(tmp_path / "a.h5").clients["messages"][:, :, 0]
    np.testing.assert_array_equal(sent, [[1, 0], [1, 0], [1, 1], [0, 1], [1, 0]])


@pytest.mark.parametrize("ranks", [2, RANKS, 6])
def test_a_continued_run_drops_what_came_after_and_may_have_other_ranks(tmp_path: Path, ranks: int) -> None:
    recorder = started(tmp_path / "a.h5")
    for r in range(5):
        add(recorder, r, loss=r)
    recorder.finish({"x": 1.0})
    recorder = Recorder.reopen(tmp_path / "a.h5", 2, ranks=ranks, rounds=9, attrs={"command": "again"})
    assert records.load(tmp_path / "a.h5").attrs["status"] == "running"
    recorder.append({"round": 7.0}, steps=["solve"], messages=np.ones((1, M)), seconds_wait=np.ones((1, ranks)))
    recorder.close()
    run = records.load(tmp_path / "a.h5")
    np.testing.assert_array_equal(run.rounds["round"], [0, 1, 7])
    np.testing.assert_array_equal(run.rounds["loss"], [0, 1, np.nan])
    width = max(ranks, RANKS)
    np.testing.assert_array_equal(run.ranks["seconds_wait"][2, 0], [1.0] * ranks + [0.0] * (width - ranks))
    np.testing.assert_array_equal(run.ranks["seconds_wait"][1, 0], [0.5] * RANKS + [0.0] * (width - RANKS))
    assert run.attrs["status"] == "interrupted" and not run.final
    assert json.loads(run.attrs["sessions"])[1]["command"] == "again"
    with pytest.raises(UserError, match="holds 3 rounds, fewer than the 4"):
        Recorder.reopen(tmp_path / "a.h5", 4)
    sessions = [(s["from_round"], s["ranks"]) for s in json.loads(run.attrs["sessions"])]
    assert sessions == [(0, RANKS), (2, ranks)]
    started(tmp_path / "b.h5", start=3).close()
    for rounds in (3, 2):  # of the rows that are missing, those after the second are dropped, too
        Recorder.reopen(tmp_path / "b.h5", rounds).close()
        assert json.loads(records.load(tmp_path / "b.h5").attrs["missing_rounds"]) == [1, rounds]


def test_an_existing_result_is_replaced_only_by_force_and_with_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    started(path).close()
    records.save_checkpoint(records.checkpoint_path(path), {"state": b"x"}, {"round": 1})
    with pytest.raises(UserError, match="exists: choose another name or add --force"):
        started(path)
    started(path, force=True).close()
    assert not records.checkpoint_path(path).exists()


@pytest.mark.parametrize("name", ["a.ckpt.h5", "a.ckpt.h5.previous"])
@pytest.mark.parametrize("content", ["a checkpoint", "anybody's file"])
def test_no_checkpoint_is_removed_that_the_user_did_not_give_up(tmp_path: Path, name: str, content: str) -> None:
    """Mutations: a lone checkpoint, or anybody's file of that name, removed without --force; the latter with it."""
    lone = tmp_path / name
    if content == "a checkpoint":
        records.save_checkpoint(lone, {"state": b"x"}, {"round": 1})
    else:
        lone.write_bytes(b"the only copy")
    before = lone.read_bytes()
    with pytest.raises(UserError, match=r"continue it with --resume .*a.h5, choose another name, or add --force"):
        started(tmp_path / "a.h5")
    assert lone.read_bytes() == before and not (tmp_path / "a.h5").exists()
    if content == "a checkpoint":
        started(tmp_path / "a.h5", force=True).close()
        assert not lone.exists()
    else:
        with pytest.raises(UserError, match=r"--force replaces checkpoints only, and .*; remove it yourself"):
            started(tmp_path / "a.h5", force=True)
        assert lone.read_bytes() == before


def test_what_is_replaced_by_force_is_there_until_the_new_one_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full when the new result is begun. Mutation: the old one removed first."""
    path = tmp_path / "a.h5"
    started(path).close()
    records.save_checkpoint(records.checkpoint_path(path), {"state": b"x"}, {"round": 1})
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def full(self: StagedFile) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(StagedFile, "commit", full)
    with pytest.raises(UserError, match="No space left"):
        started(path, force=True)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_an_earlier_damaged_file_is_kept(tmp_path: Path) -> None:
    """Mutation: the second one takes the first one's name."""
    path = tmp_path / "a.h5"
    for content in (b"first", b"second"):
        path.write_bytes(content)
        assert output_path.set_aside(path) is not None
    assert {file.read_bytes() for file in tmp_path.glob("a.h5.damaged*")} == {b"first", b"second"}


SECOND = """
import fcntl, errno, sys
from zofl_mpi.run.records import Recorder, WriteError
if sys.argv[3] == "without":
    def none(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")
    fcntl.flock = none
attrs = {"attrs": {}, "m": 4, "ranks": 3, "rounds": 9}
recorder = Recorder.reopen(sys.argv[1], 0) if sys.argv[2] == "reopen" else (
    Recorder.create(sys.argv[1], force=sys.argv[2] == "force", **attrs))
if sys.argv[4:]:
    import os
    os._exit(7)
"""


@pytest.mark.parametrize(
    ("how", "locks", "locking"), [("reopen", "with", "FALSE"), ("reopen", "without", "TRUE"), ("force", "with", "TRUE")]
)
def test_the_second_writer_of_a_result_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, locks: str, locking: str
) -> None:
    """Mutations: HDF5's locks alone; the lock's file made without O_EXCL; the holder not named."""
    monkeypatch.setenv("HDF5_USE_FILE_LOCKING", locking)
    path = tmp_path / "a.h5"
    recorder = started(path)
    add(recorder, 0)
    second = second_writer(path, how, locks)
    said = f"UserError: {path} is being written by process {os.getpid()} on {socket.gethostname()}"
    assert second.returncode and said in second.stderr, second.stderr
    add(recorder, 1)
    recorder.flush()
    assert records.load(path).length == 2
    recorder.close()
    assert not (tmp_path / "a.lock").exists()
    assert second_writer(path, how, locks).returncode == 0


def test_a_result_that_another_program_has_locked_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """A program that locks as HDF5 does and knows no lock file. Mutations: not looked at; our lock file left behind."""
    path = tmp_path / "a.h5"
    started(path).close()
    before = path.read_bytes()
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert f"{path} is being written by another process" in complaint(Recorder.reopen, path, 0)
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == ["a.h5"]
    Recorder.reopen(path, 0).close()


@pytest.mark.parametrize("locks", ["with", "without"])
def test_the_lock_of_a_killed_process_is_stale(tmp_path: Path, locks: str) -> None:
    """Mutations: a lock that outlives its process; one that a later process of the same number seems to hold; a process
    that its parent has not waited for yet (a zombie) taken for one that still writes."""
    path, lock = tmp_path / "a.h5", tmp_path / "a.lock"
    started(path).close()
    with subprocess.Popen([sys.executable, "-c", SECOND, str(path), "reopen", locks, "killed"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        assert lock.exists() and second_writer(path, "reopen", locks).returncode == 0
    assert second_writer(path, "reopen", locks, "killed").returncode == 7
    holder = json.loads(lock.read_text())
    lock.write_text(json.dumps({**holder, "process": os.getpid()}))
    assert second_writer(path, "reopen", locks).returncode == 0


def test_a_lock_of_another_host_holds_where_there_are_no_locks(tmp_path: Path) -> None:
    """Mutations: any lock of another host taken for stale, or for held."""
    path = tmp_path / "a.h5"
    started(path).close()
    for flock in (True, False):
        foreign = {"host": "elsewhere", "process": 7, "started": "7", "flock": flock, "since": "then"}
        (tmp_path / "a.lock").write_text(json.dumps(foreign))
        done = second_writer(path, "reopen", "without")
        assert done.returncode and "process 7 on elsewhere (since then)" in done.stderr
    (tmp_path / "a.lock").write_text(json.dumps({**foreign, "flock": True}))
    assert second_writer(path, "reopen", "with").returncode == 0


def test_a_writer_whose_lock_was_taken_stops(tmp_path: Path) -> None:
    recorder = started(tmp_path / "a.h5")
    add(recorder, 0)
    (tmp_path / "a.lock").unlink()
    (tmp_path / "a.lock").write_text("{}")
    with pytest.raises(records.WriteError, match="another process has removed"):
        add(recorder, 1)
        recorder.flush()
    recorder.close()
    assert records.load(tmp_path / "a.h5").length == 1
    assert (tmp_path / "a.lock").exists()


def second_writer(path: Path, *how: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", SECOND, str(path), *how]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


def test_files_that_are_no_results_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("round,loss\n")
    (tmp_path / "empty").touch()
    with h5py.File(tmp_path / "foreign", "w") as file:
        file["x"] = 1
    with h5py.File(tmp_path / "newer", "w") as file:
        file.attrs["schema"] = 7
    records.save_checkpoint(tmp_path / "check", {}, {})
    started(tmp_path / "whole").close()
    (tmp_path / "torn").write_bytes((tmp_path / "whole").read_bytes()[:3000])
    sentences = {
        "absent": "there is no file",
        "text": "is not an HDF5 file",
        "empty": "is damaged",
        "foreign": "no result of zofl_mpi",
        "newer": "has format 7, and this zofl_mpi reads format 1: install a newer one",
        "check": "is a checkpoint",
        "torn": "is damaged",
    }
    for name, sentence in sentences.items():
        with pytest.raises(UserError, match=sentence):
            records.load(tmp_path / name)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    (place := tmp_path / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))


def test_a_disk_that_fills_up_does_not_stop_the_planned_rounds(small_disk: Path) -> None:
    recorder = started(small_disk / "a.h5", rounds=200)
    add(recorder, 0, loss=0)
    size = os.path.getsize(small_disk / "a.h5")
    fill(small_disk)
    for r in range(1, 200):
        add(recorder, r, loss=r)
    recorder.flush()
    assert records.load(small_disk / "a.h5").length == 200 and os.path.getsize(small_disk / "a.h5") == size


def test_a_checkpoint_that_does_not_fit_leaves_the_previous_one(small_disk: Path) -> None:
    path = small_disk / "a.ckpt.h5"
    records.save_checkpoint(path, {"state": b"one"}, {"round": 1})
    with pytest.raises(
        records.WriteError,
        match=r"left on device \(\d+ bytes are free there\); the previous checkpoint, if any, is intact",
    ):
        records.save_checkpoint(path, {"state": bytes(4_000_000)}, {"round": 2})
    assert records.load_checkpoint(path).attrs["round"] == 1
    assert [file.name for file in small_disk.iterdir()] == ["a.ckpt.h5"]


def test_a_result_that_does_not_fit_is_not_begun(small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(records.WriteError, match="No space left on device"):
        started(small_disk / "a.h5")
    assert not (small_disk / "a.h5").exists()


def test_a_checkpoint_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations: the file, or its folder, not on the disk before the next step."""
    calls = list[str]()
    for name in ("fsync", "replace"):
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, call=call, name=name: (calls.append(name), call(*given))[1])
    path = records.checkpoint_path(tmp_path / "run.0.5.h5")
    assert path.name == "run.0.5.ckpt.h5"
    payload = {"state": b"\x00\xff", "memory/0": np.arange(5, dtype=np.uint8), "memory/1": b""}
    records.save_checkpoint(path, payload, {"round": 3, "config": {"m": 2}})
    assert calls == ["fsync", "replace", "replace", "fsync"]
    found = records.load_checkpoint(path)
    assert {name: bytes(block) for name, block in found.payload.items()} == {k: bytes(v) for k, v in payload.items()}
    assert found.attrs["round"] == 3 and json.loads(found.attrs["config"]) == {"m": 2}
    with pytest.raises(UserError, match="there is no file"):
        records.load_checkpoint(tmp_path / "none.ckpt.h5")
    started(tmp_path / "a.h5").close()
    with pytest.raises(UserError, match="is not a checkpoint"):
        records.load_checkpoint(tmp_path / "a.h5")


def test_provenance_names_commit_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    found = records.provenance()
    known = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            known[name] = metadata.version(name)
    assert {"numpy", "h5py"} <= set(known)
    assert found["versions"] == {"python": sys.version.split()[0], **known}
    assert len(found["git_commit"]) in (0, 40) and isinstance(found["git_dirty"], bool)
    monkeypatch.setenv("PATH", "")  # without git
    assert _git.__wrapped__(Path(records.__file__).parents[3]) == ("", False)


def test_a_row_that_no_other_follows_is_written_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutations: no timer; one for the first row only; a failure in it that nobody hears."""

    def written(rows: int) -> bool:
        since = time.monotonic()
        while recorder.rounds < rows and time.monotonic() - since < 60:
            time.sleep(0.01)
        return recorder.rounds == rows

    def fails() -> None:
        failed.append(True)
        raise WriteError("the disk is full")

    failed: list[bool] = []
    recorder = started(tmp_path / "a.h5")
    for r in (0, 2, 4):
        add(recorder, r)
        add(recorder, r + 1)
        assert written(r + 2)
    monkeypatch.setattr(recorder, "_commit", fails)
    add(recorder, 6)  # this or the timer fails
    with pytest.raises(WriteError, match="the disk is full"):
        for r in range(7, 300):
            time.sleep(0.3 if not failed else 0)
            add(recorder, r)
    recorder.abandon()
    assert records.load(tmp_path / "a.h5").length == 6


def test_a_configuration_may_be_longer_than_an_attribute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of 12,000 clients with a number each; also one that becomes long, or short, in a continuation. Mutations:
    refused by HDF5 after the start; an old value beside the new one; a checkpoint without it, or its checksum."""
    path, tau = tmp_path / "a.h5", list(range(12_000))
    long = {"config": {"tau": tau}, "command": "c" * 70_000, "run": "r"}
    recorder = started(path, attrs=long)
    recorder.append({"loss": 1.0})
    recorder.begins(2.0)
    recorder.close()
    run = records.load(path)
    assert run.config == {"tau": tau} and run.attrs["command"] == "c" * 70_000
    (session,) = json.loads(run.attrs["sessions"])
    assert session["command"] == "c" * 70_000 and session["seconds_start"] == 2.0
    for attrs in ({"config": {"m": 1}, "command": "short"}, {"config": {"tau": tau}}):
        Recorder.reopen(path, 1, attrs=attrs).close()
        assert records.load(path).config == attrs["config"]
        with h5py.File(path) as file:
            assert ("config" in file.attrs) == ("command" in attrs) != ("long/config" in file)
    monkeypatch.setattr(rows, "SESSIONS", 5)
    for _ in range(rows.SESSIONS):
        Recorder.reopen(path, 1, attrs={}).close()
    sessions = json.loads(records.load(path).attrs["sessions"])
    assert len(sessions) == rows.SESSIONS and sessions[0]["command"] == "c" * 70_000
    saved = tmp_path / "a.ckpt.h5"
    records.save_checkpoint(saved, {"state": b"abc"}, {**long, "round": 1})
    found = records.load_checkpoint(saved)
    assert json.loads(found.attrs["config"]) == {"tau": tau} and [*found.payload] == ["state"]
    data = saved.read_bytes()
    assert data.count(b" 11998, ") == 1
    saved.write_bytes(data.replace(b" 11998, ", b" 11978, "))
    for whole in (True, False):
        told = complaint(partial(records.load_checkpoint, whole=whole), saved)
        assert "the checksum of the attributes is not the one stored" in told
