"""A family of methods as the command line uses it: a module with methods, problems and a docstring."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from typing import Any, Protocol, cast

from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.engine.world import World
from zofl_mpi.errors import UserError
from zofl_mpi.run.flags import Groups


class Choice(Protocol):
    """A problem that a command line can name; see `settings.choice.Choice`."""

    @property
    def groups(self) -> Groups: ...

    @property
    def roles(self) -> Mapping[str, Groups]: ...

    @property
    def gpu(self) -> bool: ...

    def build(
        self, values: Mapping[str, Any], world: World, streams: Streams, dtype: str, device: str
    ) -> Setting[Any]: ...


class Family(Protocol):
    """A module such as `zofl_mpi.zo_hfl`; OWN_PROBLEM makes a problem of module:Class and that class."""

    __doc__: str | None
    __spec__: ModuleSpec

    @property
    def METHODS(self) -> Mapping[str, type[Any]]: ...

    @property
    def PROBLEMS(self) -> Mapping[str, Choice]: ...

    @property
    def OWN_PROBLEM(self) -> Callable[[str, type[Any]], Choice]: ...


def family_of(module: str) -> Family:
    """The family of that name (UserError: there is no such module, or it is no family)."""
    remedy = "name a family of methods, as zofl_mpi.zo_hfl"
    try:
        found = importlib.import_module(module)
    except (ImportError, ValueError, TypeError) as exc:
        raise UserError(f"module {module!r}: {exc}; {remedy}") from exc
    if not {"METHODS", "PROBLEMS"} <= vars(found).keys():
        raise UserError(f"module {module!r} has no METHODS and PROBLEMS; {remedy}")
    return cast("Family", found)
