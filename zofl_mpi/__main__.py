"""List of the commands, with the methods and problems of each family.

python -m zofl_mpi
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module

FAMILIES = ("zofl_mpi.zo_hfl", "zofl_mpi.fedrzo", "zofl_mpi.heron_sfl")
TOOLS = (
    *("zofl_mpi.run.grid", "zofl_mpi.report", "zofl_mpi.report.same"),
    *("zofl_mpi.data.download", "zofl_mpi.data.cache", "zofl_mpi.doctor"),
)


def main() -> None:
    """Prints a line for every command and every method."""
    with suppress(BrokenPipeError):  # | head
        print("\n".join(lines()), flush=True)
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python's own last flush would fail, too


def lines() -> Iterator[str]:
    """The list, line by line."""
    yield "Commands, one family of methods each; --help names the flags of the chosen method and problem:"
    for name in FAMILIES:
        family = import_module(name)
        yield from ("", f"python -m {name}  {summary(family.__doc__)}")
        for method, made in family.METHODS.items():
            yield f"    --method {method:<12} {summary(made.__doc__)}"
        yield f"    --problem {', '.join(family.PROBLEMS)}"
    yield from ("", "Tools:")
    yield from (f"python -m {name:<26} {summary(import_module(name).__doc__)}" for name in TOOLS)


def summary(text: str | None) -> str:
    """First line of a docstring."""
    return (text or "").strip().partition("\n")[0]


if __name__ == "__main__":
    main()
