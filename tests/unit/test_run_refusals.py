"""Error messages around a run that runs seldom meet: of a continuation, of ranks that differ, of a result in Python."""

import dataclasses
import errno
import json
import math
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import zofl_mpi
from tests.conftest import Capsys, Patch
from tests.unit.made import complaint
from tests.unit.test_records import add, started
from zofl_mpi.api import ranks
from zofl_mpi.api.arguments import IN_MEMORY, Arguments
from zofl_mpi.engine import device
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.engine.world import SingleProcess
from zofl_mpi.run.command import build
from zofl_mpi.run.command.family import family_of
from zofl_mpi.run.command.result import check_same_run
from zofl_mpi.run.loop.totals import Totals
from zofl_mpi.run.mpi.binding import bind
from zofl_mpi.run.records import Recorder
from zofl_mpi.run.records.hdf5 import reason_of

KNOWN = {"run": "r", "data": "digits, network 1", "kernel": "numpy", "blas": json.dumps(["mkl"])}
NOW = KNOWN | {"blas": ["mkl"]}


def test_a_report_of_directions_that_fails_is_warned_of_and_fails_no_run(capsys: Capsys) -> None:
    """Mutations: the error raised; no warning; the round left out."""

    def fails(rounds: int) -> Any:
        raise ZeroDivisionError("no parameters")

    totals, method = Totals(3), SimpleNamespace(directions=fails)
    assert totals.count_directions(method) == {} and totals.directions is None  # type: ignore[arg-type]
    assert "directions(3) failed (ZeroDivisionError: no parameters" in capsys.readouterr().err


def test_a_file_that_may_not_grow_is_told_with_its_limit(monkeypatch: Patch, tmp_path: Path) -> None:
    """Mutations: the hard limit; the limit for every error; the room left out."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4096, 8192))
    reason = reason_of(OSError(errno.EFBIG, "planted"), tmp_path / "a.h5")
    assert reason.startswith("File too large (a file may have 4096 bytes: ulimit -f) (")
    assert reason.endswith("bytes are free there)")
    assert reason_of(OSError(errno.EIO, "planted"), tmp_path / "a.h5") == "Input/output error"


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ({"run": "other"}, "its checkpoint belongs to another run"),
        ({"data": "mnist, network 1"}, "(mnist, network 1 then, digits, network 1 now)"),
        ({"data": "digits, network 2"}, "another version of zofl_mpi or torch initialised it"),
        ({"kernel": "numba"}, "its kernel was numba, here it is numpy"),
        ({"blas": None}, "its attribute blas is missing or damaged"),
        ({"blas": "[1, "}, "its attribute blas is missing or damaged"),
    ],
)
def test_another_run_is_not_continued(before: dict[str, Any], words: str) -> None:
    """Mutations: one of the attributes not compared; a traceback for a damaged one."""
    held = {name: value for name, value in (KNOWN | before).items() if value is not None}
    assert words in (said := complaint(check_same_run, Path("a.h5"), held, KNOWN, NOW))
    assert ("initialised it" in said) == (before == {"data": "digits, network 2"})


def test_another_blas_is_warned_of(capsys: Capsys) -> None:
    """Mutations: refused; warned of for the same library of other ranks."""
    check_same_run(Path("a.h5"), KNOWN | {"blas": json.dumps(["mkl", "mkl"])}, KNOWN, NOW)
    assert not capsys.readouterr().err
    check_same_run(Path("a.h5"), KNOWN | {"blas": json.dumps(["openblas"])}, KNOWN, NOW)
    assert "another BLAS (openblas then, mkl now): bits may differ" in capsys.readouterr().err


def test_ranks_that_compute_differently_are_named() -> None:
    """Mutations: ranks that agree named; rank 0's value left out; equal values refused."""
    told = ["numpy", "numba", "numpy", "cuda"]
    world = SimpleNamespace(allgather=lambda value: told)
    assert complaint(build._check_equal, world, "numpy", "They differ") == (
        "They differ (rank 0: numpy; rank 1: numba; rank 3: cuda)"
    )
    build._check_equal(SimpleNamespace(allgather=lambda value: ["numpy"] * 4), "numpy", "They differ")  # type: ignore[arg-type]


def test_a_result_without_its_libraries_and_objects_is_told(tmp_path: Path, monkeypatch: Patch) -> None:
    """Mutations: a traceback without pandas; a module of a result that is read from its file."""
    started(tmp_path / "a.h5").close()
    result = zofl_mpi.load(tmp_path / "a.h5")
    assert "this result is of a file, without a torch module" in complaint(result.module)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert "a table needs pandas, which is not installed: pip install 'zofl_mpi[report]'" in complaint(result.table)


def test_an_argument_that_cannot_be_sent_is_named() -> None:
    """Mutations: the whole tuple named; an error of __reduce__ passed on; another mark of fields without a default."""

    class Stubborn:
        def __reduce__(self) -> Any:
            raise RuntimeError("a handle of this process")

    assert ranks.received(ranks.sent((dataclasses.MISSING, 3))) == (dataclasses.MISSING, 3)
    said = complaint(ranks.sent, (max, {}, "fedavg", Stubborn()))
    assert said.startswith(
        "Stubborn cannot be sent to the other ranks (a handle of this process): define it in a module"
    )


def test_what_a_result_and_a_run_lack_is_told(tmp_path: Path) -> None:
    """Mutations: NaN as the best value; data in memory looked for on a disk; a traceback before the `with` block."""
    attrs = {"config": {"method": "fedavg", "problem": "softmax"}, "command": f"zofl_mpi.simulate({IN_MEMORY})"}
    recorder = started(tmp_path / "a.h5", attrs=attrs)
    add(recorder, 0, loss=math.nan)
    recorder.close()
    result = zofl_mpi.load(tmp_path / "a.h5")
    assert f"column 'loss' has no value in {tmp_path}" in complaint(result.best, "loss")
    assert "made with data in memory: simulate(result, problem, data)" in complaint(zofl_mpi.simulate, result)
    run = zofl_mpi.Simulation("fedavg")
    for call in (lambda: run.state, lambda: run.stop("enough")):
        assert "a run that has not begun has no state and cannot stop a run" in complaint(call)
    fewer = complaint(Recorder.reopen, tmp_path / "a.h5", 1, m=2000)
    assert fewer.endswith("has 4 columns for clients; a run with 2000 clients needs 100")


@pytest.mark.parametrize(("module", "words"), [("no.such", "No module named 'no'"), ("json", "has no METHODS and")])
def test_a_module_that_is_no_family_is_refused(module: str, words: str) -> None:
    """Mutations: a traceback; any module taken."""
    assert words in (said := complaint(family_of, module)) and said.endswith(
        "name a family of methods, as zofl_mpi.zo_hfl"
    )


def test_values_of_a_script_become_words() -> None:
    """As a command line has them. Mutations: NumPy's numbers or paths refused; any object taken."""
    flags: dict[str, Any] = {"tau": np.int64(3), "beta": np.float64(0.5), "data_dir": Path("a"), "quiet": np.True_}
    words = ["--method", "fedavg", "--tau", "3", "--beta", "0.5", "--data-dir", "a", "--quiet"]
    assert Arguments("fedavg", None, None, "", flags).words() == words
    said = complaint(Arguments("fedavg", None, None, "", {"tau": object()}).words)
    assert said == "tau is a object; a flag's value is a number, a word, True or False, or a list"


def test_a_gpu_is_refused_to_a_problem_in_numpy(monkeypatch: Patch) -> None:
    """Mutation: the GPU taken, on which nothing would run."""
    monkeypatch.setattr(device, "visible", lambda requested: ((), ""))
    monkeypatch.setattr(device, "select", lambda *given: "cuda:0")
    assert "--device cuda: this problem runs in NumPy" in complaint(bind, SingleProcess(), "cuda", gpu=False)


@dataclass(frozen=True)
class Sized:
    """A method that knows the sizes of its steps."""

    setting: Any

    def work(self) -> str:
        return "sizes"


def test_a_kernel_that_one_rank_lacks_is_replaced_on_all_or_refused() -> None:
    """Mutations: the kernel kept; a named kernel replaced; the reason left out."""
    choice = ["numba", "fast", "numpy"]
    problem = SimpleNamespace(
        kernel="auto",
        kernel_for=lambda work, samples, before: choice,
        kernel_obstacle=lambda name, work, samples: f"no {name}",
        with_kernel=lambda name, work: (name, work),
    )
    setting, plan = Setting[Any](problem, Streams(1), ([0.0],)), SimpleNamespace(values={}, kernel_before="")
    given: Any = (SingleProcess(), Sized, setting, plan)
    found, reason = build._with_kernel(*given)
    assert found.problem == ("numpy", "sizes") and reason == "numpy, not numba: no numba, found on rank 0"
    choice[2] = ""
    assert complaint(build._with_kernel, *given) == "--kernel numba: no numba, found on rank 0; take --kernel auto"
