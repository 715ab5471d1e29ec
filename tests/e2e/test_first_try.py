"""Each pair of command and method learns where no flag but the method's name is typed."""

from pathlib import Path

import pytest

from tests.bench.first_try import pairs
from tests.launch import here
from zofl_mpi import records

FAST = ("heron", "sflv1", "sflv2", "cse_fsl", "fsl_sage", "splitlora", "fedkseed", "ho_sfl")
ROUNDS = {"fedrzo_bl": 8, **dict.fromkeys(FAST, 2)}  # of the others 4


@pytest.mark.parametrize(("module", "method"), list(pairs()))
def test_every_command_learns_without_a_flag(tmp_path: Path, module: str, method: str) -> None:
    """The loss on test samples falls from round 1 on; the whole runs' table: `python -m tests.bench.first_try`.

    Mutation: steps of FedRZO of 1e-5, or DeComFL's of 1e-4."""
    rounds = ROUNDS.get(method, 4)
    assert here(module, "--method", method, "--rounds", rounds, "--eval-every", rounds, "--out", "a.h5", "--quiet") == 0
    losses = records.load("a.h5").table()["test_loss"].dropna()
    assert losses.iloc[-1] < 0.99 * losses.iloc[0]
