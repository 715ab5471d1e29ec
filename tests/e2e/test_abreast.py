"""Networks whose clients' steps are computed at once, from the command line."""

from __future__ import annotations

from pathlib import Path

from tests.launch import here, launch
from tests.tools.agreement import differences
from zofl_mpi.run import records

FAMILY = "zofl_mpi.zo_hfl"
RUNS = {
    "mlp": ["--problem", "mlp", "--hidden", 20, "--radius", 0.3, "--tau", 1, 2, 3, 1, 2, 3, 0],
    "cnn": ["--problem", "cnn", "--method", "scaffold", "--tau", 2],
}


def test_networks_abreast_have_the_same_bits_on_any_number_of_ranks_and_after_a_break(tmp_path: Path) -> None:
    """Under the name of their kernel, which a continued run keeps.

    Mutations: a kernel that is named and not taken; auto that forgets what the run began with; blocks whose shapes
    follow from how many clients a rank has.
    """
    usual = ["--data", "digits", "--m", 7, "--batch", 8, "--eval-every", 2, "--quiet", "--kernel", "torch"]
    further = ["--rounds", 4, "--quiet", "--kernel", "auto"]
    three = []
    for name, flags in RUNS.items():
        out = tmp_path / f"{name}-3.h5"
        three += [(FAMILY, [*flags, *usual, "--rounds", 2, "--out", out]), (FAMILY, ["--resume", out, *further])]
        assert here(FAMILY, *flags, *usual, "--rounds", 4, "--out", tmp_path / f"{name}-1.h5") == 0
    assert [(ended.status, ended.stderr) for ended in launch(3, three, timeout=300)] == [(0, "")] * 4
    for name in RUNS:
        alone, served = (tmp_path / f"{name}-{ranks}.h5" for ranks in (1, 3))
        assert differences(alone, served) == []
        found = records.load(served)
        assert (found.attrs["kernel"], found.attrs["ranks"], found.length) == ("torch cpu abreast", 3, 4)


def test_a_network_keeps_its_kernel_and_may_not_get_another(tmp_path: Path) -> None:
    """Mutation: a result of the one continued by the other, which rounds differently."""
    out = tmp_path / "run.h5"
    flags = ["--problem", "mlp", "--hidden", 5, "--m", 3, "--tau", 1, "--method", "fedavg", "--quiet"]
    assert here(FAMILY, *flags, "--rounds", 1, "--out", out) == 0
    assert here(FAMILY, "--resume", out, "--rounds", 2, "--quiet", "--kernel", "torch") == 2
    assert here(FAMILY, "--resume", out, "--rounds", 2, "--quiet", "--kernel", "serial") == 0
    assert records.load(out).attrs["kernel"] == "torch cpu"
