"""What two results have in common, to the bit, and what may be why where they have not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zofl_mpi.report.same import circumstances, main, verdict
from zofl_mpi.run.records import Run
from zofl_mpi.run.records.result import Final

ATTRS = {
    "data": "1797 x 64, crc32 1",
    "kernel": "numpy",
    "git_commit": "a" * 40,
    "mpi": "Open MPI v5",
    "blas": json.dumps(["openblas 0.3 SkylakeX"] * 3),
    "device": json.dumps(["cpu"] * 3),
    "versions": json.dumps({"numpy": "2.4.6", "numba": "0.68.1"}),
}
OTHER = {
    "data": "9 x 64, crc32 2",
    "kernel": "numba",
    "git_commit": "b" * 40,
    "mpi": "MPICH 4",
    "blas": json.dumps(["openblas 0.3 Zen"]),
    "device": json.dumps(["cuda:0"]),
    "versions": json.dumps({"numpy": "2.5.0", "torch": "2.13.0"}),
}
TOLD = {
    "data": ["data 1797 x 64, crc32 1 and 9 x 64, crc32 2"],
    "kernel": ["kernel numpy and numba"],
    "git_commit": [f"commit {'a' * 40} and {'b' * 40}"],
    "mpi": ["MPI Open MPI v5 and MPICH 4"],
    "blas": ["processor and BLAS openblas 0.3 SkylakeX and openblas 0.3 Zen"],
    "device": ["device cpu and cuda:0"],
    "versions": ["numba 0.68.1 and not told", "numpy 2.4.6 and 2.5.0", "torch not told and 2.13.0"],
}


def run(x: float = 1.0, rows: int = 2, attrs: dict[str, Any] = ATTRS, **config: Any) -> Run:
    path, clients = Path("a.h5"), {"messages": np.zeros((rows, 1, 2), np.int64)}
    final, rounds = Final({"x": np.array([x])}, path, "r"), {"test_loss": np.full(rows, x)}
    return Run(path, attrs, {"seed": 1, **config}, rounds, clients, {}, ("step",), None, final, {}, {})


def test_equal_bits_are_said_to_be_equal_whatever_else_is_not() -> None:
    """Mutation: a difference of circumstances for one of bits."""
    assert verdict(run(), run(attrs=OTHER)) == ("the same bits", True)


def test_what_may_be_why_is_named_where_bits_differ() -> None:
    """Mutations: any of the circumstances left out; both sides exchanged; the same that is named."""
    for key in ATTRS:
        assert list(circumstances(run(), run(attrs=ATTRS | {key: OTHER[key]}))) == TOLD[key]
    words, same = verdict(run(), run(2.0, attrs=OTHER))
    assert not same and words.startswith("differs in final/x, rounds/test_loss (")
    assert all(each in words for sentences in TOLD.values() for each in sentences)
    alike = "differs in final/x, rounds/test_loss (flags, data, kernel, processor and libraries are the same)"
    assert verdict(run(), run(2.0)) == (alike, False)


def test_two_different_runs_say_by_which_flags() -> None:
    """Mutations: a flag that only one of them has; the later value first."""
    words, _ = verdict(run(), run(2.0, seed=2, gamma_local=0.1))
    assert "other runs: --seed was 1, is now 2; --gamma-local was" in words


def test_results_without_rows_are_not_called_equal(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Mutations: two files of which nothing is known pass a check of a script; one without rows equals a whole one."""
    found = {"a": run(rows=0), "b": run(rows=0), "c": run()}
    monkeypatch.setattr("zofl_mpi.report.same.load", found.__getitem__)
    for words, status in ((["a", "b"], 1), (["c", "a"], 1), (["c", "c", "a"], 1), (["c", "c"], 0)):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == status
    told = capsys.readouterr().out
    assert told.startswith("b: nothing to compare: neither result has a finished round\n")
    assert "c: the same bits\na: differs in" in told
