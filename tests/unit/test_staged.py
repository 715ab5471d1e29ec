"""A staged file is as of its last commit, whatever ends the writer; results and checkpoints are where they may be."""

import errno
import math
import os
import random
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.conftest import Capsys, Patch
from tests.launch import here
from tests.unit.test_records import add, started
from zofl_mpi.errors import UserError
from zofl_mpi.report.same import differences
from zofl_mpi.run import records
from zofl_mpi.run.records import Recorder, checkpoint_path, staged
from zofl_mpi.run.records import recorder as writer


def test_a_staged_file_is_read_as_of_its_next_commit(tmp_path: Path) -> None:
    """By `read`, too, by which h5py knows a file. Mutations: staged bytes not read; no zeros beyond the end."""
    file = staged.StagedFile(staged.create_exclusively(tmp_path / "a"), write=True)
    file.write(memoryview(b"abcd"))
    file.commit()
    file.seek(1)
    file.write(memoryview(b"X"))
    file.seek(0)
    assert file.read(6) == b"aXcd\0\0" and (tmp_path / "a").read_bytes()[:4] == b"abcd" and file.tell() == 6
    file.close()


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.ENOSPC])
def test_a_file_system_that_reserves_nothing_is_written_and_a_full_one_is_not(
    tmp_path: Path, monkeypatch: Patch, error: int
) -> None:
    """Mutations: either taken for the other."""

    def refuses(number: int, start: int, count: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "posix_fallocate", refuses)
    if error == errno.ENOSPC:
        with pytest.raises(records.WriteError, match="No space left"):
            started(tmp_path / "a.h5")
        return
    recorder = started(tmp_path / "a.h5")
    add(recorder, 0, loss=0.5)
    recorder.close()
    assert records.load(tmp_path / "a.h5").rounds["loss"].tolist() == [0.5]


@pytest.mark.parametrize("how", ["kill", "full"])
@pytest.mark.parametrize("rounds", [2, 50])
def test_a_writer_may_end_between_any_two_writes(tmp_path: Path, monkeypatch: Patch, rounds: int, how: str) -> None:
    """Mutations: pieces copied to their places before the journal is complete; a journal that is not read, or not
    applied by the next writer; a row that counts before it is complete; a half-written row in the file."""
    write, path = staged.write_all, tmp_path / "a.h5"
    left, killed = 0, b""
    monkeypatch.setattr(writer, "EVERY", 0.0)  # no row waits

    def limited(number: int, block: Any, at: int) -> None:
        nonlocal left, killed
        left -= 1
        if left < 0 and how == "full":
            raise OSError(errno.ENOSPC, "planted")
        if left < 0 and not killed:  # what comes later does not count
            write(number, memoryview(block)[: len(block) // 2], at)
            killed = path.read_bytes()
        write(number, block, at)

    for k in range(0, 60, 3):
        path.unlink(missing_ok=True)
        recorder = started(path, rounds=rounds)
        for r in range(2):
            add(recorder, r, loss=r)
        left, killed, done = k, b"", 2
        monkeypatch.setattr(staged, "write_all", limited)
        with suppress(records.WriteError):
            while True:  # a new column and step, then new chunks or rows alone
                add(recorder, done, ("solve", "more"), loss=done, late=done)
                if killed:
                    break
                done += 1
        recorder.abandon()
        monkeypatch.setattr(staged, "write_all", write)
        if how == "kill":
            path.write_bytes(killed)
        assert done <= records.load(path).length <= done + 1
        recorder = Recorder.reopen(path, done)
        add(recorder, done, loss=done)
        recorder.close()
        np.testing.assert_array_equal(records.load(path).rounds["loss"], np.arange(done + 1))


def test_a_writer_killed_while_rows_wait_keeps_the_rows_of_its_checkpoints(tmp_path: Path, monkeypatch: Patch) -> None:
    """20 kills at random moments. Mutations: `sync` leaves rows waiting; rows of a batch in another order, doubled or
    left out."""
    monkeypatch.setattr(writer, "EVERY", 0.004)
    path, waits = tmp_path / "a.h5", random.Random(26)
    for _ in range(20):
        path.unlink(missing_ok=True)
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            try:
                recorder = started(path, rounds=100_000)
                for r in range(100_000):
                    add(recorder, r, ("solve", "more")[: 1 + (r > 90)], loss=r, **({"late": r} if r % 7 == 0 else {}))
                    if r % 50 == 30:
                        recorder.sync()  # a checkpoint follows
                        os.write(writes, (r + 1).to_bytes(4))
            finally:
                os._exit(1)
        os.close(writes)
        synced = os.read(reads, 4)
        time.sleep(0.05 * waits.random())
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while more := os.read(reads, 4):
            synced = more
        os.close(reads)
        safe, run = int.from_bytes(synced), records.load(path)
        k = np.arange(run.length)
        assert run.length >= safe > 30
        np.testing.assert_array_equal(run.rounds["loss"], k)
        np.testing.assert_array_equal(run.rounds["late"], np.where(k % 7, np.nan, k))
        np.testing.assert_array_equal(run.clients["bytes_up"][:, 0], np.tile(2 * k[:, None], 4))
        steps = np.stack([k >= 0, k > 90], axis=1)[:, : len(run.steps)]
        np.testing.assert_array_equal(run.ranks["seconds_comm"][:, :, 2], 0.75 * steps)
        Recorder.reopen(path, safe).close()
        assert records.load(path).length == safe


@pytest.mark.parametrize("share", [0.5, 0.7])
def test_a_run_whose_disk_fills_up_ends_in_a_sentence_and_goes_on_with_the_same_bits(
    tmp_path: Path, monkeypatch: Patch, capsys: Capsys, share: float
) -> None:
    """Mutations: a traceback; status 2, as for a mistake in the flags; a finished round that is lost with the last
    one, or told though it is not safe."""
    family, words = "zofl_mpi.zo_hfl", ["--m", 3, "--tau", 1, "--rounds", 6, "--checkpoint-every", 2, "--quiet"]
    write, out, count, most = staged.write_all, tmp_path / "a.h5", 0, math.inf

    def limited(*given: Any) -> None:
        nonlocal count
        count += 1
        if count > most:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*given)

    with monkeypatch.context() as patch:
        patch.setattr(staged, "write_all", limited)
        patch.setattr(writer, "EVERY", 0.0)  # the same writes in both runs
        assert here(family, *words, "--out", tmp_path / "whole.h5") == 0
        most, count = share * count, 0
        assert here(family, *words, "--out", out) == 1
    told = capsys.readouterr().err
    done = int(re.findall(r"(\d+) finished rounds are safe in it", told)[0])
    assert told.startswith(f"zofl_mpi: round {done + 1}: cannot write ") and "bytes are free there" in told
    assert told.count("\n") == 1 and 2 <= done <= records.load(out).length
    assert here(family, "--resume", out, "--quiet") == 0 and differences(tmp_path / "whole.h5", out) == []


def test_a_damaged_journal_is_not_applied(tmp_path: Path) -> None:
    """Mutations: the checksum of a journal not compared; its length trusted; no zeros beyond the end."""
    path = tmp_path / "a"
    number = staged.create_exclusively(path)
    file = staged.StagedFile(number, write=True)
    file.write(memoryview(b"old" * 100))
    file.seek(298)
    file.readinto(memoryview(beyond := bytearray(b"x" * 5)))
    assert beyond == b"ld\0\0\0"
    file.commit()
    file.seek(0)
    file.write(memoryview(b"new" * 100))
    file.commit()
    size = path.stat().st_size
    assert staged.journal(number, size)[0] == [(0, b"new" * 100)]
    for at in range(size - 400, size):
        byte = os.pread(number, 1, at)
        os.pwrite(number, bytes([byte[0] ^ 1]), at)
        pieces, end = staged.journal(number, size)
        assert (pieces, end) in (([], size), ([(0, b"new" * 100)], 300))
        os.pwrite(number, byte, at)
    file.close()
    assert path.read_bytes() == b"new" * 100


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("folder", "is a folder: name a file in it"),
        ("pipe", "is a device, a pipe or a socket: name a file"),
        ("link.h5", "is a link: name the file itself"),
        ("dangling.h5", "is a link: name the file itself"),
        ("text", "--force replaces results only"),
        ("q.ckpt.h5", "that is a checkpoint's name"),
        ("-x.h5", "the name begins with '-'"),
        ("n" * 240 + ".h5", "bytes too long"),
        ("shr", "shr.h5 exists and has the same checkpoint"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_a_place_for_no_result_is_refused_and_left_as_it_is(tmp_path: Path, name: str, words: str, force: bool) -> None:
    """Mutations: each check of `output_path` left out; --force for what is no result; a link followed."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    started(tmp_path / "shr.h5").close()
    (tmp_path / "link.h5").symlink_to(tmp_path / "shr.h5")
    (tmp_path / "dangling.h5").symlink_to(tmp_path / "nowhere.h5")
    (tmp_path / "text").write_text("mine")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(UserError, match=words if force or name != "text" else "exists: choose another name"):
        started(tmp_path / name, force=force)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "text").read_text() == "mine"


def test_the_longest_name_has_room_for_its_checkpoints(tmp_path: Path) -> None:
    """And a damaged checkpoint gives way to the one before."""
    longest = os.pathconf(tmp_path, "PC_NAME_MAX") - len(".ckpt.h5.previous")
    path = tmp_path / ("n" * longest + ".h5")
    started(path).close()
    for r in range(3):
        records.save_checkpoint(checkpoint_path(path), {"state": b"one"}, {"round": r})
    assert records.load_checkpoint(checkpoint_path(path)).newer == ""
    checkpoint_path(path).write_bytes(checkpoint_path(path).read_bytes()[:1000])
    found = records.load_checkpoint(checkpoint_path(path))
    assert found.attrs["round"] == 1 and "is damaged" in found.newer and ".previous is read" in found.newer
    with pytest.raises(UserError, match="1 bytes too long"):
        started(path.with_name("n" + path.name))


def test_no_link_that_stands_where_a_file_is_made_is_followed(tmp_path: Path) -> None:
    """Mutations: the temporary file of a checkpoint, the lock or the result opened without O_EXCL."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("a.ckpt.h5.tmp", "a.ckpt.h5", "a.ckpt.h5.previous"):
        (tmp_path / name).symlink_to(victim)
    records.save_checkpoint(tmp_path / "a.ckpt.h5", {"state": b"one"}, {"round": 1})
    (tmp_path / "b.lock").symlink_to(victim)
    with pytest.raises(UserError, match=r"its lock .* cannot be read"):
        started(tmp_path / "b.h5")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "a.ckpt.h5").is_symlink()


def test_a_flipped_bit_of_a_checkpoint_is_found(tmp_path: Path) -> None:
    """Mutations: an array, its name or the attributes without a checksum; the checksums' own absence taken for an old
    version."""
    path, chance = tmp_path / "a.ckpt.h5", random.Random(3)
    payload = {"state": bytes(range(256)) * 8, "memory/0": b"", "memory/1": b"one"}
    attrs = {"round": 3, "config": {"m": 2}, "steps": ["a"]}
    records.save_checkpoint(path, payload, attrs)
    content, right = path.read_bytes(), records.load_checkpoint(path)
    found = 0
    for _ in range(60):
        bit = chance.randrange(8 * len(content))
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            read = records.load_checkpoint(path)
        except UserError:
            found += 1
            continue
        assert {k: bytes(v) for k, v in read.payload.items()} == {k: bytes(v) for k, v in right.payload.items()}
        assert {k: str(v) for k, v in read.attrs.items()} == {k: str(v) for k, v in right.attrs.items()}
    assert found > 5
    for at in (content.index(payload["state"]), content.index(b'{"m": 2}') + 6):
        flipped = bytearray(content)
        flipped[at] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(UserError, match=r"the checksum of .* is not the one stored"):
            records.load_checkpoint(path)
    path.write_bytes(content)
    with h5py.File(path, "r+") as file:
        file.move("payload/memory/1", "payload/memory/2")
    with pytest.raises(UserError, match=r"the checksum of memory/2 is not the one stored"):
        records.load_checkpoint(path)
