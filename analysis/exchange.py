"""Measured costs of the engine's questions between the ranks of this machine, for analysis/scaling_model.py.

mpirun -n 4 python analysis/exchange.py exchange.json
"""

import argparse
import json
import sys
from pathlib import Path

from shared.exchange import KINDS, LARGE, Cost, exchange, place

from zofl_mpi.engine.world import at_server, speaks_first
from zofl_mpi.errors import UserError
from zofl_mpi.paths import check_new_file, new_file
from zofl_mpi.run.mpi.world import connect


def main(words: list[str] | None = None) -> int:
    """Prints and keeps the costs; exit status 2 and one sentence where they cannot be measured or kept."""
    parser = argparse.ArgumentParser(prog="exchange", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path, help="a JSON file for the places of the ranks and the costs there")
    flags = parser.parse_args(words)
    try:
        world = connect()
        at_server(world, lambda: check_new_file(flags.out, "", force=True))
        places, costs = world.allgather(place()), exchange(world)
    except UserError as error:
        return refused(str(error), speaks_first())
    if world.rank:
        return 0
    for kind, cost in costs.items():
        print(line(kind, cost))
    kept = {kind: cost._asdict() for kind, cost in costs.items()}
    try:
        with new_file(flags.out, "", force=True) as made:
            made.write_text(json.dumps({"mpi": world.library, "ranks": places, "exchange": kept}, indent=1) + "\n")
    except UserError as error:
        return refused(str(error))
    return 0


def line(kind: str, cost: Cost) -> str:
    """A cost and its meaning."""
    rate = f", {1 / cost.per_byte / 1e6:8.0f} MB/s in {LARGE / 1e6:.0f} MB" if cost.per_byte else ""
    return f"{kind:8} {cost.fixed * 1e3:8.3f} ms{rate}   {KINDS[kind]}"


def refused(sentence: str, speaks: bool = True) -> int:
    """The exit status after a sentence on standard error, printed by one rank."""
    if speaks:
        print(f"exchange: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
