"""Read a client's change from its reply, as the reply's fields declare it (`zofl_mpi.change`)."""

import functools
import inspect
import typing
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from types import UnionType
from typing import Any, get_args, get_origin

import numpy as np

from zofl_mpi import Array, Client, Reply, Step, UserError
from zofl_mpi.engine import messages


@dataclass(frozen=True)
class Change:
    """A field of a reply; see `zofl_mpi.change`."""

    name: str
    of: str
    unit: str
    memory: str
    scalar: bool


@messages.cached
def of(cls: Any) -> tuple[Change, ...]:
    """The fields of a reply class that are changes."""
    told = ((f.name, f.metadata.get("change")) for f in fields(cls)) if is_dataclass(cls) else ()
    return tuple(Change(name, **change) for name, change in told if change is not None)


@messages.cached
def others(kind: Any) -> tuple[str, ...]:
    """Fields of a reply class that have a mean, are no change, and are no reference point of one."""
    spared = {c.name for c in of(kind)} | {c.of for c in of(kind)} | messages.marked(kind, "each")
    return tuple(f.name for f in fields(kind) if f.name not in spared)


def within_reply(kind: type[Any], change: Change) -> bool:
    """True if a change is counted from another field of the reply itself."""
    return change.of != change.name and change.of in kind.__dataclass_fields__


def along(kind: type[Any]) -> bool:
    """True if replies are lengths along directions, and each client draws its own."""
    return all(within_reply(kind, c) for c in of(kind))


def base(kind: type[Any], change: Change, message: Any) -> Any:
    """The point from which a change is counted, for a reply from `alone`; None: from 0."""
    return getattr(message, change.of) if change.of and not within_reply(kind, change) else None


def unit(message: Any, change: Change) -> float:
    """The factor between the field and the change that it stands for."""
    return float(getattr(message, change.unit)) if change.unit else 1.0


def alone(reply: Any) -> Any:
    """The reply with each pair (field, reference field) replaced by their difference."""
    kind = type(reply)
    pairs = [(c.name, c.of) for c in of(kind) if within_reply(kind, c)]
    differences = {name: getattr(reply, name) - getattr(reply, of) for name, of in pairs}
    return replace(reply, **differences, **{of: 0.0 for _, of in pairs}) if pairs else reply


def bases(reply: Any, message: Any) -> Mapping[str, Any]:
    """{field: the point from which its change is counted}, for a reply from `alone`."""
    found = {c.name: base(type(reply), c, message) for c in of(type(reply))}
    return {name: 0.0 if x is None else messages.as_array(x) for name, x in found.items()}


def changed(reply: Any, message: Any) -> Array:
    """(k,) all changes of a reply, concatenated."""
    single, found = alone(reply), list[Array]()
    for c in of(type(reply)):
        x, start = messages.as_array(value := getattr(single, c.name)), base(type(reply), c, message)
        x = np.asarray(value, np.float64) if x is None else x
        D = (x if start is None else x - messages.as_array(start)).reshape(-1)
        found.append(D / unit(message, c) if c.unit else D)
    return found[0] if len(found) == 1 else np.concatenate(found)


def applied(reply: Any, message: Any, D: Array) -> Any:
    """A copy of the reply with its changes replaced by D (k,), in the reply's dtypes."""
    new, arrays, start = dict[str, Any](), dict[tuple[str, ...], Array](), 0
    for c in of(type(reply)):
        value = getattr(reply, c.name)
        like = messages.as_array(value)
        shape = () if like is None else like.shape
        own = D[start : start + size(value)].reshape(shape)
        start += size(value)
        own = unit(message, c) * own if c.unit else own
        at = base(type(reply), c, message)
        own = own if at is None else np.asarray(messages.as_array(at)) + own
        if like is None:
            new[c.name] = float(own)
        else:
            arrays[(c.name,)] = np.asarray(own, like.dtype)
        if within_reply(type(reply), c):
            new[c.of] = 0.0
    return messages.replace_arrays(replace(reply, **new), arrays)


def with_replies(step: Step, change: Callable[[Client, Any, Any, dict[str, Any]], Any]) -> Step:
    """The step with change(client, message, reply, memory before it) in place of its reply, or of its reduced part.

    A step that streams stays one.
    """

    def changed(client: Client, message: Any, reply: Any, before: dict[str, Any]) -> Any:
        if isinstance(reply, Reply):
            return replace(reply, reduced=change(client, message, reply.reduced, before))
        return change(client, message, reply, before)

    @functools.wraps(step)
    def answer(client: Client, message: Any) -> Any:
        before = dict(client.memory)
        return changed(client, message, step(client, message), before)

    @functools.wraps(step)
    def stream(client: Client, message: Any) -> Any:
        before = dict(client.memory)
        return changed(client, message, (yield from step(client, message)), before)

    return stream if inspect.isgeneratorfunction(step) else answer


def example(kind: type[Any], message: Any) -> Any:
    """A reply without any change; UserError if a change is counted from something outside the message."""
    starts = {c.name: base(kind, c, message) for c in of(kind)}
    for name in (name for name, start in starts.items() if start is None):
        allowed = "clients.mean needs nobody=, the reply that changes nothing: its shape is not the message's"
        raise UserError(f"{kind.__name__}.{name}: {allowed}")
    return kind(**{f.name: starts.get(f.name) for f in fields(kind) if f.init})


def steps(method: Any) -> dict[str, type[Any]]:
    """{step: reply class} of the steps of a method class that reply with changes, by their annotations."""
    found = ((name, _reply_of(method, name)) for name in dir(method))
    return {name: kind for name, kind in found if isinstance(kind, type)}


def obstacle(method: Any) -> str:
    """Reason why a method class has no such `steps`."""
    found = (_reply_of(method, name) for name in dir(method))
    none = f"no step of {method.__name__} says what its reply changes (zofl_mpi.change)"
    return next((each for each in found if isinstance(each, str)), none)


def reply_of(step: Any) -> type[Any] | None:
    """The reply class of a step if its fields include changes, by its annotations; None: not annotated."""
    owner: Any = type(step.__self__) if inspect.ismethod(step) else None
    kind = None if owner is None else _reply_of(owner, step.__name__)
    return kind if isinstance(kind, type) else None


@messages.cached
def _reply_of(cls: Any, name: str) -> type[Any] | str | None:
    """Annotation of the first class of the method that has one: an override without types inherits the base's.

    A text: the reason why changes that it declares cannot be read. None: it declares none.
    """
    members = (vars(base).get(name) for base in cls.__mro__)
    steps = (step for step in members if inspect.isfunction(step) and len(inspect.signature(step).parameters) == 3)
    try:
        hints = next((hints for step in steps if (hints := typing.get_type_hints(step))), {})
    except (NameError, TypeError) as exc:  # a name that only type checkers import
        return f"the annotations of {cls.__name__}.{name} cannot be read ({exc})"
    kind = next((each for each in _classes(hints.pop("return", None)) if isinstance(each, type) and of(each)), None)
    asked = next((each for each in reversed(hints.values()) if is_dataclass(each)), None)
    if kind is None:
        return None
    if asked is None:
        return f"{cls.__name__}.{name} needs a type annotation of its message, a dataclass"
    names = {f.name for each in (kind, asked) for f in fields(each)} | {""}
    needed = ["r", *(word for c in of(kind) for word in (c.of, c.unit))]
    missing = [word for word in needed if word not in names]
    return f"{cls.__name__}.{name}: neither message nor reply has a field {missing[0]}" if missing else kind


def _classes(told: Any) -> Iterator[Any]:
    """Classes of the replies, and of their reduced parts, that an annotation names."""
    among = {typing.Union: 0, UnionType: 0, Generator: 2, Reply: 0}  # the first argument that is of a reply
    if get_origin(told) not in among:
        yield told
        return
    for each in get_args(told)[among[get_origin(told)] :]:
        yield from _classes(each)


def size(value: Any) -> int:
    """Number of entries of a field."""
    array = messages.as_array(value)
    return 1 if array is None else array.size
