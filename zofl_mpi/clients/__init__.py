"""Wrappers of a method's clients: robust means and attackers, clipping and noise."""

from dataclasses import fields, is_dataclass
from typing import Any

from zofl_mpi.clients import changes
from zofl_mpi.clients.privacy import Privacy
from zofl_mpi.clients.robust import Robust
from zofl_mpi.engine.between import Between
from zofl_mpi.engine.setting import Method

GROUPS: dict[str, type[Between]] = {"robust means": Robust, "privacy": Privacy}
"""{title: flags}, the innermost first."""


def groups_for(method: type[Any]) -> dict[str, type[Between]]:
    """{title: flags} that a method can have: its replies are changes, and no flag of its own has such a name."""
    if Method not in method.__mro__ or not is_dataclass(method) or not changes.steps(method):
        return {}
    own = {f.name for f in fields(method)} - {"setting"}
    return {title: cls for title, cls in GROUPS.items() if own.isdisjoint(f.name for f in fields(cls))}


def why_without(method: type[Any], flag: str, own: bool) -> list[str]:
    """Why a method has not such a flag, in words, if it is one of these; `own`: of a method of the user's own."""
    group = next((cls for cls in GROUPS.values() if flag in (f.name for f in fields(cls))), None)
    if group and own:
        return [f"no step of {method.__name__} says what its reply changes (zofl_mpi.change)"]
    return (
        [f"{method.uploads} leave this method's clients as they are"]
        if group and group.protects and method.uploads
        else []
    )
