"""The files that a script writes: text, CSV, LaTeX and figures. Each prints its path."""

import csv
import math
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt

from shared.wording import paragraph
from zofl_mpi.errors import UserError
from zofl_mpi.paths import new_file


def write(path: Path, text: str) -> None:
    """Writes a text file, in a folder made for it.

    Raises:
        UserError: it cannot be written.
    """
    _make_folder(path.parent)
    with new_file(path, "", force=True) as made:
        made.write_text(text, encoding="utf-8")
    print(path)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror or error}") from error


def write_csv(out: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes OUT.csv, if there are rows: numbers with all their digits, nan as nothing."""
    if not rows:
        return
    text = StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: "" if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()})
    write(out.with_name(out.name + ".csv"), text.getvalue())


def keep(figure: Any, out: Path) -> None:
    """Writes OUT.pdf and OUT.png, prints their paths and closes the figure.

    Raises:
        UserError: they cannot be written.
    """
    stem = out.name.removesuffix(".h5").removesuffix(".png").removesuffix(".pdf")
    paths = [out.with_name(stem + suffix) for suffix in (".pdf", ".png")]
    try:
        _make_folder(out.parent)
        for path in paths:
            with new_file(path, "", force=True) as made:
                figure.savefig(made, dpi="figure")
    finally:
        plt.close(figure)
    print(*paths, sep="\n")


class Report(NamedTuple):
    """What a script tells, and where it is kept.

    Attributes:
        text: printed, and written to OUT.txt with the note below it.
        rows: of OUT.csv.
        figure: of OUT.pdf and OUT.png.
        more: {ending: a text, rows or a figure} of further files; "_map" of rows is OUT_map.csv.
    """

    text: str = ""
    note: str = ""
    rows: Sequence[Mapping[str, Any]] = ()
    figure: Any = None
    more: Mapping[str, Any] = {}


def publish(out: Path, report: Report) -> None:
    """Prints a report and writes its files; what is empty is left out.

    Raises:
        UserError: a file cannot be written.
    """
    told = f"{report.text}\n\n{paragraph(report.note)}\n" if report.note else f"{report.text}\n"
    try:
        if report.text:
            print(told)
            write(out.with_name(out.name + ".txt"), told)
        for ending, what in [("", report.rows), *report.more.items(), ("", report.figure)]:
            name = out.with_name(out.name + ending)
            if isinstance(what, str):
                write(name, what)
            elif isinstance(what, Sequence):
                write_csv(name, what)
            elif what is not None:
                keep(what, name)
    finally:
        plt.close("all")
