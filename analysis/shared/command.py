"""The command line of a script: the flags that all share, its own, and its sentences on stderr.

What a script prints is kept in NAME.txt, its rows in NAME.csv, its figure in NAME.pdf and NAME.png; NAME is its --out.
Without --out they go to results/ in the current folder: the tables kept in analysis/results stay until --out names one.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shared.files import Report, publish
from zofl_mpi.errors import UserError

ANALYSIS = Path(__file__).resolve().parents[1]
Flags = Mapping[str, Mapping[str, Any]]
"""{flag: what argparse takes of it}, see `flag`."""


def flag(default: Any, help: str, **options: Any) -> dict[str, Any]:
    """A flag of a script's own: it has its default's type; a list takes several words."""
    if isinstance(default, bool):
        return {"action": "store_true", "help": help, **options}
    several = isinstance(default, list)
    told = " ".join(map(str, default)) if several else default
    found = {"type": type(default[0] if several else default), "help": f"{help} (default: {told})", "default": default}
    return {**found, **({"nargs": "+"} if several else {}), **options}


def parser(
    name: str, about: str | None, grids: Sequence[str] = (), own: Flags | None = None
) -> argparse.ArgumentParser:
    """A parser with the flags that the scripts share; `grids`, if any, lie in jobs/ and are read by default."""
    made = argparse.ArgumentParser(prog=Path(name).name, description=(about or "").split("\n")[0])
    if grids:
        found = [ANALYSIS.parent / "jobs" / g for g in grids]
        listed = " ".join(f"jobs/{g}" for g in grids)
        made.add_argument("--grid", type=Path, nargs="+", default=found, help=f"TOML files (default: {listed})")
        made.add_argument("--results", type=Path, help="the folder with the results (default: the grid's own)")
        made.add_argument(
            "--partial", action="store_true", help="go on without the results that are missing, and say so"
        )
    out = Path("results") / name
    told = f"the files' name without suffix (default: {out}; to replace a kept table: analysis/results/NAME)"
    made.add_argument("--out", type=Path, default=out, help=told)
    for word, options in (own or {}).items():
        made.add_argument(word, **options)
    return made


def script(
    name: str,
    about: str | None,
    report: Callable[[Any], Report],
    own: Flags | None = None,
    grids: Sequence[str] = (),
) -> Callable[..., None]:
    """The `main` of a script.

    Args:
        name: of the script, and of the files that it writes in results/.
        about: its docstring; the first line is its help.
        report: of the flags.
        own: flags beside those that all scripts have.
        grids: files in jobs/ that are read by default.
    """

    def main(words: list[str] | None = None) -> None:
        """Print and write the report; exit status 2 after a sentence if a result is missing."""
        flags = parser(name, about, grids, own).parse_args(words)
        with refusals(Path(name).name):
            publish(flags.out, report(flags))

    return main


@contextmanager
def refusals(name: str) -> Iterator[None]:
    """Context manager: a mistake of the user, or a missing result, is told on stderr and ends with exit status 2."""
    try:
        yield
    except UserError as error:
        tell(name, str(error).split("\n"))
        raise SystemExit(2) from error


def tell(name: str, lines: Iterable[str]) -> None:
    """Prints lines on stderr, each after the script's name."""
    for line in lines:
        print(f"{name}: {line}", file=sys.stderr)
