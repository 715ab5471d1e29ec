"""Errors that a user can mend: one sentence, no traceback, exit status 2."""

from __future__ import annotations


class UserError(Exception):
    """A clear sentence to a user: what is wrong, which value, what is allowed, what to do.

    The command line prints it after ``zofl_mpi: `` on one line and exits with `status`; no traceback is shown.
    """

    status = 2


def demand(holds: bool, flag: str, value: object, allowed: str) -> None:
    """Refuses a value of a flag unless `holds`.

    Args:
        flag: as typed, or a field's name.
        allowed: what the value must be, to follow "must be".
    """
    if not holds:
        name = flag if flag.startswith("--") else "--" + flag.replace("_", "-")
        shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
        raise UserError(f"{name} {shown}: must be {allowed}")
