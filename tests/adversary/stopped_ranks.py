"""Ranks that are stopped (SIGSTOP) at a random moment under --round-timeout: the job ends in time and names them.

On 3 ranks, rank 0 as often as a client rank, with and without --survive. It ends within the limit and 10 s of the stop,
says which rank is late and no other, and leaves no process behind.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.adversary.frame import Trials
from tests.conftest import environment

RANKS, LIMIT, ALLOWED, PATIENCE = 3, 4.0, 10.0, 120.0
COUNT = int(os.environ.get("STOPPED_RANKS", "24"))
FLAGS = ["--m", "4", "--tau", "2", "--rounds", "100000", "--eval-every", "100000", "--checkpoint-every", "20"]


def launcher() -> str:
    """The path of mpirun."""
    found = shutil.which("mpirun", path=environment()["PATH"])
    return found or sys.exit("no mpirun in this environment")


def trials(folder: Path) -> Trials:
    program, moments = launcher(), random.Random(int(os.environ.get("SEED", "1")))
    for k in range(COUNT):
        late, survive = (0, 1, 0, 2)[k % 4], k % 8 >= 4
        name = f"rank {late}{', --survive' * survive}, trial {k}"
        out = folder / f"{k}.h5"
        yield name, partial(stopped, program, out, late, survive, moments.uniform(0.0, 2.0))


def stopped(program: str, out: Path, late: int, survive: bool, after: float) -> str:
    """One trial: what broke, "" for nothing."""
    ulfm, flags = (["--with-ft", "ulfm"], ["--survive"]) if survive else ([], [])
    words = [program, *ulfm, "-n", str(RANKS), sys.executable, "-m", "zofl_mpi.zo_hfl", *FLAGS, *flags]
    words += ["--round-timeout", str(LIMIT), "--quiet", "--out", str(out)]
    with out.with_suffix(".log").open("w+") as log:
        job = subprocess.Popen(words, env=environment(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            ranks = _ranks(out)
            time.sleep(after)
            os.kill(ranks[late], signal.SIGSTOP)
            since = time.monotonic()
            with suppress(subprocess.TimeoutExpired):
                job.wait(PATIENCE)
            seconds = time.monotonic() - since
        finally:
            ended = job.poll() is not None
            job.kill()
            job.wait()
            left = [pid for pid in processes(str(out)).values() if _is_there(pid)]
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        log.seek(0)
        return _judged(log.read(), late, ended, seconds, left)


def _judged(text: str, late: int, ended: bool, seconds: float, left: list[int]) -> str:
    named = {int(rank) for part in re.findall(r"; late: ([^;]*)", text) for rank in re.findall(r"rank (\d+) on", part)}
    broken = []
    if not ended or seconds > LIMIT + ALLOWED:
        broken.append(f"it took {seconds:.1f} s" if ended else "it did not end")
    if named != {late}:
        broken.append(f"named {sorted(named)}, not {late}")
    if left:
        broken.append(f"{len(left)} processes left behind")
    return "; ".join(broken) and f"{'; '.join(broken)}\n{text}"


def _ranks(out: Path) -> dict[int, int]:
    """{rank: process} of a job, once its rounds have begun."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        found = processes(str(out))
        if len(found) == RANKS and out.with_name(f"{out.stem}.ckpt.h5").exists():
            return found
        time.sleep(0.05)
    raise TimeoutError("the ranks did not begin")


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


def _is_there(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False
