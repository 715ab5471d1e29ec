"""[C]'s figure 7 from tiny real results: the model of the file, the Hessian of its local loss, refusals.

Docstrings name the mutations to catch.
"""

import json
import math
import shutil
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from tests.analysis.made import Wrote, check_figure, explicit_hessian, table_of
from tests.conftest import Capsys, Patch
from tests.launch import launch
from zofl_mpi.run import records
from zofl_mpi.run.records.hdf5 import set_attributes

FLAGS = [
    "--problem",
    "split_resnet",
    "--data",
    "digits",
    "--width",
    "4",
    "--stages",
    "1",
    "1",
    "--head",
    "pooled",
    "--batch",
    "32",
    "--m",
    "3",
]
FLAGS += ["--h", "2", "--rounds", "2", "--eval-every", "2", "--quiet", "--lr-client", "0.01"]
RUNS = {
    "heron": ["--method", "heron"],
    "cse_fsl": ["--method", "cse_fsl", "--state", "reset"],
    "heron2": ["--method", "heron", "--seed", "2"],
    "still": ["--method", "heron", "--seed", "9", "--lr-client", "0"],
}
SMALL = ["--samples", "40", "--steps", "6", "--probes", "2", "--trace-probes", "3"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results, and one of another family."""
    folder = tmp_path_factory.mktemp("made")
    runs = [("zofl_mpi.heron_sfl", [*FLAGS, *more, "--out", folder / f"{name}.h5"]) for name, more in RUNS.items()]
    other = ["--problem", "corner", "--rounds", 1, "--quiet", "--out", folder / "other.h5"]
    ended = launch(0, [*runs, ("zofl_mpi.zo_hfl", other)])
    assert [one.status for one in ended] == [0] * len(ended), ended
    return folder


@pytest.fixture
def fig7(script: Any) -> Any:
    return script("c_fig7")


@pytest.fixture
def undrawn(fig7: Any, monkeypatch: Patch) -> Callable[[], None]:
    """undrawn(): from now on figures are empty."""
    return lambda: monkeypatch.setattr(fig7, "draw", lambda *_: Figure())


def given(fig7: Any, *words: object) -> Namespace:
    parser = fig7.command.parser("c_fig7", "", own=fig7.FLAGS)
    return parser.parse_args([*map(str, words), *SMALL, "--dtype", "float64"])  # type: ignore[no-any-return]


def explicit(model: Any, samples: int, seed: int) -> Any:
    """(n, n) the Hessian on the samples drawn by hand."""
    data = model.setting.data[0]
    rows = np.concatenate([own.rows for own in model.setting.data])
    generator = np.random.Generator(np.random.Philox(key=[seed, 23], counter=[0, 0, 0, 0]))
    rows = rows[np.sort(generator.choice(len(rows), samples, replace=False))]
    x = torch.from_numpy(data.inputs[rows] * data.scale).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(data.labels[rows])
    return explicit_hessian(model.setting.problem, model.theta, model.buffers, x, labels).numpy()


def test_the_models_are_those_of_the_file_and_of_its_start(made: Path, fig7: Any) -> None:
    """Mutations: another buffers; the start of another seed; the model of the checkpoint or of the server."""
    args = given(fig7, made / "heron.h5")
    first, last = fig7.models_of(made / "heron.h5", args)
    final = records.load(made / "heron.h5").final
    assert np.array_equal(last.theta.numpy(), final["theta"].astype(np.float64))
    assert np.array_equal(last.buffers.numpy(), final["buffers"].astype(np.float64))
    assert (first.rounds, first.name) == (0, "before training, seed 1")
    assert (last.rounds, last.name) == (2, "HERON, 2 rounds")
    assert not np.array_equal(first.theta.numpy(), last.theta.numpy())
    assert set(first.buffers.tolist()) == {0.0, 1.0}
    other = next(iter(fig7.models_of(made / "heron2.h5", args)))
    assert not torch.equal(first.theta, other.theta)


def test_a_run_without_steps_of_the_clients_ends_where_it_began(made: Path, fig7: Any) -> None:
    """So the start is the run's own, to the bit. Mutation: a start that is made from --seed of the analysis."""
    first, last = fig7.models_of(made / "still.h5", given(fig7, made / "still.h5"))
    assert torch.equal(first.theta, last.theta) and first.name.endswith("seed 9")


def test_a_beginning_is_shown_once_and_another_one_too(made: Path, fig7: Any) -> None:
    """Mutations: all beginnings taken for one; none dropped; the last models dropped; other clients' data."""
    names = ("heron", "cse_fsl", "heron2")
    models = [m for name in names for m in fig7.models_of(made / f"{name}.h5", given(fig7, made / f"{name}.h5"))]
    kept = fig7.without_repetitions(models)
    found = [f"{m.run.path.stem} {m.rounds}" for m in kept]
    assert found == ["heron 0", "heron 2", "cse_fsl 2", "heron2 0", "heron2 2"]
    fewer = replace(models[0].setting, data=models[0].setting.data[:2])
    assert len(fig7.without_repetitions([models[0], models[0]._replace(setting=fewer)])) == 2


def test_the_numbers_are_those_of_the_explicit_hessian(made: Path, fig7: Any) -> None:
    """Mutations: samples with replacement, of one client or of the test part; BatchNorm in train mode; the trace over
    another norm."""
    args = given(fig7, made / "cse_fsl.h5", "--seed", 5)
    args.steps, args.trace_probes = 60, 20
    *_, model = fig7.models_of(made / "cse_fsl.h5", args)
    found = fig7.look_at(model, args)
    matrix = explicit(model, 40, 5)
    values = np.linalg.eigvalsh(matrix)
    assert found.spectrum.norm.value == pytest.approx(abs(values).max(), rel=1e-6)
    assert found.spectrum.ends == pytest.approx((values[0], values[-1]), rel=1e-4)
    by_hand = []
    for i in range(20):
        generator = np.random.Generator(np.random.Philox(key=[5, 23], counter=[0, 0, i, 2]))
        z = 2.0 * generator.integers(0, 2, len(matrix)) - 1
        by_hand.append(float(z @ matrix @ z))
    assert found.trace.value == pytest.approx(np.mean(by_hand), rel=1e-8)
    assert found.trace.error == pytest.approx(np.std(by_hand, ddof=1) / math.sqrt(20), rel=1e-8)
    assert found.rank.value == pytest.approx(np.mean(by_hand) / abs(values).max(), rel=1e-6)
    assert fig7.positive(found).value > 0


def test_the_table_the_density_and_the_figure_are_written(
    made: Path, tmp_path: Path, fig7: Any, capsys: Capsys, undrawn: Callable[[], None]
) -> None:
    """Both methods, whose start is shown once. Mutations: a start of each result; the density of another model."""
    words = [*(str(made / f"{name}.h5") for name in ("heron", "cse_fsl")), *SMALL, "--out", str(tmp_path / "f")]
    fig7.main(words)
    told = Wrote(tmp_path / "f", capsys.readouterr().out, "")
    rows, densities = told.rows, table_of(told.path("_density.csv"))
    names = ["before training, seed 1", "HERON, 2 rounds", "CSE-FSL, 2 rounds"]
    assert [row["model"] for row in rows] == names
    assert all(name in told.out for name in names) and "float32" in told.out
    assert told.path(".txt").read_text() in told.out
    for row in rows:
        number = {key: float(row[key]) for key in row if key not in ("model", "method", "result", "dtype")}
        assert number["effective_rank"] == pytest.approx(number["trace"] / number["norm"], rel=1e-12)
        assert number["effective_rank_error"] == pytest.approx(number["trace_error"] / number["norm"], rel=1e-12)
        ends = number["eigenvalue_smallest"], number["eigenvalue_largest"]
        assert number["norm"] == max(map(abs, ends)) and ends[0] < ends[1]
        density = [d for d in densities if d["model"] == row["model"]]
        at, height = (np.array([float(d[key]) for d in density]) for key in ("eigenvalue", "density"))
        assert np.trapezoid(height, at) == pytest.approx(1, abs=1e-6)
    check_figure(told.stem)
    undrawn()
    fig7.main([*words, "--seed", "2"])
    assert all(a["trace"] != b["trace"] for a, b in zip(rows, told.rows, strict=True))


def test_the_figure_has_a_panel_a_model(made: Path, fig7: Any) -> None:
    """Mutations: the density without its mean; a panel of another model; the height of one eigenvalue without n."""
    args = given(fig7, made / "heron.h5")
    found = [fig7.look_at(model, args) for model in fig7.models_of(made / "heron.h5", args)]
    figure = fig7.draw(found, args)
    assert len(figure.axes) == 2
    for panel, one in zip(figure.axes, found, strict=True):
        assert panel.get_title(loc="left").startswith(one.model.name) and panel.get_yscale() == "log"
        line, single = panel.get_lines()
        sigma = args.width * one.spectrum.norm.value
        rows = one.spectrum.density(np.asarray(line.get_xdata()), sigma)
        assert np.allclose(line.get_ydata(), rows.mean(axis=0))
        height = 1 / (len(one.model.theta) * sigma * math.sqrt(2 * math.pi))
        assert single.get_ydata()[0] == pytest.approx(height)


@pytest.mark.parametrize(
    ("value", "error", "expected"),
    [(12.345, 0.432, "12.35 ± 0.43"), (501.7, 83.2, "502 ± 83"), (3.0, math.nan, "3"), (math.nan, math.nan, "-")],
)
def test_numbers_end_where_their_errors_do(fig7: Any, value: float, error: float, expected: str) -> None:
    from zofl_mpi.numerics.zo import EstimateWithError

    assert fig7.uncertain(EstimateWithError(value, error)) == expected


# --- refusals


@pytest.mark.parametrize(
    ("name", "flags", "words"),
    [
        ("other", SMALL, "other.h5 is no result of zofl_mpi.heron_sfl"),
        ("none", SMALL, "there is no file"),
        ("heron", ["--samples", "5000"], "--samples 5000: must be at most 1617, what the clients hold"),
        ("heron", ["--samples", "0"], "--samples 0: must be a whole number, at least 1"),
        ("heron", ["--trace-probes", "1"], "--trace-probes 1: must be a whole number, at least 2"),
        ("heron", ["--width", "0"], "--width 0.0: must be a share of the norm, above 0"),
        ("heron", ["--seed", "-1"], "--seed -1: the seed must be"),
    ],
)
def test_what_does_not_fit_is_refused(made: Path, refuses: Any, name: str, flags: list[str], words: str) -> None:
    (line,) = refuses("c_fig7", [str(made / f"{name}.h5")], *flags)
    assert line.startswith("c_fig7: ") and words in line


def unfinished(file: Any) -> None:
    del file["final"]
    set_attributes(file, {"status": "interrupted"})


def diverged(file: Any) -> None:
    file["final/theta"][3] = np.nan


def of_sflv2(file: Any) -> None:
    set_attributes(file, {"config": json.loads(file.attrs["config"]) | {"method": "sflv2"}})


def of_other_data(file: Any) -> None:
    set_attributes(file, {"data": "other"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (unfinished, "holds no last model: the run is not finished"),
        (diverged, "its last model has diverged, it is not finite"),
        (of_sflv2, "is of --method sflv2, which does not train on the local loss; heron and cse_fsl do"),
        (of_other_data, "data or network are not those that the run was made with (other then, "),
    ],
)
def test_a_result_that_cannot_be_used_is_refused(
    made: Path, tmp_path: Path, refuses: Any, change: Callable[[Any], None], words: str
) -> None:
    path = tmp_path / "changed.h5"
    shutil.copyfile(made / "heron.h5", path)
    with h5py.File(path, "r+") as file:
        change(file)
    assert words in refuses("c_fig7", [str(path)], *SMALL)[0]


def test_a_norm_that_is_not_settled_is_told(
    made: Path, tmp_path: Path, fig7: Any, capsys: Capsys, undrawn: Callable[[], None]
) -> None:
    """Mutation: a warning never, or always."""
    undrawn()
    words = [str(made / "heron.h5"), *SMALL, "--out", str(tmp_path / "f")]
    fig7.main([*words, "--steps", "2"])
    assert capsys.readouterr().err.count("take more --steps") == 2
    fig7.main([*words, "--steps", "40"])
    assert "take more" not in capsys.readouterr().err
