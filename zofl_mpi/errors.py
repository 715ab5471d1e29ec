"""Errors that a user can mend: one sentence, no traceback, exit status 2."""

import sys
from collections.abc import Callable, Iterable


class UserError(Exception):
    """A clear sentence to a user: the fault, the value, the allowed range, the remedy.

    The command line prints it after ``zofl_mpi: `` on one line and exits with `status`; no traceback is shown.
    """

    status = 2


def refused(problem: UserError, speaks: bool = True) -> int:
    """Prints the sentence on standard error, where `speaks` (one process of a run does); returns the exit status."""
    if speaks:
        print(f"zofl_mpi: {problem}", file=sys.stderr, flush=True)
    return problem.status


def warn(sentence: str) -> None:
    """Prints a warning on standard error."""
    print(f"zofl_mpi: warning: {sentence}", file=sys.stderr, flush=True)


def nearest(word: str, allowed: Iterable[str], spelled: Callable[[str], str] = str) -> str:
    """`; the nearest is ...`, if one is near; `spelled`: as one would type it."""
    import difflib  # few commands have a mistake

    near = difflib.get_close_matches(word, allowed, 1, 0.65)
    return f"; the nearest is {spelled(near[0])}" if near else ""


def check_one_of(allowed: Iterable[str], word: str, what: str, where: str = "") -> None:
    """Refuses a word that is none of those allowed."""
    allowed = list(allowed)
    if word not in allowed:
        raise UserError(f"{where}unknown {what} {word!r}{nearest(word, allowed)}; there are {', '.join(allowed)}")


def demand(holds: bool, flag: str, value: object, allowed: str) -> None:
    """Refuses a value of a flag, as typed or by its field, unless `holds`; `allowed` is the range, after "must be"."""
    if not holds:
        name = flag if flag.startswith("--") else "--" + flag.replace("_", "-")
        shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
        raise UserError(f"{name} {shown}: must be {allowed}")
