"""What the README shows works as shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.agreement import differences
from tests.conftest import ROOT, Completed
from zofl_mpi.run import records

README = (ROOT / "README.md").read_text()


def test_the_method_of_the_readme_runs_on_any_number_of_ranks_and_learns(
    mpirun: Callable[..., Completed], tmp_path: Path
) -> None:
    code = re.search(r'```python\n("""FedSGD.*?)```', README, re.S)
    assert code
    (tmp_path / "fedsgd.py").write_text(code[1])
    command = ["-m", "zofl_mpi.zo_hfl", "--method", "fedsgd:FedSGD", "--gamma", "0.5", "--rounds", "40"]
    for ranks, name in ((0, "one.h5"), (3, "three.h5")):
        done = mpirun(ranks, *command, "--out", name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert differences(tmp_path / "one.h5", tmp_path / "three.h5") == []
    assert records.load(tmp_path / "one.h5").rounds["test_accuracy"][-1] > 0.8


def test_every_flag_that_the_readme_names_exists() -> None:
    from zofl_mpi import fedrzo, heron_sfl, zo_hfl
    from zofl_mpi.run import flags
    from zofl_mpi.run.plan import groups_of

    known = set()
    for family in (zo_hfl, fedrzo, heron_sfl):
        for method, cls in family.METHODS.items():
            fitting = [name for name, choice in family.PROBLEMS.items() if cls.needs.__name__ in choice.roles]
            for problem in fitting:
                known |= {flags.flag(name) for name in flags.flags_of(groups_of(family, method, problem))}
    of_the_grid_runner = {"help", "jobs", "ranks", "only"}
    named = set(re.findall(r"`(?:[^`\n]*?)--([A-Za-z][A-Za-z0-9-]*)", README)) - of_the_grid_runner
    assert named - known == set()


def test_the_network_of_the_readme_runs_on_any_number_of_ranks_and_learns(
    mpirun: Callable[..., Completed], tmp_path: Path
) -> None:
    code = re.search(r'```python\n("""A network of.*?)```', README, re.S)
    assert code
    (tmp_path / "mynet.py").write_text(code[1])
    command = ["-m", "zofl_mpi.zo_hfl", "--method", "fedavg", "--problem", "mynet:Net", "--gamma-local", "0.3"]
    for ranks, name in ((0, "one.h5"), (3, "three.h5")):
        done = mpirun(ranks, *command, "--rounds", "8", "--tau", "5", "--out", name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert differences(tmp_path / "one.h5", tmp_path / "three.h5") == []
    assert records.load(tmp_path / "one.h5").rounds["test_accuracy"][-1] > 0.8


def test_the_split_of_the_readme_runs_on_any_number_of_ranks_and_learns(
    mpirun: Callable[..., Completed], tmp_path: Path
) -> None:
    """With the dense uplink and with that of seeds; and its server's part learns."""
    code = re.search(r'```python\n("""A CNN in three parts.*?)```', README, re.S)
    command = re.search(r"mpirun -n 3 python (-m zofl_mpi.heron_sfl --problem mysplit:CNN [^\n]*)", README)
    assert code and command
    (tmp_path / "mysplit.py").write_text(code[1])
    runs = ((0, "one.h5", []), (3, "three.h5", []), (3, "seeds.h5", ["--uplink", "seeds"]))
    for ranks, name, flags in runs:
        done = mpirun(ranks, *command[1].split(), *flags, "--out", name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert differences(tmp_path / "one.h5", tmp_path / "three.h5") == []
    one, seeds = (records.load(tmp_path / name) for name in ("one.h5", "seeds.h5"))
    assert one.rounds["test_accuracy"][-1] == seeds.rounds["test_accuracy"][-1] > 0.8
    assert (one.table()["bytes_up"] > seeds.table()["bytes_up"]).all()


def test_every_file_that_the_readme_names_exists() -> None:
    for path in re.findall(r"(?:jobs|tests|analysis|zofl_mpi)/[\w./]+\.(?:sh|py|sbatch)", README):
        assert (ROOT / path).is_file(), path


def test_the_result_is_read_as_the_readme_shows(tmp_path: Path, mpirun: Callable[..., Completed]) -> None:
    out = tmp_path / "mnist.h5"
    assert mpirun(0, "-m", "zofl_mpi.zo_hfl", "--rounds", "2", "--quiet", "--out", out).returncode == 0
    code = re.search(r"```python\n(from zofl_mpi.run import records.*?)```", README, re.S)
    assert code
    done = mpirun(0, "-c", code[1].replace("run.table()", "print(run.table()").rstrip() + ")", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "test_accuracy" in done.stdout
