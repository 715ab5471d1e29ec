"""Wrappers of a method's clients: compression, robust means and attackers, clipping and noise."""

from dataclasses import fields, is_dataclass
from typing import Any

from zofl_mpi.clients import changes
from zofl_mpi.clients.compression import Compression
from zofl_mpi.clients.privacy import Privacy
from zofl_mpi.clients.robust import Robust
from zofl_mpi.engine.between import Between
from zofl_mpi.engine.setting import Method

GROUPS: dict[str, type[Between]] = {"compression": Compression, "robust means": Robust, "privacy": Privacy}
"""{title: flag group}, the innermost wrapper first."""


def groups_for(method: type[Any]) -> dict[str, type[Between]]:
    """{title: flag group} of the wrappers that fit a method's replies and do not repeat its own flags."""
    kinds = changes.steps(method).values() if Method in method.__mro__ and is_dataclass(method) else ()
    if not kinds:
        return {}
    own = {f.name for f in fields(method)} - {"setting"}
    fitting = {title: cls for title, cls in GROUPS.items() if cls.fits(kinds)}
    return {title: cls for title, cls in fitting.items() if own.isdisjoint(f.name for f in fields(cls))}


def why_without(method: type[Any], flag: str, own: bool) -> list[str]:
    """Reason why a method lacks one of the wrappers' flags; `own`: the user wrote the method."""
    group = next((cls for cls in GROUPS.values() if flag in (f.name for f in fields(cls))), None)
    if group is None:
        return []
    kinds = changes.steps(method).values()
    if kinds and not group.fits(kinds):
        return [f"the replies of {method.__name__}'s clients are {group.unfit}"]
    if own:
        return [changes.obstacle(method)]
    return [f"{method.uploads} leave this method's clients as they are"] if group.protects and method.uploads else []
