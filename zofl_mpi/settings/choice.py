"""From flags to a `Setting`: the problems that a command line can name, with their data.

Every rank builds the same setting by itself; the data set lies once on each node (`data.cache`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, final

import numpy as np

from zofl_mpi.data import Federation
from zofl_mpi.run.flags import Groups, made
from zofl_mpi.run.setting import Setting
from zofl_mpi.run.streams import Streams
from zofl_mpi.run.world import World

T = TypeVar("T")
Values = Mapping[str, Any]
"""{flag: value} of the problem, in the role that it plays."""
Build = Callable[[Values, World, Streams, str, str], Setting]


@final
@dataclass(frozen=True)
class Choice:
    """A problem that a command line can name.

    Attributes:
        groups: {title: dataclass of its flags}.
        build: from the values of all flags, the dtype and this rank's device; on every rank alike.
        roles: {protocol of `zofl_mpi.problems` that it offers: further groups of flags for methods that need it}.
        gpu: whether it can run on one.
    """

    groups: Groups
    build: Build
    roles: Mapping[str, Groups]
    gpu: bool = False


def parts_of(protocol: type[Any]) -> list[str]:
    """The names of a protocol's functions and properties."""
    return [name for name in vars(protocol) if not name.startswith("_")]


def of_federation(problem: Any, streams: Streams, federation: Federation, dtype: str) -> Setting:
    """The setting of a problem on these data."""
    return Setting(
        problem,
        streams,
        federation.clients,
        federation.server,
        federation.test,
        federation.counts,
        np.dtype(dtype),
        federation.server.fingerprint(),
    )


def part_of(cls: type[T], values: Values) -> T:
    """A group of flags with its values."""
    return made(cls, values)  # type: ignore[no-any-return]
