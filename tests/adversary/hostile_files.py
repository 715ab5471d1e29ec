"""Data files and checkpoints with bytes changed at random: a run ends in one sentence, or is the undisturbed run.

Of each kind of file as many trials as HOSTILE_FILES (16): a few bytes are changed, cut off or repeated. Nothing that
ends in a traceback, in a signal or with another result counts as held.
"""

import gzip
import os
import random
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

import h5py
import numpy as np

from tests.adversary.frame import Trials
from tests.launch import here
from tests.tools.agreement import differences
from zofl_mpi.data.published import IDX_FILES
from zofl_mpi.run.records import checkpoint_path

FAMILY = "zofl_mpi.zo_hfl"
COUNT = int(os.environ.get("HOSTILE_FILES", "16"))
FLAGS = ["--m", "2", "--tau", "1", "--quiet"]


def trials(folder: Path) -> Trials:
    chance = random.Random(int(os.environ.get("SEED", "1")))
    _made(folder)
    kinds: dict[str, Callable[[Path, random.Random], str]] = {
        "npz": _npz, "idx": _idx, "idx.gz": partial(_idx, packed=True), "header of a checkpoint": _header,
    }  # fmt: skip
    for name, trial in kinds.items():
        for k in range(COUNT):
            place = folder / f"{name.replace(' ', '-')}-{k}"
            place.mkdir()
            yield f"{name} {k}", partial(trial, place, random.Random(chance.random()))


def _made(folder: Path) -> None:
    """Good files of each kind, and a run of 2 rounds and its continuation to 3."""
    rng = np.random.default_rng(1)
    (folder / "mnist").mkdir()
    for name, count in zip(IDX_FILES, (60, 60, 20, 20), strict=True):
        array = rng.integers(256, size=(count, 28, 28)) if "images" in name else rng.integers(10, size=count)
        shape = b"".join(length.to_bytes(4, "big") for length in array.shape)
        content = bytes((0, 0, 8, array.ndim)) + shape + array.astype(np.uint8).tobytes()
        (folder / "mnist" / name).write_bytes(content)
    np.savez(folder / "own.npz", x=rng.standard_normal((60, 5)).astype(np.float32), y=rng.integers(0, 3, 60))
    assert here(FAMILY, *FLAGS, "--rounds", 2, "--out", folder / "run.h5") == 0
    assert here(FAMILY, *FLAGS, "--rounds", 3, "--eval-every", 10, "--out", folder / "whole.h5") == 0


def disturbed(content: bytes, chance: random.Random) -> bytes:
    """The bytes with a few of them changed, cut off or repeated; the beginning, with its header, more often."""
    found = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(min(len(found), chance.choice([64, 400, len(found)])))
        match chance.choice(["flip", "flip", "set", "cut", "repeat"]):
            case "flip":
                found[at] ^= 1 << chance.randrange(8)
            case "set":
                found[at : at + 8] = chance.randbytes(8)
            case "cut":
                del found[at : at + chance.randrange(1, 1000)]
            case "repeat":
                found[at:at] = found[at : at + chance.randrange(1, 1000)]
        if not found:
            break
    return bytes(found)


def run(*arguments: object) -> tuple[str, int]:
    """What is wrong with how a command ended, and its status."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = here(FAMILY, *FLAGS, *arguments)
    told = [line for line in err.getvalue().splitlines() if line]
    if status == 2 and len(told) == 1 and told[0].startswith("zofl_mpi: "):
        return "", status
    return "" if status == 0 and not told else f"status {status}: {err.getvalue()[-600:]}", status


def _npz(place: Path, chance: random.Random) -> str:
    content = (place.parent / "own.npz").read_bytes()
    (place / "own.npz").write_bytes(disturbed(content, chance))
    return run("--data", place / "own.npz", "--min-samples", 1, "--rounds", 1, "--out", place / "run.h5")[0]


def _idx(place: Path, chance: random.Random, packed: bool = False) -> str:
    shutil.copytree(place.parent / "mnist", place / "mnist")
    name = chance.choice(IDX_FILES)
    content = (place / "mnist" / name).read_bytes()
    (place / "mnist" / name).unlink()
    if packed:
        (place / "mnist" / f"{name}.gz").write_bytes(disturbed(gzip.compress(content), chance))
    else:
        (place / "mnist" / name).write_bytes(disturbed(content, chance))
    return run("--data", "mnist", "--data-dir", place, "--rounds", 1, "--out", place / "run.h5")[0]


def _header(place: Path, chance: random.Random) -> str:
    """The state's header alone: what is changed in its numbers a checksum finds, and no reader."""
    for path in (place.parent / "run.h5", checkpoint_path(place.parent / "run.h5")):
        shutil.copy(path, place)
    with h5py.File(checkpoint_path(place / "run.h5"), "r+") as file:
        block = file["payload/state"][()]
        end = 8 + int(block[:8].view(np.int64)[0])
        changed = np.frombuffer(disturbed(block[:end].tobytes(), chance)[:end].ljust(end), np.uint8)
        file["payload/state"][:end] = changed
    what, status = run("--resume", place / "run.h5", "--rounds", 3, "--eval-every", 10)
    if what or status == 2:
        return what
    return ", ".join(differences(place.parent / "whole.h5", place / "run.h5"))
