"""ReFrame lists and runs the scaling study of jobs/scaling."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Completed

REFRAME = Path(sys.executable).with_name("reframe")
STUDY = ("-C", "jobs/scaling/settings.py", "-c", "jobs/scaling/study.py")
METHODS = ("fedavg", "fedavg-cnn", "heron", "zo_hfl")

pytestmark = pytest.mark.skipif(
    not REFRAME.exists(), reason="reframe-hpc is not installed: pip install 'zofl_mpi[scaling]'"
)


def reframe(folder: Path, *words: str) -> str:
    """What ReFrame prints, run at the root of the checkout, its files in `folder`."""
    command = [str(REFRAME), *STUDY, "--prefix", str(folder), "--nocolor", *words]
    place = {**os.environ, "HOME": str(folder), "PATH": f"{REFRAME.parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=ROOT, env=place, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_all_cases_of_this_machine_are_listed(tmp_path: Path) -> None:
    """Mutations: a method, a share, a study or a number of ranks left out; a case without the run of one rank."""
    told = reframe(tmp_path, "--system", "local", "-L")
    cases = {(m, s, w, p) for m in METHODS for s in ("low", "high") for w in ("strong", "weak") for p in ("2", "3")}
    assert set(re.findall(r"- Scaling %method=(\S+) %share=(\w+) %study=(\w+) %ranks=(\d+) ", told)) == cases
    assert {"- Exchange %ranks=2", "- Exchange %ranks=3"} <= {re.sub(r" /\w+.*", "", row) for row in told.splitlines()}
    alone = set(re.findall(r"\^OneRank %method=(\S+) %share=(\w+) %m=(\d+)", told))
    assert alone == {(m, s, k) for m in METHODS for s in ("low", "high") for k in ("4", "8")}
    assert told.count("- OneRank %method=heron %share=low %m=32 ") == 1


@pytest.mark.parametrize(("system", "most"), [("slurm", 257), ("one-core", 3), ("gigabit", 7), ("megabit", 7)])
def test_every_system_has_its_cases(tmp_path: Path, system: str, most: int) -> None:
    """Mutation: a system whose settings ReFrame refuses."""
    told = reframe(tmp_path, "--system", system, "-l", "-t", "^heron$")
    assert max(int(ranks) for ranks in re.findall(r"%ranks=(\d+)", told)) == most


@pytest.mark.slow
def test_a_part_of_the_study_runs_and_has_the_bits_of_one_rank(tmp_path: Path) -> None:
    """And the scripts read its report. Mutation: the comparison's exit status or words not looked at (below)."""
    if not shutil.which("mpirun", path=str(REFRAME.parent)):
        pytest.skip("mpirun is not in this environment")
    words = [
        "--system",
        "local",
        "--exec-policy",
        "serial",
        "-t",
        "^zo_hfl$",
        "-t",
        "low",
        "-t",
        "strong",
        "-T",
        "exchange",
        "-r",
    ]
    told = reframe(tmp_path, *words, "--report-file", str(tmp_path / "report.json"))
    assert "Ran 3/3 test case(s)" in told and "PASSED" in told
    kept = json.loads((tmp_path / "report.json").read_text())["runs"][0]["testcases"]
    for test in kept:
        seconds = {name.rpartition(":")[2]: value[0] for name, value in test["perfvalues"].items()}
        assert 0 < seconds["low"] <= seconds["seconds"] <= seconds["high"] and 0 < seconds["server_share"] < 1
    script = [sys.executable, "analysis/scaling.py", str(tmp_path / "report.json"), "--out", str(tmp_path / "t")]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 4


def test_other_bits_or_few_rounds_are_no_success(tmp_path: Path) -> None:
    """The sanity of a case, on what a run printed. Mutations: `bits same` looked for without a line of its own."""
    code = (ROOT / "jobs/scaling/study.py").read_text()
    (pattern,) = re.findall(r'assert_found\(r"(\^bits[^"]*)"', code)
    same, differ = f"{'bits':16} same", f"{'bits':16} differ: final/same"
    assert re.search(pattern, f"seconds 1 s\n{same}\n", re.M) and not re.search(pattern, f"x\n{differ}\n", re.M)


def test_the_script_keeps_what_the_model_reads(mpirun: object, tmp_path: Path) -> None:
    """Mutations: a rank's place left out; the file of another rank than the server."""
    assert callable(mpirun)
    done: Completed = mpirun(3, "analysis/exchange.py", str(tmp_path / "e.json"))
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "e.json").read_text())
    assert len(kept["ranks"]) == 3 and all(place["cores"] >= 1 for place in kept["ranks"])
    assert set(kept["exchange"]) == {"ask", "reply", "upload", "mean", "account", "alone", "together"}
    assert kept["exchange"]["ask"]["fixed"] > 0
    nowhere = mpirun(2, "analysis/exchange.py", str(tmp_path / "none/e.json"))
    assert nowhere.returncode == 2 and "cannot be written (No such file or directory)" in nowhere.stderr


def test_hosts_without_a_command_are_refused() -> None:
    """Mutation: namespaces made before the words are checked."""
    done = subprocess.run(
        ["bash", "jobs/scaling/hosts.sh", "1gbit"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "hosts: say RATE COMMAND...: hosts.sh 1gbit mpirun -n 7 ...\n"
