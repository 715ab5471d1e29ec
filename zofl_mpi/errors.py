"""What a user can mend: one sentence, no traceback, exit status 2."""

from __future__ import annotations


class UserError(Exception):
    """A clear sentence to a user: what is wrong, which value, what is allowed, what to do.

    The command line prints it after ``zofl_mpi: `` on one line and exits with status 2; no traceback is shown.
    """
