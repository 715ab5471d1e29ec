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
    def groups(self) -> Groups:
        """{title: dataclass of its flags}."""

    @property
    def roles(self) -> Mapping[str, Groups]:
        """{role that it offers: further groups of flags for methods that need it}."""

    @property
    def gpu(self) -> bool:
        """Whether it can run on a GPU."""

    def build(self, values: Mapping[str, Any], world: World, streams: Streams, dtype: str, device: str) -> Setting[Any]:
        """The setting from the values of the problem's flags."""


class Family(Protocol):
    """A module such as `zofl_mpi.zo_hfl`."""

    __doc__: str | None
    __spec__: ModuleSpec

    @property
    def METHODS(self) -> Mapping[str, type[Any]]:
        """{name: class of a method}."""

    @property
    def PROBLEMS(self) -> Mapping[str, Choice]:
        """{name: problem}."""

    @property
    def OWN_PROBLEM(self) -> Callable[[str, type[Any]], Choice]:
        """(module:Class, class) -> a user's own class as a problem."""


def family_of(module: str) -> Family:
    """The family of that name.

    Raises:
        UserError: there is no such module, or it is no family.
    """
    try:
        found = importlib.import_module(module)
    except (ImportError, ValueError, TypeError) as exc:
        raise UserError(f"module {module!r}: {exc}; name a family of methods, as zofl_mpi.zo_hfl") from exc
    if not {"METHODS", "PROBLEMS"} <= vars(found).keys():
        raise UserError(f"module {module!r} has no METHODS and PROBLEMS; name a family of methods, as zofl_mpi.zo_hfl")
    return cast("Family", found)
