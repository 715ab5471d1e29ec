"""Does the server train while the clients compute? `python -m tests.bench.overlap [--quick]`.

HERON's round on 2 client ranks and a server, its uploads streamed (as it is) or asked for one by one (lockstep: the
clients wait while the server trains, and it waits while they compute). It prints a round's wall time, what the slowest
rank and the server computed in it, and the ratio of the wall time to the longer of the two, for the round of the
smallest ratio after the first.

1. Compute = sleep, so that cores do not matter: equal work on both sides, small and large uploads, two clients a rank,
   a slow and a fast server.
2. A ResNet-18 in small, computed: three processes on the cores there are.
3. --server-ranks 1, 2 and 3 in turn, with steps on 6 uploads and a server that is the longer side: asleep, so that
   cores do not matter, and computed, where the client rank naps. Medians of the turns: the wall time of a round, and
   the processor time of the server rank that takes most and of all ranks.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from torch import Tensor, nn

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.device import cores
from zofl_mpi.engine.fields import flag_group
from zofl_mpi.engine.setting import Method, Setting
from zofl_mpi.methods.heron import HERON
from zofl_mpi.problems import Split
from zofl_mpi.rounds.split.estimates import Estimation
from zofl_mpi.rounds.split.messages import Model, Smashed, SplitState
from zofl_mpi.rounds.split.training import Training
from zofl_mpi.run import records

RANKS, BATCH, FEATURES, N_P = 3, 32, 16, 3
USUAL = f"--data digits --batch {BATCH} --checkpoint-every 0 --eval-every 1 --lr-server 1e-3 --force --quiet"
NAPS = "BENCH_OVERLAP_NAPS"
"""Environment variable: seconds of a client's pass, seconds of the server's step, numbers of a smashed sample, and, if
it is given, the server's convolutions."""


class Nap(nn.Module):
    """The identity, after a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return x


class Repeated(nn.Module):
    """FEATURES numbers as many: an upload of any size that costs no computing."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.times = max(1, numbers // FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return x.repeat(1, self.times)


class Few(nn.Module):
    """The first FEATURES of them."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :FEATURES]


class Sleeping:
    """A split network (--problem) whose passes take as long as NAPS says."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        one_pass, one_step, numbers, *layers = os.environ[NAPS].split()
        first = nn.Linear(int(np.prod(shape)), FEATURES)
        self.client = nn.Sequential(Nap(float(one_pass)), nn.Flatten(), first, Repeated(int(numbers)))
        self.auxiliary = nn.Sequential(Few(), nn.Linear(FEATURES, classes))
        heavy = convolutions(int(layers[0])) if layers else []
        self.server = nn.Sequential(Nap(float(one_step)), Few(), *heavy, nn.Linear(FEATURES, classes))


def convolutions(layers: int, channels: int = 32, side: int = 16) -> list[nn.Module]:
    """FEATURES numbers to as many, by convolutions: few parameters for their products."""
    first = [nn.Linear(FEATURES, channels * side**2), nn.Unflatten(1, (channels, side, side))]
    between = [m for _ in range(layers) for m in (nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())]
    return [*first, *between, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, FEATURES)]


@dataclass(frozen=True)
class Ask:
    """Go on."""


@dataclass(frozen=True)
class Nothing:
    """No report: evaluations cost nothing."""


@dataclass(frozen=True)
class Measured(Method[Any]):
    """HERON's round, streamed or in lockstep.

    Attributes:
        setting: problem, data and random numbers.
        training: the round.
        n_p: directions of a local step.
        asks: streaming (one question a round) or lockstep (one for each upload).
    """

    needs: ClassVar[type] = Split
    setting: Setting[Split]
    training: Training = flag_group()
    n_p: int = 1
    asks: Literal["streaming", "lockstep"] = "streaming"

    @cached_property
    def heron(self) -> HERON:
        return HERON(self.setting, training=self.training, estimation=Estimation(n_p=self.n_p))

    def start(self) -> SplitState:
        return self.heron.start()

    def round(self, state: SplitState, r: int, clients: Clients) -> SplitState:
        [to], main = self.training.groups(r), self.heron.server(state, r)
        message, streamed = Model(state.theta, state.buffers, r), self.asks == "streaming"
        models = self.heron.models(r)
        asked = clients.ask(self.train, message, to=to, into=models) if streamed else None
        for i, item in asked or self.one_by_one(clients, message, to, models):
            if isinstance(item, Smashed):
                main.step(i, item)
        return main.state(self.heron.mean(state, models), math.nan)

    def one_by_one(self, clients: Clients, message: Model, to: list[int], models: Any) -> Iterator[tuple[int, Any]]:
        """The same items in the same order; no client computes before the server asks for the next."""
        replies = clients.ask(self.begin, message, to=to)
        while to:
            items, to = list(replies), []
            for i, item in items:
                yield i, item
                to += [i] * isinstance(item, Smashed)
            if to:
                replies = clients.ask(self.proceed, Ask(), to=to, into=models)

    def train(self, client: Client, message: Model) -> Generator[Smashed, None, Any]:
        """HERON's step."""
        return (yield from self.heron.train(client, message))

    def begin(self, client: Client, message: Model) -> Any:
        client.scratch["steps"] = self.train(client, message)
        return self.proceed(client, Ask())

    def proceed(self, client: Client, message: Ask) -> Any:
        steps: Generator[Smashed, None, Any] = client.scratch["steps"]
        try:
            return next(steps)
        except StopIteration as stop:
            return stop.value

    def evaluate(self, state: SplitState, r: int, clients: Clients) -> Nothing:
        return Nothing()


class Round(NamedTuple):
    """Seconds of a round: wall, what the slowest rank and the server computed."""

    wall: float
    clients: float
    server: float

    @property
    def ratio(self) -> float:
        """1 where the shorter side is hidden behind the longer; (clients + server) / longer in lockstep."""
        return self.wall / max(self.clients, self.server)


def best(out: Path) -> Round:
    """The round of the smallest ratio; the first, in which torch and the page cache wake up, is left out."""
    times = records.load(out).overlap()
    rows = zip(times.wall, times.clients, times.server, strict=True)
    return min((Round(*map(float, row)) for row in list(rows)[1:]), key=lambda found: found.ratio)


SEVERAL = f"""
import json, os, sys
from zofl_mpi.run.command import cli

for naps, arguments in json.loads(sys.argv[1]):
    os.environ["{NAPS}"] = naps
    try:
        cli.main("zofl_mpi.heron_sfl", arguments)
    except SystemExit as end:
        if end.code:
            raise
"""
"""Several command lines in one process a rank: starting Python and mpirun costs more than these runs."""


def measured(cases: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, str, Round]]:
    """(what, streaming or lockstep, its round) of each {what: (naps, flags)}, all of one start."""
    with tempfile.TemporaryDirectory() as name:
        files, runs = {}, []
        for k, (what, (naps, flags)) in enumerate(cases.items()):
            for asks in ("streaming", "lockstep"):
                files[what, asks] = Path(name) / f"{k}-{asks}.h5"
                own = f"--method tests.bench.overlap:Measured --asks {asks} --out {files[what, asks]}"
                runs.append((naps, f"{USUAL} {own} {flags}".split()))
        command = ["mpirun", "-n", str(RANKS), sys.executable, "-c", SEVERAL, json.dumps(runs)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        for (what, asks), out in files.items():
            yield what, asks, best(out)


SHARED = """
import os, sys, time
from pathlib import Path
from zofl_mpi.run.command import cli

before = 0.0
for rounds in ("1", *sys.argv[2:4]):
    try:
        cli.main("zofl_mpi.heron_sfl", [*sys.argv[4:], "--rounds", rounds])
    except SystemExit as end:
        if end.code:
            raise
    used, before = time.process_time() - before, time.process_time()
    Path(sys.argv[1], f"{rounds}.{os.environ['OMPI_COMM_WORLD_RANK']}").write_text(str(used))
"""
"""A short run and a longer one, after one that wakes torch up; and the processor time that each took on each rank."""


def shared(servers: int, naps: str, rounds: tuple[int, int], flags: str) -> tuple[float, float, float]:
    """Seconds of a round with so many server ranks and one client rank: wall; processor of the server rank that takes
    most, and of all ranks.
    """
    with tempfile.TemporaryDirectory() as name:
        out, (short, long) = Path(name) / "run.h5", rounds
        words = f"{USUAL} --problem tests.bench.overlap:Sleeping --server-ranks {servers} --out {out} {flags}".split()
        command = ["mpirun", "-n", str(1 + servers), sys.executable, "-c", SHARED, name, str(short), str(long), *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", NAPS: naps}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        used = np.array([[float(Path(name, f"{n}.{k}").read_text()) for k in range(1 + servers)] for n in rounds])
        wall = float(np.median(records.load(out).rounds["seconds"][1:]))
    each = (used[1] - used[0]) / (long - short)
    return wall, float(each[:servers].max()), float(each.sum())


def line(what: str, asks: str, found: Round) -> None:
    print(
        f"{what + ', ' + asks:42s} round {found.wall:6.3f} s  clients {found.clients:6.3f}  "
        f"server {found.server:6.3f}  ratio {found.ratio:5.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter rounds, fewer of them")
    quick = parser.parse_args().quick
    h, rounds = (10, 3) if quick else (40, 5)

    sleeping = f"--problem tests.bench.overlap:Sleeping --h {h} --rounds {rounds}"
    large = 2**16  # numbers of a sample: 8 MiB an upload
    cases = {
        "equal work, 2 kB an upload": ("0.01 0.01 16", f"{sleeping} --m 2"),
        "equal work, 8 MiB an upload": (f"0.02 0.02 {large}", f"{sleeping} --m 2"),
        "equal work, two clients a rank": ("0.01 0.01 16", f"{sleeping} --m 4"),
        "slow server": ("0.01 0.02 16", f"{sleeping} --m 2"),
        "fast server": ("0.01 0.002 16", f"{sleeping} --m 2"),
    }
    print("1. compute = sleep")
    for what, asks, found in measured(cases):
        line(what, asks, found)

    print(f"2. computed, {len(cores())} cores")
    flags = f"--problem split_resnet --width 16 --stages 1 1 --n-p {N_P} --m 2 --h {h} --rounds {rounds}"
    for what, asks, found in measured({"ResNet": ("", flags)}):
        line(what, asks, found)

    print("3. server ranks, steps on 6 uploads, one client rank")
    flags, lengths = "--m 6 --merge 6 --h 2 --eval-every 100", (2, 5 if quick else 12)
    for what, naps in {"asleep": "0.001 0.1 16", "computed": "0.001 0 16 3"}.items():
        turns = [{S: shared(S, naps, lengths, flags) for S in (1, 2, 3)} for _ in range(1 if quick else 3)]
        for S in turns[0]:
            wall, busiest, used = np.median([turn[S] for turn in turns], axis=0)
            print(f"{what}, S = {S}: round {wall:.3f} s  processor {busiest:.3f}, of all ranks {used:.3f}", flush=True)


if __name__ == "__main__":
    main()
