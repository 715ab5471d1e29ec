"""Results of scaling studies whose every second is known, and a report of ReFrame that names them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zofl_mpi.run import records

ROUNDS = 8


def result(
    path: Path,
    *,
    ranks: int,
    m: int = 2,
    asked: int | None = None,
    walls: Sequence[float] = (1.0,) * ROUNDS,
    compute: Mapping[str, Sequence[float]] | None = None,
    wait: Mapping[str, Sequence[float]] | None = None,
    comm: Mapping[str, Sequence[float]] | None = None,
    hosts: Sequence[str] = ("a",),
    down: int = 8,
    up: int = 16,
    items: int = 1,
    method: str = "zo_hfl",
    eval_every: int = 100,
    x: float = 1.0,
) -> Path:
    """A finished result: seconds of each {step: by rank}, the same in all rounds; bytes and items of each client.

    Args:
        asked: clients that take part; all for None. They are asked for every step but the server's.
    """
    compute = compute or {"server": [0.5] * ranks, "solve": [0.25] * ranks}
    config = {"rounds": len(walls), "eval_every": eval_every, "method": method}
    attrs = {"config": config, "hosts": list(hosts), "kernel": "numpy", "started": "2026-11-22T10:00:00+00:00"}
    recorder = records.Recorder.create(path, attrs=attrs, m=m, ranks=ranks, rounds=len(walls))
    recorder.begins(1.5)
    there = np.arange(m) < (m if asked is None else asked)
    own = [name != "server" for name in compute]
    count = np.outer(own, there).astype(np.int64)
    seconds = {f"seconds_{name}": _table(table, compute, ranks) for name, table in (("wait", wait), ("comm", comm))}
    for r, wall in enumerate(walls):
        recorder.append(
            {"round": r + 1.0, "seconds": wall},
            steps=list(compute),
            bytes_down=down * count // max(1, sum(own)),
            bytes_up=up * count // max(1, sum(own)),
            messages=items * count,
            seconds_compute=_table(compute, compute, ranks),
            **seconds,
        )
    recorder.finish({"x": np.full(3, x)})
    return path


def _table(seconds: Mapping[str, Sequence[float]] | None, steps: Mapping[str, Any], ranks: int) -> Any:
    return np.array([(seconds or {}).get(name, [0.0] * ranks) for name in steps], float)


def report(path: Path, tests: Sequence[Mapping[str, Any]]) -> Path:
    """A report of ReFrame with what the scripts read of it; a test's files lie in its `outputdir`."""
    usual = {"result": "pass", "fail_reason": None, "system": "here"}
    cases = [{**usual, "display_name": f"test {k}", **test} for k, test in enumerate(tests)]
    path.write_text(json.dumps({"session_info": {"time_start_unix": 1795340000.0}, "runs": [{"testcases": cases}]}))
    return path


def doctor(folder: Path, ranks: int, costs: Mapping[str, Sequence[float]]) -> Path:
    """The folder of an exchange."""
    folder.mkdir(parents=True)
    places = [{"host": "a", "processor": "Abacus 9", "cores": 2}] * ranks
    kept = {kind: {"fixed": fixed, "per_byte": per_byte} for kind, (fixed, per_byte) in costs.items()}
    (folder / "exchange.json").write_text(json.dumps({"mpi": "Open MPI v5", "ranks": places, "exchange": kept}))
    return folder
