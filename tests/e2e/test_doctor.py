"""The doctor tells what a run would find, and a script of the analysis what an exchange costs."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.conftest import ROOT, Completed


def test_every_rank_is_listed_and_an_exchange_is_timed(mpirun: Callable[..., Completed], tmp_path: Path) -> None:
    """And kept for the model. Mutations: a rank's place left out; the file of another rank than the server."""
    done = mpirun(3, "-m", "zofl_mpi.doctor")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    table = next(k for k, line in enumerate(lines) if line.startswith("rank "))
    assert [line.split()[0] for line in lines[table : table + 4]] == ["rank", "0", "1", "2"]
    assert sum("to 2 clients and back" in line for line in lines) == 3
    done = mpirun(3, "analysis/exchange.py", tmp_path / "e.json", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "e.json").read_text())
    assert len(kept["ranks"]) == 3 and all(place["cores"] >= 1 for place in kept["ranks"])
    assert set(kept["exchange"]) == {"ask", "reply", "upload", "mean", "account", "alone", "together"}
    assert kept["exchange"]["ask"]["fixed"] > 0
    nowhere = mpirun(2, "analysis/exchange.py", tmp_path / "none/e.json", cwd=ROOT)
    assert nowhere.returncode == 2 and "there is no folder" in nowhere.stderr
