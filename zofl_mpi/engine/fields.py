"""What a dataclass says of its fields: a column of the result, a group of flags, or something that the run gives.

The fields of a method or a problem are command-line flags. `part` and `given` mark those that are not; `column`
describes a field of a state or a report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

GIVEN_NAMES = ("setting", "federation")
"""Fields of these names are given by the run without being marked: what a method or a problem of a user's own has."""


def column(unit: str, meaning: str, default: Any = dataclasses.MISSING) -> Any:
    """A field of a state or a report, with what the result file says of it.

    Args:
        unit: "1" for a bare number, "nat", "s", "B", ...
        meaning: what the number or tensor is.
        default: the field's default; None for a number that some runs do not have.
    """
    return dataclasses.field(default=default, metadata={"unit": unit, "meaning": meaning})


def part(**defaults: Any) -> Any:
    """A field that is a dataclass of flags of its own; bound to the method's `setting` where it has such a field.

    Args:
        defaults: of the part's flags, where they differ from its own.
    """
    return dataclasses.field(kw_only=True, metadata={"defaults": defaults})


def given(default: Any = dataclasses.MISSING) -> Any:
    """A field that the run gives: no flag."""
    return dataclasses.field(default=default, metadata={"given": True})


def is_flag(f: dataclasses.Field[Any]) -> bool:
    """Whether a field, or what is in it, is set by the command line."""
    return f.init and f.name not in GIVEN_NAMES and not f.metadata.get("given")


def described(state: Any) -> Mapping[str, tuple[str, str]]:
    """{field: (unit, meaning)} of the columns of a state or a report, or of its class."""
    marked = (f for f in dataclasses.fields(state) if "unit" in f.metadata)
    return {f.name: (f.metadata["unit"], f.metadata["meaning"]) for f in marked}


def numbers(state: Any) -> Iterator[tuple[str, float]]:
    """The number fields of a state."""
    for name, value in vars(state).items():
        if isinstance(value, int | float | np.number) and not isinstance(value, bool):
            yield name, float(value)


def reported(report: Any) -> dict[str, float]:
    """{column: number} of what `evaluate` returned; a field that is None is no column, a dictionary has one an entry.

    Raises:
        TypeError: no dataclass, or something else in it; names the field.
    """
    if not dataclasses.is_dataclass(report) or isinstance(report, type):
        raise TypeError(
            f"evaluate returned a {type(report).__name__}: it must return a dataclass of numbers, each field described "
            "by zofl_mpi.column(unit, meaning)"
        )
    found: dict[str, float] = {}
    for f in dataclasses.fields(report):
        value = getattr(report, f.name)
        for name, number in value.items() if isinstance(value, Mapping) else [(f.name, value)]:
            if number is None:
                continue
            if name in ("round", "seconds") or "/" in name or not isinstance(number, int | float | np.number):
                raise TypeError(
                    f"column {name!r} = {number!r}: needs a name without / other than round, seconds, and a number"
                )
            found[name] = float(number)
    return found
