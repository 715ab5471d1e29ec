"""A Slurm of two nodes on this host, for tests, with daemons of its own that end with it.

It needs Slurm's daemons, munge and root (Debian: slurm-wlm, munge, libpmi2-0). Each node sees a folder `local` of its
own, as a cluster's nodes do. The partition `low` gives way to `high`; a job that is put back starts anew after seconds.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import environment

NEEDED = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "scancel", "unshare", "mount")
LIMIT = 300.0
"""Seconds for whatever a job does: on a busy machine a start of Python takes ten."""
NODES = 2
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=8
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobRequeue=1
KillWait=5
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
# A job that was put back is looked at again after 2 s, not after a minute.
SchedulerParameters=sched_interval=2
{more}
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=4000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 RealMemory=4000 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=120
PartitionName=high Nodes=ALL MaxTime=60 State=UP PriorityTier=2 PreemptMode=OFF
"""


def why_not() -> str:
    """Why there can be no Slurm here; "" if there can."""
    absent = [name for name in NEEDED if shutil.which(name) is None]
    if absent:
        return f"needs {', '.join(absent)} (Debian: slurm-wlm, munge, libpmi2-0)"
    if os.geteuid():
        return "Slurm's daemons are started by root"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        return "a node's own mounts are not allowed here"
    return ""


@dataclass(frozen=True)
class Cluster:
    """A running Slurm.

    Attributes:
        folder: of its state and logs; `folder / "local"` is each node's own.
        variables: in which its commands find it.
    """

    folder: Path
    variables: Mapping[str, str]

    def run(self, *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        """What a command prints; sbatch and srun hand `env` on to their jobs."""
        done = subprocess.run(
            [*map(str, words)],
            cwd=cwd,
            env=environment() | dict(self.variables) | dict(env or {}),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def submit(self, *words: object, cwd: Path, env: Mapping[str, str] | None = None) -> str:
        """The number of a new job of sbatch with these arguments."""
        return self.run("sbatch", "--parsable", "--mem-per-cpu=0", *words, cwd=cwd, env=env)

    def states(self, job: str) -> set[str]:
        """What Slurm says of a job, or of all tasks of an array."""
        return set(self.run("squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T").split())

    def wait(self, job: str, told: Callable[[], str] = str) -> set[str]:
        """The states of a job that has ended; `told` explains one that does not."""
        busy = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED"}
        wait_for(lambda: not self.states(job) & busy, lambda: f"job {job}: {self.states(job)}\n{told()}")
        return self.states(job)


def wait_for(ready: Callable[[], bool], told: Callable[[], str]) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + LIMIT
    while not ready():
        assert time.monotonic() < deadline, told()
        time.sleep(0.2)


@contextmanager
def cluster(more: str = "") -> Iterator[Cluster]:
    """A Slurm with further lines of configuration, until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # a socket's path is short
    folder.chmod(0o755)
    slurm = Cluster(folder, {"SLURM_CONF": str(folder / "slurm.conf")})
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(_kill_all, folder)
        _start(slurm, stack, more)
        stack.callback(_cancel_all, slurm)
        yield slurm


def _start(slurm: Cluster, stack: ExitStack, more: str) -> None:
    folder = slurm.folder
    for name in ("state", "local", *(f"local-n{k}" for k in range(1, NODES + 1))):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o600)
    values = {"host": socket.gethostname(), "folder": folder, "ports": _free_ports(NODES + 1), "more": more}
    (folder / "slurm.conf").write_text(CONF.format(**values))
    (folder / "mpi.conf").write_text(f"PMIxCliTmpDirBase={folder / 'local'}\n")
    files = {"socket": "munge.socket", "key-file": "munge.key", "seed-file": "munge.seed"}
    files |= {"pid-file": "munge.pid", "log-file": "munge.log"}
    daemons = [["munged", "--foreground", *(f"--{name}={folder / file}" for name, file in files.items())]]
    daemons += [["slurmctld", "-D", "-c", "-f", str(folder / "slurm.conf")]]
    for k in range(1, NODES + 1):
        own = f'hostname n{k} && mount --bind "{folder}/local-n{k}" "{folder}/local"'
        start = f'{own} && exec slurmd -D -N n{k} -f "{folder}/slurm.conf"'
        daemons.append(["unshare", "--mount", "--uts", "bash", "-c", start])
    started = []
    for number, words in enumerate(daemons):
        log = stack.enter_context((folder / f"daemon-{number}.log").open("w"))
        variables = environment() | dict(slurm.variables) | {"PMIX_MCA_gds": "hash"}
        daemon = subprocess.Popen(words, env=variables, stdout=log, stderr=log, start_new_session=True)
        stack.callback(_end, daemon)
        started.append(daemon)
    logs = [folder / f"daemon-{number}.log" for number in range(len(daemons))]

    def ready() -> bool:
        assert all(daemon.poll() is None for daemon in started), "\n".join(log.read_text()[-2000:] for log in logs)
        return _idle(slurm)

    wait_for(ready, lambda: "\n".join(log.read_text()[-2000:] for log in logs))


def _idle(slurm: Cluster) -> bool:
    done = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--partition=low", "--format=%T"],
        env=environment() | dict(slurm.variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.split() == ["idle"] * NODES


def _cancel_all(slurm: Cluster) -> None:
    with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
        slurm.run("scancel", "--user=root", "--full", "--signal=KILL")
        slurm.run("scancel", "--user=root")


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _kill_all(folder: Path) -> None:
    """What this Slurm started, steps and their processes: whatever still has its variable."""
    mark = f"SLURM_CONF={folder / 'slurm.conf'}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0") and int(process.name) != os.getpid():
                os.kill(int(process.name), signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
