"""Kills ranks of real runs at random moments, and counts what becomes of them: python -m tests.tools.survive --runs 40

Every run is one of CASES under `mpirun --with-ft ulfm`, with --survive. A run of --runs loses a random client rank,
every fourth a second one soon after; a run of --server loses rank 0. Each ends in one of these ways:

- by itself: exit status 0 and the bits of the undisturbed run in one process;
- resumed: ended with a message within LIMIT seconds after the kill, and --resume gave these bits;
- hung: still there after LIMIT seconds;
- wrong: other bits, or a message without --resume.

The exit status is 1 if any of them hung or was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import environment
from tests.tools.agreement import differences
from zofl_mpi.run import records

FAMILY = "zofl_mpi.zo_hfl"
SMALL = ["--m", "8", "--rounds", "60", "--checkpoint-every", "10", "--eval-every", "5", "--quiet"]
CASES = {
    "zo_hfl": [*SMALL, "--y0", "last", "--tau", "5"],
    "scaffold": [*SMALL, "--method", "scaffold"],
}
"""Runs on digits whose clients remember something."""
ROUNDS, FIRST = 60, 11
"""Rounds of a run; those before the first checkpoint has been made, so that --resume finds one."""
LIMIT = 60.0
"""Seconds after the kill, on a machine that others use, too; a hang of the library ends within 30 s."""
START = 90.0
"""Seconds until the first round."""
LAUNCHER = str(Path(sys.executable).parent / "mpirun")


def command(case: str, out: Path) -> list[str]:
    return [sys.executable, "-m", FAMILY, *CASES[case], "--out", str(out)]


def survivors(out: Path, rank: int) -> list[int]:
    """The processes of the run that writes `out` that are this rank: one, or none any more."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(out).encode() in words and f"OMPI_COMM_WORLD_RANK={rank}".encode() in variables:
            found.append(int(folder.name))
    return found


def length(out: Path) -> int:
    try:
        return records.load(out).length
    except Exception:  # it is not there yet, or is being written
        return 0


def killed(out: Path, ranks: Sequence[int], chance: random.Random, process: subprocess.Popen[str]) -> None:
    """Kills the ranks at a random moment between the first round and the last."""
    first = FIRST if 0 in ranks else 1
    rounds, start = chance.randrange(first, ROUNDS - 5), time.monotonic()
    while length(out) < rounds and process.poll() is None and time.monotonic() - start < START:
        time.sleep(0.005)
    for rank in ranks:
        time.sleep(chance.random() * 0.1)
        for number in survivors(out, rank):
            os.kill(number, signal.SIGKILL)


def ended(out: Path, case: str, ranks: int, lost: Sequence[int], chance: random.Random, whole: Path) -> tuple[str, str]:
    """How a run ended that lost these ranks, and what it printed."""
    words = [LAUNCHER, "--with-ft", "ulfm", "-n", str(ranks), *command(case, out), "--survive"]
    with (out.with_suffix(".log")).open("w+") as log:
        process = subprocess.Popen(words, env=environment(), stdout=log, stderr=log, text=True, start_new_session=True)
        try:
            killed(out, lost, chance, process)
            status: int | None = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            for rank in range(ranks):
                for number in survivors(out, rank):
                    os.kill(number, signal.SIGKILL)
        log.seek(0)
        text = log.read()
    if status is None:
        return "hung", text
    if status == 0 and length(out) == ROUNDS:
        return ("by itself" if not differences(whole, out) else "wrong"), text
    told = "--resume" in text
    again = [sys.executable, "-m", FAMILY, "--resume", str(out), "--quiet"]
    subprocess.run(again, env=environment(), check=True, capture_output=True, timeout=200)
    return ("resumed" if told and not differences(whole, out) else "wrong"), text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--server", type=int, default=10, help="runs that lose rank 0")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance, found = random.Random(asked.seed), {"client": Counter[str](), "server": Counter[str]()}
    losses = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for case in CASES:
            subprocess.run(command(case, place / f"{case}.h5"), env=environment(), check=True, capture_output=True)
        for k in range(asked.runs + asked.server):
            who, case = "client" if k < asked.runs else "server", list(CASES)[k % len(CASES)]
            clients = chance.sample(range(1, asked.ranks), 1 + (k % 4 == 3))
            out, began = place / f"run{k}.h5", time.monotonic()
            lost = clients if who == "client" else [0]
            how, text = ended(out, case, asked.ranks, lost, chance, place / f"{case}.h5")
            found[who][how] += 1
            seen = json.loads(records.load(out).attrs.get("lost", "[]")) if how == "by itself" else []
            losses[f"{len([rank for loss in seen for rank in loss['ranks']])} ranks"] += how == "by itself"
            told = [(loss["round"], loss["ranks"], loss["repeated"]) for loss in seen]
            print(f"{k:3d} {case:9s} kill {lost}: {how} {told} {time.monotonic() - began:.1f} s", flush=True)
            if how in ("hung", "wrong"):
                print(text, flush=True)
    for who, ways in found.items():
        print(f"{who}: " + (", ".join(f"{count} {how}" for how, count in ways.most_common()) or "none"))
    print("lost in the runs that ended by themselves: " + ", ".join(f"{n} x {what}" for what, n in losses.items() if n))
    return int(any(ways["hung"] + ways["wrong"] for ways in found.values()))


if __name__ == "__main__":
    sys.exit(main())
