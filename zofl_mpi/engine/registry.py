"""The dataclasses that the checkpoint of a method may hold: known from the method, never from the file."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any, get_type_hints

from zofl_mpi.engine.fields import parts_of
from zofl_mpi.engine.messages import MOVED, Classes


def classes_of(method: Any) -> Classes:
    """The dataclasses of the modules of a method and of its parts, and those that `start` and `round` return.

    Names that a module imports count too. Classes that have moved are found under their old modules as well.
    """
    kin = {cls for part in parts_of(method) for cls in type(part).__mro__}
    modules = (vars(sys.modules[name]) for name in {cls.__module__ for cls in kin} if name in sys.modules)
    return with_old_names({cls for names in modules for cls in _dataclasses(names)}.union(_returned(type(method))))


def with_old_names(classes: Iterable[type[Any]]) -> Classes:
    """The classes by module and name, and by the modules that they had in checkpoints of earlier versions."""
    named = {(cls.__module__, cls.__qualname__): cls for cls in classes}
    moved = ((old, name, new) for old, names in MOVED.items() for name, new in names.items())
    return named | {(old, name): named[new, name] for old, name, new in moved if (new, name) in named}


def _dataclasses(names: Mapping[str, Any], within: str = "") -> Iterator[type[Any]]:
    """The dataclasses of a module or a class, and those declared inside its classes."""
    for value in names.values():
        if isinstance(value, type) and value.__qualname__.startswith(within):
            if is_dataclass(value):
                yield value
            yield from _dataclasses(vars(value), f"{value.__qualname__}.")


def _returned(cls: type[Any]) -> Iterator[type[Any]]:
    for name in ("start", "round"):
        with suppress(Exception):  # a name that only type checkers import, or no annotation
            returned = get_type_hints(getattr(cls, name))["return"]
            if isinstance(returned, type) and is_dataclass(returned):
                yield returned
