"""ReFrame lists the scaling study of jobs/scaling."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

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


def test_other_bits_or_few_rounds_are_no_success() -> None:
    """The sanity of a case, on what a run printed. Mutations: `bits same` looked for without a line of its own."""
    code = (ROOT / "jobs/scaling/study.py").read_text()
    (pattern,) = re.findall(r'assert_found\(r"(\^bits[^"]*)"', code)
    same, differ = f"{'bits':16} same", f"{'bits':16} differ: final/same"
    assert re.search(pattern, f"seconds 1 s\n{same}\n", re.M) and not re.search(pattern, f"x\n{differ}\n", re.M)
