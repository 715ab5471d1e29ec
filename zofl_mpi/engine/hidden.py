"""Detection of hidden state: data that a method keeps outside its state and its clients' memories.

No checkpoint holds such data: a resumed run would go on without it, with other bits and no error. A method, its parts,
their classes and the numbers of their modules must hence be the same before and after a round. A module's containers
may grow, as caches do. Not checked: values of `functools.cached_property` and the setting's `RunContext` (both can be
recomputed), closures, iterators, the rest of the setting, clients' data, objects of other modules' classes.
"""

import functools
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, final

import numpy as np

from zofl_mpi.engine import messages
from zofl_mpi.engine.fields import parts_of
from zofl_mpi.engine.lazy import imported_torch, is_tensor
from zofl_mpi.engine.ownership import checksum
from zofl_mpi.errors import HiddenState

PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
NUMBERS = (bool, int, float, complex, np.ndarray, np.generic, np.random.Generator, random.Random)
COUNTERS = (bool, int, float, complex)
LOOKED_AT = 100
"""Entries of a module's container that are checked, from the first."""
OURS = "zofl_mpi"


@final
class Entries(dict[str, str]):
    """Numbers in a container that may grow."""


@final
class Unchanged:
    """Snapshot of a method: `check` refuses a changed one."""

    def __init__(self, method: Any) -> None:
        self._method = method
        self._before = dict(_marks(method))

    def check(self) -> None:
        """Raise HiddenState, with the name of what changed since this snapshot."""
        now = dict(_marks(self._method))
        for name in [*now, *self._before]:
            if name not in now or name not in self._before or not _same(self._before[name], now[name]):
                raise HiddenState(
                    f"a round changed {name}, which no checkpoint has: a continued run would have other bits; keep it "
                    "in the state that round returns, in client.memory, or in a functools.cached_property if it can "
                    "be computed again",
                    random="random numbers" in name,
                )


def _marks(method: Any) -> Iterator[tuple[str, Any]]:
    modules = set[str]()
    for part in parts_of(method):
        cls = type(part)
        modules.add(cls.__module__)
        for name, value in _kept(part):
            yield f"the attribute {name} of {cls.__name__}", _mark(value, cls.__module__)
        for base in cls.__mro__:
            for name, value in vars(base).items() if not _is_library(base.__module__) else ():
                if not name.startswith("__") and not callable(value) and not hasattr(type(value), "__get__"):
                    yield f"the class's attribute {name} of {base.__name__}", _mark(value, base.__module__)
    yield "Python's own random numbers", repr(random.getstate())
    yield "NumPy's own random numbers (numpy.random without a generator)", repr(_numpy_state())
    if torch := imported_torch():
        yield "torch's own random numbers (without generator=)", checksum(torch.get_rng_state().numpy())
    for module in sorted(name for name in modules if name in sys.modules and not _is_library(name)):
        for name, value in vars(sys.modules[module]).items():
            if isinstance(value, NUMBERS) or is_tensor(value):
                yield f"{name} of the module {module}", _mark(value, module)
            elif isinstance(value, dict | list) and not name.startswith("__"):
                entries = value.items() if isinstance(value, dict) else enumerate(value)
                held = {repr(key): repr(entry) for key, entry in islice(entries, LOOKED_AT) if type(entry) in COUNTERS}
                yield f"{name} of the module {module}", Entries(held)


def _numpy_state() -> Any:
    _, words, *rest = np.random.get_state()  # noqa: NPY002  (other code may use it)
    return checksum(np.asarray(words)), rest


def _kept(part: Any) -> Iterator[tuple[str, Any]]:
    """A part's attributes, without other parts and the setting."""
    declared = {f.name: f for f in fields(part)} if is_dataclass(part) else {}
    for name, value in getattr(part, "__dict__", {}).items():
        f = declared.get(name)
        made = isinstance(getattr(type(part), name, None), functools.cached_property)
        if name != "setting" and not made and not (f and is_dataclass(value)):
            yield name, value


def _mark(value: Any, module: str, depth: int = 3) -> Any:
    """Mark that changes with a value: its contents if known, else its identity."""
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, np.ndarray):
        return value, None if value.dtype.hasobject else checksum(value)
    if is_tensor(value):
        changes = 0 if value.is_inference() else value._version
        return value, changes, None if messages.is_remote(value) else checksum(messages.as_array(value))
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    if depth and isinstance(value, Mapping):
        return {repr(key): _mark(entry, module, depth - 1) for key, entry in value.items()}
    if depth and isinstance(value, list | tuple | deque):
        return [_mark(entry, module, depth - 1) for entry in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if depth and type(value).__module__ == module and hasattr(value, "__dict__"):
        return [value, {name: _mark(entry, module, depth - 1) for name, entry in vars(value).items()}]
    return (value,)


def _same(one: Any, other: Any) -> bool:
    """True if two marks agree: objects by identity, contents by value."""
    if isinstance(one, Entries) and isinstance(other, Entries):
        return all(one[key] == other[key] for key in one.keys() & other.keys())
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return one is other or (isinstance(one, str | int) and one == other)


def _is_library(module: str) -> bool:
    """True if a class or its module belongs to this package or to Python."""
    return module.partition(".")[0] in (OURS, "builtins", "abc", "typing", "typing_extensions", "torch", "numpy")
