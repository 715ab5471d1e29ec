"""Flags of a part that no round reads: they would change no bit of a run that records them, so they are refused.

A method inherits parts with its base. One that forms a mean of its own, say, reads nothing of `Robust`, and --aggregate
would have no effect. What is read is noted while `start`, the first round, its steps and its evaluation run: of our own
methods which parts, of a user's which flags: a part that is read may have one that is not, as --eta-g of `LocalSGD`.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property
from typing import Any

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import is_flag, parts_of
from zofl_mpi.errors import UserError
from zofl_mpi.run.command import flags
from zofl_mpi.run.loop.client_memory import STEPS, Acknowledged, Memory

Unusual = Mapping[type[Any], Mapping[str, Any]]
"""{class of a part: its flags whose values are not the defaults}"""

ALL = "*"
"""Stands for all flags of a part, of which something else was made before."""
_READ: set[str] = set()  # CLASS.NAME of what was read of an instance, in this process


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
    """Notes what is read of these classes' instances."""
    flags_of = {cls: {f.name for f in fields(cls) if is_flag(f)} for cls in parts}

    def read(self: Any, name: str) -> Any:
        if not name.startswith("__"):
            cls = type(self)
            made = name not in flags_of[cls] | {"setting"} and name in object.__getattribute__(self, "__dict__")
            _READ.add(f"{cls.__name__}.{ALL if made else name}")
        return object.__getattribute__(self, name)

    watched = [cls for cls in parts if "__getattribute__" not in vars(cls)]
    for cls in watched:
        cls.__getattribute__ = read  # type: ignore[assignment]
    try:
        yield
    finally:
        for cls in watched:
            del cls.__getattribute__


def begin(method: Any) -> Unusual:
    """The `unusual` parts of a method whose run begins: none of them was read."""
    _READ.clear()
    return unusual(method)


def check_read(method: Any, parts: Unusual, clients: Clients) -> None:
    """Refuses flags of parts that were not read in any process (UserError)."""
    by_flag = _reads_flags(method)
    if _missed(parts, _READ, by_flag):
        replies = clients.ask(STEPS["<read>"], Acknowledged(), counted=False)
        names = _READ.union(*(reply.entries for _, reply in replies))
        for values in _missed(parts, names, by_flag):
            typed = ", ".join(f"--{flags.flag(name)} {flags.shown(value)}" for name, value in values.items())
            raise UserError(f"{typed}: no round of {type(method).__name__} uses it; leave it out")


def _reads_flags(method: Any) -> bool:
    """True if a method is a user's whose rounds read the flags themselves: it has made nothing of them before."""
    cls = type(method)
    given = {f.name for f in fields(method) if f.init}
    made = {name for name in vars(method) if not isinstance(getattr(cls, name, None), cached_property)}
    return cls.__module__.partition(".")[0] != "zofl_mpi" and made <= given


def _missed(parts: Unusual, names: Collection[str], by_flag: bool) -> list[Mapping[str, Any]]:
    """Of each part the flags that were not read; if not `by_flag`, those of parts of which nothing was."""
    found = list[Mapping[str, Any]]()
    for cls, values in parts.items():
        read = {name.partition(".")[2] for name in names if name.partition(".")[0] == cls.__name__}
        left = {name: value for name, value in values.items() if name not in read}
        if left and ALL not in read and (by_flag or not read):
            found.append(left)
    return found


def read_here(client: Client, message: Acknowledged) -> Memory:
    """Step: what was read in this process."""
    return Memory(dict.fromkeys(_READ, True))


read_here.__name__ = "<read>"
STEPS["<read>"] = read_here
