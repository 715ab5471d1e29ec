"""A regression: a table whose y are floats is read, kept, shared out and told apart, or refused in a sentence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Patch
from tests.unit.made import complaint
from zofl_mpi.data import Dataset, Federation, Raw, cache, npz, partition, sources
from zofl_mpi.engine.streams import Streams
from zofl_mpi.engine.world import SingleProcess
from zofl_mpi.errors import UserError
from zofl_mpi.settings.samples import Samples

X = np.arange(80.0).reshape(40, 2)
V = np.random.default_rng(3).standard_normal(40)


def table(folder: Path, y: Any, name: str = "table.npz") -> str:
    np.savez(folder / name, x=X[: len(y)], y=y)
    return str(folder / name)


def load(path: str, folder: Path) -> Raw:
    stored = sources.find_sources(path, None, Streams(1))
    cache.prepare(stored, folder / "cache")
    return cache.open_entry(stored, folder / "cache")


def shared(raw: Raw, **options: Any) -> Federation:
    return partition.split(raw, Streams(1), **({"m": 3, "alpha": np.inf, "min_samples": 2} | options))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ">f8"])
def test_floats_are_targets_of_samples_of_one_class(tmp_path: Path, dtype: Any) -> None:
    """Mutations: labels not 0; targets cut to integers or to float32."""
    y = V.astype(dtype)
    raw = load(table(tmp_path, y), tmp_path)
    assert raw.targets is not None and raw.targets.dtype == np.float64
    assert raw.targets.tolist() == y.astype(np.float64).tolist()
    assert raw.labels.tolist() == [0] * 40 and raw.labels.dtype == np.int64 and raw.classes == 1
    np.testing.assert_array_equal(raw.inputs, X)
    assert load(table(tmp_path, np.round(y)), tmp_path).targets is not None  # whole numbers as floats
    integers = load(table(tmp_path, np.arange(40) % 3), tmp_path)
    assert integers.targets is None and integers.classes == 3
    np.savez(tmp_path / "table.npz", x=X, y=y[:7])
    with pytest.raises(UserError, match="x holds 40 samples but y 7 targets"):
        npz.read_npz(tmp_path / "table.npz")


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (np.r_[V[:3], np.nan, V[4:]], "y is NaN or infinite (first in sample 3)"),
        (np.r_[V[:5], -np.inf, np.nan], "y is NaN or infinite (first in sample 5)"),
        (np.array([0, np.longdouble("1e4000")]), "y is NaN or infinite (first in sample 1)"),
        (V[:, None], "y is float64 of shape (40, 1), it must be one integer (a class) a sample, shape"),
        (V + 1j, "y is complex128"),
    ],
)
def test_targets_that_are_no_numbers_are_refused(tmp_path: Path, y: Any, words: str) -> None:
    told = complaint(npz.read_npz, Path(table(tmp_path, y)))
    assert words in told and "table.npz" in told


def test_targets_go_with_their_rows() -> None:
    """Mutation: positions of a part taken for rows of the whole."""
    data = Dataset(X, np.zeros(40, np.int64), 1, targets=V)
    part = data.subset(np.array([9, 4, 7, 1])).subset(np.array([3, 0]))
    found = part.target(np.array([1, 0, 1]), np.float32)
    assert found.dtype == np.float32 and found.tolist() == V[[9, 1, 9]].astype(np.float32).tolist()
    assert data.target(np.array([5]), np.float64).tolist() == [V[5]]
    classes = Dataset(X, np.arange(40) % 3, 4).subset(np.array([9, 4, 7, 1]))
    assert classes.counts().tolist() == [1, 3, 0, 0], "an absent class, too"
    inputs, labels = classes.take(np.array([2, 0, 2]), np.float32)
    assert inputs.dtype == np.float32 and inputs.tolist() == X[[7, 9, 7]].tolist() and labels.tolist() == [1, 0, 1]
    assert part.take(np.array([1]), np.float64)[0].tolist() == [X[9].tolist()] and part.inputs is data.inputs
    with pytest.raises(UserError, match=r"have classes, not targets: --data must be a \.npz file whose y are floats"):
        Dataset(X, np.zeros(40, np.int64), 1).target(np.array([0]), np.float64)
    assert Dataset(X, np.arange(40) % 3, 3).fingerprint() == "40 x 2, crc32 baaee207"  # as before there were targets
    other = Dataset(X, np.zeros(40, np.int64), 1, targets=np.r_[V[:-1], V[-1] + 1e-12])
    assert data.fingerprint() != other.fingerprint()


REGRESSION = Raw(X, np.zeros(40, np.int64), 1, targets=V)


@pytest.mark.parametrize("pixels", ["unit", "raw", "standardize"])
def test_a_regression_is_dealt_out_uniformly_with_its_targets(pixels: str) -> None:
    parts = shared(REGRESSION, pixels=pixels)
    held = [parts.test, parts.server, *parts.clients]
    assert [len(part) for part in held] == [4, 11, 9, 8, 8]
    found = np.concatenate([part.target(np.arange(len(part)), np.float64) for part in held])
    assert sorted(found) == sorted(V)
    for part in held:
        assert part.rows is not None and part.target(np.arange(len(part)), np.float64).tolist() == V[part.rows].tolist()
    assert parts.counts.tolist() == [[9], [8], [8]]


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"alpha": 0.5}, "--alpha 0.5"),
        ({"alpha": 1e9}, "--alpha 1e+09"),
        *(({"partition": name}, f"--partition {name}") for name in ("by_mix", "shards:2")),
    ],
)
def test_uneven_clients_are_refused_for_a_regression_alone(options: dict[str, Any], flag: str) -> None:
    told = complaint(shared, REGRESSION, **options)
    assert told.startswith(flag) and "a regression has no classes to spread unevenly" in told
    assert shared(replace(REGRESSION, targets=None), **options).counts.sum() in (24, 25)
    owned = replace(REGRESSION, clients=np.arange(40) % 2)
    assert [len(shared(owned, partition=name).clients) for name in ("natural", "quantity:2")] == [2, 3]


@pytest.mark.parametrize("classifies", [True, False])
def test_a_classifier_is_not_given_a_regression(tmp_path: Path, monkeypatch: Patch, classifies: bool) -> None:
    """The federation is for classifiers unless its reader says that it can do with targets."""
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path / "cache"))
    path = table(tmp_path, V)
    samples = Samples(data=path, m=2, min_samples=2)
    if classifies:
        told = complaint(samples.federation, SingleProcess(), Streams(1))
        assert told.startswith(f"--data {path} has targets, not classes; this problem classifies")
    else:
        assert len(samples.federation(SingleProcess(), Streams(1), classifies=False).clients) == 2
    labelled = replace(samples, data=table(tmp_path, np.arange(40) % 2, "classes.npz"))
    assert labelled.federation(SingleProcess(), Streams(1), classifies=classifies).server.classes == 2
