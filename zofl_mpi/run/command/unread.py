"""Detection of flags without effect: parts that no round reads.

A method inherits flag groups from its base. One with a mean of its own, for example, never reads `Robust`, and
--aggregate would have no effect. Reads are recorded during `start`, the first round, its steps and its evaluation: by
part for built-in methods, by flag for a user's. A part that is read may still have an unused flag, such as --eta-g of
`LocalSGD`.
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
"""{class of a part: its flags with other values than the defaults}"""

ALL = "*"
"""Stands for all flags of a part that was converted before."""
_READ: set[str] = set()  # CLASS.NAME of attributes read in this process


def unusual(method: Any) -> Unusual:
    """Parts of a method with a flag that differs from the default."""
    parts, found = {type(part): part for part in parts_of(method)}, dict[type[Any], dict[str, Any]]()
    for leaf in flags.leaves(type(method)) if len(parts) > 1 else ():
        if leaf.owner is not type(method) and leaf.owner in parts:
            value = object.__getattribute__(parts[leaf.owner], leaf.name)
            if value != leaf.default:
                found.setdefault(leaf.owner, {})[leaf.name] = value
    return found


@contextmanager
def noting(parts: Unusual) -> Iterator[None]:
    """Record reads of these classes' instances."""
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
    """The `unusual` parts of a method at the beginning of its run, all unread."""
    _READ.clear()
    return unusual(method)


def check_read(method: Any, parts: Unusual, clients: Clients) -> None:
    """Refuse flags of parts that no process read; UserError."""
    by_flag = _reads_flags(method)
    if _missed(parts, _READ, by_flag):
        replies = clients.ask(STEPS["<read>"], Acknowledged(), counted=False)
        names = _READ.union(*(reply.entries for _, reply in replies))
        for values in _missed(parts, names, by_flag):
            typed = ", ".join(f"--{flags.flag(name)} {flags.shown(value)}" for name, value in values.items())
            raise UserError(f"{typed}: no round of {type(method).__name__} uses it; leave it out")


def _reads_flags(method: Any) -> bool:
    """True for a user's method whose rounds read the flags themselves, without conversion before."""
    cls = type(method)
    given = {f.name for f in fields(method) if f.init}
    made = {name for name in vars(method) if not isinstance(getattr(cls, name, None), cached_property)}
    return cls.__module__.partition(".")[0] != "zofl_mpi" and made <= given


def _missed(parts: Unusual, names: Collection[str], by_flag: bool) -> list[Mapping[str, Any]]:
    """Unread flags of each part; unless `by_flag`, only of parts that were not read at all."""
    found = list[Mapping[str, Any]]()
    for cls, values in parts.items():
        read = {name.partition(".")[2] for name in names if name.partition(".")[0] == cls.__name__}
        left = {name: value for name, value in values.items() if name not in read}
        if left and ALL not in read and (by_flag or not read):
            found.append(left)
    return found


def read_here(client: Client, message: Acknowledged) -> Memory:
    """Step: names read in this process."""
    return Memory(dict.fromkeys(_READ, True))


read_here.__name__ = "<read>"
STEPS["<read>"] = read_here
