"""Read a result: finished, still growing, or of a killed run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.arrays import Array
from zofl_mpi.engine.ledger import Overlap, overlap
from zofl_mpi.engine.messages import fields_of
from zofl_mpi.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
from zofl_mpi.run.records.checkpoint import checkpoint_path, load_checkpoint
from zofl_mpi.run.records.hdf5 import array, attributes_of, own_attributes, plain, read_file
from zofl_mpi.run.records.layout import check_result
from zofl_mpi.run.records.rows import RANK_TABLE, read_placements


@final
class Final(dict[str, Any]):
    """Fields of a run's last state; until the run ends, fields come from its last checkpoint."""

    def __init__(self, values: Mapping[str, Any], path: Path, run: Any):
        super().__init__(values)
        self._path, self._run = path, run

    def __missing__(self, name: str) -> Any:
        if self:
            raise KeyError(name)
        return self._checkpointed[name]

    @cached_property
    def _checkpointed(self) -> dict[str, Any]:
        """State in the checkpoint beside the result, read once for all fields."""
        try:
            checkpoint = load_checkpoint(checkpoint_path(self._path))
            if checkpoint.attrs.get("run") != self._run:
                raise UserError("the checkpoint beside it is of another run")
            return fields_of(checkpoint.payload["state"])
        except (UserError, KeyError) as error:
            advice = "read it when the run is done, or has written a checkpoint (--checkpoint-every)"
            raise UserError(f"{self._path} holds no state of the model yet, and {error}: {advice}") from error


@final
@dataclass(frozen=True)
class Run:
    """One result, as read. R rounds, m clients.

    Attributes:
        path: path of the file.
        attrs: root attributes as stored; `status` is "running" during a run, and also after a kill.
        config: the resolved configuration.
        rounds: name -> (R,) float64, NaN in rounds without a value.
        clients: bytes_down, bytes_up, messages of the method's protocol -> (R, steps, m) int64; see `first_clients`.
        ranks: seconds_compute, seconds_wait, seconds_comm, seconds_staging (float64, s), peak_bytes, transport_sent,
            transport_received (int64) -> (R, steps, ranks).
        steps: names of the steps.
        counts: (m, classes) label counts, or None; see `first_clients`.
        final: field -> value of the last state. Empty until the run ends; `final[field]` then reads the last
            checkpoint beside the result (UserError: there is none).
        units, descriptions: {column of `rounds`: text}.
        places: rows by rank and session: from_round, rank, host, device, uuid, gpus, cores, threads, clients, role.
        first_clients: None, or (100,) with more than 1000 clients: entry k of `clients` and `counts` along the
            clients' axis sums clients first_clients[k] to first_clients[k + 1] - 1.
    """

    path: Path
    attrs: dict[str, Any]
    config: dict[str, Any]
    rounds: dict[str, NDArray[np.float64]]
    clients: dict[str, NDArray[np.int64]]
    ranks: dict[str, Array]
    steps: tuple[str, ...]
    counts: Array | None
    final: Final
    units: dict[str, str]
    descriptions: dict[str, str]
    placements: Sequence[Mapping[str, Any]] = ()
    first_clients: NDArray[np.int64] | None = None

    @property
    def length(self) -> int:
        """R, the number of finished rounds."""
        return len(self.clients["messages"])

    @property
    def server_ranks(self) -> int:
        """S, the number of server ranks in the latest session."""
        last = max((k for k, row in enumerate(self.placements) if row["rank"] == 0), default=0)
        return max(1, [row.get("role") for row in self.placements[last:]].count("server"))

    def table(self) -> pd.DataFrame:
        """One row per round: `rounds`, and bytes_down, bytes_up, messages summed over steps and clients."""
        try:
            import pandas as pd
        except ModuleNotFoundError as exc:
            raise UserError("a table needs pandas, which is not installed: pip install 'zofl_mpi[report]'") from exc

        sums = {name: values.sum((1, 2)) for name, values in self.clients.items()}
        return pd.DataFrame({**sums, **self.rounds})

    def overlap(self) -> Overlap:
        """Compute times of clients and server in each round, and their overlap."""
        return overlap(self.steps, self.ranks["seconds_compute"], self.rounds["seconds"])


class Heading(NamedTuple):
    """Attributes of a result without its tables, read in about a millisecond."""

    path: Path
    attrs: dict[str, Any]
    config: dict[str, Any]
    length: int  # R, the number of finished rounds


def heading(path: str | os.PathLike[str]) -> Heading:
    """Read the attributes of a result (UserError as in `load`, except damage inside a table)."""

    def read(file: Any) -> Heading:
        check_result(file, path)
        attrs = attributes_of(file)
        return Heading(Path(path), attrs, json.loads(attrs.get("config") or "{}"), int(file["rounds"].attrs["done"]))

    return read_file(Path(path), read)


def load(path: str | os.PathLike[str]) -> Run:
    """Read a result: finished, still growing, or of a killed run (UserError: missing, damaged or no result)."""

    def read(file: Any) -> Run:
        parts: dict[str, dict[str, Any]] = {"rounds": {}, "clients": {}, "ranks": {}, "final": {}}
        for place, item in check_result(file, path).items():
            group, _, name = place.partition("/")
            if group in parts and place != RANK_TABLE:
                parts[group][name] = item
        final = {name: plain(file[f"final/{name}"][()]) for name in parts.pop("final")}
        attrs, columns = attributes_of(file), {name: own_attributes(item) for name, item in parts["rounds"].items()}
        length = int(file["rounds"].attrs["done"])  # a full disk or a kill may leave a partial row behind
        rows = {group: {name: array(item)[:length] for name, item in own.items()} for group, own in parts.items()}
        return Run(
            path=Path(path),
            attrs=attrs,
            config=json.loads(attrs.get("config") or "{}"),
            **rows,
            steps=attributes_of(file["clients"])["steps"],
            counts=file["partition/counts"][()] if "partition/counts" in file else None,
            final=Final(final, Path(path), attrs["run"]),
            units={name: str(own.get("unit", "")) for name, own in columns.items()},
            descriptions={name: str(own.get("description", "")) for name, own in columns.items()},
            placements=read_placements(file),
            first_clients=file["clients"].attrs.get("first_clients"),
        )

    return read_file(Path(path), read)
