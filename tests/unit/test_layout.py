"""A file of somebody's own is checked before anything is read from it: nothing leads out of it, all is as described."""

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.unit.test_records import RANKS, M, add, started
from zofl_mpi.errors import UserError
from zofl_mpi.run import records
from zofl_mpi.run.records import layout
from zofl_mpi.run.records.hdf5 import set_attributes
from zofl_mpi.run.records.layout import ABSENT
from zofl_mpi.run.records.rows import CLIENTS, RANK_TABLE
from zofl_mpi.run.records.rows import RANKS as RATES

Plant = Callable[[h5py.File], object]
SECRET = b"secret" * 200


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished result with its checkpoint, a file that nobody may read from, and a pipe that nobody writes."""
    folder = tmp_path_factory.mktemp("made")
    recorder = started(folder / "a.h5")
    recorder.partition(np.arange(8).reshape(M, 2))
    place: dict[str, int | str] = {
        "rank": 0,
        "host": "h",
        "device": "cpu",
        "uuid": "",
        "gpus": 0,
        "cores": "0",
        "threads": 1,
        "clients": 1,
    }
    recorder.placements([place | {"role": "client"}])
    for r in range(3):
        add(recorder, r, loss=1.0)
    payload = {"state": b"1" * 64, "memory/0": b"2" * 64}
    records.save_checkpoint(folder / "a.ckpt.h5", payload, {**recorder.origin, "round": 3, "steps": ["solve"]})
    recorder.finish({"x": np.arange(5.0), "name": "text"})
    (folder / "secret").write_bytes(SECRET)
    os.mkfifo(folder / "pipe")
    return folder


def refused(made: Path, folder: Path, name: str, plant: Plant) -> str:
    """The sentence on a file in which something was planted."""
    shutil.copy(made / name, folder / name)
    with h5py.File(folder / name, "r+") as file:
        plant(file)
    since = time.monotonic()
    with pytest.raises(UserError) as caught:
        (records.load_checkpoint if "ckpt" in name else records.load)(folder / name)
    assert time.monotonic() - since < 2 and "\n" not in str(caught.value), caught.value
    return str(caught.value)


def replaced(name: str, shape: Any, dtype: Any, **more: Any) -> Plant:
    """Another data set in the place of one."""

    def plant(file: h5py.File) -> None:
        if name in file:
            del file[name]
        file.create_dataset(name, shape, dtype, **more)

    return plant


def linked(name: str, link: Any) -> Plant:
    def plant(file: h5py.File) -> None:
        if name in file:
            del file[name]
        file[name] = link(file) if callable(link) else link

    return plant


def external(name: str, target: str, dtype: str = "i8") -> Callable[[Path], Plant]:
    return lambda made: replaced(name, (4, 2), dtype, external=[(str(made / target), 0, 64)])


def virtual(name: str, target: str, unlimited: bool) -> Callable[[Path], Plant]:
    def plant(made: Path, file: h5py.File) -> None:
        del file[name]
        most, part = ((None, 2), slice(h5py.h5s.UNLIMITED)) if unlimited else ((4, 2), slice(None))
        layout = h5py.VirtualLayout((4, 2), "i8", maxshape=most)
        layout[part, :] = h5py.VirtualSource(str(made / target), "x", (4, 2), maxshape=most)[part, :]
        file.create_virtual_dataset(name, layout)

    return lambda made: lambda file: plant(made, file)


@pytest.mark.parametrize("target", ["secret", "pipe", "none"])
@pytest.mark.parametrize(
    "name", ["partition/counts", "final/x", "rounds/loss", "rounds/extra", "final/further/x", "other"]
)
def test_external_storage_is_never_read(made: Path, tmp_path: Path, name: str, target: str) -> None:
    """Mutations: known data sets alone are checked; the check comes after a read (a pipe would hang it)."""
    said = refused(made, tmp_path, "a.h5", external(name, target)(made))
    assert f"{name} names another file for its numbers" in said


@pytest.mark.parametrize("unlimited", [False, True])
def test_virtual_sources_are_never_opened(made: Path, tmp_path: Path, unlimited: bool) -> None:
    said = refused(made, tmp_path, "a.h5", virtual("partition/counts", "pipe", unlimited)(made))
    assert "partition/counts names another file" in said


@pytest.mark.parametrize(("kind", "name"), [("a.h5", "final"), ("a.h5", "rounds/loss"), ("a.ckpt.h5", "payload/state")])
def test_links_are_never_followed(made: Path, tmp_path: Path, kind: str, name: str) -> None:
    """Mutations: soft links allowed; external ones; a second name of an object, which may hold itself."""
    for link in (h5py.SoftLink("/"), h5py.SoftLink("/none"), h5py.ExternalLink(str(made / "pipe"), "/x")):
        assert f"{name} is a link to another place" in refused(made, tmp_path, kind, linked(name, link))
    loop = linked(f"{name.partition('/')[0]}/loop", lambda file: file[name.partition("/")[0]])
    assert "loop has a second name" in refused(made, tmp_path, kind, loop)
    second = linked("final/second", lambda file: file.create_dataset("first", data=[1.0]))
    assert "has a second name" in refused(made, tmp_path, "a.h5", second)


COMPOUND = np.dtype([("a", "f8"), ("b", "S9")])


@pytest.mark.parametrize(
    "dtype",
    [COMPOUND, "S4096", h5py.string_dtype(), "i1", "f2", "f4", ">f8", "i8", h5py.ref_dtype, "c16", "?"],
    ids=str,
)
def test_a_column_of_another_type_is_refused(made: Path, tmp_path: Path, dtype: Any) -> None:
    """A resume would write a double into it: heap bytes, or a crash. Mutations: kinds, not types; byte order."""
    for name, shape in (("rounds/loss", (3,)), ("clients/messages", (3, 1, M)), ("ranks/seconds_wait", (3, 1, RANKS))):
        if name != "clients/messages" or dtype != "i8":
            said = refused(made, tmp_path, "a.h5", replaced(name, shape, dtype, maxshape=(None,) * len(shape)))
            assert f"is damaged: {name} is " in said
    said = refused(made, tmp_path, "a.h5", replaced("ranks/table", (1,), dtype, maxshape=(None,)))
    assert "is damaged: ranks/table is " in said


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("rounds/loss", ()), ("rounds/loss", (3, 1)), ("rounds/loss", (2,)), ("clients/messages", (3, M)),
        ("clients/messages", (2, 1, M)), ("clients/bytes_up", (3, 2, M)), ("clients/bytes_up", (3, 1, M + 1)),
        ("ranks/seconds_wait", (3, 1, 1)), ("partition/counts", (8,)),
    ],
)  # fmt: skip
def test_other_shapes_are_refused(made: Path, tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    kind = "f8" if name in ("rounds/loss", "ranks/seconds_wait") else "i8"
    assert "is damaged" in refused(made, tmp_path, "a.h5", replaced(name, shape, kind))


@pytest.mark.parametrize(
    "name",
    [
        "rounds",
        "clients",
        "ranks",
        *(f"clients/{name}" for name in CLIENTS),
        *(f"ranks/{name}" for name in RATES),
        RANK_TABLE,
    ],
)
def test_what_every_result_has_must_be_there(made: Path, tmp_path: Path, name: str) -> None:
    assert "is damaged" in refused(made, tmp_path, "a.h5", lambda file: file.__delitem__(name))


@pytest.mark.parametrize("name", ["payload", "payload/state", "checksums"])
def test_what_every_checkpoint_has_must_be_there(made: Path, tmp_path: Path, name: str) -> None:
    assert "is damaged" in refused(made, tmp_path, "a.ckpt.h5", lambda file: file.__delitem__(name))


ATTRIBUTES: list[tuple[str, Any]] = [
    ("status", 1), ("status", None), ("run", None), ("ranks", "three"), ("ranks", 1.5), ("sessions", "{}"),
    ("sessions", "[{}]"), ("sessions", "[" * 60_000), ("sessions", json.dumps([{"from_round": "0"}])), ("config", "[]"),
    ("config", "{"), ("hosts", "[1]"), ("lost", "[1]"), ("missing_rounds", '["a"]'), ("seconds_start", "soon"),
    ("directions_per_parameter", np.zeros(3)), ("any", np.zeros(3, COMPOUND)), ("schema", "1"), ("schema", 0),
    ("schema", np.zeros(2)), ("threads", "{}"), ("costs", "3"), ("git_commit", 7),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), ATTRIBUTES)
def test_attributes_of_another_type_are_refused(made: Path, tmp_path: Path, name: str, value: Any) -> None:
    def plant(file: h5py.File) -> None:
        file.attrs.pop(name, None)
        if value is not None:
            set_attributes(file, {name: value})

    assert "is damaged" in refused(made, tmp_path, "a.h5", plant)


def test_attributes_of_groups_are_checked_too(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations: a client that is first in two columns; any number of attributes, of objects, or of bytes of one."""
    for group, name, value in (
        ("rounds", "done", -1), ("rounds", "done", "3"), ("rounds", "done", 4), ("rounds", "done", 2.0),
        ("clients", "steps", ["a", "b"]), ("ranks", "steps", 3), ("clients", "first_clients", "x"),
        ("clients", "first_clients", np.zeros(0, int)), ("clients", "first_clients", np.array([0, 1, 1, 2])),
        ("rounds/loss", "unit", np.zeros(2, COMPOUND)), ("rounds/loss", "unit", "text in HDF5's heap"),
    ):  # fmt: skip
        assert "is damaged" in refused(
            made, tmp_path, "a.h5", lambda f, g=group, n=name, v=value: f[g].attrs.create(n, v)
        )
    monkeypatch.setattr(layout, "ATTRIBUTES", 50)
    many = refused(made, tmp_path, "a.h5", lambda f: f["rounds"].attrs.update({f"a{k}": k for k in range(50)}))
    assert "rounds has 51 attributes" in many
    long = refused(made, tmp_path, "a.h5", lambda f: f["rounds"].attrs.create("a", np.zeros(60_000, np.uint8)))
    assert "rounds has an attribute of another type" in long
    monkeypatch.setattr(layout, "OBJECTS", 3)
    assert "more than 3 groups and data sets" in refused(made, tmp_path, "a.h5", lambda f: None)


def test_rows_that_are_claimed_and_not_stored_are_refused(made: Path, tmp_path: Path) -> None:
    """In a second: to read them would fill the memory. Mutations: bytes of one data set alone; no limit; no chunks."""

    def grown(rows: int) -> Plant:
        def plant(file: h5py.File) -> None:
            for group in ("rounds", "clients", "ranks"):
                for name, data in file[group].items():
                    if name != "table":
                        data.resize(rows, axis=0)
            file["rounds"].attrs["done"] = np.int64(rows)

        return plant

    for rows in (1 << 33, ABSENT // 8 // 3):
        assert "bytes that are not stored" in refused(made, tmp_path, "a.h5", grown(rows))
    huge = replaced("final/x", (1 << 40,), "f8", chunks=(1 << 10,))
    assert "bytes that are not stored" in refused(made, tmp_path, "a.h5", huge)
    crumbs = replaced("final/x", (1 << 18,), "f8", chunks=(1,))  # few bytes, and each chunk takes its time
    assert "bytes that are not stored" in refused(made, tmp_path, "a.h5", crumbs)
    packed = replaced("final/x", (1000,), "f8", compression="gzip")
    assert "final/x is packed" in refused(made, tmp_path, "a.h5", packed)


def test_a_newer_format_is_told_what_to_do(made: Path, tmp_path: Path) -> None:
    for name, attribute in (("a.h5", "schema"), ("a.ckpt.h5", "checkpoint")):
        said = refused(made, tmp_path, name, lambda file, a=attribute: file.attrs.__setitem__(a, 2))
        assert "has format 2, and this zofl_mpi reads format 1: install a newer one" in said


def test_further_names_are_no_damage(made: Path, tmp_path: Path) -> None:
    """A later 1.x may add some. Mutation: unknown names refused."""
    shutil.copy(made / "a.h5", tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["devices/class"] = np.arange(3)
        file["rounds/joules"] = np.zeros(3)
        set_attributes(file, {"further": "text"})
    assert records.load(tmp_path / "a.h5").rounds["joules"].shape == (3,)


@pytest.mark.parametrize("name", ["a.h5", "a.ckpt.h5"])
def test_a_flipped_bit_is_harmless_or_one_sentence(made: Path, tmp_path: Path, name: str) -> None:
    """200 places of each file, most of them among names, types and shapes."""
    whole = (made / name).read_bytes()
    drawn, path = np.random.default_rng(7), tmp_path / name
    heads = [k for k in range(0, len(whole) - 512, 512) if any(whole[k : k + 512])]
    for _ in range(200):
        block = bytearray(whole)
        block[int(drawn.choice(heads)) + int(drawn.integers(512))] ^= 1 << int(drawn.integers(8))
        path.write_bytes(block)
        with suppress(UserError):
            (records.load_checkpoint if "ckpt" in name else records.load)(path)


def test_two_equal_runs_have_equal_checkpoints(tmp_path: Path) -> None:
    """Byte for byte but for the run's name. Mutation: memory between the parts of a message as it was."""
    from tests.launch import here

    flags = ["--m", "3", "--tau", "2", "--y0", "last", "--rounds", "2", "--quiet"]
    for name in "ab":
        assert here("zofl_mpi.zo_hfl", *flags, "--out", tmp_path / f"{name}.h5") == 0
    one, other = (records.load_checkpoint(tmp_path / f"{name}.ckpt.h5").payload for name in "ab")
    assert {name: block.tobytes() for name, block in one.items()} == {name: b.tobytes() for name, b in other.items()}
