"""The cache: one good copy, whoever races, is killed or damages it."""

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest

from zofl_mpi.data import Raw, cache
from zofl_mpi.data.cache import Sources
from zofl_mpi.engine.world import World
from zofl_mpi.errors import UserError
from zofl_mpi.settings import samples

INPUTS, TARGETS = np.arange(12, dtype=np.uint8).reshape(4, 3), np.array([3, 1, 4, 1.5])
RAW = Raw(INPUTS, np.array([0, 1, 2, 1]), 3, official_test=1, levels=255, channels=3, targets=TARGETS)


def same(a: Raw, b: Raw) -> bool:
    facts = [(r.classes, r.official_test, r.levels, r.channels, r.inputs.dtype, r.labels.dtype) for r in (a, b)]
    arrays = [(r.inputs, r.labels, r.targets) for r in (a, b)]
    return facts[0] == facts[1] and all(map(np.array_equal, *arrays))


class Counted:
    """A reader that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Raw:
        self.calls += 1
        return RAW


@pytest.fixture
def reader() -> Counted:
    return Counted()


@pytest.fixture
def sources(reader) -> Sources:
    return cache.identify("toy", reader)


def test_what_is_opened_is_what_was_read_once(tmp_path, sources, reader, monkeypatch):
    for _ in range(2):
        cache.prepare(sources, tmp_path)
        assert same(cache.open_entry(sources, tmp_path), RAW)
    assert reader.calls == 1
    assert [path.name for path in tmp_path.iterdir()] == [sources.key]
    floats = Raw(np.array([[0.1], [0.2]]), np.array([0, 1]), 2)
    other = cache.identify("../My data/Own set.npz", lambda: floats)
    cache.prepare(other, tmp_path)
    assert same(cache.open_entry(other, tmp_path), floats) and other.key.startswith("own-set-")
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path))
    assert cache.default_cache_dir() == tmp_path
    monkeypatch.setenv("ZOFL_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert cache.default_cache_dir() == Path(pooch.os_cache("zofl_mpi")) / "arrays"  # as pooch has it
    assert cache.default_cache_dir().name == "arrays" and "zofl_mpi" in str(cache.default_cache_dir())


def test_the_arrays_are_read_only_maps_of_one_shared_file(tmp_path, sources):
    cache.prepare(sources, tmp_path)
    raw = cache.open_entry(sources, tmp_path)
    for array in (raw.inputs, raw.labels, raw.targets):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    assert type(raw.inputs) is np.ndarray
    file = np.load(tmp_path / sources.key / "inputs.npy", mmap_mode="r+")
    file[0, 0] = 77
    assert raw.inputs[0, 0] == 77


def test_the_key_changes_with_content_and_parameters(tmp_path, reader):
    """Mutations: the key of size and times alone; of the time of change, too."""
    path = tmp_path / "a.bin"
    path.write_bytes(b"one")
    keys = [cache.identify("toy", reader, [path]).key]
    for content in (b"two", b"longer"):
        os.utime(path, ns=(5, 5))
        assert keys[-1] == cache.identify("toy", reader, [path]).key
        path.write_bytes(content)
        os.utime(path, ns=(5, 5))
        keys.append(cache.identify("toy", reader, [path]).key)
    keys += [cache.identify("toy", reader, parameters={"seed": seed}).key for seed in (1, 2)]
    keys.append(cache.identify("other", reader, parameters={"seed": 1}).key)
    assert len(set(keys)) == len(keys)
    assert keys[2] == cache.identify("toy", reader, [tmp_path / "." / "a.bin"]).key


def test_a_file_is_read_when_it_has_changed_only(tmp_path, reader, monkeypatch):
    """Mutations: the note of its checksum never written, never read, or read for a file of the same size and time."""
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path / "cache"))
    path, calls = tmp_path / "a.bin", []
    checksum = cache._checksum
    monkeypatch.setattr(cache, "_checksum", lambda path: calls.append(path) or checksum(path))
    path.write_bytes(b"one")
    cache.identify("toy", reader, [path])  # just written: a change now might have the same time
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(cache, "SETTLED", -1)
    keys = [cache.identify("toy", reader, [path]).key for _ in range(3)]
    assert len(calls) == 2 and len(set(keys)) == 1
    status = path.stat()
    while path.stat().st_ctime_ns == status.st_ctime_ns:
        path.write_bytes(b"two")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert cache.identify("toy", reader, [path]).key != keys[0] and len(calls) == 3


def retyped(path: Path) -> None:
    """Numbers that a map would take for addresses. Mutation: objects are mapped, which ends the process."""
    path.write_bytes(path.read_bytes().replace(b"'<i8'", b"'|O' "))


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "cut": lambda entry: os.truncate(entry / "inputs.npy", (entry / "inputs.npy").stat().st_size - 1),
    "longer": lambda entry: os.truncate(entry / "inputs.npy", (entry / "inputs.npy").stat().st_size + 1),
    "empty": lambda entry: (entry / "facts.json").write_text(""),
    "lost": lambda entry: (entry / "labels.npy").unlink(),
    "targets cut": lambda entry: os.truncate(entry / "targets.npy", (entry / "targets.npy").stat().st_size - 8),
    "targets lost": lambda entry: (entry / "targets.npy").unlink(),
    "scrambled": lambda entry: (entry / "labels.npy").write_bytes(
        b"\x93NUMPY" + bytes((entry / "labels.npy").stat().st_size - 6)
    ),
    "of objects": lambda entry: retyped(entry / "labels.npy"),
    "never there": shutil.rmtree,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_entry_is_told_by_open_and_mended_by_prepare(tmp_path, sources, reader, damage):
    cache.prepare(sources, tmp_path)
    damage(tmp_path / sources.key)
    with pytest.raises(UserError, match=r"cached copy of toy .* missing or damaged .* delete that folder"):
        cache.open_entry(sources, tmp_path)
    cache.prepare(sources, tmp_path)
    assert same(cache.open_entry(sources, tmp_path), RAW)
    assert reader.calls == 2
    assert [path.name for path in tmp_path.iterdir()] == [sources.key]


def zeroed(entry: Path) -> None:
    """The numbers of a file lost, as after a power cut; its size and its header stand."""
    path = entry / "inputs.npy"
    data = path.read_bytes()
    path.write_bytes(data[: -INPUTS.size] + bytes(INPUTS.size))


def other_facts(entry: Path) -> None:
    text = (entry / cache.FACTS).read_text()
    (entry / cache.FACTS).write_text(text.replace('\\"classes\\": 3', '\\"classes\\": 7'))
    assert (entry / cache.FACTS).read_text() != text


@pytest.mark.parametrize("damage", [zeroed, other_facts])
def test_an_entry_with_other_bytes_is_made_anew(tmp_path, sources, reader, damage, monkeypatch):
    """Also with a note of the file's checksum. Mutations: sizes alone; the facts without a checksum; a note that is
    taken for a file that has changed since."""
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "SETTLED", -1)
    for calls in (1, 2):
        cache.prepare(sources)
        assert reader.calls == calls and same(cache.open_entry(sources), RAW)
        cache.prepare(sources)
        assert reader.calls == calls
        damage(tmp_path / sources.key)


def test_an_entry_is_on_the_disk_before_it_has_its_name(tmp_path, sources, monkeypatch):
    """Mutations: a file, the facts or the folder not synced; the renaming before."""
    done: list[str] = []
    sync, rename = cache._sync, os.rename
    monkeypatch.setattr(cache, "_sync", lambda path: done.append(path.name) or sync(path))
    monkeypatch.setattr(os, "rename", lambda a, b: done.append("renamed") or rename(a, b))
    cache.prepare(sources, tmp_path)
    at = done.index("renamed")
    assert set(done[:at]) == {"inputs.npy", "labels.npy", "targets.npy", cache.FACTS, sources.key}
    assert done[at + 1 :] == [tmp_path.name]


def filled(folder: Path, names: str) -> dict[str, Path]:
    """Entries of which the first was used the longest time ago."""
    found = {}
    for k, name in enumerate(names):
        sources = cache.identify(name, lambda: RAW)
        cache.prepare(sources, folder)
        os.utime(folder / sources.key, (1e9 + k, 1e9 + k))
        found[name] = folder / sources.key
    return found


def test_the_oldest_entries_go_first_and_mapped_ones_stay(tmp_path, monkeypatch, capsys):
    """Mutations: the newest first; a mapped one removed, or kept after its last map; no bound at a new entry."""
    found = filled(tmp_path, "abcd")
    size = cache.entries(tmp_path)[0].size
    mapped = cache.open_entry(cache.identify("a", lambda: RAW), tmp_path)
    assert [entry.name for entry in cache.remove_oldest(3 * size, tmp_path)] == ["b"]
    assert same(mapped, RAW) and {entry.name for entry in cache.entries(tmp_path)} == {"a", "c", "d"}
    del mapped
    assert [entry.name for entry in cache.remove_oldest(2 * size, tmp_path)] == ["a"]
    cache.prepare(cache.identify("c", lambda: RAW), tmp_path)  # used again
    monkeypatch.setattr(cache, "MOST_BYTES", 2 * size)
    cache.prepare(cache.identify("e", lambda: RAW), tmp_path)
    assert {entry.name for entry in cache.entries(tmp_path)} == {"c", "e"} and not found["d"].exists()
    monkeypatch.setattr(cache, "MOST_BYTES", 0)
    cache.prepare(cache.identify("f", lambda: RAW), tmp_path)
    assert len(cache.entries(tmp_path)) == 3, "what was used a moment ago stays"
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path))
    mapped = cache.open_entry(cache.identify("e", lambda: RAW))
    assert cache.main([]) == 0
    said = capsys.readouterr().out
    assert said.count(" MiB  used 20") == 3 and f"{tmp_path}: 3 data sets, 0.00 of at most 0 GiB" in said
    assert cache.main(["--empty"]) == 0
    said = capsys.readouterr().out
    del mapped
    assert "  e  (e-" in said and "1 data set," in said and "2 deleted, those that runs have open stay" in said
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["e"]


def test_a_fingerprint_is_of_all_bytes_and_costs_an_opened_entry_nothing(tmp_path, sources, monkeypatch):
    """Mutations: of some rows; without labels, targets or clients; computed again from the entry's bytes."""
    big = Raw(np.ones((5000, 3)), np.zeros(5000, np.int64), 2, targets=np.ones(5000), clients=np.zeros(5000, np.int64))
    seen = {big.known}
    for row in (1, 7, 4999):
        for field in ("inputs", "labels", "targets", "clients"):
            other = getattr(big, field).copy()
            other[row] = 9
            seen.add(replace(big, **{field: other}).known)
    assert len(seen) == 13
    own = cache.identify("big", lambda: big)
    cache.prepare(own, tmp_path)
    monkeypatch.setattr("zofl_mpi.data._crc32", None)
    assert cache.open_entry(own, tmp_path).known in seen


class Node(World):
    """A rank of a node of three, which hears again what the first one told."""

    def __init__(self, place: int, told: list[object]) -> None:
        self.place, self.told, self.heard = place, told, 0

    def neighbours(self, value: object) -> tuple[int, list[object]]:
        if self.place == 0:
            self.told.append(value)
        self.heard += 1
        return self.place, [self.told[self.heard - 1], None, None]


def test_one_rank_of_a_node_reads_files_for_all(tmp_path, sources, reader, monkeypatch):
    """Mutation: each rank finds the sources, which reads whole files."""
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path))
    calls: list[int] = []
    told: list[object] = []
    for place in (0, 1, 2):
        world = Node(place, told)
        found = samples.found_once_a_node(world, lambda: calls.append(1) or sources)
        assert found[:2] == sources[:2] and same(samples.cached(world, found), RAW)
    assert len(calls) == reader.calls == 1

    def missing() -> Sources:
        raise UserError("no such file")

    told = []
    for place in (0, 1):
        with pytest.raises(UserError, match=r"^no such file$"):
            samples.found_once_a_node(Node(place, told), missing)


def test_what_fails_is_told_and_leaves_nothing(tmp_path, sources, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def refuse() -> Raw:
        raise UserError("no good")

    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match=rf"{tmp_path}/file/sub cannot be written .*ZOFL_CACHE"):
        cache.prepare(sources, tmp_path / "file" / "sub")
    with pytest.raises(UserError, match="no good"):
        cache.prepare(cache.identify("toy", refuse), tmp_path / "new")
    with pytest.raises(UserError, match=r"gone\.bin cannot be read \(No such file"):
        cache.identify("toy", refuse, [tmp_path / "gone.bin"])
    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(UserError, match=r"No space left on device.*ZOFL_CACHE"):
        cache.prepare(sources, tmp_path / "new")
    assert not list((tmp_path / "new").iterdir())


WRITER = """
import os, sys, time
from pathlib import Path
import numpy as np
from zofl_mpi.data import Raw, cache

folder, me, others = Path(sys.argv[1]), sys.argv[2], sys.argv[3].split()

def read():
    # Nobody goes on before all have found that there is no good entry: each of them writes one.
    (folder / f"reading-{me}").touch()
    end = time.monotonic() + 200
    while not all((folder / f"reading-{other}").exists() for other in others):
        assert time.monotonic() < end
        time.sleep(0.001)
    return Raw(np.full((2000, 500), 7, np.uint8), np.ones(2000, np.int64), 2)

sources = cache.identify("race", read)
cache.prepare(sources, folder / "cache")
raw = cache.open_entry(sources, folder / "cache")
assert (raw.inputs == 7).all() and raw.labels.sum() == 2000
print(sources.key)
"""


@pytest.mark.parametrize("start", ["nothing", "damaged"])
def test_racing_processes_all_end_with_one_good_copy(tmp_path, start):
    key = cache.identify("race", lambda: RAW).key
    if start == "damaged":
        (tmp_path / "cache" / key).mkdir(parents=True)
        (tmp_path / "cache" / key / "facts.json").write_text("{")
    names = "abc"
    commands = [[sys.executable, "-c", WRITER, str(tmp_path), name, " ".join(names)] for name in names]
    racers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    ends = [racer.communicate(timeout=300) for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0], ends
    assert {out.strip() for out, _ in ends} == {key}
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [key]


KILLED = """
import os, sys
from pathlib import Path
import numpy as np
from zofl_mpi.data import Raw, cache

save = np.save
def die(path, array, **options):
    save(path, array[:1], **options)
    os._exit(9)

np.save = die
cache.prepare(cache.identify("toy", lambda: Raw(np.ones((9, 9)), np.ones(9, np.int64), 2)), Path(sys.argv[1]))
"""


def test_a_killed_writer_leaves_no_entry_and_its_rest_is_swept_up_a_day_later(tmp_path, sources):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=300, check=False)
    assert done.returncode == 9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(cache.UNFINISHED)
    cache.prepare(sources, tmp_path)
    assert same(cache.open_entry(sources, tmp_path), RAW)
    assert left.exists()
    (tmp_path / sources.key / "facts.json").unlink()
    two_days_ago = time.time() - 2 * cache.DAY
    os.utime(left, (two_days_ago, two_days_ago))
    cache.prepare(sources, tmp_path)
    assert not left.exists()
