"""Constructors with flags as arguments: a class, a function or a module of the user."""

from __future__ import annotations

import copy
import inspect
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from typing import Any, Literal, final, get_args, get_origin

from zofl_mpi.errors import UserError, mistake

SIZES = ("shape", "classes")
"""Names of the arguments that come from the data: input shape and number of classes."""
FLAG_TYPES = (int, float, str, bool)


@final
@dataclass(frozen=True)
class Constructor:
    """A call with arguments from data sizes, flags, and values bound by the user.

    Arguments with a default of type int, float, str, bool or a tuple of these are flags, typed by annotation or
    default. `shape` and `classes` come from the data, as do the first two arguments without a default, whatever their
    names.

    Attributes:
        make: a class or function, or a torch module, which is copied.
        bound: {argument: value}.
    """

    make: Any
    bound: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A name for messages."""
        return str(getattr(self.make, "__name__", type(self.make).__name__))

    def bind(self, values: Mapping[str, Any]) -> Constructor:
        """A copy with these arguments bound; UserError for an unknown argument."""
        known = self.arguments
        unknown = [name for name in values if name not in known or name in SIZES]
        if unknown:
            allowed = ", ".join(name for name in known if name not in SIZES) or "none"
            raise UserError(f"{self.name} has no argument {unknown[0]} to bind; it has {allowed}")
        return replace(self, bound={**self.bound, **values})

    def flags(self) -> dict[str, tuple[Any, Any]]:
        """{argument: (type, default)} of the flags; a bound value is the default."""
        hints, found = self._hints(), dict[str, tuple[Any, Any]]()
        for name, parameter in self.arguments.items():
            default = self.bound.get(name, parameter.default)
            if name in SIZES or default is inspect.Parameter.empty:
                continue
            if (kind := _kind(hints.get(name), default)) is not None:
                found[name] = kind, default
        return found

    def __call__(self, values: Mapping[str, Any], *sizes: Any) -> Any:
        """Call with the flags' values and the sizes; UserError if it fails."""
        if self._is_made:
            return copy.deepcopy(self.make)
        parameters, known = self.arguments, dict(zip(SIZES, sizes, strict=True))
        given = {name: values[name] for name in self.flags()}
        own = {**self.bound, **given, **{name: known[name] for name in parameters if name in SIZES}}
        rest = [value for name, value in known.items() if name not in own]
        without = [name for name, p in parameters.items() if p.default is p.empty and name not in own]
        own |= dict(zip(without, rest, strict=False))
        if len(without) > len(rest):
            raise UserError(f"{self.name} needs {', '.join(without[len(rest) :])}: give each a default, or bind it")
        try:
            return self.make(**own)
        except UserError:
            raise
        except Exception as exc:  # the user's code
            call = f"{self.name}({', '.join(f'{name}={value!r}' for name, value in own.items())})"
            raise UserError(f"{call} failed: {mistake(exc)}") from exc

    @property
    def arguments(self) -> dict[str, inspect.Parameter]:
        """The arguments that can be given by name."""
        if self._is_made:
            return {}
        try:
            found = inspect.signature(self.make).parameters
        except (TypeError, ValueError):  # of code in C
            return {}
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return {name: p for name, p in found.items() if p.kind in kinds}

    @property
    def _is_made(self) -> bool:
        """True for a torch module, in place of a class or function that creates one."""
        return not callable(self.make) or is_module_class(type(self.make))

    def _hints(self) -> dict[str, Any]:
        try:
            own = self.make.__init__ if isinstance(self.make, type) else self.make  # type: ignore[misc]
            return typing.get_type_hints(own)
        except Exception:  # an annotation may name nothing, or an object without a name
            return {}


def flag_group(calls: Sequence[Constructor]) -> type[Any] | None:
    """A dataclass of these calls' flags, with equal names shared; None: no flags."""
    found: dict[str, tuple[Any, Any]] = {}
    for call in calls:
        for name, own in call.flags().items():
            if found.setdefault(name, own) != own:
                raise UserError(f"{call.name}: argument {name} has another type or default than in a part before it")
    if not found:
        return None
    constructors = [vars(call.make).get("__init__") for call in calls if isinstance(call.make, type)]
    texts = [text for each in (*(call.make for call in calls), *constructors) if (text := each.__doc__)]
    fields = [(name, kind, field(default=default)) for name, (kind, default) in found.items()]
    return make_dataclass("Arguments", fields, frozen=True, namespace={"__doc__": _documented(texts)})


def _documented(texts: Sequence[str]) -> str:
    """Merged `Args:` and `Attributes:` sections of several docstrings."""
    import docstring_parser

    google = docstring_parser.DocstringStyle.GOOGLE
    found = {p.arg_name: p.description for text in texts for p in docstring_parser.parse(text, style=google).params}
    lines = (f"    {name}: {' '.join((text or '').split())}" for name, text in found.items())
    return "\n".join(["Arguments of a network.", "", "Attributes:", *lines])


def _kind(hint: Any, default: Any) -> Any:
    """Type of a flag with this annotation and default; None: not a flag."""
    if hint in FLAG_TYPES or get_origin(hint) is Literal:
        return hint
    if isinstance(default, tuple):
        annotated = get_args(hint) if get_origin(hint) is tuple else ()
        inner = next(iter([*annotated, *map(type, default)]), None)
        return tuple[inner, ...] if inner in FLAG_TYPES else None  # type: ignore[valid-type]
    return type(default) if hint in (None, typing.Any) and type(default) in FLAG_TYPES else None


def is_module_class(cls: type[Any]) -> bool:
    """True if a class is one of torch's modules, without importing torch."""
    return any(base.__name__ == "Module" and base.__module__.startswith("torch.nn") for base in cls.__mro__)
