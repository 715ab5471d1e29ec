"""List of the commands, with the methods and problems of each family.

python -m zofl_mpi
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

FAMILIES = ("zofl_mpi.zo_hfl", "zofl_mpi.fedrzo", "zofl_mpi.heron_sfl")
TOOLS = {
    "zofl_mpi.run.grid": "zofl_mpi.run.grid.__main__",
    "zofl_mpi.data.download": "zofl_mpi.data.download",
    "zofl_mpi.doctor": "zofl_mpi.doctor",
}
"""The other commands: {as typed after `python -m`: module with the docstring}."""


def main() -> None:
    """Prints a line for every command and every method."""
    print("\n".join(lines()))


def lines() -> Iterator[str]:
    """The list, line by line."""
    yield "Commands, one family of methods each; --help names the flags of the chosen method and problem:"
    for name in FAMILIES:
        yield from ("", f"python -m {name}  {summary(name)}")
        family = import_module(name)
        for method, made in family.METHODS.items():
            yield f"    --method {method:<12} {_first_line(made.__doc__)}"
        yield f"    --problem {', '.join(family.PROBLEMS)}"
    yield from ("", "Tools:")
    yield from (f"python -m {name:<26} {summary(module)}" for name, module in TOOLS.items())


def summary(name: str) -> str:
    """First line of a module's docstring, read without importing it."""
    spec = find_spec(name)
    assert spec and spec.origin
    return _first_line(ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))))


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


if __name__ == "__main__":
    main()
