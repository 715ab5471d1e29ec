"""Networks whose clients' steps are computed at once, from the command line."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.launch import here, threads
from tests.threads import run_module
from zofl_mpi.problems import network
from zofl_mpi.problems.kernels import module_torch
from zofl_mpi.report.same import differences
from zofl_mpi.run import records

FAMILY = "zofl_mpi.zo_hfl"
RUNS = {
    "mlp": ["--problem", "mlp", "--hidden", 20, "--radius", 0.3, "--tau", 1, 2, 3, 1, 2, 3, 0],
    "cnn": ["--problem", "cnn", "--method", "scaffold", "--tau", 2],
}
SMALL = ["--problem", "mlp", "--hidden", 5, "--m", 3, "--tau", 1, "--method", "fedavg", "--quiet"]
COMPANY = "a client's bits depend on which clients are computed with it (mini-batches of 64), found on rank"


def test_batched_networks_have_the_same_bits_on_any_number_of_ranks_and_after_a_break(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under the name of their kernel, which a continued run keeps; or they are refused, where the processor's bits
    depend on the company. Mutations: a kernel that is named and not taken; auto that forgets what the run began with;
    blocks whose shapes follow from how many clients a rank has."""
    usual = ["--data", "digits", "--m", 7, "--batch", 8, "--eval-every", 2, "--quiet", "--kernel", "torch"]
    further = ["--rounds", 4, "--quiet", "--kernel", "auto"]
    three, able = [], []
    for name, flags in RUNS.items():
        out = tmp_path / f"{name}-3.h5"
        if here(FAMILY, *flags, *usual, "--rounds", 4, "--out", tmp_path / f"{name}-1.h5") == 2:
            assert COMPANY.replace("64", "8") in capsys.readouterr().err
            continue
        able.append(name)
        three += [(FAMILY, [*flags, *usual, "--rounds", 2, "--out", out]), (FAMILY, ["--resume", out, *further])]
    ended = threads(3, three)
    assert [(each.status, each.stderr) for each in ended] == [(0, "")] * len(three)
    for name in able:
        alone, served = (tmp_path / f"{name}-{ranks}.h5" for ranks in (1, 3))
        assert differences(alone, served) == []
        found = records.load(served)
        assert (found.attrs["kernel"], found.attrs["ranks"], found.length) == ("torch cpu batched", 3, 4)


@pytest.mark.parametrize("ranks", [1, 3])
def test_where_company_matters_on_any_rank_all_compute_one_client_after_the_other(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last rank alone finds it out. What is asked for by name is refused in a sentence. Mutations: rank 0's verdict
    alone; a rank's own; a fallback for what was named; nothing told in the result."""
    calls = itertools.count(1)
    monkeypatch.setattr(module_torch, "equal_bits", lambda *given: next(calls) % ranks != 0)
    out, named = tmp_path / "serial.h5", [*SMALL, "--rounds", 1, "--kernel", "torch"]
    assert run_module(ranks, FAMILY, *named, "--out", tmp_path / "none.h5") == 2
    told = capsys.readouterr().err
    assert "--kernel torch: on this machine" in told and COMPANY in told and told.count("\n") == 1
    assert not (tmp_path / "none.h5").exists()
    as_on_a_gpu: Any = property(
        lambda self: self.kernel == "torch" or (self.kernel == "auto" and not self.why_not_batchable)
    )
    monkeypatch.setattr(network.Network, "uses_torch", as_on_a_gpu)
    assert run_module(ranks, FAMILY, *SMALL, "--rounds", 2, "--out", out) == 0
    found = records.load(out).attrs
    assert found["kernel"] == "torch cpu" and COMPANY in found["kernel_choice"]
    assert found["kernel_choice"].startswith("serial, not torch: ")
    assert here(FAMILY, *SMALL, "--rounds", 2, "--kernel", "serial", "--out", tmp_path / "named.h5") == 0
    assert differences(out, tmp_path / "named.h5") == []
