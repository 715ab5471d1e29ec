"""Sessions of a run, the first one and those that --resume adds, and the ranks that they lost."""

import json
from typing import Any, NamedTuple

from zofl_mpi.errors import UserError
from zofl_mpi.run.records.hdf5 import Attributes, set_attributes
from zofl_mpi.run.records.provenance import now
from zofl_mpi.run.records.result import Run
from zofl_mpi.run.records.rows import by_round, first_clients

ATTRIBUTE_BYTES = 60_000  # HDF5 allows 64 kB
LOSSES = 500
"""Most losses that the attribute `lost` names."""


class Loss(NamedTuple):
    """Client ranks whose loss was survived: in which round, and whether the round was repeated."""

    round: int
    ranks: tuple[int, ...]
    repeated: bool


def session(start: int, ranks: int, attrs: Attributes) -> dict[str, Any]:
    """Command, code and machine of a session of a run."""
    known = {name: attrs[name] for name in ("command", "git_commit", "git_dirty", "mpi", "kernel") if name in attrs}
    if "blas" in attrs:
        known["blas"] = sorted(set(attrs["blas"]))
    return {"from_round": start, "ranks": ranks, "started": now(), **known}


def cut_back(file: Any, run: Run, rounds: int, m: int, ranks: int, attrs: Attributes) -> None:
    """Drops all rows of a result after the first `rounds`, and /final, to go on with m clients (0: as before)."""
    columns, wanted = run.clients["messages"].shape[2], len(first_clients(m))
    if m and columns != wanted:
        raise UserError(f"{run.path} has {columns} columns for clients, and {m} clients have {wanted}")
    if run.length < rounds:
        raise UserError(f"{run.path} holds {run.length} rounds, fewer than the {rounds} to continue from")
    ranks = ranks or int(run.attrs["ranks"])
    for group in ("rounds", "clients", "ranks"):
        for _, data in by_round(file, group):
            data.resize(rounds, axis=0)
            if group == "ranks":
                data.resize(max(ranks, data.shape[2]), axis=2)
    file["rounds"].attrs.modify("done", rounds)
    if "final" in file:
        del file["final"]
    sessions = [*json.loads(run.attrs["sessions"]), session(rounds, ranks, attrs)]
    while len(json.dumps(sessions)) > ATTRIBUTE_BYTES:
        del sessions[1]
    config = {name: attrs[name] for name in ("config", "settled") if name in attrs}
    if "missing_rounds" in file.attrs:
        config["missing_rounds"] = [1, min(rounds, json.loads(file.attrs["missing_rounds"])[1])]
    set_attributes(file.attrs, {**config, "status": "running", "ranks": ranks, "sessions": sessions})
