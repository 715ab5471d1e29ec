"""The files that a script writes: text, CSV, LaTeX and figures. Each prints its path."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

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
    """Writes OUT.csv: numbers with all their digits, nan as nothing."""
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
                figure.savefig(made, dpi=200)
    finally:
        plt.close(figure)
    print(*paths, sep="\n")


def publish(out: Path, text: str, note: str = "", rows: Sequence[Mapping[str, Any]] = (), figure: Any = None) -> None:
    """Prints a text and below it a note, writes both to OUT.txt, and where they are given OUT.csv and the figure.

    Raises:
        UserError: a file cannot be written.
    """
    told = f"{text}\n\n{paragraph(note)}\n" if note else f"{text}\n"
    try:
        print(told)
        write(out.with_name(out.name + ".txt"), told)
        if rows:
            write_csv(out, rows)
        if figure is not None:
            keep(figure, out)
    finally:
        if figure is not None:
            plt.close(figure)
