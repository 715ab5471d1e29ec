"""Error messages for users (one sentence, exit status 2, no traceback), and safe display of any text."""

import functools
import gc
import os
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
LONGEST = 4000
"""Maximum characters of a displayed text."""
SCRIPTS = ("zo-hfl", "fedrzo", "heron-sfl", "zofl-doctor", "zofl-grid", "zofl-report", "zofl-same")
"""The package's console scripts."""


def plain(text: object, most: int = LONGEST) -> str:
    """One line of text, possibly from a file, that a screen, a page and UTF-8 can show.

    Escape sequences, new lines, direction marks and lone surrogates appear as Python escapes; a long text loses its
    middle.
    """
    words = str(text)
    if len(words) > most:
        kept = most // 2
        words = f"{words[:kept]} [... {len(words) - 2 * kept:,} characters ...] {words[-kept:]}"
    if words.isprintable():
        return words
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)


def plain_lines(text: str) -> str:
    """`plain` of each line of a multi-line text, such as a traceback or a table."""
    return "\n".join(map(plain, text.split("\n")))


class UserError(Exception):
    """Error message for a user: the fault, the value, the allowed range, the remedy.

    The command line prints it after ``zofl_mpi: `` on one line and exits with `status`; no traceback is shown.
    """

    status = 2

    def __init__(self, *sentences: object) -> None:
        super().__init__("\n".join(map(plain, sentences)))  # a line each


class RunFailed(UserError):
    """A run that failed in one of its rounds; its result holds the earlier rounds.

    Attributes:
        round: the failed round, counted from 1; 0: failed outside rounds, for example while writing the result.
        client, step, rank: location, if a client's step failed; else None.
        cause: the failure, without its location.
        kept: the rounds that are kept, and their file.
        trace: a traceback as text; "" if the message suffices.
    """

    status = 1

    def __init__(
        self,
        *sentences: object,
        round_: int = 0,
        cause: str = "",
        kept: str = "",
        trace: str = "",
        client: int | None = None,
        step: str | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(*sentences)
        self.round, self.client, self.step, self.rank = round_, client, step, rank
        self.cause, self.kept, self.trace = cause or str(self), kept, trace


class ChangedInPlace(UserError):
    """A message with other readers was changed in place."""


class HiddenState(UserError):
    """A round changed data outside its checkpoint, such as an attribute of the method.

    Attributes:
        random: True if it is a generator of random numbers.
    """

    def __init__(self, *sentences: object, random: bool = False) -> None:
        super().__init__(*sentences)
        self.random = random


def mistake(exc: BaseException) -> str:
    """Message for an error in the user's code, with file and line if known."""
    place = place_of(exc)
    return f"{type(exc).__name__}: {exc}" + (f" ({place})" if place else "")


def place_of(exc: BaseException) -> str:
    """File and line of the last frame outside of Python's and zofl_mpi's files; "" if there is none."""
    if isinstance(exc, SyntaxError) and exc.filename:
        return f"{exc.filename}, line {exc.lineno}"
    paths = sysconfig.get_paths()
    library = (*(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), os.path.dirname(__file__))
    frames = traceback.extract_tb(exc.__traceback__)
    own = [each for each in frames if not each.filename.startswith((*(path + os.sep for path in library), "<"))]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


def root_of(exc: BaseException) -> BaseException:
    """The root cause of a chain of exceptions."""
    return exc if exc.__cause__ is None else root_of(exc.__cause__)


def printing(main: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command's main function: closed standard output gives status 1, a full one a message and status 2."""

    @functools.wraps(main)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        end_start()
        sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  (None if the shell closed it)
        sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
        try:
            try:
                return main(*args, **kwargs)
            finally:
                sys.stdout.flush()
        except OSError as exc:
            closed = isinstance(exc, BrokenPipeError)
            if not (closed or output_fails()):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python's own last flush would fail, too
            full = UserError(f"standard output cannot be written ({exc.strerror}): send it elsewhere")
            raise SystemExit(1 if closed else refused(full)) from None

    return guarded


def begin_command() -> None:
    """Prepare a command for its imports, which take most of a short run; does nothing in a script.

    Ctrl-C then ends it without a traceback: Python ends the process by the signal, reported as status 130 by a shell.
    Garbage collection pauses until `end_start`: imports leave no garbage, and collecting takes a tenth of their time.
    """
    names, (program, *_) = sys.orig_argv, getattr(sys, "argv", []) or [""]  # while `python -m` imports, it is "-m"
    ours = program == "-m" and any(name.partition(".")[0] in ("zofl_mpi", "-mzofl_mpi") for name in names)
    if ours or os.path.basename(program) in SCRIPTS:
        sys.excepthook = _shown_unless_interrupted
        gc.disable()


def end_start() -> None:
    """Resume garbage collection after `begin_command`, ignoring imported objects."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _shown_unless_interrupted(
    kind: type[BaseException], exc: BaseException, trace: types.TracebackType | None, /
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, exc, trace)


def output_fails() -> bool:
    """True if standard output cannot be written, for example on a full disk."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def refused(problem: UserError, speaks: bool = True) -> int:
    """Print the message on standard error if `speaks` (true for one process of a run); return the exit status."""
    if speaks:
        print(f"zofl_mpi: {problem}", file=sys.stderr, flush=True)
    return problem.status


def warn(sentence: str) -> None:
    """Prints a warning on standard error."""
    print(f"zofl_mpi: warning: {plain(sentence)}", file=sys.stderr, flush=True)


def nearest(word: str, allowed: Iterable[str], spelled: Callable[[str], str] = str) -> str:
    """`; the nearest is ...` if an allowed word is similar; `spelled`: its form on a command line."""
    import difflib  # slow import, needed for mistakes only

    near = difflib.get_close_matches(word, allowed, 1, 0.65)
    return f"; the nearest is {spelled(near[0])}" if near else ""


def check_one_of(allowed: Iterable[str], word: str, what: str, where: str = "") -> None:
    """Refuse a word that is not allowed."""
    allowed = list(allowed)
    if word not in allowed:
        raise UserError(f"{where}unknown {what} {word!r}{nearest(word, allowed)}; there are {', '.join(allowed)}")


def demand(holds: bool, flag: str, value: object, allowed: str) -> None:
    """Refuse a flag's value unless `holds`; `allowed` is the range, after "must be"."""
    if not holds:
        name = flag if flag.startswith("--") else "--" + flag.replace("_", "-")
        shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
        raise UserError(f"{name} {shown}: must be {allowed}")
