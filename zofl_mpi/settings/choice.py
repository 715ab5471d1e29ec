"""A problem that a command line can name: its flags, and how a `Setting` is made of their values.

Every rank makes the same setting by itself; the data set lies once on each node (`data.cache`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast, final

import numpy as np

from zofl_mpi.data import Federation
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.engine.world import World
from zofl_mpi.run.flags import Groups, made

T = TypeVar("T")
P = TypeVar("P")


@final
@dataclass(frozen=True)
class Site:
    """Inputs from which one rank makes a setting.

    Attributes:
        values: {flag: value} of the problem, in the role that it plays.
        world: the ranks.
        streams: the run's random numbers.
        dtype: "float32" or "float64", of all vectors.
        device: where this rank computes, as torch calls it.
    """

    values: Mapping[str, Any]
    world: World
    streams: Streams
    dtype: str
    device: str

    def group(self, cls: type[T]) -> T:
        """A group of flags with its values, checked."""
        return cast(T, made(cls, self.values))

    def setting(self, problem: P, federation: Federation, network: str = "") -> Setting[P]:
        """The setting of a problem on these data; `network`: a fingerprint beside that of the data."""
        data = federation.clients, federation.server, federation.test, federation.counts
        fingerprint = ", ".join(filter(None, (federation.server.fingerprint(), network)))
        dtype = np.dtype(self.dtype)
        return Setting(problem, self.streams, *data, dtype, fingerprint, validation=federation.validation)


@final
@dataclass(frozen=True)
class Choice:
    """A problem that a command line can name.

    Attributes:
        groups: {title: dataclass of its flags}.
        make: makes its setting, the same on every rank but for the device.
        roles: {role (`zofl_mpi.problems`) that it offers: further groups of flags for methods that need it}.
        gpu: whether it can run on one.
    """

    groups: Groups
    make: Callable[[Site], Setting[Any]]
    roles: Mapping[str, Groups]
    gpu: bool = False

    def build(self, values: Mapping[str, Any], world: World, streams: Streams, dtype: str, device: str) -> Setting[Any]:
        """The setting from the values of the problem's flags (UserError: one is out of range, data do not fit)."""
        return self.make(Site(values, world, streams, dtype, device))
