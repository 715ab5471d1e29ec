"""The overview of three runs: its numbers are those of the result files, and the texts quote the kept ones."""

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.made import refused, table_of
from tests.conftest import ROOT
from zofl_mpi.run import records

KEPT = ROOT / "analysis/results/a_overview"
FLAGS = {"data": "mnist", "m": 2, "alpha": 0.1, "rounds": 3}


@pytest.fixture
def overview(script: Callable[[str], Any]) -> Any:
    return script("a_overview")


@pytest.fixture
def result(tmp_path: Path) -> Callable[..., Path]:
    """Writes a result of 2 clients on 2 ranks by hand; round 2 of 3 is not evaluated."""

    def made(method: str, up: int, columns: tuple[str, ...] = ("test_accuracy",), **flags: Any) -> Path:
        path = tmp_path / f"{method}.h5"
        attrs = {"config": {**FLAGS, "method": method, **flags}, "ranks": 2}
        recorder = records.Recorder.create(path, attrs=attrs, m=2, ranks=2, rounds=3)
        for r in range(3):
            row = {"round": r + 1.0, **{name: 0.6 + 0.1 * r + 0.01 * k for k, name in enumerate(columns) if r != 1}}
            recorder.append(
                row,
                steps=["server", "solve"],
                bytes_down=np.array([[0, 0], [1000, 24]]),
                bytes_up=np.array([[0, 0], [up, up]]),
                seconds_compute=np.array([[0.5, 0.0], [0.0, 2.0 + r]]),
                seconds_wait=np.array([[0.0, 0.0], [1.0, 0.25]]),
                seconds_comm=np.array([[0.125, 0.0], [0.0, 0.0]]),
            )
        recorder.flush()
        return path

    return made


def pixels(path: Path) -> tuple[int, int]:
    """Width and height, from a PNG's header."""
    return struct.unpack(">II", path.read_bytes()[16:24])


def test_the_numbers_are_those_of_the_results(overview: Any, result: Callable[..., Path], tmp_path: Path) -> None:
    first = result("zo_hfl", 8, ("test_accuracy", "personal_accuracy"), beta=0.5)
    overview.main([str(first), str(result("fedavg", 1024)), "--out", str(tmp_path / "all")])
    assert pixels(tmp_path / "all.png") == (1000, 400)
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in table_of(tmp_path / "all.csv"):
        found.setdefault((row["panel"], row["run"], row["what"]), {})[row["where"]] = float(row["value"])
    assert found == {
        ("accuracy", "zo_hfl", "x"): {"1": 60.0, "3": 80.0},
        ("accuracy", "fedavg", "x"): {"1": 60.0, "3": 80.0},
        ("accuracy", "zo_hfl", "y_i"): {"1": 61.0, "3": 81.0},
        ("bytes", "zo_hfl", "down"): {"all": 3072.0},
        ("bytes", "zo_hfl", "up"): {"all": 48.0},
        ("bytes", "fedavg", "down"): {"all": 3072.0},
        ("bytes", "fedavg", "up"): {"all": 6144.0},
        ("seconds", "zo_hfl", "compute"): {"rank 0": 1.5, "rank 1": 9.0},
        ("seconds", "zo_hfl", "wait"): {"rank 0": 3.0, "rank 1": 0.75},
        ("seconds", "zo_hfl", "comm"): {"rank 0": 0.375, "rank 1": 0.0},
    }


def test_the_panels_show_the_numbers(overview: Any, result: Callable[..., Path]) -> None:
    paths = [result("zo_hfl", 8, ("test_accuracy", "personal_accuracy")), result("fedavg", 1024), result("own", 0)]
    runs = [records.load(path) for path in paths]
    figure = overview.drawn(overview.numbers(runs), "heading")
    left, middle, right = figure.axes
    lines = {line.get_label(): line.get_xydata() for line in left.get_lines()}
    assert list(lines) == ["$y_i$ on client i's classes", "$x$, ZO-HFL", "$x$, FedAvg", "$x$, own"]
    assert lines["$x$, FedAvg"] == pytest.approx(np.array([[1, 60], [3, 80]]))
    assert [bar.get_width() * 2**20 for bar in middle.patches] == pytest.approx([3072, 48, 3072, 6144, 3072, 0])
    assert [text.get_text() for text in middle.texts] == ["3 KiB", "48 B", "3 KiB", "6 KiB", "3 KiB", "0 B"]
    assert [bar.get_x() for bar in right.patches] == pytest.approx([0, 0, 1.5, 9.0, 4.5, 9.75])
    assert [bar.get_width() for bar in right.patches] == pytest.approx([1.5, 9.0, 3.0, 0.75, 0.375, 0])
    labels = ["finished rounds", "MiB in the whole run", "seconds"]
    assert [axis.get_xlabel() for axis in (left, middle, right)] == labels


def test_a_run_that_sends_nothing_has_no_bars(overview: Any) -> None:
    found = [{"run": run, "what": "up", "value": size} for run, size in (("a", 5.0), ("b", 0.0))]
    axis = overview.plt.figure().gca()
    overview.bytes_sent(axis, found)
    assert [label.get_text() for label in axis.get_yticklabels()] == ["a\nto the server"]


def test_the_heading_tells_the_setting(overview: Any, result: Callable[..., Path]) -> None:
    for path, share in ((result("zo_hfl", 8, beta=0.5), " 50 % of them in a round,"), (result("server_sgd", 0), "")):
        told = f"MNIST, 2 clients,{share} classes shared out by Dirichlet(0.1), 2 MPI ranks"
        assert overview.title(records.load(path)) == told


@pytest.mark.parametrize(("problem", "sentence"), [("missing", "missing.h5"), ("toy", "has no test accuracy")])
def test_a_result_that_cannot_be_drawn_is_refused_in_a_sentence(
    overview: Any, result: Callable[..., Path], tmp_path: Path, capsys: Any, problem: str, sentence: str
) -> None:
    path = result("toy", 8, ("objective",)) if problem == "toy" else tmp_path / "missing.h5"
    (line,) = refused(overview.main, [str(path), "--out", str(tmp_path / "all")], capsys)
    assert line.startswith("a_overview: ") and sentence in line
    assert not list(tmp_path.glob("all*"))


def test_a_place_that_cannot_be_written_is_told(
    overview: Any, result: Callable[..., Path], tmp_path: Path, capsys: Any
) -> None:
    path = result("zo_hfl", 8)
    (tmp_path / "all.png").mkdir()
    for out, sentence in ((path / "all", "make the folder"), (tmp_path / "all", "is a folder: name a file in it")):
        with pytest.raises(SystemExit, match=r"^2$"):
            overview.main([str(path), "--out", str(out)])
        assert sentence in capsys.readouterr().err


def test_the_kept_figure_is_as_wide_as_a_page() -> None:
    assert pixels(KEPT.with_suffix(".png")) == (1000, 400)


def test_the_kept_numbers_are_those_that_the_page_quotes(overview: Any) -> None:
    """The script draws them, and the words of the page are theirs."""
    found = [row | {"value": float(row["value"])} for row in table_of(KEPT.with_suffix(".csv"))]
    assert {n["panel"] for n in found} == {"accuracy", "bytes", "seconds"}
    last = {(n["run"], n["what"]): n for n in found if n["panel"] == "accuracy"}
    sizes = {(n["run"], n["what"]): overview._size(n["value"]) for n in found if n["panel"] == "bytes"}
    assert {n["where"] for n in last.values()} == {"500"}
    told = {key: f"{n['value']:.1f}" for key, n in last.items()}
    down, up = ({run: sizes[run, way] for run in ("zo_hfl", "fedavg")} for way in ("down", "up"))
    x = [told[run, "x"] for run in ("zo_hfl", "fedavg", "server_sgd")]
    results = f"x of ZO-HFL ends at {x[0]} %, of FedAvg at {x[1]}, of the server alone at {x[2]}. The y_i"
    sent = (
        f" end at {told['zo_hfl', 'y_i']}. ZO-HFL's clients receive {down['zo_hfl']} and send {up['zo_hfl']}, FedAvg's "
        f"{down['fedavg']} and {up['fedavg']}."
    )
    assert results + sent in re.sub(r"\s+", " ", (ROOT / "analysis/results/zo_hfl.md").read_text())
