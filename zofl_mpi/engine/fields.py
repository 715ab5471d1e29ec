"""Declarations on the fields of a dataclass: ranges of flags, columns of the result, values that must be finite.

The fields of a method or a problem are command-line flags. `at_least`, `above` and `fraction` state their range;
`flag_group` and `injected` mark fields that are no flags. `column` describes a field of a state or a report, `finite` a
field of a message.
"""

import dataclasses
import functools
import math
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from zofl_mpi.engine.roles import program_of
from zofl_mpi.errors import UserError, demand

INJECTED_NAMES = ("setting", "federation")
"""Unmarked fields that the run provides, as in a user's own methods and problems."""
LARGEST = sys.float_info.max
DIVERGED = "the run has diverged; smaller steps may help"
NOTHING: Mapping[str, Any] = MappingProxyType({})
UsedWith = Mapping[str, Mapping[str, tuple[Any, ...]]]
"""{flag: {other flag: values with which the flag has an effect; (): any but 0, none or false}}. A flag group declares
it as the class variable USED_WITH; the command line refuses a flag without effect.
"""


def column(unit: str, meaning: str, default: Any = dataclasses.MISSING, *, finite: str = "") -> Any:
    """A field of a state or a report, with its unit and meaning in the result file.

    Args:
        unit: "1" for a bare number, "nat", "s", "B", ...
        default: the field's default; None for a number that some runs do not have.
        finite: of a state: ends the run with this sentence when the value is not finite after a round.
    """
    return dataclasses.field(default=default, metadata={"unit": unit, "meaning": meaning, "finite": finite})


def finite(sentence: str) -> Any:
    """Field of a message that must be finite; otherwise the run ends with this sentence and the client's number."""
    return dataclasses.field(metadata={"finite": sentence})


def change(sentence: str, *, of: str = "", unit: str = "", memory: str = "", scalar: bool = False) -> Any:
    """A `finite` field of a reply that holds a client's change, which clipping, noise and robust means act on.

    Args:
        of: the field, of the reply or else of the message, from which the change is counted; "": the field is the
            change.
        unit: the message's field with the factor between field and change; "": 1.
        memory: the entry of client.memory that the change belongs to; it follows what was sent.
        scalar: True if its numbers are coefficients of directions, not a vector.
    """
    told = {"of": of, "unit": unit, "memory": memory, "scalar": scalar}
    return dataclasses.field(metadata={"finite": sentence, "change": told})


def without_warnings() -> np.errstate:
    """Context without NumPy's overflow warnings: `check_finite` refuses the results."""
    return np.errstate(over="ignore", invalid="ignore")


def check_finite(content: Any) -> None:
    """Raise UserError, with the field's own sentence, if a value that must be finite is not."""
    for name, sentence in _must_be_finite(type(content)).items():  # type: ignore[arg-type]
        if not is_finite(getattr(content, name)):
            raise UserError(sentence)


def is_finite(value: Any) -> bool:
    """True if all entries of a number, an array or a tensor are finite."""
    if isinstance(value, int | float | np.generic):
        return bool(np.isfinite(value))
    if isinstance(value, np.ndarray):  # min and max are NaN if an entry is, and allocate nothing
        return not value.size or bool(np.isfinite(value.min()) and np.isfinite(value.max()))
    return not value.numel() or all(end.isfinite() for end in value.aminmax())  # may be on a GPU


def not_finite(content: Any, path: tuple[str, ...]) -> str:
    """Declared error message of a non-finite field; "" if the class declares none."""
    return _must_be_finite(type(content)).get(path[0], "")  # type: ignore[arg-type]


@functools.lru_cache(maxsize=256)
def _must_be_finite(cls: type[Any]) -> dict[str, str]:
    return {f.name: f.metadata["finite"] for f in dataclasses.fields(cls) if f.metadata.get("finite")}


class Range(NamedTuple):
    """Allowed values of a flag, both ends included; `allowed` follows "must be" in an error."""

    least: float
    most: float
    allowed: str


def at_least(least: float, default: Any, what: str = "", remark: str = "", *, paper: Any = None) -> Any:
    """Flag with a minimum; of several values, each.

    Args:
        what: the kind of value, "a step size"; by default "a whole number" or "a number".
        remark: follows the range in an error, as "(0: all samples)".
        paper: the paper's value where the default is another; --paper takes it.
    """
    noun = what or ("a whole number" if isinstance(default, int) else "a number")
    return _ranged(default, Range(least, LARGEST, f"{noun}, at least {least:g}{remark and ' ' + remark}"), paper)


def above(least: float, default: Any, what: str = "a number") -> Any:
    """Flag above an exclusive minimum; `what` names the kind of value, such as "a smoothing radius"."""
    return _ranged(default, Range(math.nextafter(least, math.inf), LARGEST, f"{what} above {least:g}"))


def fraction(default: float, what: str = "a fraction") -> Any:
    """Flag above 0 and at most 1; `what` names the kind of value, such as "a probability"."""
    return _ranged(default, Range(math.nextafter(0, 1), 1, f"{what}, above 0 and at most 1"))


def between(least: int, most: int, default: int) -> Any:
    """Whole-number flag with both ends included."""
    return _ranged(default, Range(least, most, f"a whole number, at least {least} and at most {most}"))


def _ranged(default: Any, bounds: Range, paper: Any = None) -> Any:
    return dataclasses.field(default=default, metadata={"range": bounds, "paper": paper})


def check_ranges(cls: type[Any], values: Mapping[str, Any]) -> None:
    """Refuse a flag's value outside its range; the error names flag, value and range."""
    for f in dataclasses.fields(cls):
        bounds, value = f.metadata.get("range"), values.get(f.name)
        if bounds is not None and value is not None:
            each = value if isinstance(value, tuple | list) else (value,)
            scalar_fields = (v for v in each if not isinstance(v, str))  # a flag may accept a word too
            demand(all(bounds.least <= v <= bounds.most for v in scalar_fields), f.name, value, bounds.allowed)


def flag_group(*, paper: Mapping[str, Any] = NOTHING, **defaults: Any) -> Any:
    """A field that is a dataclass of flags, with other defaults where given; it gets the method's `setting`.

    `paper` are the paper's values of flags whose defaults here are others (--paper).
    """
    return dataclasses.field(kw_only=True, metadata={"defaults": defaults, "papers": paper})


def injected(default: Any = dataclasses.MISSING) -> Any:
    """Field that the run provides; no flag."""
    return dataclasses.field(default=default, metadata={"injected": True})


def is_flag(f: dataclasses.Field[Any]) -> bool:
    """True if the command line sets a field or the fields of its dataclass."""
    return f.init and f.name not in INJECTED_NAMES and not f.metadata.get("injected")


def parts_of(method: Any) -> Iterator[Any]:
    """Yield the method, its flag groups (each before its own parts), and those of its setting."""
    yield from _parts(method)
    yield from program_of(method).between


def _parts(method: Any) -> Iterator[Any]:
    yield method
    for f in dataclasses.fields(method) if dataclasses.is_dataclass(method) else ():
        value = object.__getattribute__(method, f.name) if is_flag(f) else None  # `run.unread` would count it as a use
        if dataclasses.is_dataclass(value):
            yield from _parts(value)


def demand_known(value: float, what: str) -> None:
    """Refuse a nan measure of a finite model: its computation overflowed."""
    if math.isnan(value):
        raise UserError(f"{what} is nan: {DIVERGED}")


def demand_losses(columns: Mapping[str, float], evaluate: Any) -> None:
    """Refuse a nan objective, and a nan loss from a user's `evaluate`; built-in reports use nan for a missing score."""
    own = evaluate.__module__.partition(".")[0] != "zofl_mpi"
    for name, value in columns.items():
        if name == "objective" or (own and name.endswith("loss")):
            demand_known(value, f"the {name}")


def described(state: Any) -> Mapping[str, tuple[str, str]]:
    """{field: (unit, meaning)} of the columns of a state or a report, or of its class."""
    marked = (f for f in dataclasses.fields(state) if "unit" in f.metadata)
    return {f.name: (f.metadata["unit"], f.metadata["meaning"]) for f in marked}


def scalar_fields(state: Any) -> Iterator[tuple[str, float]]:
    """The numeric fields of a state."""
    for f in dataclasses.fields(state):  # its class may use slots
        name, value = f.name, getattr(state, f.name)
        if isinstance(value, int | float | np.number) and not isinstance(value, bool):
            yield name, float(value)


def reported(report: Any) -> dict[str, float]:
    """{column: number} of an evaluation's report; a field that is None gives no column, a dictionary one per entry.

    TypeError: it is no dataclass, or a field is no number; names the field.
    """
    if not dataclasses.is_dataclass(report) or isinstance(report, type):
        raise TypeError(
            f"evaluate returned a {type(report).__name__}: it must return a dataclass of numbers, each field described "
            "by zofl_mpi.column(unit, meaning)"
        )
    columns: dict[str, float] = {}
    for f in dataclasses.fields(report):
        value = getattr(report, f.name)
        for name, number in value.items() if isinstance(value, Mapping) else [(f.name, value)]:
            if number is None:
                continue
            if name in ("round", "seconds") or "/" in name or not isinstance(number, int | float | np.number):
                needs = "a name without / other than round, seconds, and a number"
                raise TypeError(f"column {name!r} = {number!r}: needs {needs}")
            columns[name] = float(number)
    return columns
