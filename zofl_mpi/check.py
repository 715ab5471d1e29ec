"""Check your own method: small runs that find typical mistakes.

    python -m zofl_mpi.check mymethod:FedSGD
    python -m zofl_mpi.check mymethod:FedSGD --family fedrzo --problem mlp --data digits --m 3

Each check prints a line: passed, failed with advice, or not checked with the reason. Flags are those of a run. --family
(zo_hfl, fedrzo or heron_sfl) selects the family of problems and flags. Exit status: 1 if a check fails, 2 for invalid
flags. From Python: `zofl_mpi.check_method`.
"""

import sys
from collections.abc import Sequence
from typing import Any

from zofl_mpi.errors import UserError, plain, printing, refused
from zofl_mpi.run.command import flags
from zofl_mpi.run.loop.screen import columns, reflow, show


@printing
def main(words: Sequence[str] | None = None) -> None:
    """Print the findings."""
    words = sys.argv[1:] if words is None else list(words)
    if not words or words[0] in ("-h", "--help"):
        show(reflow((__doc__ or "").rstrip(), columns()))
        return
    try:
        from zofl_mpi.api.checking import check_method

        found = check_method(words[0], **_given(words[1:]))
    except UserError as error:
        raise SystemExit(refused(error)) from error
    show("\n".join(map(plain, str(found).splitlines())))
    raise SystemExit(int(not found.ok))


def _given(words: Sequence[str]) -> dict[str, Any]:
    """The flags as arguments of `check_method`; UserError for a stray word."""
    found = dict[str, Any]()
    for typed, values in flags.split(words):
        if not typed.startswith("--"):
            raise UserError(f"{typed}: only flags follow the method, as --data digits")
        name = flags.field_of(typed.removeprefix("--"))
        if values:
            found[name] = values[0] if len(values) == 1 else values
        else:
            found[name.removeprefix("no_")] = not name.startswith("no_")
    return found


if __name__ == "__main__":
    main()
