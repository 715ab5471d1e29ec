"""Kills ranks of real runs at random moments: a run ends by itself, or in a sentence and is resumed.

`python -m tests.tools.killed_ranks` runs all trials and counts those that held. On 4 ranks under `mpirun --with-ft
ulfm` and --survive, KILLED_RANKS (40) trials lose a random client rank, every fourth a second one soon after, every
fifth rank 0 in their place. A trial holds if the run ends by itself with the bits of the undisturbed run in one
process, or, within LIMIT seconds of the kill, with a message and these bits after --resume.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.conftest import environment
from zofl_mpi.report.same import differences
from zofl_mpi.run import records

FAMILY, RANKS, ROUNDS = "zofl_mpi.zo_hfl", 4, 60
COUNT = int(os.environ.get("KILLED_RANKS", "40"))
SMALL = ["--m", "8", "--rounds", str(ROUNDS), "--checkpoint-every", "10", "--eval-every", "5", "--quiet"]
CASES = {"zo_hfl": [*SMALL, "--y0", "last", "--tau", "5"], "scaffold": [*SMALL, "--method", "scaffold"]}
"""Runs on digits whose clients remember something."""
FIRST = 11
"""Before it there is no checkpoint that --resume finds."""
LIMIT, START = 60.0, 90.0
"""Seconds after the kill, on a machine that others use, too (a hang of the library ends within 30 s); to round 1."""


def main(folder: Path) -> int:
    """Runs all trials; the exit status."""
    program = shutil.which("mpirun", path=environment()["PATH"]) or sys.exit("no mpirun in this environment")
    chance, broken = random.Random(int(os.environ.get("SEED", "1"))), 0
    for case in CASES:
        subprocess.run(command(case, folder / f"{case}.h5"), env=environment(), check=True, capture_output=True)
    for k in range(COUNT):
        lost = [0] if k % 5 == 4 else chance.sample(range(1, RANKS), 1 + (k % 4 == 3))
        case, moments = list(CASES)[k % len(CASES)], random.Random(chance.random())
        if what := killed(program, folder / f"run{k}.h5", case, lost, moments):
            broken += 1
            print(f"{case}, rank {lost}, trial {k}: {what}")
    print(f"{COUNT - broken} of {COUNT} held")
    return int(bool(broken))


def command(case: str, out: Path) -> list[str]:
    """The undisturbed run."""
    return [sys.executable, "-m", FAMILY, *CASES[case], "--out", str(out)]


def length(out: Path) -> int:
    """Rounds in a file that may not be there yet, or is being written."""
    with suppress(Exception):
        return records.load(out).length
    return 0


def kill(out: Path, lost: Sequence[int], chance: random.Random, process: subprocess.Popen[str]) -> None:
    """Kills the ranks at a random moment between the first round and the last."""
    rounds, since = chance.randrange(FIRST if 0 in lost else 1, ROUNDS - 5), time.monotonic()
    while length(out) < rounds and process.poll() is None and time.monotonic() - since < START:
        time.sleep(0.005)
    for rank in lost:
        time.sleep(chance.random() * 0.1)
        end(out, [rank])


def end(out: Path, ranks: Sequence[int]) -> None:
    """Kills these ranks of the run, where they are still there."""
    for rank, process in processes(str(out)).items():
        if rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def processes(out: str) -> dict[int, int]:
    """{rank: process} of the job whose command lines have this path."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, StopIteration):
            if out not in (entry / "cmdline").read_text():
                continue
            words = (entry / "environ").read_text().split("\0")
            rank = next(word for word in words if word.startswith("OMPI_COMM_WORLD_RANK="))
            found[int(rank.partition("=")[2])] = int(entry.name)
    return found


def killed(program: str, out: Path, case: str, lost: Sequence[int], chance: random.Random) -> str:
    """One trial: what broke, "" for nothing."""
    words = [program, "--with-ft", "ulfm", "-n", str(RANKS), *command(case, out), "--survive"]
    with out.with_suffix(".log").open("w+") as log:
        process = subprocess.Popen(words, env=environment(), stdout=log, stderr=log, text=True, start_new_session=True)
        try:
            kill(out, lost, chance, process)
            status = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            return "it did not end"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            end(out, range(RANKS))
        log.seek(0)
        text = log.read()
    if status or length(out) < ROUNDS:
        if "--resume" not in text:
            return f"status {status} without --resume: {text}"
        again = [sys.executable, "-m", FAMILY, "--resume", str(out), "--quiet"]
        subprocess.run(again, env=environment(), check=True, capture_output=True, timeout=200)
    return f"other bits: {found}" if (found := differences(out.with_name(f"{case}.h5"), out)) else ""


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(main(Path(folder)))
