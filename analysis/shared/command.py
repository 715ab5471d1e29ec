"""The command line of a script: the flags that all share, and its sentences on stderr."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zofl_mpi.errors import UserError

ANALYSIS = Path(__file__).resolve().parents[1]


class Parser(argparse.ArgumentParser):
    """A parser for which the numbers of another grid than the script's are no published results."""

    def parse_args(self, *args: Any, **kwargs: Any) -> Any:
        """The flags; without --out, what other grids give goes to results/ in the current folder."""
        flags, out = super().parse_args(*args, **kwargs), self.get_default("out")
        own = {path.resolve() for path in self.get_default("grid") or ()}
        if flags.out == out and not {path.resolve() for path in getattr(flags, "grid", None) or ()} <= own:
            flags.out = Path("results") / out.name
        return flags


def parser(name: str, about: str | None, grids: Sequence[str] = ()) -> argparse.ArgumentParser:
    """A parser with the flags that the scripts share; `grids`, if any, lie in jobs/ and are read by default."""
    made = Parser(prog=name, description=(about or "").split("\n")[0])
    if grids:
        found = [ANALYSIS.parent / "jobs" / g for g in grids]
        listed = " ".join(f"jobs/{g}" for g in grids)
        made.add_argument("--grid", type=Path, nargs="+", default=found, help=f"TOML files (default: {listed})")
        made.add_argument("--results", type=Path, help="the folder with the results (default: the grid's own)")
        made.add_argument(
            "--partial", action="store_true", help="go on without the results that are missing, and say so"
        )
    out = ANALYSIS / "results" / name
    told = f"the files' name without suffix (default: analysis/results/{name}; of other grids results/{name})"
    made.add_argument("--out", type=Path, default=out, help=told)
    return made


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
