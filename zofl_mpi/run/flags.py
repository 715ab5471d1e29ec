"""Dataclass fields as command-line flags: names, types, help texts, TOML keys, and clear sentences for mistakes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast

from zofl_mpi.engine.fields import check_ranges, is_flag
from zofl_mpi.engine.roles import with_base
from zofl_mpi.engine.setting import Method
from zofl_mpi.errors import UserError

T = TypeVar("T")
Groups = Mapping[str, type[Any]]
"""{title: dataclass}: each class's fields become flags under that title."""

ALIASES = {"lam": "--lambda"}
"""Other spellings of flags."""


class Removed(NamedTuple):
    """A flag of earlier versions.

    Attributes:
        instead: advice for whoever gives it.
        today: the value whose behaviour is today's; None where a stored value does not matter, since the result names
            the kernel that it led to.
    """

    instead: str
    today: Any = None


REMOVED = {
    "balance": Removed("clients get their Dirichlet shares, leave the flag out", today=False),
    "contexts_seed": Removed("pretraining has the same half of the contexts in all runs, leave the flag out", today=0),
    "convolution": Removed("torch computes all convolutions, leave the flag out"),
    "features_seed": Removed("all runs have the same filters, leave the flag out", today=0),
    "filter_size": Removed("filters have 6 x 6 pixels, leave the flag out", today=6),
    "filters": Removed("there are 256 filters, leave the flag out", today=256),
    "kernel": Removed("this problem is computed by NumPy alone, leave the flag out"),
    "passes_abreast": Removed("perturbed passes go one by one, leave the flag out", today=1),
    "pool": Removed("responses are averaged over 2 x 2 cells, leave the flag out", today=2),
    "pretrain_share": Removed("half of the contexts are for pretraining, leave the flag out", today=0.5),
    "synthetic_noise": Removed("labels are a linear teacher's, leave the flag out", today=0.0),
}
"""Flags of earlier versions that are gone, everywhere or for some problems."""
IS_FLAG = re.compile(r"--?[a-z]", re.IGNORECASE).match
"""Whether a word of a command line is a flag, not a (negative) number."""


def flags_of(groups: Groups) -> dict[str, Any]:
    """{field: its type} of all groups. A name means one thing in a command line, so two groups may not share one."""
    found: dict[str, Any] = {}
    for title, cls in groups.items():
        for name, kind in fields_of(cls).items():
            if name in found:
                raise UserError(f"the flag --{flag(name)} of {title} exists already: give that field another name")
            found[name] = kind
    return found


def fields_of(cls: type[Any]) -> dict[str, Any]:
    """{field: type} of a class, with those of its dataclass fields in their place; without what the run gives."""
    found: dict[str, Any] = {}
    for leaf in leaves(cls):
        if leaf.name in found:
            raise UserError(f"the flag --{flag(leaf.name)} occurs twice in {cls.__name__}: rename one of the fields")
        found[leaf.name] = leaf.kind
    return found


def with_defaults(cls: type[Any], **defaults: Any) -> type[Any]:
    """The class's flags with other defaults: another family's."""
    hints = typing.get_type_hints(cls)
    parts = [
        (f.name, hints[f.name], dataclasses.field(default=defaults.get(f.name, _default(f)), metadata=f.metadata))
        for f in dataclasses.fields(cls)
    ]
    found = dataclasses.make_dataclass(cls.__name__, parts, frozen=True)
    found.__doc__ = cls.__doc__
    return found


def made(cls: type[Any], values: Mapping[str, Any], **given: Any) -> Any:
    """The instance whose flags have these values; `given` are the fields that are not for the command line.

    Its parts that have a field `setting` get the method's.

    Raises:
        UserError: a value out of range.
    """
    check_ranges(cls, values)
    hints, parts = typing.get_type_hints(cls), dict(given)
    for f in dataclasses.fields(cls):
        kind = hints[f.name]
        if not is_flag(f) or f.name in parts:
            continue
        if dataclasses.is_dataclass(kind):
            bound = any(inner.name == "setting" for inner in dataclasses.fields(kind)) and "setting" in given
            parts[f.name] = made(cast("type[Any]", kind), values, **({"setting": given["setting"]} if bound else {}))
        else:
            parts[f.name] = values[f.name]
    return cls(**parts)


def built(cls: type[T], setting: Any, **values: Any) -> T:
    """A method as the command line would make it: flags by their names, those of its parts among them.

    Raises:
        TypeError: no such flag.
        UserError: a value out of range.
    """
    defaults = {leaf.name: leaf.default for leaf in leaves(cls)}
    unknown = values.keys() - defaults.keys()
    if unknown:
        raise TypeError(f"{cls.__name__} has no flag {', '.join(sorted(unknown))}")
    return cast(T, made(with_base(cls, Method), {**defaults, **values}, setting=setting))


class _Leaf(NamedTuple):
    """A field that is a flag, of the class `owner`."""

    name: str
    kind: Any
    default: Any
    owner: type[Any]

    @property
    def text(self) -> str:
        """Its text in the class's docstring."""
        return attribute_texts(self.owner).get(self.name, "")  # type: ignore[arg-type]


def leaves(cls: type[Any], default: Any = dataclasses.MISSING) -> Iterator[_Leaf]:
    """The flags of a class, those of its dataclass fields in their place; `default`: an instance with the defaults."""
    hints = typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        if not is_flag(f):
            continue
        value = _default(f) if default is dataclasses.MISSING else getattr(default, f.name)
        if dataclasses.is_dataclass(hints[f.name]):
            other = f.metadata.get("defaults", {})
            for leaf in leaves(cast("type[Any]", hints[f.name]), value):
                yield leaf._replace(default=other.get(leaf.name, leaf.default))
        else:
            yield _Leaf(f.name, hints[f.name], value, cls)


def _default(f: dataclasses.Field[Any]) -> Any:
    """A field's default, dataclasses.MISSING if it has none."""
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def parse(
    groups: Groups,
    arguments: Sequence[str],
    program: str,
    description: str,
    owners: Callable[[str], Sequence[str]] = lambda name: (),
) -> dict[str, Any]:
    """{field: value} of all flags, given or default.

    Args:
        owners: (flag) -> the methods or problems that have it, for a flag that is unknown here.

    Raises:
        UserError: an unknown flag (the nearest is named), a value of the wrong kind.
        SystemExit: --help was printed.
    """
    import tyro

    forms = [(title, _form(title, cls)) for title, cls in groups.items()]
    whole = dataclasses.make_dataclass(
        "Flags", [(t.replace(" ", "_"), f, dataclasses.field(default_factory=f)) for t, f in forms]
    )
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            flat: Any = cast("Any", tyro.conf.OmitArgPrefixes)[whole]
            parsed, unknown = tyro.cli(
                flat,
                args=list(arguments),
                prog=program,
                description=description,
                return_unknown_args=True,
            )
    except SystemExit as exc:
        if exc.code in (0, None):
            raise
        known = {leaf.name: leaf for cls in groups.values() for leaf in leaves(cls)}
        raise UserError(_mistake(arguments, known) or " ".join(errors.getvalue().split())) from None
    if unknown:
        raise UserError(_unknown(unknown[0], flags_of(groups), owners))
    return {name: value for part in vars(parsed).values() for name, value in vars(part).items()}


def read_toml(path: str) -> dict[str, Any]:
    """The table of a TOML file; its keys are flags.

    Raises:
        UserError: no such file, or not TOML.
    """
    import tomllib  # this and difflib: rank 0 alone reads, and few commands have a mistake

    try:
        return tomllib.loads(Path(path).read_text())
    except OSError as exc:
        raise UserError(f"--config {path}: cannot be read ({exc.strerror}); give the path of a TOML file") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise UserError(f"--config {path}: is not TOML ({exc})") from exc


def to_arguments(values: Mapping[str, Any], known: Mapping[str, Any], source: str) -> list[str]:
    """Values by field name or flag name as command-line arguments, to be put before those of the user.

    Raises:
        UserError: an unknown key of `source`; the nearest is named.
    """
    spelled = {alias.removeprefix("--"): name for name, alias in ALIASES.items()}
    arguments: list[str] = []
    for key, value in values.items():
        name = spelled.get(key, key.replace("-", "_"))
        if name in REMOVED and name not in known:
            raise UserError(f"{source}: {key} = {value} is no longer a flag: {REMOVED[name].instead}")
        if name not in known:
            raise UserError(f"{source}: unknown key {key!r}{_nearest(name, known, '')}")
        if isinstance(value, dict):
            raise UserError(f"{source}: {key!r} is a table; every key stands at the top level and names a flag")
        if isinstance(value, bool):
            arguments.append(f"--{'' if value else 'no-'}{flag(name)}")
        elif value != "":
            arguments += [f"--{flag(name)}", *map(str, value if isinstance(value, list | tuple) else [value])]
    return arguments


def readable(stored: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The stored values of a run without those of removed flags, as far as today's runs do the same."""

    def gone(name: str, value: Any) -> bool:
        if name not in REMOVED or (name in known and _fits(known[name], [str(value)])):
            return False
        return REMOVED[name].today in (None, value)

    return {name: value for name, value in stored.items() if not gone(name, value)}


def flag(name: str) -> str:
    """A field's name as it is typed."""
    return name.replace("_", "-")


def _form(title: str, cls: type[Any]) -> type[Any]:
    """The class as plain fields with help texts from its docstring: what tyro sees."""
    import tyro

    fields = []
    for leaf in leaves(cls):
        aliases = [ALIASES[leaf.name]] if leaf.name in ALIASES else None
        kind = leaf.kind
        annotated = Annotated[kind, tyro.conf.arg(help=leaf.text, aliases=aliases)]  # type: ignore[valid-type]
        fields.append((leaf.name, annotated, dataclasses.field(default=leaf.default)))
    return dataclasses.make_dataclass(title.replace(" ", "_"), fields, kw_only=True)


@functools.cache
def attribute_texts(cls: type[Any]) -> dict[str, str]:
    """{attribute: its text} of the section `Attributes:` of a class's docstring."""
    import docstring_parser

    parsed = docstring_parser.parse(cls.__doc__ or "", style=docstring_parser.DocstringStyle.GOOGLE)
    return {p.arg_name: " ".join((p.description or "").split()) for p in parsed.params}


def _unknown(word: str, known: Mapping[str, Any], owners: Callable[[str], Sequence[str]]) -> str:
    if not word.startswith("-"):
        return f"{word!r} stands where a flag is expected; flags begin with --"
    name = word.split("=")[0].lstrip("-")
    places, removed = owners(name.replace("-", "_")), REMOVED.get(name.replace("-", "_"))
    if removed and not places:
        return f"--{name} is no longer a flag: {removed.instead}"
    if places:
        return f"--{name} is no flag of this method on this problem; it belongs to {', '.join(places)}"
    return f"unknown flag --{name}{_nearest(name.replace('-', '_'), known, '--')}; --help lists all"


def _nearest(name: str, known: Mapping[str, Any], prefix: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, 1, 0.5)
    return f"; the nearest is {prefix}{flag(near[0])}" if near else ""


def _mistake(arguments: Sequence[str], known: Mapping[str, _Leaf]) -> str:
    """The first flag whose value is missing or of the wrong kind: which flag, which value, what is allowed."""
    spelled = {alias.removeprefix("--"): name for name, alias in ALIASES.items()}
    needed = {name for name, leaf in known.items() if leaf.default is dataclasses.MISSING}
    for k, word in enumerate(arguments):
        typed, equals, value = word.partition("=")
        name = spelled.get(typed.removeprefix("--"), typed.removeprefix("--").replace("-", "_"))
        if not typed.startswith("--") or name not in known:
            continue
        values = [value] if equals else list(itertools.takewhile(lambda v: not IS_FLAG(v), arguments[k + 1 :]))
        needed.discard(name)
        if not _fits(known[name].kind, values):
            return f"{typed} {' '.join(values) or '(nothing)'}: must be {_allowed(known[name].kind)}"
    return next((f"--{flag(name)} (nothing): must be {_allowed(known[name].kind)}" for name in sorted(needed)), "")


def _fits(kind: Any, values: Sequence[str]) -> bool:
    """Whether the words after a flag are a value of its kind."""
    if typing.get_origin(kind) is tuple:
        return bool(values) and all(_fits(typing.get_args(kind)[0], [value]) for value in values)
    if kind is bool:
        return not values
    if len(values) != 1:
        return False
    if typing.get_origin(kind) is Literal:
        return values[0] in map(str, typing.get_args(kind))
    try:
        kind(values[0])
    except (ValueError, TypeError):
        return False
    return True


def _allowed(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(str(a) for a in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return f"one or more values, each {_allowed(typing.get_args(kind)[0])}"
    names = {int: "a whole number", float: "a number", bool: "given without a value", str: "some text", Path: "a path"}
    return names.get(kind, str(kind))
