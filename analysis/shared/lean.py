"""Ways of training where some devices have no room for a backward pass, at the places of `analysis/d_lean.py`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from shared.groups import Array, Group, series
from shared.virtual import SIDES, Rebuilt, federation, in_less_memory, rebuilt
from zofl_mpi.engine.fleet import Needs
from zofl_mpi.run import records

SMALL = (0, 3, 6, 9)
"""Devices without room for a backward pass, of ten."""
ROOM = 8e5
"""Bytes of such a device (jobs/devices)."""
LACKED = (7, 8, 9)
"""Classes that only small devices hold, where they do."""
UPLINKS = (1e5, 1e6, 1e7, 1e8)
"""Bits a second."""
SAME, APART = "same mix", "apart"
CASES = (SAME, APART)
GUESS = 10.0
"""Accuracy in % before the first evaluation: of ten classes."""


class Way(NamedTuple):
    """A method, who takes part, and how clients without room take a backward pass.

    Attributes:
        method: in the grid.
        room: in the grid: "all" (everybody takes part), "without" (as without-K), "none" (nobody has room).
        memory: their --client-memory.
    """

    name: str
    method: str
    room: str = "all"
    memory: str = ""


class Place(NamedTuple):
    """A data set, how its classes lie, and how many of ten devices are small."""

    data: str
    classes: str
    small: int


@final
@dataclass(frozen=True)
class Line:
    """A way at a place.

    Attributes:
        known: its results.
        needs: of a step where there is room, and of the one where there is none, if that is another.
    """

    way: Way
    place: Place
    group: Group
    known: tuple[Rebuilt, ...]
    needs: Sequence[Needs]

    @cached_property
    def _spent(self) -> Mapping[tuple[str, float], list[Array]]:
        m = len(self.known[0].way)
        way = (np.arange(m) < self.place.small).astype(np.int64) if self.way.memory else None
        fleets = {(name, up): federation(name, m, self.place.small, up) for name in SIDES for up in UPLINKS}
        return {key: [one.spent(there, self.needs, way) for one in self.known] for key, there in fleets.items()}

    def minutes(self, fleet: str, up: float) -> Array:
        """(seeds,) of all rounds."""
        return np.array([spent[-1, 0] for spent in self._spent[fleet, up]]) / 60

    def joules(self, fleet: str, up: float) -> Array:
        """(seeds,) of all rounds."""
        return np.array([spent[-1, 1] for spent in self._spent[fleet, up]])

    def curves(self, fleet: str, up: float) -> Iterator[tuple[Array, Array]]:
        """Of each seed (k,) virtual minutes and (k,) test accuracies in %, at the evaluations."""
        for run, spent in zip(self.group.runs, self._spent[fleet, up], strict=True):
            accuracy = 100 * series(run, "test_accuracy")
            at = ~np.isnan(accuracy)
            yield spent[at, 0] / 60, accuracy[at]

    def minutes_to(self, target: float, fleet: str, up: float) -> Array:
        """(seeds,) until the first evaluation with that test accuracy in %; inf where there is none."""
        found = [times[accuracy >= target] for times, accuracy in self.curves(fleet, up)]
        return np.array([times[0] if len(times) else math.inf for times in found])

    def accuracy_in(self, minutes: float, fleet: str, up: float) -> Array:
        """(seeds,) test accuracy in % at the last evaluation by then."""
        found = [accuracy[times <= minutes] for times, accuracy in self.curves(fleet, up)]
        return np.array([accuracy[-1] if len(accuracy) else GUESS for accuracy in found])

    @cached_property
    def lacked(self) -> Array:
        """(seeds,) last test accuracy in % on the classes that only small devices hold."""
        return np.array([100 * one.accuracy_on(LACKED) for one in self.known])

    @property
    def step_bytes(self) -> float:
        """Of the step that needs the least memory."""
        return min(each.bytes for each in self.needs)


def lines_of(groups: Sequence[Group], ways: Sequence[Way]) -> Iterator[Line]:
    """The ways at each place, where they have results; where no device is small nobody is left out."""
    measured: dict[str, Sequence[Needs]] = {}
    known: dict[Any, Rebuilt] = {}
    lean: dict[tuple[str, str], Needs] = {}
    found = {(g.entry("data"), g.entry("room"), g.entry("method")): g for g in groups if g.runs}
    data = dict.fromkeys(group.entry("data").rpartition("-")[0] for group in groups)
    known_rooms = {(entry, room) for entry, room, _ in found}
    places = [Place(d, case, small) for d in data for case in CASES for small in SMALL if small or case == SAME]
    for place, way in ((place, way) for place in places for way in ways):
        without, none = way.room == "without", f"without-{place.small}"
        entry = f"{place.data}-{place.small if place.classes == APART else 0}"
        if place.small and (entry, none) not in known_rooms:
            continue
        group = found.get((entry, none if without else way.room, way.method))
        if group is None or (without and not place.small):
            continue
        for run in group.runs:
            if run.path not in known:
                known[run.path] = rebuilt(run, family(run), measured)
        each, key = tuple(known[run.path] for run in group.runs), (place.data, way.method)
        needs = each[0].needs
        if way.memory and place.small:
            if key not in lean:
                lean[key] = in_less_memory(group.runs[0], family(group.runs[0]), way.memory)
            needs = (needs[0], lean[key])
        yield Line(way, place, group, each, needs)


def family(run: records.Run) -> str:
    """The module that a result was made with."""
    return "zofl_mpi.zo_hfl" if run.config["method"] == "fedavg" else "zofl_mpi.heron_sfl"
