"""Runs on disks that fill up, and kills at random moments, counted by kind: python -m tests.adversary.disk

A trial gives a run so many free bytes (tmpfs, ext4 on a loop device: needs root) or files of so many bytes (ulimit -f),
or kills it at a random moment. It holds if the run ends with status 1 and one sentence that names the file, the space
left and the round (a kill needs no sentence), if all rounds that it names are in the result with the bits of the
undisturbed run, and if the run goes on with the same bits once there is space. Runs are forks of this process, of one
process or on ranks that are threads; --mpirun takes real ranks. The exit status is 1 if any trial failed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.conftest import environment
from tests.threads import run_module
from tests.tools.agreement import differences
from zofl_mpi.run import records

FAMILY, ROUNDS = "zofl_mpi.zo_hfl", 24
FLAGS = ["--m", "8", "--tau", "2", "--y0", "last", "--rounds", str(ROUNDS), "--checkpoint-every", "6"]
FLAGS += ["--eval-every", "8", "--quiet"]
LAUNCHER = str(Path(sys.executable).parent / "mpirun")
SPACE = 16 << 20
"""Bytes of the file systems."""


def forked(ranks: int, words: Sequence[object], limit: int | None = None, kill: float | None = None) -> tuple[int, str]:
    """Exit status (minus the signal) of a run in a fork of this process, and what it printed as errors."""
    with tempfile.TemporaryFile() as log:
        if not (child := os.fork()):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(log.fileno(), 2)
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            try:
                status = run_module(ranks, FAMILY, *words)
            except BaseException as error:
                print(f"traceback of the trial: {error!r}", file=sys.stderr)
                status = 99
            sys.stderr.flush()
            os._exit(status)
        if kill is not None:
            time.sleep(kill)
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        log.seek(0)
        return status, log.read().decode()


def launched(ranks: int, words: Sequence[object], limit: int | None = None) -> tuple[int, str]:
    """The same under mpirun."""
    command = [LAUNCHER, "-n", str(ranks), sys.executable, "-m", FAMILY, *map(str, words)]
    limited = None if limit is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, preexec_fn=limited)
    return done.returncode, "\n".join(line for line in done.stderr.splitlines() if line.startswith("zofl_mpi"))


@contextmanager
def mounted(kind: str, place: Path) -> Iterator[Path]:
    """A file system of SPACE bytes."""
    disk, image = place / kind, place / "image"
    disk.mkdir(exist_ok=True)
    if kind == "ext4":
        image.write_bytes(b"")
        os.truncate(image, SPACE)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(disk)], check=True)
    else:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SPACE}", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path, free: int) -> Path:
    """Leaves about `free` bytes; returns the file that takes the rest."""
    filler, found = disk / "filler", os.statvfs(disk)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(found.f_bavail * found.f_frsize - free, 4096))
    return filler


def judged(out: Path, whole: Path, status: int, text: str, said: bool = True) -> str:
    """What is wrong with how a run ended: "" for nothing."""
    safe = 0
    if said:
        sentences = [line for line in text.splitlines() if line.startswith("zofl_mpi:")]
        if len(text.splitlines()) != 1 or len(sentences) != 1:
            return f"status {status}, not one sentence"
        if not re.search(r"round \d+", text) or "bytes are free there" not in text or str(out.parent) not in text:
            return "the sentence lacks the round, the space or the file"
        if status != 1 and not (status == 2 and not out.exists()):
            return f"status {status}"
        if found := re.search(r"(?:the |; )(\d+) finished rounds are", text):
            safe = int(found[1])
    if not out.exists():
        return "finished rounds are gone" if safe else ""
    run, full = records.load(out), records.load(whole)
    if run.length < safe:
        return f"{run.length} rounds in the file, {safe} named"
    for name in run.rounds.keys() - {"seconds"}:
        if run.rounds[name].tobytes() != full.rounds[name][: run.length].tobytes():
            return f"other bits in {name}"
    return ""


def continued(out: Path, whole: Path) -> str:
    """What is wrong with the run's end, once there is space: "" for nothing."""
    checkpoint = records.checkpoint_path(out)
    saved = checkpoint.exists() or checkpoint.with_name(checkpoint.name + ".previous").exists()
    words = ["--resume", out, "--quiet"] if saved else [*FLAGS, "--out", out, "--force"]
    status, text = forked(1, words)
    if status:
        return f"afterwards status {status}: {text}"
    return f"afterwards other bits: {found}" if (found := differences(whole, out)) else ""


def trial(kind: str, size: int, ranks: int, whole: Path, place: Path, run: Callable[..., tuple[int, str]]) -> str:
    """What is wrong with one trial: "" for nothing; "enough" where nothing ran full."""
    words = [*FLAGS, "--out"]
    if kind == "limit":
        out = place / f"run{size}-{ranks}.h5"
        status, text = run(ranks, [*words, out], limit=size)
        problem = "enough" if not status else judged(out, whole, status, text) or continued(out, whole)
        return f"{problem} | {text}" if problem not in ("", "enough") else problem
    with mounted(kind, place) as disk:
        out, filler = disk / "run.h5", fill(disk, size)
        status, text = run(ranks, [*words, out])
        problem = "enough" if not status else judged(out, whole, status, text)
        if not problem:
            filler.unlink()
            problem = continued(out, whole)
    return f"{problem} | {text}" if problem not in ("", "enough") else problem


def kill(seconds: float, ranks: int, whole: Path, place: Path) -> str:
    """What is wrong with a run that is killed after so many seconds, and continued."""
    out = place / f"killed{time.monotonic_ns()}.h5"
    status, text = forked(ranks, [*FLAGS, "--out", out], kill=seconds)
    if status == 0:
        return "enough"
    return (judged(out, whole, status, text, said=False) if out.exists() else "") or continued(out, whole)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=["tmpfs", "ext4", "limit", "kill"])
    parser.add_argument("--sizes", type=int, default=20, help="trials of each kind and number of ranks")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--mpirun", action="store_true", help="ranks are processes under mpirun, not threads")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    found, chance = Counter[str](), random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as folder:
        place, whole = Path(folder), Path(folder) / "whole.h5"
        began = time.monotonic()
        assert forked(1, [*FLAGS, "--out", whole])[0] == 0
        taken = time.monotonic() - began
        files = [whole.stat().st_size, *(path.stat().st_size for path in place.glob("whole.ckpt.h5*"))]
        for kind in asked.kinds:
            most = max(files) if kind == "limit" else files[0] + 3 * max(files[1:])
            for ranks in asked.ranks:
                run = launched if asked.mpirun and ranks > 1 else forked
                for size in np.linspace(2000, 1.05 * most, asked.sizes).astype(int).tolist():
                    if kind == "kill":
                        problem = kill(chance.uniform(0.0, taken), ranks, whole, place)
                    else:
                        problem = trial(kind, size, ranks, whole, place, run)
                    word = problem if problem in ("", "enough") else "failed"
                    found[f"{kind}, {ranks} ranks: {word or 'held'}"] += 1
                    if word == "failed":
                        print(f"{kind} {size} on {ranks} ranks: {problem}", flush=True)
    print("\n".join(f"{count:4d} {name}" for name, count in sorted(found.items())))
    return int(any("failed" in name for name in found))


if __name__ == "__main__":
    sys.exit(main())
