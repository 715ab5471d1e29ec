"""Dataclass fields as command-line flags: names, types, help texts, TOML keys, error messages."""

import dataclasses
import functools
import os
import re
import stat
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar, Union, cast, get_args, get_origin

from zofl_mpi import clients
from zofl_mpi.engine import messages
from zofl_mpi.engine.context import RunContext
from zofl_mpi.engine.fields import check_ranges, is_flag
from zofl_mpi.engine.setting import Method, Setting
from zofl_mpi.errors import UserError, nearest, plain
from zofl_mpi.paths import check_text, user_path

T = TypeVar("T")
Groups = Mapping[str, type[Any]]
"""{title: dataclass}; each class's fields are flags under that title."""
Owners = Callable[[str], Sequence[str]]
"""(flag) -> the methods or problems with this flag."""

ALIASES = {"lambda": "lam"}
"""{other spelling of a flag: its field}."""
UNIONS = (Union, UnionType)
"""Origins of the types of flags that accept a word or a number."""
TOML_BYTES = 1 << 20
"""Maximum bytes of a configuration or grid file."""
IS_FLAG = re.compile(r"--?[a-z]", re.IGNORECASE).match
"""True if a word is a flag, not a negative number."""

_hints: Callable[[type[Any]], dict[str, Any]] = functools.cache(typing.get_type_hints)  # type: ignore[assignment]


def flags_of(groups: Groups) -> dict[str, "Leaf"]:
    """{field: its flag} of all groups; UserError if two groups share a name."""
    known, owner = dict[str, Leaf](), dict[str, str]()
    for title, cls in groups.items():
        for leaf in leaves(cls):
            if leaf.name in known:
                both = f"--{flag(leaf.name)} is a flag of {owner[leaf.name]} and of {cls.__name__} ({title})"
                raise UserError(f"{both}: give the field of your own class another name")
            known[leaf.name], owner[leaf.name] = leaf, f"{cls.__name__} ({title})"
    return known


def instantiate(cls: type[Any], values: Mapping[str, Any], **given: Any) -> Any:
    """Instance with these flag values; UserError if one is out of range.

    `given` are the fields that are no flags; parts with a field `setting` receive the method's.
    """
    check_ranges(cls, values)
    is_method = Method in cls.__mro__ and isinstance(given.get("setting"), Setting)
    if is_method:
        given["setting"] = _with_between(cls, values, given["setting"])
    hints, parts = _hints(cls), dict(given)
    for f in dataclasses.fields(cls):
        kind = hints[f.name]
        if not is_flag(f) or f.name in parts:
            continue
        if dataclasses.is_dataclass(kind):
            bound = any(inner.name == "setting" for inner in dataclasses.fields(kind)) and "setting" in given
            parts[f.name] = instantiate(
                cast("type[Any]", kind), values, **({"setting": given["setting"]} if bound else {})
            )
        else:
            parts[f.name] = values[f.name]
    method = cls(**parts)
    for each in given["setting"].between if is_method else ():
        each.check(method)
    return method


def _with_between(cls: type[Any], values: Mapping[str, Any], setting: Any) -> Any:
    """A method's own setting, with the wrappers of its clients."""
    own = dataclasses.replace(setting, between=(), context=RunContext())
    groups = clients.groups_for(cls).values()
    return dataclasses.replace(own, between=tuple(instantiate(group, values, setting=own) for group in groups))


def from_flags(cls: type[T], setting: Any, **values: Any) -> T:
    """Build a method from its flags, as the command line does; TypeError: unknown flag, UserError: out of range."""
    defaults = {leaf.name: leaf.default for each in (cls, *clients.groups_for(cls).values()) for leaf in leaves(each)}
    if unknown := values.keys() - defaults.keys():
        raise TypeError(f"{cls.__name__} has no flag {', '.join(sorted(unknown))}")
    return cast(T, instantiate(cls, {**defaults, **values}, setting=setting))


class Leaf(NamedTuple):
    """A flag: a dataclass field of the class `owner`."""

    name: str
    kind: Any
    default: Any
    owner: type[Any]
    paper: Any = None  # the paper's value, if the default differs

    @property
    def text(self) -> str:
        """Help text, from the docstring of the class or of a base class."""
        texts = (attribute_texts(base) for base in self.owner.__mro__)
        return next((each[self.name] for each in texts if self.name in each), "")


@messages.cached
def leaves(cls: type[Any]) -> tuple[Leaf, ...]:
    """Flags of a class, with nested dataclasses expanded; kept, since a grid asks for those of each run."""
    return tuple(_leaves(cls, dataclasses.MISSING))


def _leaves(cls: type[Any], default: Any) -> Iterator[Leaf]:
    """`default`: an instance with the defaults."""
    hints = _hints(cls)
    for f in dataclasses.fields(cls):
        if not is_flag(f):
            continue
        own = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        value = own if default is dataclasses.MISSING else getattr(default, f.name)
        if dataclasses.is_dataclass(hints[f.name]):
            other, papers = f.metadata.get("defaults", {}), f.metadata.get("papers", {})
            for leaf in _leaves(cast("type[Any]", hints[f.name]), value):
                paper = papers.get(leaf.name, None if leaf.name in other else leaf.paper)
                yield leaf._replace(default=other.get(leaf.name, leaf.default), paper=paper)
        else:
            yield Leaf(f.name, hints[f.name], value, cls, f.metadata.get("paper"))


def parse(
    groups: Groups,
    arguments: Sequence[str],
    program: str,
    description: str,
    owners: Owners = lambda name: (),
    usual: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """{field: value} of all flags, given or default; `owners` is asked about unknown flags.

    `usual` are defaults that override those of the classes.

    UserError: an unknown flag (the message names the nearest) or an invalid value; SystemExit: --help was printed.
    """
    if not {"-h", "--help"}.isdisjoint(arguments):
        _print_help(groups, program, description, usual)
        raise SystemExit(0)
    known = flags_of(groups)
    values = {name: usual.get(name, leaf.default) for name, leaf in known.items()}
    negated = {f"--no-{flag(name)}": name for name, leaf in known.items() if leaf.kind is bool}
    given = set[str]()
    for typed, words in split(arguments):
        name = negated.get(typed, field_of(typed.removeprefix("--")))
        if name not in known or not typed.startswith("--"):
            _refuse(typed, known, owners)
        value = _value(known[name].kind, typed, words)
        values[name] = not value if typed in negated else value
        given.add(name)
    if values.get("paper"):
        values |= {name: leaf.paper for name, leaf in known.items() if leaf.paper is not None and name not in given}
    for name, leaf in known.items():
        if values[name] is dataclasses.MISSING:
            raise UserError(f"--{flag(name)} (nothing): must be {_allowed(leaf.kind)}")
    return values


def check_used(known: Mapping[str, Leaf], values: Mapping[str, Any], usual: Mapping[str, Any], before: Any) -> None:
    """Refuse flags without effect beside the values of others, by their class's `USED_WITH`.

    A default value is harmless; values of the continued run, `before`, were accepted then.
    """
    for name, leaf in known.items():
        value = values[name]
        if name in before or value in (usual.get(name, leaf.default), leaf.paper):
            continue
        for other, wanted in getattr(leaf.owner, "USED_WITH", {}).get(name, {}).items():
            if other not in known or (values[other] in wanted if wanted else values[other]):
                continue
            typed = f"--{flag(name)}{'' if value is True else ' ' + shown(value)}"
            told, remedy = f"without --{flag(other)}", f"give --{flag(other)}, too"
            if wanted:
                told = f"with --{flag(other)} {shown(values[other])}"
                remedy = f"take --{flag(other)} {' or '.join(map(str, wanted))}"
            raise UserError(f"{typed}: nothing uses it {told}; leave it out, or {remedy}")


def split(arguments: Iterable[str]) -> list[tuple[str, list[str]]]:
    """The flags as typed, each with the words up to the next flag; a word before all flags counts as a flag."""
    groups: list[tuple[str, list[str]]] = []
    for word in arguments:
        check_text(word, groups[-1][0] if groups and not IS_FLAG(word) else "")
        if groups and not IS_FLAG(word):
            groups[-1][1].append(word)
        else:
            typed, equals, value = word.partition("=")
            groups.append((typed, [value] if equals else []))
    return groups


def _value(kind: Any, typed: str, words: Sequence[str]) -> Any:
    """Convert the words after a flag to its type (UserError: they do not fit)."""
    try:
        if get_origin(kind) is tuple and words:
            return tuple(_read(get_args(kind)[0], word) for word in words)
        value, further = (True, words) if kind is bool else (_read(kind, words[0]), words[1:])
    except (IndexError, KeyError, TypeError, ValueError):
        given = " ".join(words) or "(nothing)"
        given = given if len(given) <= 100 else f"{given[:60]}..."
        raise UserError(f"{typed} {given}: must be {_allowed(kind)}") from None
    if further:
        raise UserError(_misplaced(further[0]))
    return value


def _read(kind: Any, word: str) -> Any:
    if get_origin(kind) is Literal:
        return {str(choice): choice for choice in get_args(kind)}[word]
    if get_origin(kind) in UNIONS:
        for each in get_args(kind):
            with suppress(KeyError, ValueError):
                return _read(each, word)
        raise ValueError(word)
    value = kind(word)
    if kind is int and abs(value) >> 63:
        raise ValueError(word)
    return value


def _misplaced(word: str) -> str:
    return f"{word!r} stands where a flag is expected; flags begin with --"


def _allowed(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " * (len(get_args(kind)) > 1) + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) in UNIONS:
        return " or ".join(map(_allowed, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"one or more values, each {_allowed(get_args(kind)[0])}"
    names = {int: "a whole number", float: "a number", bool: "given without a value", str: "some text", Path: "a path"}
    return names.get(kind, str(kind))


def _print_help(groups: Groups, program: str, description: str, usual: Mapping[str, Any]) -> None:
    import argparse

    from zofl_mpi.run.loop.screen import columns, reflow, show

    width = min(120, columns() or 120)
    form = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=min(40, width // 3), width=width)
    parser = argparse.ArgumentParser(
        program, f"{program} [--FLAG VALUE ...]", reflow(description, columns()), formatter_class=form
    )
    for title, cls in groups.items():
        group = parser.add_argument_group(title)
        for leaf in leaves(cls):
            names = [f"--{flag(leaf.name)}", *(f"--{other}" for other, name in ALIASES.items() if name == leaf.name)]
            default = usual.get(leaf.name, leaf.default)
            left_out = "required" if default is dataclasses.MISSING else f"default: {shown(default)}"
            left_out += "" if leaf.paper is None else f", the paper's: {shown(leaf.paper)}"
            text = f"{leaf.text} ({left_out})".replace("%", "%%")
            if leaf.kind is bool:
                group.add_argument(*names, f"--no-{flag(leaf.name)}", action="store_true", help=text)
            else:
                group.add_argument(*names, metavar=_metavar(leaf.kind), help=text)
    show(parser.format_help().rstrip())


def _metavar(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"{{{','.join(map(str, get_args(kind)))}}}"
    if get_origin(kind) in UNIONS:
        return "|".join(map(_metavar, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"{_metavar(get_args(kind)[0])} ..."
    return (kind.__name__ if isinstance(kind, type) else str(kind)).upper()


def shown(value: Any) -> str:
    """A value as shown in a list or a message."""
    if value is None:
        return "not there"
    return plain(" ".join(map(str, value)) if isinstance(value, list | tuple) else str(value) or '""')


def changes(names: Iterable[str], before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Message on flags with other values."""
    return "; ".join(f"--{flag(k)} was {shown(before.get(k))}, is now {shown(now.get(k))}" for k in names)


@functools.cache
def attribute_texts(cls: type[Any]) -> dict[str, str]:
    """{attribute: its text} from the section `Attributes:` of a class's docstring."""
    import docstring_parser

    parsed = docstring_parser.parse(cls.__doc__ or "", style=docstring_parser.DocstringStyle.GOOGLE)
    return {p.arg_name: " ".join((p.description or "").split()) for p in parsed.params}


# --- values from files


def read_toml(path: str | Path, called: str = "--config ") -> dict[str, Any]:
    """The table of a TOML file, with flags as keys; UserError: unreadable or no TOML."""
    import tomllib  # only rank 0 reads

    place = user_path(path, called.strip() or "the grid")
    try:
        found = os.stat(place)
        if not stat.S_ISREG(found.st_mode) or found.st_size > TOML_BYTES:
            raise UserError(f"{called}{path}: must be a file of at most {TOML_BYTES} bytes")
        return tomllib.loads(place.read_text(encoding="utf-8-sig"))  # a byte order mark may precede it
    except OSError as exc:
        shown_path = str(path) if len(str(path)) < 200 else f"{str(path)[:60]}..."
        raise UserError(f"{called}{shown_path}: cannot be read ({exc.strerror}); give the path of a TOML file") from exc
    except (ValueError, RecursionError) as exc:  # text, TOML syntax, a number with 5,000 digits
        raise UserError(f"{called}{path}: is not TOML ({exc})") from exc


def to_arguments(values: Mapping[str, Any], known: Mapping[str, Any], source: str) -> list[str]:
    """Values by field or flag name, as arguments to put before the user's; UserError: an unknown key of `source`."""
    arguments: list[str] = []
    for key, value in values.items():
        if (name := field_of(key)) not in known:
            raise UserError(f"{source}: unknown key {key!r}{nearest(name, known, flag)}")
        if isinstance(value, dict):
            raise UserError(f"{source}: {key!r} is a table; write each flag as a key at the top level")
        if isinstance(value, bool):
            arguments.append(f"--{'' if value else 'no-'}{flag(name)}")
        elif value != "":
            arguments += [f"--{flag(name)}", *map(str, value if isinstance(value, list | tuple) else [value])]
    return arguments


# --- names


def flag(name: str) -> str:
    """A field's name as typed on a command line."""
    return name.replace("_", "-")


def field_of(typed: str) -> str:
    """Field name of a flag or key in any spelling, without dashes."""
    return ALIASES.get(typed, typed.replace("-", "_"))


def unknown(name: str, known: Iterable[str]) -> str:
    """Message on an unknown flag."""
    return f"unknown flag --{flag(name)}{nearest(name, known, lambda near: f'--{flag(near)}')}"


def _refuse(typed: str, known: Iterable[str], owners: Owners) -> NoReturn:
    """Refuse a word of the command line that is no flag here."""
    if not typed.startswith("-"):
        raise UserError(_misplaced(typed))
    name = field_of(typed.lstrip("-"))
    if places := owners(name):
        belongs = f"it belongs to {', '.join(places)}"
        raise UserError(f"--{flag(name)} is no flag of this method on this problem; {belongs}")
    raise UserError(f"{unknown(name, known)}; --help lists all")
