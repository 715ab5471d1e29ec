"""Readers: what they return for good files, and the one sentence that each bad file ends in."""

import gzip
import hashlib
import math
import os
import pickle
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.made import archive, complaint, idx, real
from zofl_mpi.data import Raw, images, partition, sources
from zofl_mpi.data import cache as stored_arrays
from zofl_mpi.data import npz as npz_reader
from zofl_mpi.data.published import IDX_FILES
from zofl_mpi.data.sources import Synthetic
from zofl_mpi.engine.streams import Streams
from zofl_mpi.errors import UserError
from zofl_mpi.settings.networks import shape_of

STREAMS = Streams(3)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


def samples(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    chance = Streams(seed)(1)
    return chance.integers(256, size=(n, 28, 28)), chance.integers(10, size=n)


def contents(train: int = 6, test: int = 3) -> dict[str, bytes]:
    arrays = [*samples(train, 1), *samples(test, 2)]
    return {file: idx(array) for file, array in zip(IDX_FILES, arrays, strict=True)}


def written(folder: Path, files: dict[str, bytes], packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in files.items():
        path = folder / (f"{file}.gz" if packed else file)
        path.write_bytes(gzip.compress(data) if packed else data)
    return folder


def loaded(name: str, data_dir: Path, cache_dir: Path, streams: Streams = STREAMS, **options) -> Raw:
    stored = sources.find_sources(name, data_dir, streams, **options)
    stored_arrays.prepare(stored, cache_dir)
    return stored_arrays.open_entry(stored, cache_dir)


def load(name: str, data_dir: Path, **options) -> Raw:
    return loaded(name, data_dir, data_dir / "cache", **options)


@pytest.mark.parametrize("place", ["mnist", "."])
@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_read_packed_or_not_from_either_place(tmp_path, place, packed):
    written(tmp_path / place, contents(), packed)
    raw = load("mnist", tmp_path)
    (train, train_labels), (test, test_labels) = samples(6, 1), samples(3, 2)
    np.testing.assert_array_equal(raw.inputs, np.concatenate([train, test]).reshape(9, 784))
    np.testing.assert_array_equal(raw.labels, np.concatenate([train_labels, test_labels]))
    assert (raw.inputs.dtype, raw.labels.dtype) == (np.uint8, np.int64)
    assert (raw.classes, raw.official_test, raw.levels, raw.channels) == (10, 3, 255, 1)


@pytest.mark.parametrize(
    ("place", "form"),
    [
        ("MNIST/raw", "{}"),
        ("raw", "{}"),
        ("mnist", "{}/{}"),
        (".", "{}/{}.gz"),
        ("mnist", "dotted"),
        (".", "dotted.gz"),
    ],
)
def test_idx_files_are_found_as_mirrors_have_them(tmp_path, place, form):
    """Torchvision's folders, a folder of the file's name, a dot in it. Mutation: any of them not looked for."""
    for file, data in contents().items():
        dotted = file.replace("-idx", ".idx")
        path = tmp_path / place / form.format(file, file).replace("dotted", dotted)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    raw = load("mnist", tmp_path)
    np.testing.assert_array_equal(raw.labels, np.concatenate([samples(6, 1)[1], samples(3, 2)[1]]))
    assert "no train-images-idx3-ubyte" in complaint(load, "fashion-mnist", tmp_path / "other")


def test_a_missing_file_is_named_with_the_way_to_get_it(tmp_path):
    files = contents()
    del files["t10k-labels-idx1-ubyte"]
    written(tmp_path / "fashion-mnist", files)
    said = complaint(load, "fashion-mnist", tmp_path)
    assert "t10k-labels-idx1-ubyte" in said and "train-images" not in said
    assert "python -m zofl_mpi.data.download fashion-mnist" in said and "ZOFL_DATA" in said and str(tmp_path) in said
    written(tmp_path, {"t10k-labels-idx1-ubyte": b""})  # files of two folders are not mixed
    assert "no t10k-labels-idx1-ubyte" in complaint(load, "fashion-mnist", tmp_path)
    (tmp_path / "mnist" / TRAIN_IMAGES).mkdir(parents=True)
    written(tmp_path / "mnist", dict.fromkeys(IDX_FILES[1:], b""))
    assert TRAIN_IMAGES in complaint(load, "mnist", tmp_path), "a file that may not be read"
    said = complaint(load, "fasion-mnist", tmp_path)
    assert "the nearest is fashion-mnist" in said and "cifar10" in said and ".npz" in said


TRAIN_IMAGES, TRAIN_LABELS = IDX_FILES[:2]
BAD_IDX = {
    "half a header": (TRAIN_IMAGES, idx(samples(6)[0])[:10], ["holds 10 bytes"]),
    "too long": (TRAIN_IMAGES, idx(samples(6)[0]) + b"0", ["holds 4721 bytes"]),
    "no samples": (TRAIN_IMAGES, idx(np.zeros((0, 28, 28))), ["[0, 28, 28]"]),
    "labels as images": (TRAIN_IMAGES, idx(samples(6)[1]), ["00000801", "00000803"]),
    "not idx": (TRAIN_IMAGES, b"<html>no such page</html>", ["3c68746d", "no IDX file"]),
    "wrong side": (TRAIN_IMAGES, idx(np.zeros((6, 28, 27))), ["28 x 27", "28 x 28"]),
    "wrong count": (TRAIN_IMAGES, idx(samples(5)[0]), ["5 images", "6 labels", "must be equal"]),
    "wrong label": (TRAIN_LABELS, idx(np.full(6, 10)), ["label 10", "0 to 9"]),
    "gzip cut short": (TRAIN_IMAGES, gzip.compress(idx(samples(6)[0]))[:-20], ["damaged or cut short"]),
}


@pytest.mark.parametrize("case", BAD_IDX)
def test_a_bad_idx_file_is_named_with_its_fault_and_remedy(tmp_path, case):
    file, data, words = BAD_IDX[case]
    written(tmp_path / "mnist", contents() | {file: data})
    said = complaint(load, "mnist", tmp_path)
    assert str(tmp_path / "mnist" / file) in said and "python -m zofl_mpi.data.download mnist" in said
    for word in words:
        assert word in said


def test_the_files_of_the_other_data_set_are_recognised(tmp_path, monkeypatch):
    digest = hashlib.sha256(samples(6, 1)[1].astype(np.uint8).tobytes()).hexdigest()
    monkeypatch.setattr(images, "TRAIN_LABELS", {digest: "mnist"})
    written(tmp_path, contents())
    assert "belongs to mnist, not to fashion-mnist" in complaint(load, "fashion-mnist", tmp_path)
    assert load("mnist", tmp_path).official_test == 3


def batch(k: int, n: int = 2) -> bytes:
    return Streams(k)(1).bytes(n * images.CIFAR_RECORD)


@pytest.fixture(scope="module", autouse=True)
def tiny_md5() -> Iterator[dict[str, str]]:
    """The md5 of the tiny batches."""
    true = dict(images.CIFAR_MD5)
    tiny = {file: hashlib.md5(batch(k)).hexdigest() for k, file in enumerate(true)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "CIFAR_MD5", tiny)
        yield true


def batches() -> dict[str, bytes]:
    return {file: batch(k) for k, file in enumerate(images.CIFAR_MD5)}


def archived(path: Path, files: dict[str, bytes], mode: str = "w:gz") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(archive(files, mode))
    return path


@pytest.mark.parametrize(
    ("place", "packing"), [("cifar10", "folder"), (".", "folder"), (".", "gz"), (".", "xz"), (".", "bz2"), (".", "")]
)
def test_cifar_is_read_from_folder_and_archive_in_the_order_of_the_batches(tmp_path, place, packing):
    files = batches()
    backwards = dict(reversed(files.items())) | {"readme.html": b"no batch"}
    if packing == "folder":
        written(tmp_path / place / "cifar-10-batches-bin", backwards)
    else:
        end = f".{packing}" if packing else ""
        archived(tmp_path / place / f"cifar-10-binary.tar{end}", backwards, f"w:{packing}")
    raw = load("cifar10", tmp_path)
    records = np.frombuffer(b"".join(files.values()), np.uint8).reshape(12, 3073)
    np.testing.assert_array_equal(raw.inputs, records[:, 1:])
    np.testing.assert_array_equal(raw.labels, records[:, 0])
    assert (raw.official_test, raw.levels, raw.channels) == (2, 255, 3)


def pickled(records: bytes, protocol: int) -> bytes:
    """A file of CIFAR-10's Python version: as Python 2 wrote it (protocol 0 stands for that), or written again."""
    table = np.frombuffer(records, np.uint8).reshape(-1, images.CIFAR_RECORD)
    labels, data = table[:, 0].tolist(), np.ascontiguousarray(table[:, 1:])
    if protocol:
        held = {b"batch_label": b"a batch", b"labels": labels, b"data": data, b"filenames": [b"a.png"] * len(labels)}
        return pickle.dumps(held, protocol)
    text = b"U\x06labels" + b"q\x01" + b"]q\x02(" + b"".join(b"K" + bytes([k]) for k in labels) + b"e"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05(K\x01"
    array += b"K\x02M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + b"J\xff\xff\xff\xff" * 2
    array += b"K\x00tb\x89T" + struct.pack("<I", data.nbytes) + data.tobytes() + b"tb"
    return b"\x80\x02}q\x00(" + b"U\x0bbatch_labelU\x07a batch" + text + b"U\x04data" + array + b"u."


@pytest.mark.parametrize("protocol", [0, 3, 4])
@pytest.mark.parametrize("packing", ["folder", "the folder itself", "gz"])
def test_the_python_version_is_read_without_unpickling(tmp_path, protocol, packing, monkeypatch):
    """Equal to the binary version. Mutations: other numbers taken for labels; an image's planes exchanged."""
    monkeypatch.setattr(pickle, "loads", None)
    files = {file.removesuffix(".bin"): pickled(data, protocol) for file, data in batches().items()}
    if packing == "gz":
        archived(tmp_path / "cifar-10-python.tar.gz", {f"cifar-10-batches-py/{file}": files[file] for file in files})
    else:
        written(tmp_path / "cifar10" / "cifar-10-batches-py", files)
    place = tmp_path / "cifar10" / "cifar-10-batches-py" if packing == "the folder itself" else tmp_path
    raw = loaded("cifar10", place, tmp_path / "cache")
    records = np.frombuffer(b"".join(batches().values()), np.uint8).reshape(12, 3073)
    np.testing.assert_array_equal(raw.inputs, records[:, 1:])
    np.testing.assert_array_equal(raw.labels, records[:, 0])


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_of_a_strangers_runs_nothing(tmp_path, protocol):
    """Mutation: any unpickling, also one whose result is then refused."""
    mark = tmp_path / "ran"

    class Hostile:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(mark),)

    files = {file.removesuffix(".bin"): pickle.dumps(Hostile(), protocol) for file in batches()}
    written(tmp_path / "cifar-10-batches-py", files)
    said = complaint(load, "cifar10", tmp_path)
    assert "data_batch_1 holds 0 labels and" in said and "data.download cifar10" in said and not mark.exists()
    other = files | {"data_batch_1": pickled(batch(7), 0)}
    written(tmp_path / "cifar-10-batches-py", other)
    assert f"has md5 {hashlib.md5(batch(7)).hexdigest()}, it should be" in complaint(load, "cifar10", tmp_path)


def test_a_wrong_archive_says_what_is_wrong(tmp_path):
    said = complaint(load, "cifar10", tmp_path)
    assert "cifar-10-batches-bin" in said and "cifar-10-binary.tar.gz" in said and "data.download cifar10" in said
    changed = archived(tmp_path / "cifar-10-binary.tar.gz", batches() | {"data_batch_3.bin": batch(99)})
    said = complaint(load, "cifar10", tmp_path)
    assert "data_batch_3.bin" in said and images.CIFAR_MD5["data_batch_3.bin"] in said
    assert hashlib.md5(batch(99)).hexdigest() in said and "data.download cifar10" in said
    for mode in ("gz", "xz", "bz2"):
        path = archived(tmp_path / mode / f"cifar-10-binary.tar.{mode}", batches(), f"w:{mode}")
        for data in (b"", path.read_bytes()[: path.stat().st_size // 2], b"\x00garbage" * 300):
            path.write_bytes(data)
            said = complaint(load, "cifar10", path.parent)
            assert str(path) in said and "data.download cifar10" in said
    changed.unlink()
    files = batches()
    del files["test_batch.bin"]
    archived(tmp_path / "cifar-10-binary.tar.xz", files, "w:xz")
    assert "does not hold test_batch.bin" in complaint(load, "cifar10", tmp_path)


def test_a_link_or_an_oversized_member_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "CIFAR_BYTES", len(batch(0)))
    files = batches() | {"data_batch_2.bin": batch(1) + b"0"}
    del files["data_batch_1.bin"]
    path = archived(tmp_path / "cifar-10-binary.tar", files, "w:")
    with tarfile.open(path, "a:") as tar:
        link = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert "does not hold data_batch_1.bin, data_batch_2.bin" in complaint(load, "cifar10", tmp_path)


def npz(tmp_path: Path, **arrays) -> str:
    path = tmp_path / "own.npz"
    np.savez(path, **arrays)
    return str(path)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, ">f4"])
def test_an_npz_is_flattened_and_keeps_its_numbers(tmp_path, dtype):
    x = (np.arange(24) % 7).reshape(4, 2, 3).astype(dtype)
    raw = load(npz(tmp_path, x=x, y=np.array([0, 2, 2, 5], np.uint16)), tmp_path)
    np.testing.assert_array_equal(raw.inputs, x.reshape(4, 6))
    assert raw.inputs.dtype == np.dtype(dtype).newbyteorder("=") and raw.labels.tolist() == [0, 2, 2, 5]
    assert (raw.classes, raw.levels, raw.official_test) == (6, 255 if dtype == np.uint8 else None, 0)
    table = npz_reader.read_npz(Path(npz(tmp_path, x=x.reshape(4, 6), y=np.arange(4))))
    assert table.levels is None and table.is_table and not raw.is_table, "255 divides images alone"
    npz(tmp_path, x=x, y=np.array([0, 2, 2, 5], np.uint16))
    path = tmp_path / "own.npz"
    for data in (b"", b"PK\x03\x04 no zip", b"\x80\x04K\x01.", b"text"):
        path.write_bytes(data)
        said = complaint(load, str(path), tmp_path)
        assert str(path) in said and "savez" in said
    with path.open("wb") as file:
        np.save(file, x)
    assert "one bare array" in complaint(load, str(path), tmp_path)
    assert "no such file" in complaint(load, str(tmp_path / "other.npz"), tmp_path)


X, Y = np.ones((3, 2), np.float32), np.arange(3)
BAD_NPZ = {
    "no y": ({"x": X}, ["holds x, it must hold x and y", "savez"]),
    "another array": (
        {"x": X, "y": Y, "z": Y},
        ["holds x, y, z, it must hold x and y alone, or with client for --part"],
    ),
    "other clients": ({"x": X, "y": Y, "client": Y[:2]}, ["client is int64 of shape (2,)", "shape (3,)"]),
    "broken clients": (
        {"x": X, "y": Y, "client": Y / 2},
        ["client is float64 of shape (3,)", "one integer or one text a sample"],
    ),
    "negative client": ({"x": X, "y": Y, "client": Y - 1}, ["client runs from -1 to 1", "from 0"]),
    "huge client": (
        {"x": X, "y": Y, "client": Y.astype(np.uint64) + np.uint64(2**63)},
        ["to 9223372036854775810", "from 0"],
    ),
    "objects": ({"x": np.array([[{}]], object), "y": Y[:1]}, ["own.npz", "no objects"]),
    "NaN": ({"x": np.array([[0, 0], [0, np.nan], [1, 1]]), "y": Y}, ["NaN or infinite", "sample 1"]),
    "one dimension": ({"x": Y.astype(float), "y": Y}, ["shape (3,)", "(samples, features...)"]),
    "no features": ({"x": X[:, :0], "y": Y}, ["shape (3, 0)"]),
    "wide integers": ({"x": Y.reshape(3, 1), "y": Y}, ["int64", "uint8, float32 or float64"]),
    "label table": ({"x": X, "y": np.eye(3, dtype=int)}, ["(3, 3)"]),
    "other count": ({"x": X, "y": Y[:2]}, ["3 samples", "2 labels", "must be equal"]),
    "negative label": ({"x": X, "y": Y - 1}, ["-1 to 1", "from 0"]),
    "channels last": ({"x": np.ones((3, 32, 28, 3)), "y": Y}, ["(3, 32, 28, 3)", "x.transpose(0, 3, 1, 2)"]),
    "five channels": ({"x": np.ones((3, 5, 8, 8)), "y": Y}, ["with 1 or 3 channels", "x.reshape(len(x), -1)"]),
    "five axes": ({"x": np.ones((3, 1, 2, 2, 3)), "y": Y}, ["(3, 1, 2, 2, 3)", "x.reshape(len(x), -1)"]),
    "huge label": ({"x": X, "y": Y + 10**12}, ["1000000000002", "65535"]),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_a_bad_npz_is_named_with_what_is_allowed(tmp_path, case):
    arrays, words = BAD_NPZ[case]
    said = complaint(load, npz(tmp_path, **arrays), tmp_path)
    for word in ["own.npz", *words]:
        assert word in said


@pytest.mark.parametrize("targets", [False, True])
@pytest.mark.parametrize(
    ("stored", "shape"),
    [
        ((4, 16), (16,)),
        ((4, 20, 30), (1, 20, 30)),
        ((4, 1, 20, 30), (1, 20, 30)),
        ((4, 3, 32, 32), (3, 32, 32)),
        ((4, 3, 6, 1), (3, 6, 1)),
    ],
)
def test_images_of_an_npz_keep_their_shape_and_a_table_stays_one(tmp_path, stored, shape, targets):
    """Mutations: a table of 16 columns that becomes a 4 x 4 image; a shape that the cache or the partition forgets;
    colours that are one channel for --pixels standardize."""
    x = np.arange(math.prod(stored)).reshape(stored).astype(np.float32)
    y = np.arange(4) / 2 if targets else np.arange(4)
    raw = load(npz(tmp_path, x=x, y=y), tmp_path)
    assert raw.shape == shape and raw.channels == (shape[0] if len(shape) == 3 else 1)
    np.testing.assert_array_equal(raw.inputs.reshape(stored), x)
    federation = partition.split(
        raw, STREAMS, m=1, alpha=math.inf, server_fraction=0, test_fraction=0.25, min_samples=1
    )
    assert shape_of(federation) == shape


def good_files(folder: Path) -> dict[str, Path]:
    written(folder / "plain", contents())
    written(folder / "packed", contents(), packed=True)
    np.savez_compressed(folder / "own.npz", x=X, y=Y)
    np.savez(folder / "loose.npz", x=X, y=Y)
    return {
        "plain": folder / "plain" / TRAIN_IMAGES,
        "packed": folder / "packed" / f"{TRAIN_IMAGES}.gz",
        "gz": archived(folder / "cifar-10-binary.tar.gz", batches()),
        "xz": archived(folder / "cifar-10-binary.tar.xz", batches(), "w:xz"),
        "npz": folder / "own.npz",
        "loose": folder / "loose.npz",
    }


def read(kind: str, path: Path) -> Raw:
    if kind in ("npz", "loose"):
        return npz_reader.read_npz(path)
    if kind in ("gz", "xz"):
        return images.read_cifar([path])
    files = [path.with_name(path.name.replace(TRAIN_IMAGES, file)) for file in IDX_FILES]
    return images.read_idx("mnist", files)


def one_line_or_data(kind: str, path: Path) -> bool:
    try:
        return isinstance(read(kind, path), Raw)
    except UserError as error:
        return "\n" not in str(error)


@pytest.mark.parametrize("kind", ["plain", "packed", "gz", "xz", "npz", "loose"])
def test_no_damage_ends_in_anything_but_a_data_set_or_one_sentence(tmp_path_factory, kind):
    path = good_files(tmp_path_factory.mktemp("damaged"))[kind]
    good = path.read_bytes()

    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def damage(choice):
        data = bytearray(good)
        near = st.one_of(st.integers(0, min(400, len(good) - 1)), st.integers(0, len(good) - 1))
        for _ in range(choice.draw(st.integers(1, 6))):
            data[choice.draw(near)] = choice.draw(st.integers(0, 255))
        path.write_bytes(bytes(data[: choice.draw(st.sampled_from([len(data), len(data) // 2, len(data) - 1]))]))
        assert one_line_or_data(kind, path)

    damage()


def test_digits_are_the_embedded_ones(tmp_path):
    raw = load("digits", tmp_path)
    assert raw.inputs.shape == (1797, 64) and raw.inputs.dtype == np.uint8
    assert (raw.inputs.min(), raw.inputs.max(), raw.levels, raw.classes) == (0, 16, 16, 10)
    assert np.bincount(raw.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_synthetic_labels_are_a_linear_teachers(tmp_path):
    raw = load("synthetic", tmp_path, synthetic=Synthetic(4000, 6, 3))
    assert raw.inputs.dtype == np.float32 and raw.inputs.shape == (4000, 6) and raw.levels is None
    assert abs(raw.inputs.mean()) < 5 / np.sqrt(24000) and abs(raw.inputs.var() - 1) < 5 * np.sqrt(2 / 24000)
    one_hot = np.eye(3)[raw.labels]
    fit = np.linalg.lstsq(raw.inputs.astype(float), one_hot, rcond=None)[0]
    assert ((raw.inputs @ fit).argmax(axis=1) == raw.labels).mean() > 0.85
    other = loaded("synthetic", tmp_path, tmp_path / "c", Streams(2), synthetic=Synthetic(4000, 6, 3))
    assert not np.array_equal(raw.inputs, other.inputs)
    too_much = complaint(load, "synthetic", tmp_path, synthetic=Synthetic(10**12, 10**4))
    assert "do not fit into memory" in too_much


MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.parametrize(
    ("name", "train", "test"), [("mnist", MNIST_TRAIN, MNIST_TEST), ("fashion-mnist", [6000] * 10, [1000] * 10)]
)
def test_real_label_counts_are_the_published_ones(cache, name, train, test):
    raw = loaded(name, real(*(f"{name}/{file}.gz" for file in IDX_FILES)), cache)
    assert raw.inputs.shape == (70_000, 784) and raw.official_test == 10_000
    assert np.bincount(raw.labels[:60_000]).tolist() == train and np.bincount(raw.labels[60_000:]).tolist() == test
