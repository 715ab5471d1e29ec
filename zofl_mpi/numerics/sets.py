"""Closed convex sets X_i, parsed from the command line, and projections onto them.

    all                     R^n
    box:LOW:HIGH            LOW <= x <= HIGH; each one number or n, inf allowed
    ball:RADIUS[:CENTRE]    |x - CENTRE| <= RADIUS; CENTRE one number or n, 0 if not given

Several numbers are separated by commas: box:0,0:1,inf.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from zofl_mpi.arrays import Array, no_numpy_warnings
from zofl_mpi.errors import demand
from zofl_mpi.numerics import projections
from zofl_mpi.numerics.schedules import to_number

FLAG = "--x-set"
FORMS = {"all": ("all", (0,)), "box": ("box:LOW:HIGH", (2,)), "ball": ("ball:RADIUS[:CENTRE]", (1, 2))}
"""{name: (form, allowed numbers of words after it)}"""


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
class Ball:
    """Ball |x - centre| <= radius; a point that lies in it up to rounding stays unchanged."""

    centre: Array  # (n,), or () for equal entries
    radius: float

    @no_numpy_warnings
    def project(self, x: Array) -> Array:
        z = projections.ball(x[None].astype(np.float64, copy=False), self.centre, self.radius)[0]
        moved, size = np.linalg.norm(x - z), np.linalg.norm(z)
        return x if moved <= 8 * np.finfo(x.dtype).eps * size else z.astype(x.dtype, copy=False)


ConvexSet = All | Box | Ball
"""A nonempty set. `project(x)` is the nearest point to x (n,), in its dtype; points of the set stay bit-identical."""


def parse(text: str, n: int) -> ConvexSet:
    """Parses a set in R^n, see the module's docstring (UserError: invalid)."""
    name, *words = (word.strip() for word in text.split(":"))
    _demand(name in FORMS, text, f"one of {', '.join(form for form, _ in FORMS.values())}")
    form, counts = FORMS[name]
    _demand(len(words) in counts, text, f"of the form {form}")
    if name == "box":
        low, high = (_numbers(text, *each, (1, n)) for each in zip(("LOW", "HIGH"), words, strict=True))
        # low = high = inf is empty, too: no point of R^n has an infinite entry
        there = np.less_equal(low, high) & np.less(low, math.inf) & np.greater(high, -math.inf)
        _demand(np.all(there), text, "a box with LOW <= HIGH everywhere: this one is empty")
        return Box(low, high)
    radius = float(np.asarray(_numbers(text, "RADIUS", words[0], (1,)))) if words else math.inf
    _demand(radius >= 0, text, "a ball with RADIUS >= 0: this one is empty")
    centre = np.asarray(_numbers(text, "CENTRE", words[1], (1, n)) if words[1:] else 0.0)
    _demand(np.isfinite(centre).all(), text, "a ball with a finite CENTRE")
    return All() if radius == math.inf else Ball(centre, radius)


def _numbers(text: str, what: str, word: str, counts: tuple[int, ...]) -> float | Array:
    """Parses a number, or several into an (n,) array; `counts` are the allowed lengths."""
    values = np.array([to_number(part) for part in word.split(",")])
    _demand(not np.isnan(values).any(), text, f"made of numbers: {what} = {_short(word)} is none")
    allowed = " or ".join(map(str, dict.fromkeys(counts)))
    wanted = f"given {allowed} numbers as {what} where n is {max(counts)}, not {len(values)}"
    _demand(len(values) in counts, text, wanted)
    return float(values[0]) if len(values) == 1 else values


def _demand(holds: Any, text: str, allowed: str) -> None:
    demand(bool(holds), FLAG, _short(text), allowed)


def parse_all(texts: Sequence[str], n: int, m: int) -> list[ConvexSet]:
    """Parses the sets of m clients, from one description for all or one per client; equal texts share an object."""
    shown = _short(" ".join(texts))
    demand(len(texts) in (1, m), FLAG, shown, f"one set for all, or one for each of the {m} clients, not {len(texts)}")
    made = {text: parse(text, n) for text in dict.fromkeys(texts)}
    return [made[text] for text in (texts if len(texts) == m else m * list(texts))]


def _short(text: str) -> str:
    """Shortens a text to 60 characters for an error message: n numbers may be thousands."""
    return text if len(text) <= 60 else text[:57] + "..."
