"""Runs on disks that fill up, and kills at random moments.

A trial gives a run so many free bytes (tmpfs, ext4 on a loop device: needs root) or files of so many bytes (ulimit -f),
or kills it at a random moment. It holds if the run ends with status 1 and one sentence that names the file, the space
left and the round (a kill needs no sentence), if all rounds that it names are in the result with the bits of the
undisturbed run, and if the run goes on with the same bits once there is space. Runs are forks of this process, of one
process or on ranks that are threads.
"""

import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from tests.adversary.frame import Trials
from tests.threads import run_module
from tests.tools.agreement import differences
from zofl_mpi.run import records

FAMILY, ROUNDS = "zofl_mpi.zo_hfl", 24
FLAGS = ["--m", "8", "--tau", "2", "--y0", "last", "--rounds", str(ROUNDS), "--checkpoint-every", "6"]
FLAGS += ["--eval-every", "8", "--quiet"]
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


def trial(kind: str, size: int, ranks: int, whole: Path, place: Path) -> str:
    """What is wrong with one trial: "" for nothing, also where nothing ran full."""
    words = [*FLAGS, "--out"]
    if kind == "limit":
        out = place / f"run{size}-{ranks}.h5"
        status, text = forked(ranks, [*words, out], limit=size)
        problem = status and (judged(out, whole, status, text) or continued(out, whole))
        return f"{problem} | {text}" if problem else ""
    with mounted(kind, place) as disk:
        out, filler = disk / "run.h5", fill(disk, size)
        status, text = forked(ranks, [*words, out])
        problem = status and judged(out, whole, status, text)
        if status and not problem:
            filler.unlink()
            problem = continued(out, whole)
    return f"{problem} | {text}" if problem else ""


def kill(seconds: float, ranks: int, whole: Path, place: Path) -> str:
    """What is wrong with a run that is killed after so many seconds, and continued."""
    out = place / f"killed{time.monotonic_ns()}.h5"
    status, text = forked(ranks, [*FLAGS, "--out", out], kill=seconds)
    if status == 0:
        return ""
    return (judged(out, whole, status, text, said=False) if out.exists() else "") or continued(out, whole)


def trials(folder: Path, sizes: int = 20, ranks: Sequence[int] = (1, 3), seed: int = 1) -> Trials:
    """Yields (name, trial) of every kind: `sizes` of each, for each number of ranks."""
    whole, chance, since = folder / "whole.h5", random.Random(seed), time.monotonic()
    assert forked(1, [*FLAGS, "--out", whole])[0] == 0
    taken = time.monotonic() - since
    files = [whole.stat().st_size, *(path.stat().st_size for path in folder.glob("whole.ckpt.h5*"))]
    for kind in ("tmpfs", "ext4", "limit", "kill"):
        most = max(files) if kind == "limit" else files[0] + 3 * max(files[1:])
        for count in ranks:
            for size in np.linspace(2000, 1.05 * most, sizes).astype(int).tolist():
                if kind == "kill":
                    seconds = chance.uniform(0.0, taken)
                    yield f"kill after {seconds:.3f} s, {count} ranks", partial(kill, seconds, count, whole, folder)
                else:
                    yield f"{kind} {size}, {count} ranks", partial(trial, kind, size, count, whole, folder)
