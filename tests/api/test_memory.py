"""`Federation.of_clients`: data in memory, whatever form they have."""

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zofl_mpi as zofl
from tests.api.conftest import FedSGD, samples
from tests.conftest import ROOT
from zofl_mpi import Federation, UserError


def pairs(count: int, seed: int) -> torch.utils.data.TensorDataset:
    x, y = samples(count, seed)
    return torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))


class Table:
    """As a Hugging Face data set: rows are dictionaries."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y, self.column_names = x, y, ["pixels", "what"]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, k: int) -> dict[str, Any]:
        return {"pixels": self.x[k], "what": self.y[k]}


def test_arrays_tensors_datasets_and_tables_are_the_same_data() -> None:
    """Mutations: another order; columns exchanged; labels that are counted from another number."""
    x, y = samples(30, 1)
    test = samples(20, 2)
    forms: list[tuple[Any, dict[str, Any]]] = [
        ((x, y), {}),
        ((torch.from_numpy(x), torch.from_numpy(y)), {}),
        (pairs(30, 1), {}),
        (Table(x, y), {"columns": ("pixels", "what")}),
        ((x.tolist(), y.tolist()), {}),
    ]
    made = [Federation.of_clients({"a": form}, test=test, **how) for form, how in forms]
    assert len({each.fingerprint for each in made[:4]}) == 1
    for each in made:
        inputs, labels = each.clients[0].take(np.arange(30), np.float32)
        np.testing.assert_array_equal(inputs, x)
        np.testing.assert_array_equal(labels, y)
        assert each.test.classes == 2 and len(each.server) == 0 and each.validation is None


def test_words_images_targets_and_tokens_are_read() -> None:
    words = Federation.of_clients([(np.eye(3), ["cat", "dog", "ant"])], test=(np.eye(3), ["dog", "dog", "ant"]))
    assert words.clients[0].take(np.arange(3), np.float32)[1].tolist() == [1, 2, 0] and words.test.classes == 3
    images = np.zeros((4, 3, 5, 6), np.uint8)
    seen = Federation.of_clients([(images, [0, 1, 2, 3])], test=(images, [0, 0, 0, 0]))
    assert (seen.shape, seen.channels, seen.test.classes) == ((3, 5, 6), 3, 4)
    grey = Federation.of_clients([(images[:, 0], [0, 1, 2, 3])], test=(images[:, 0], [0, 0, 0, 0]))
    assert grey.shape == (1, 5, 6)
    targets = Federation.of_clients([(np.eye(3), [0.5, 1.5, 2.5])], test=(np.eye(3), [0.0, 1.0, 2.0]))
    assert targets.test.targets is not None and targets.test.target(np.arange(3), np.float64).tolist() == [0, 1, 2]


def test_data_are_shown_by_their_sizes(data: Federation) -> None:
    """As the last line of a notebook's cell. Mutation: thousands of lines of numbers."""
    assert repr(data) == "Federation(m = 3, samples 144, server 36, test 60, validation 20, 8 features, 2 classes)"
    x, _ = samples(30, 1)
    held = Federation.of_clients([(x, x[:, :3])], test=0.2)
    assert repr(held) == "Federation(m = 1, samples 24, server 0, test 6, 8 features, targets (3,))"
    assert repr(held.clients[0]) == "Dataset(24 samples, 8 features, targets (3,))"


def test_another_argument_of_the_module_does_not_continue_a_run(tmp_path: Path, data: Federation) -> None:
    """What a problem binds is a flag's default, which that run's value hid. Mutations: the width that is asked for left
    out in silence; a problem without one refused; a result whose problem nobody gives."""

    def net(width: int = 4) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 2))

    problem, words = zofl.TorchProblem(net), {"family": "zo_hfl", "rounds": 1, "out": tmp_path / "a.h5"}
    first = zofl.simulate(FedSGD, problem(width=5), data, **words)
    loaded = zofl.load(first.path, method=FedSGD)
    for result in (first, loaded):
        with pytest.raises(UserError, match="another configuration: --width was 5, is now 6"):
            zofl.simulate(result, problem(width=6), data, rounds=2)
    for k, given in enumerate((problem, problem(width=5)), 2):
        assert zofl.simulate(first, given, data, rounds=k).config["width"] == 5
    first = zofl.simulate("fedavg", problem, data, rounds=1, out=tmp_path / "b.h5")
    with pytest.raises(
        UserError, match=r"made with a problem of a script \(TorchProblem\): simulate\(result, problem, "
    ):
        zofl.simulate(zofl.load(first.path), data=data, rounds=2)


def test_held_out_shares_are_drawn_from_each_client_by_the_seed() -> None:
    """Mutations: a share of all samples; samples that train and are held out; one seed for all."""
    clients = {name: (np.full((20, 2), k, float), np.arange(20)) for k, name in enumerate("abc")}
    same: dict[str, Any] = {"test": 0.25, "validation": 0.2, "server": (np.full((10, 2), 9.0), np.arange(10))}
    data, again, other = (Federation.of_clients(clients, **same, seed=seed) for seed in (1, 1, 2))
    assert data.fingerprint == again.fingerprint != other.fingerprint
    assert [len(part) for part in data.clients] == [12, 12, 12] and len(data.server) == 8 and len(data.test) == 15
    assert data.validation is not None and len(data.validation) == 11
    parts = [data.server, *data.clients, data.test, data.validation]
    rows = np.concatenate([part.rows_of(np.arange(len(part))) for part in parts])
    assert sorted(rows.tolist()) == list(range(70))
    inputs, _ = data.test.take(np.arange(15), np.float32)
    assert sorted(inputs[:, 0].tolist()) == [0.0] * 5 + [1.0] * 5 + [2.0] * 5


@pytest.mark.parametrize(
    ("clients", "test", "words"),
    [
        ({}, 0.1, "there is no client"),
        ({1: (np.eye(3), [0, 1, 2]), "1": (np.eye(3), [0, 1, 2])}, 0.4, "two clients have names that read alike"),
        ({"a": 3}, 0.1, "client a is a int; it must be a pair"),
        ({"a": (np.eye(3), [0, 1])}, 0.1, r"client a: x has the shape \(3, 3\), y \(2,\)"),
        ({"a": (np.eye(3), [0, 1, 2])}, 1.5, "test 1.5: must be a pair .* or a share of the clients' samples between"),
        ({"a": (np.eye(3), [0, 1, 2])}, None, "test: must be a pair"),
        (
            {"a": (np.eye(3), [0, 1, 2]), "b": (np.eye(2), [0, 1])},
            0.4,
            r"client b has inputs \(2,\) and y \(\) a sample",
        ),
        ({"a": (np.eye(3) * np.nan, [0, 1, 2])}, 0.4, "x is NaN or infinite in some sample"),
        ({"a": (np.eye(3), [0.0, np.inf, 2])}, 0.4, "y is NaN or infinite in some sample"),
        ({"a": Table(np.eye(3), [0, 1, 2])}, 0.4, "has the columns pixels, what: name those of x and y"),
        ({"a": [1, 2, 3]}, 0.4, "sample 0 of client a is a int; it must be a pair"),
        ({"a": (np.eye(1), [0])}, 0.9, "client a has no sample; leave it out, or hold out a smaller share"),
        ({"a": (np.array([["x"]]), [0])}, 0.1, "x is <U1; it must be numbers"),
        ({"a": []}, 0.4, "client a has no sample; leave it out"),
        ({"a": (np.eye(2), [["x"], ["y"]])}, 0.4, r"y is <U1 of shape \(2, 1\): targets must be numbers"),
        ({"a": (np.eye(2), [1j, 2j])}, 0.4, "y is complex128; it must be classes"),
    ],
)
def test_what_is_wrong_is_named(clients: Any, test: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Federation.of_clients(clients, test=test)


@pytest.mark.parametrize(
    ("problem", "flags", "words"),
    [
        ("features", {}, "--problem features needs a data set of images"),
        ("toy", {}, "takes texts or no data, not data in memory"),
        ("split_lm", {}, "takes texts or no data, not data in memory"),
        ("softmax", {"m": 3}, "--m is no flag of this method on this problem"),
    ],
)
def test_problems_that_take_no_data_in_memory_say_so(
    problem: str, flags: Any, words: str, data: Federation, tmp_path: Path
) -> None:
    method = "heron" if problem == "split_lm" else "fedavg"
    with pytest.raises(UserError, match=words):
        zofl.simulate(method, problem, data, out=tmp_path / "a.h5", **flags)


def test_targets_are_refused_where_classes_are_needed(tmp_path: Path) -> None:
    data = Federation.of_clients([(np.eye(4), [0.5, 1.5, 2.5, 0.0])], test=0.25)
    with pytest.raises(UserError, match="targets, but this problem classifies"):
        zofl.simulate("fedavg", "softmax", data, out=tmp_path / "a.h5")


def _spawned(path: str) -> None:
    data = Federation.of_clients([samples(30, 1)], test=samples(20, 2))
    zofl.simulate(FedSGD, "softmax", data, family="zo_hfl", rounds=2, out=path)


def test_a_run_in_a_process_that_was_spawned_and_workers_of_a_loader(tmp_path: Path) -> None:
    """A loader with workers before a run and after it; a process of `spawn`, which imports the script again."""
    loader = torch.utils.data.DataLoader(pairs(12, 1), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    assert len(list(loader)) == 3
    _spawned(str(tmp_path / "a.h5"))
    assert len(list(loader)) == 3
    process = multiprocessing.get_context("spawn").Process(target=_spawned, args=(str(tmp_path / "b.h5"),))
    process.start()
    process.join(240)
    assert process.exitcode == 0
    first, second = (zofl.load(tmp_path / f"{name}.h5") for name in "ab")
    np.testing.assert_array_equal(first.final["x"], second.final["x"])


def test_importing_the_package_loads_neither_torch_nor_mpi_nor_hdf5() -> None:
    code = "import sys, zofl_mpi; print([m for m in ('torch', 'mpi4py', 'h5py', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    windows = "import sys; sys.platform = 'win32'; import zofl_mpi"
    done = subprocess.run([sys.executable, "-c", windows], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.endswith("within WSL (wsl --install, then pip install there)\n")
