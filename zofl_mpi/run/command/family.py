"""A family of methods for the command line: a module with methods, problems and a docstring."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from typing import Any, Protocol, TypeVar, cast, final

from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.engine.world import World
from zofl_mpi.errors import UserError
from zofl_mpi.run.command.flags import Groups, instantiate

T = TypeVar("T")
FAMILIES = ("zofl_mpi.zo_hfl", "zofl_mpi.fedrzo", "zofl_mpi.heron_sfl")
"""Modules of the package that are commands; each is a family of methods."""


@final
@dataclass(frozen=True)
class Site:
    """Inputs of one rank's setting."""

    values: Mapping[str, Any]  # {flag: value} of the problem, in its role
    world: World
    streams: Streams
    dtype: str  # "float32" or "float64", of all vectors
    device: str  # this rank's device, in torch's notation
    holds_all: bool = False  # True if each client of a split network holds all parts
    federation: Any = None  # data in memory (`zofl_mpi.data.Federation`), in place of flags

    def samples(self, cls: type[Any], classifies: bool = True) -> Any:
        """The data in memory, or those of this flag group (`settings.samples.Samples.federation`)."""
        if self.federation is None:
            return cast(Any, self.group(cls)).federation(self.world, self.streams, classifies=classifies)
        if classifies and self.federation.test.targets is not None:
            raise UserError("the data in memory have targets, but this problem classifies: give integer classes")
        return self.federation

    def group(self, cls: type[T]) -> T:
        """A flag group with its values, checked."""
        return cast(T, instantiate(cls, self.values))


@final
@dataclass(frozen=True)
class Choice:
    """A problem of the command line."""

    groups: Groups  # {title: dataclass of its flags}
    # builds the setting, equal on every rank but for the device; UserError: a flag out of range, or other data
    make: Callable[[Site], Setting[Any]]
    roles: Mapping[str, Groups]  # {role (`zofl_mpi.problems`): further flags for methods with this role}
    gpu: bool = False  # True if it can run on a GPU
    # {method: {flag: its default on this problem}}; "" for all methods with the flag
    usual: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lacks: Mapping[str, Sequence[str]] = field(default_factory=dict)  # {role: its members that a user's class lacks}


class Family(Protocol):
    """A module like `zofl_mpi.zo_hfl`; OWN_PROBLEM makes a problem from module:Class and that class."""

    __doc__: str | None
    __spec__: ModuleSpec
    METHODS: Mapping[str, type[Any]]
    PROBLEMS: Mapping[str, Choice]
    OWN_PROBLEM: Callable[[str, type[Any]], Choice]


def family_of(module: str) -> Family:
    """The family of that name; UserError: the module does not exist or is no family."""
    remedy = "name a family of methods, as zofl_mpi.zo_hfl"
    try:
        family = importlib.import_module(module)
    except (ImportError, ValueError, TypeError) as exc:
        raise UserError(f"module {module!r}: {exc}; {remedy}") from exc
    if not {"METHODS", "PROBLEMS"} <= vars(family).keys():
        raise UserError(f"module {module!r} has no METHODS and PROBLEMS; {remedy}")
    return cast("Family", family)
