"""Lines that fit the terminal in which a person reads them; files, pipes and logs get each line whole."""

import os
import re
import shutil
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress

from zofl_mpi.run.loop.progress import screen

COMMAND = re.compile(r"(?:^|(?<=  )|(?<=: ))(?:python -m|mpirun|mpiexec|srun|sbatch) \S+(?: \S+)*$")
"""A command to paste: a line, its last column, or what follows its last colon."""
INDENT = 4
"""Columns before the later rows of a line without a label."""


def show(text: str) -> None:
    """Prints lines on standard output, folded at the edge of the terminal if there is one."""
    print(fold(text, columns()), flush=True)


def columns() -> int | None:
    """Columns of the terminal that a person looks at; None if the output goes elsewhere."""
    looked_at, terminal = screen()
    if not looked_at:
        return None
    if terminal is None:
        return shutil.get_terminal_size().columns
    with suppress(OSError), open(terminal, "w") as file:
        return os.get_terminal_size(file.fileno()).columns or None
    return None


def fold(text: str, width: int | None) -> str:
    """The lines in rows of at most `width` columns (None: as they are); a longer word stays whole.

    Later rows stand under what follows a line's label, or a little to the right if the label is long. A command is
    broken by backslashes, so that it can be pasted; one with quotes stays whole.
    """
    return text if width is None else "\n".join(_folded(line, width) for line in text.split("\n"))


def reflow(text: str, width: int | None) -> str:
    """The text with its paragraphs filled anew to `width` columns (None: as it is); indented lines are folded."""
    if width is None:
        return text
    rows = list[str]()
    for line in text.split("\n"):
        if line[:1].strip() and rows and rows[-1][:1].strip():
            rows[-1] += f" {line}"
        else:
            rows.append(line)
    filled = (
        textwrap.fill(row, width, break_on_hyphens=False) if row[:1].strip() else fold(row, width) for row in rows
    )
    return "\n".join(filled)


def _folded(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    if found := COMMAND.search(line):
        before = line[: found.start()]
        if not before.strip():
            return _broken(found[0], width, before)
        return f"{_folded(before.rstrip(), width)}\n{_broken(found[0], width)}"
    label = re.match(r" *(?:\S+(?: \S+)* {2,})?", line)
    start = len(label[0]) if label else 0
    if start > width // 2 and (name := line[:start].strip()):  # no room beside the label
        rest = " " * INDENT + line[start:]
        return f"{name}\n{_folded(rest, width)}"
    indent = " " * min(start or INDENT, width // 2)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _broken(command: str, width: int, lead: str = "") -> str:
    if re.search(r"['\"\\]", command):  # a quoted word may contain the space at which it would be broken
        return lead + command
    room, later = width - len(" \\"), lead + " " * INDENT
    rows = textwrap.wrap(
        command, room, initial_indent=lead, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
    return " \\\n".join(rows)


def aligned(cells: Sequence[Sequence[str]], width: int | None, justify: Callable[[str, int], str] = str.ljust) -> str:
    """A table as text, its first row the titles; a line `title value, title value` for each row if it is too wide."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(justify, row, widths)).rstrip() for row in cells]
    if width is None or max(map(len, lines)) <= width:
        return "\n".join(lines)
    titles, *rows = cells
    known = ([f"{title} {value}" for title, value in zip(titles, row, strict=True) if value != "-"] for row in rows)
    return "\n".join(map(", ".join, known))
