"""Closed convex sets X_i, parsed from the command line, and projections onto them.

    all                     R^n
    box:LOW:HIGH            LOW <= x <= HIGH; each one number or n, inf allowed
    ball:RADIUS[:CENTRE]    |x - CENTRE| <= RADIUS; CENTRE one number or n, 0 if not given

Several numbers are separated by commas: box:0,0:1,inf.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np

from zofl_mpi.arrays import Array, no_numpy_warnings
from zofl_mpi.errors import demand
from zofl_mpi.numerics import projections
from zofl_mpi.numerics.schedules import to_number

FLAG = "--x-set"


@final
@dataclass(frozen=True)
class All:
    """R^n."""

    def project(self, x: Array) -> Array:
        return x


@final
@dataclass(frozen=True)
class Box:
    """Box low <= x <= high; bounds are numbers or (n,) float64, inf allowed, rounded to x's dtype."""

    low: float | Array
    high: float | Array

    @no_numpy_warnings
    def project(self, x: Array) -> Array:
        low, high = (np.asarray(bound).astype(x.dtype, copy=False) for bound in (self.low, self.high))
        z = np.clip(x, low, high)
        return x if np.array_equal(z, x) else z


@final
@dataclass(frozen=True)
class Rounded:
    """A set whose projection leaves points unchanged that lie in it up to rounding.

    Attributes:
        nearest: projection of float64 rows (k, n), see `projections`.
    """

    nearest: Callable[[Array], Array]

    @no_numpy_warnings
    def project(self, x: Array) -> Array:
        z = self.nearest(x[None].astype(np.float64, copy=False))[0]
        moved, size = np.linalg.norm(x - z), np.linalg.norm(z)
        return x if moved <= 8 * np.finfo(x.dtype).eps * size else z.astype(x.dtype, copy=False)


ConvexSet = All | Box | Rounded
"""A nonempty set. `project(x)` is the nearest point to x (n,), in its dtype; points of the set stay bit-identical."""


class _Description(NamedTuple):
    """A set in R^n as typed on the command line."""

    text: str
    n: int

    def demand(self, holds: Any, allowed: str) -> None:
        demand(bool(holds), FLAG, _short(self.text), allowed)

    def numbers_of(self, word: str, what: str, counts: tuple[int, ...]) -> float | Array:
        """Parses a number, or several into an (n,) array; `counts` are the allowed lengths."""
        values = np.array([to_number(part) for part in word.split(",")])
        allowed = " or ".join(map(str, dict.fromkeys(counts)))
        self.demand(not np.isnan(values).any(), f"made of numbers: {what} = {_short(word)} is none")
        wanted = f"given {allowed} numbers as {what} where n is {max(counts)}, not {len(values)}"
        self.demand(len(values) in counts, wanted)
        return float(values[0]) if len(values) == 1 else values

    def number(self, word: str, what: str) -> float:
        return float(np.asarray(self.numbers_of(word, what, (1,))))


def parse(text: str, n: int) -> ConvexSet:
    """Parses a set in R^n, see the module's docstring (UserError: invalid)."""
    described = _Description(text, n)
    name, *words = (word.strip() for word in text.split(":"))
    described.demand(name in SETS, f"one of {', '.join(form for form, _, _ in SETS.values())}")
    form, counts, make = SETS[name]
    described.demand(len(words) in counts, f"of the form {form}")
    return make(words, described)


def parse_all(texts: Sequence[str], n: int, m: int) -> list[ConvexSet]:
    """Parses the sets of m clients, from one description for all or one per client; equal texts share an object."""
    shown = _short(" ".join(texts))
    demand(len(texts) in (1, m), FLAG, shown, f"one set for all, or one for each of the {m} clients, not {len(texts)}")
    made = {text: parse(text, n) for text in dict.fromkeys(texts)}
    return [made[text] for text in (texts if len(texts) == m else m * list(texts))]


def _box(words: list[str], described: _Description) -> ConvexSet:
    low, high = (
        described.numbers_of(w, what, (1, described.n)) for w, what in zip(words, ("LOW", "HIGH"), strict=True)
    )
    # low = high = inf is empty, too: no point of R^n has an infinite entry
    there = np.less_equal(low, high) & np.less(low, math.inf) & np.greater(high, -math.inf)
    described.demand(np.all(there), "a box with LOW <= HIGH everywhere: this one is empty")
    return Box(low, high)


def _ball(words: list[str], described: _Description) -> ConvexSet:
    radius = described.number(words[0], "RADIUS")
    described.demand(radius >= 0, "a ball with RADIUS >= 0: this one is empty")
    centre = np.asarray(described.numbers_of(words[1], "CENTRE", (1, described.n)) if words[1:] else 0.0)
    described.demand(np.isfinite(centre).all(), "a ball with a finite CENTRE")
    return All() if radius == math.inf else Rounded(partial(projections.ball, centre=centre, radius=radius))


SETS: dict[str, tuple[str, tuple[int, ...], Callable[[list[str], _Description], ConvexSet]]] = {
    "all": ("all", (0,), lambda *_: All()),
    "box": ("box:LOW:HIGH", (2,), _box),
    "ball": ("ball:RADIUS[:CENTRE]", (1, 2), _ball),
}
"""{name: (form, allowed numbers of words, constructor)}"""


def _short(text: str) -> str:
    """Shortens a text to 60 characters for an error message: n numbers may be thousands."""
    return text if len(text) <= 60 else text[:57] + "..."
