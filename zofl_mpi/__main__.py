"""List of the commands, with the methods and problems of each family.

python -m zofl_mpi
"""

from collections.abc import Iterator
from importlib import import_module

from zofl_mpi.errors import printing
from zofl_mpi.run.command.family import FAMILIES
from zofl_mpi.run.loop.screen import show

TOOLS = (
    *("zofl_mpi.run.grid", "zofl_mpi.report", "zofl_mpi.report.same"),
    *("zofl_mpi.data.download", "zofl_mpi.data.cache", "zofl_mpi.doctor", "zofl_mpi.check"),
)


@printing
def main() -> None:
    """Print a line for every command and every method."""
    for line in lines():
        show(line)


def lines() -> Iterator[str]:
    """The list, line by line."""
    count = len({method for name in FAMILIES for method in import_module(name).METHODS})
    yield f"Commands for {count} methods, one family each; --help names the flags of the chosen method and problem:"
    for name in FAMILIES:
        family = import_module(name)
        yield from ("", f"python -m {name}  {summary(family.__doc__)}")
        for method, made in family.METHODS.items():
            yield f"    --method {method:<12} {summary(made.__doc__)}"
            yield f"{'':26}a client: {made.computes}; {made.travels}"
        yield f"    --problem {', '.join(family.PROBLEMS)}"
    yield from ("", "Tools:")
    yield from (f"python -m {name:<26} {summary(import_module(name).__doc__)}" for name in TOOLS)


def summary(text: str | None) -> str:
    """First line of a docstring."""
    return (text or "").strip().partition("\n")[0]


if __name__ == "__main__":
    main()
