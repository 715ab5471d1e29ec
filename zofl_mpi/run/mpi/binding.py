"""Bind each rank to a GPU and threads, test the GPU, and report to the others."""

import platform
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import final

from zofl_mpi.engine import device
from zofl_mpi.engine.world import World, run_or_fail_all
from zofl_mpi.errors import UserError
from zofl_mpi.run.loop.screen import aligned


@final
@dataclass(frozen=True)
class RankPlacement:
    """Device and cores of one rank."""

    host: str  # name of its node
    client: bool  # True if it acts for clients
    device: str  # "cpu" or "cuda:k" in its own numbering
    uuid: str  # of the GPU on which an allocation of this rank landed; "" on the CPU
    gpus: int  # GPUs of its node, as far as its ranks see them or Slurm grants them to the job
    cores: str  # cores that it may run on, such as "0-3,8"
    threads: int  # threads of its numerical libraries
    blas: str  # library of NumPy's matrix products
    unused: str = ""  # reason why its node's GPU is not used; "" if there is none, or none was requested

    def row(self, rank: int, clients: int, servers: int = 1) -> dict[str, int | str]:
        """Row of the table of ranks; `clients`: the rank's clients, `servers`: number of server ranks."""
        role = "both" if rank == 0 and self.client else "server" if rank < servers else "client"
        columns = {name: value for name, value in asdict(self).items() if name not in ("client", "blas", "unused")}
        return {"rank": rank, **columns, "clients": clients, "role": role}


def bind(world: World, requested: str, gpu: bool) -> list[RankPlacement]:
    """Binds this rank to a device and threads; returns the placements of all ranks, by rank.

    On the CPU each rank has one thread: bits may depend on the number of threads, and this on the number of ranks.
    `requested` is "auto", "cpu" or "cuda"; `gpu`: True if the problem can use one.

    UserError on every rank: one cannot get the requested device, or cannot use its GPU.
    """
    client = world.rank > 0 or world.size == 1
    seen, cores = device.visible(requested), device.cores()
    me, node = world.neighbours(((client, seen), cores))
    views = [view for view, _ in node]
    chosen = run_or_fail_all(world, lambda: device.select(requested, views, me))
    if not gpu and requested == "cuda":
        raise UserError("--device cuda: this problem runs in NumPy on the CPU; use --device auto or cpu")
    chosen = chosen if gpu else "cpu"
    if chosen != "cpu":
        device.reproducible()
    uuid = run_or_fail_all(world, lambda: device.proof(chosen))
    masks, allowed = [mask for _, mask in node], device.granted("SLURM_CPUS_PER_TASK")
    threads = 1 if chosen == "cpu" else device.threads(masks, me, allowed)
    device.limit_threads(threads)
    gpus = max(len({uuid for _, uuids in views for uuid in uuids}), device.granted("SLURM_GPUS_ON_NODE"))
    unused = device.unused(seen) if gpu and requested == "auto" and chosen == "cpu" else ""
    place = RankPlacement(platform.node(), client, chosen, uuid, gpus, spans(cores), threads, device.blas(), unused)
    return world.allgather(place)


def warnings_of(placements: Sequence[RankPlacement]) -> Iterator[str]:
    """Yield a warning for each node with ranks that share a GPU although there is one for each, or do not use it.

    Rank 0 counts only if there are enough GPUs for it, too: the server computes least while clients compute most.
    """
    for host in sorted({place.host for place in placements}):
        here = {rank: place for rank, place in enumerate(placements) if place.host == host and place.uuid}
        gpus = max((place.gpus for place in here.values()), default=0)
        for ranks in ({r: p for r, p in here.items() if p.client}, here):
            load = Counter(place.uuid for place in ranks.values())
            if gpus >= len(ranks) > len(load):
                uuid = max(load, key=lambda each: load[each])
                both = ", ".join(str(rank) for rank, place in ranks.items() if place.uuid == uuid)
                yield (
                    f"ranks {both} on {host} share the GPU {uuid}, although the node has {gpus} for {len(ranks)} "
                    "ranks: each must see all of them (Slurm: --gpu-bind=none, no CUDA_VISIBLE_DEVICES of your own)"
                )
                break
    idle = {place.host: place.unused for place in placements if place.unused}
    yield from (f"{host} computes on the CPU: {reason}" for host, reason in sorted(idle.items()))


def spans(numbers: Collection[int]) -> str:
    """Formats whole numbers as "0-3,8"."""
    groups = groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])  # of consecutive numbers
    runs = ([number for _, number in group] for _, group in groups)
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def listed(rows: Sequence[dict[str, int | str]], width: int | None) -> str:
    """The table of ranks as text, a line per rank."""
    return aligned([list(rows[0]), *([str(value) or "-" for value in row.values()] for row in rows)], width)
