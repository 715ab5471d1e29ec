"""Family of methods for the command line: a module with METHODS, PROBLEMS and a docstring."""

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
"""Modules of the package that run as commands, each a family of methods."""


@final
@dataclass(frozen=True)
class Site:
    """Inputs for creating a setting on one rank."""

    values: Mapping[str, Any]  # {flag: value} of the problem in its role
    world: World
    streams: Streams
    dtype: str  # "float32" or "float64", of all vectors
    device: str  # of this rank, in torch's notation
    holds_all: bool = False  # True if each client of a split network holds all parts
    federation: Any = None  # data in memory (`zofl_mpi.data.Federation`), instead of data named by flags

    def samples(self, cls: type[Any], classifies: bool = True) -> Any:
        """Returns the data in memory, or those named by flags (`settings.samples.Samples.federation`)."""
        if self.federation is None:
            return cast(Any, self.group(cls)).federation(self.world, self.streams, classifies=classifies)
        if classifies and self.federation.test.targets is not None:
            raise UserError("the data in memory have targets, not classes, and this problem classifies")
        return self.federation

    def group(self, cls: type[T]) -> T:
        """Creates a group of flags from the values, checked."""
        return cast(T, instantiate(cls, self.values))


@final
@dataclass(frozen=True)
class Choice:
    """A problem that --problem can name."""

    groups: Groups  # {title: dataclass of its flags}
    # equal on all ranks except for the device (UserError: a flag out of range, other data)
    make: Callable[[Site], Setting[Any]]
    roles: Mapping[str, Groups]  # {role it offers (`zofl_mpi.problems`): further flags for methods that need it}
    gpu: bool = False  # True if it can run on a GPU
    # {method: {flag: its default on this problem}}; "" for all methods that have the flag
    usual: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lacks: Mapping[str, Sequence[str]] = field(default_factory=dict)  # {role: members that a user's class lacks}


class Family(Protocol):
    """A module like `zofl_mpi.zo_hfl`; OWN_PROBLEM makes a problem from a user's class and its name module:Class."""

    __doc__: str | None
    __spec__: ModuleSpec
    METHODS: Mapping[str, type[Any]]
    PROBLEMS: Mapping[str, Choice]
    OWN_PROBLEM: Callable[[str, type[Any]], Choice]


def family_of(module: str) -> Family:
    """Imports a family by its module name (UserError: it does not exist, or is no family)."""
    remedy = "name a family of methods, as zofl_mpi.zo_hfl"
    try:
        family = importlib.import_module(module)
    except (ImportError, ValueError, TypeError) as exc:
        raise UserError(f"module {module!r}: {exc}; {remedy}") from exc
    if not {"METHODS", "PROBLEMS"} <= vars(family).keys():
        raise UserError(f"module {module!r} has no METHODS and PROBLEMS; {remedy}")
    return cast("Family", family)
