"""Flags of a part that no round reads: they would change no bit of a run that records them, so they are refused.

A method inherits parts with its base. One that forms a mean of its own, say, reads nothing of `Robust`, and --aggregate
would have no effect. Which parts are read is noted while `start`, the first round, its steps and its evaluation run.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import parts_of
from zofl_mpi.errors import UserError
from zofl_mpi.run import flags
from zofl_mpi.run.client_memory import STEPS, Acknowledged, Memory

Unusual = Mapping[type[Any], Mapping[str, Any]]
"""{class of a part: its flags whose values are not the defaults}"""

_READ: set[str] = set()  # names of the classes of which an instance was read, in this process


def unusual(method: Any) -> Unusual:
    """The parts of a method with a flag whose value is not the default."""
    parts, found = {type(part): part for part in parts_of(method)}, dict[type[Any], dict[str, Any]]()
    for leaf in flags.leaves(type(method)) if len(parts) > 1 else ():
        if leaf.owner is not type(method) and leaf.owner in parts:
            value = object.__getattribute__(parts[leaf.owner], leaf.name)
            if value != leaf.default:
                found.setdefault(leaf.owner, {})[leaf.name] = value
    return found


@contextmanager
def noting(parts: Unusual) -> Iterator[None]:
    """Notes which of these classes' instances are read."""

    def read(self: Any, name: str) -> Any:
        if not name.startswith("__"):
            _READ.add(type(self).__name__)
        return object.__getattribute__(self, name)

    watched = [cls for cls in parts if cls.__name__ not in _READ and "__getattribute__" not in vars(cls)]
    for cls in watched:
        cls.__getattribute__ = read  # type: ignore[assignment]
    try:
        yield
    finally:
        for cls in watched:
            del cls.__getattribute__


def begin(method: Any) -> Unusual:
    """The `unusual` parts of a method whose run begins: none of them was read."""
    found = unusual(method)
    _READ.difference_update(cls.__name__ for cls in found)
    return found


def check_read(method: Any, parts: Unusual, clients: Clients) -> None:
    """Refuses flags of parts that were not read in any process (UserError)."""
    if _missed(parts, _READ):
        replies = clients.ask(STEPS["<read>"], Acknowledged(), counted=False)
        names = _READ.union(*(reply.entries for _, reply in replies))
        for values in _missed(parts, names):
            typed = ", ".join(f"--{flags.flag(name)} {flags.shown(value)}" for name, value in values.items())
            raise UserError(f"{typed}: no round of {type(method).__name__} uses it; leave it out")


def _missed(parts: Unusual, names: set[str]) -> list[Mapping[str, Any]]:
    return [values for cls, values in parts.items() if cls.__name__ not in names]


def read_here(client: Client, message: Acknowledged) -> Memory:
    """Step: the classes that were read in this process."""
    return Memory(dict.fromkeys(_READ, True))


read_here.__name__ = "<read>"
STEPS["<read>"] = read_here
