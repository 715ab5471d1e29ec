"""Principal components: of the training part alone, centred, uncorrelated, as one SVD of a small matrix has them."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from zofl_mpi.data import Dataset, Federation
from zofl_mpi.data.features import parsed_components, projected
from zofl_mpi.engine.world import SingleProcess
from zofl_mpi.errors import UserError

GENERATOR = np.random.default_rng(5)
INPUTS = (GENERATOR.standard_normal((60, 5)) @ np.diag([9, 5, 3, 1, 0.1]) @ GENERATOR.standard_normal((5, 5)) + 4) * 10
TRAINING = np.arange(8, 50)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path))


def federation() -> Federation:
    whole = Dataset(INPUTS, np.arange(60) % 3, 3, scale=0.1, shift=-1.0)
    parts = [whole.subset(rows) for rows in np.split(TRAINING, [10, 30])]
    rest = np.concatenate([np.arange(8), np.arange(50, 60)])
    return Federation(parts[0], tuple(parts[1:]), whole.subset(rest[:9]), validation=whole.subset(rest[9:]))


def test_components_are_those_of_the_training_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations: all samples' mean or axes; the last axes; no mean; the scale left out; a chunk's end left out."""
    monkeypatch.setattr("zofl_mpi.data.features.ROWS_AT_ONCE", 7)
    made = projected(SingleProcess(), federation(), 3, "toy")
    x = 0.1 * INPUTS - 1
    mean = x[TRAINING].mean(axis=0)
    axes = np.linalg.svd(x[TRAINING] - mean)[2][:3]
    expected = (x - mean) @ axes.T
    expected *= np.sign(axes[np.arange(3), np.abs(axes).argmax(axis=1)])  # the largest entry of an axis is positive
    found = made.server.inputs
    np.testing.assert_allclose(found, np.pad(expected, ((0, 0), (0, 1)), constant_values=1), rtol=1e-4, atol=1e-4)
    assert found.dtype == np.float32 and made.server.features == 4
    for before, after in zip([federation().test, *federation().clients], [made.test, *made.clients], strict=True):
        np.testing.assert_array_equal(before.rows, after.rows)
        np.testing.assert_array_equal(after.take(np.arange(2), np.float32)[0], found[before.rows[:2]])  # type: ignore[index]
    assert made.validation is not None and made.validation.inputs is found


def test_the_servers_components_know_nothing_of_the_clients() -> None:
    """Mutations: the clients' rows, too; those of the first client; no refusal."""
    base = federation()
    made = projected(SingleProcess(), base, 3, "toy", of_server=True).server.inputs
    x = 0.1 * INPUTS - 1
    own = x[base.server.rows]
    axes = np.linalg.svd(own - own.mean(axis=0))[2][:3]
    found, expected = np.asarray(made[:, :3], np.float64), (x - own.mean(axis=0)) @ axes.T
    np.testing.assert_allclose(np.abs(found), np.abs(expected), rtol=1e-3, atol=1e-3)
    with pytest.raises(UserError, match="--features server-pca:5: the server has 4 samples"):
        projected(SingleProcess(), replace(base, server=base.server.subset(np.arange(4))), 5, "toy", of_server=True)


def test_components_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations: the entry's name without K, the key, the rows, the scale or the shift; no cache."""
    base = federation()
    scaled = base.seen_as(lambda part: replace(part, scale=0.2), "", "")
    shifted = base.seen_as(lambda part: replace(part, shift=np.linspace(0, 1, 5)), "", "")
    others = replace(base, clients=base.clients[:1])
    cases = [(base, 3, "toy"), (base, 2, "toy"), (base, 3, "other"), (scaled, 3, "toy"), (shifted, 3, "toy")]
    cases.append((others, 3, "toy"))
    made = [projected(SingleProcess(), *case).server.inputs for case in cases]  # type: ignore[arg-type]
    monkeypatch.setattr("zofl_mpi.data.features._components", None)
    again = [projected(SingleProcess(), *case).server.inputs for case in cases]  # type: ignore[arg-type]
    for first, second in zip(made, again, strict=True):
        np.testing.assert_array_equal(first, second)
    assert len(list(Path(os.environ["ZOFL_CACHE"]).glob("pca-*"))) == len(cases)


@pytest.mark.parametrize(
    "features", ["pca", "pca:0", "server-pca:0", "clients-pca:3", "pca:-3", "pca:1.5", "ica:3", ""]
)
def test_other_features_are_refused(features: str) -> None:
    with pytest.raises(UserError, match="choose all, pca:K or server-pca:K"):
        parsed_components(features)


def test_more_components_than_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="an input has 5 numbers"):
        projected(SingleProcess(), federation(), 6, "toy")
