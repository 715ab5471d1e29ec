"""Errors that a user can mend: one sentence, no traceback, exit status 2; and how any text reaches a screen."""

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
"""Characters of a text on its way out."""
SCRIPTS = ("zo-hfl", "fedrzo", "heron-sfl", "zofl-doctor", "zofl-grid", "zofl-report", "zofl-same")
"""The package's console scripts."""


def plain(text: object, most: int = LONGEST) -> str:
    """Text, which may come from a file, as one line that a screen, a page and UTF-8 can show.

    Escape sequences, new lines, marks that turn the direction and lone surrogates appear as Python writes them; of a
    long text the beginning and the end.
    """
    words = str(text)
    if len(words) > most:
        kept = most // 2
        words = f"{words[:kept]} [... {len(words) - 2 * kept:,} characters ...] {words[-kept:]}"
    if words.isprintable():
        return words
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)


def plain_lines(text: str) -> str:
    """`plain` of each line of a text that has several, as a traceback or a table."""
    return "\n".join(map(plain, text.split("\n")))


class UserError(Exception):
    """A clear sentence to a user: the fault, the value, the allowed range, the remedy.

    The command line prints it after ``zofl_mpi: `` on one line and exits with `status`; no traceback is shown.
    """

    status = 2

    def __init__(self, *sentences: object) -> None:
        super().__init__("\n".join(map(plain, sentences)))  # a line each


class RunFailed(UserError):
    """A run that failed in one of its rounds; the rounds before it are in its result.

    Attributes:
        round: the one that failed, counted from 1; 0: none of them, as where the result cannot be written.
        client, step, rank: where, if a client's step failed; else None.
        cause: the failure, without its place.
        kept: the rounds that are kept, and where.
        trace: a traceback as text; "" where the sentence suffices.
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
    """A message was changed in place that others read, too."""


class HiddenState(UserError):
    """A round changed what no checkpoint has, such as an attribute of the method.

    Attributes:
        random: whether it is a generator of random numbers.
    """

    def __init__(self, *sentences: object, random: bool = False) -> None:
        super().__init__(*sentences)
        self.random = random


def mistake(exc: BaseException) -> str:
    """An error in a user's own code, with file and line where it has some."""
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


def printing(main: Callable[P, R]) -> Callable[P, R]:
    """A command's main function whose standard output may be closed (status 1) or full (one sentence, status 2)."""

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
    """Prepares a command of the package for its imports, which take most of a short run; does nothing in a script.

    Ctrl-C then ends it without a traceback: Python ends the process by the signal, which a shell reports as status 130.
    Garbage is not looked for until `end_start`: imports leave none, and looking takes a tenth of their time.
    """
    names, (program, *_) = sys.orig_argv, getattr(sys, "argv", []) or [""]  # while `python -m` imports, it is "-m"
    ours = program == "-m" and any(name.partition(".")[0] in ("zofl_mpi", "-mzofl_mpi") for name in names)
    if ours or os.path.basename(program) in SCRIPTS:
        sys.excepthook = _shown_unless_interrupted
        gc.disable()


def end_start() -> None:
    """Looks for garbage again after `begin_command`, leaving out what has been imported."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _shown_unless_interrupted(
    kind: type[BaseException], exc: BaseException, trace: types.TracebackType | None, /
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, exc, trace)


def output_fails() -> bool:
    """True if what was printed cannot be written, as on a full disk."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def refused(problem: UserError, speaks: bool = True) -> int:
    """Prints the sentence on standard error, where `speaks` (one process of a run does); returns the exit status."""
    if speaks:
        print(f"zofl_mpi: {problem}", file=sys.stderr, flush=True)
    return problem.status


def warn(sentence: str) -> None:
    """Prints a warning on standard error."""
    print(f"zofl_mpi: warning: {plain(sentence)}", file=sys.stderr, flush=True)


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
