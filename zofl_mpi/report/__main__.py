"""Make a page about runs, or a paper's figure; runs that differ only in their seed form one group.

    zofl-report RESULT.h5 [MORE.h5 ...]              # report.html, which a browser opens from the file
    zofl-report GRID.toml --out figure.pdf           # means over seeds; figure.csv and figure.tex beside it
    zofl-report GRID.toml --out figure.pdf --x bytes --y test_loss      # against bytes; any column of the results
    zofl-report GRID.toml --out figure.pdf --control fedavg             # differences to it, seed by seed
    zofl-report GRID.toml --out figure.pdf --best validation_accuracy   # with the best of the steps that were tried
    zofl-report STUDY.toml                           # the figure and the table that [figure] and [table] describe
    zofl-report RESULT.h5 [MORE.h5 ...] --watch      # the table in the terminal, while runs go on; Ctrl-C ends it

python -m zofl_mpi.report is the same. A page shows a run that goes on, or was killed, as far as it went. A mean
over seeds leaves out such a run, and one that diverged; a line names it.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zofl_mpi.errors import UserError, check_one_of, plain, printing, refused
from zofl_mpi.paths import check_new_file, new_file, user_path
from zofl_mpi.report import groups
from zofl_mpi.report.means import AGAINST
from zofl_mpi.run import records
from zofl_mpi.run.command.flags import read_toml
from zofl_mpi.run.loop.screen import columns, fold, reflow

FIGURES = (".png", ".pdf", ".svg")
BESIDE = (".csv", ".tex")
"""Endings of the files written beside a figure."""
TABLE = ("_table.txt", "_table.csv")
"""Ends of the names of the files with a study's table."""
DESCRIBED: Mapping[str, Mapping[str, type]] = {
    "figure": {"x": str, "y": str, "control": str, "best": str, "over": list},
    "table": {"rows": list, "columns": list, "control": str},
}
"""Keys that describe a study's figure, the flags of these names, and its table; and their kinds."""


@printing
def main(words: Sequence[str] | None = None) -> None:
    """Writes the page or the figure and prints its path; exit status 2 and one sentence where it cannot."""
    flags = _parser().parse_args(words)
    try:
        flags.inputs = [user_path(path, "RESULT") for path in flags.inputs]
        described(flags)
        flags.out = user_path(flags.out, "--out")
        flags.results = user_path(flags.results, "--results") if flags.results else None
        checkpoints = {records.checkpoint_path(path) for path in flags.inputs}  # which results/*.h5 names, too
        flags.inputs = [path for path in flags.inputs if path not in checkpoints]
        if flags.watch:
            from zofl_mpi.report.watch import watch

            return watch(flags.inputs)
        for path in write(flags):
            print(path)
    except UserError as error:
        raise SystemExit(refused(error)) from error


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="zofl-report", description=reflow(__doc__ or "", columns()), formatter_class=form
    )
    parser.add_argument("inputs", type=Path, nargs="+", metavar="RESULT", help="results (.h5), or one grid (.toml)")
    told = "output file: .html, .png, .pdf or .svg (default: report.html; for a study with a figure STUDY.pdf)"
    parser.add_argument("--out", type=Path, help=told)
    parser.add_argument("--force", action="store_true", help="replace the page or figure at --out")
    parser.add_argument("--watch", action="store_true", help="print a table in the terminal, updated every 2 seconds")
    figure = parser.add_argument_group("figures")
    figure.add_argument("--x", choices=AGAINST, help="horizontal axis (default: rounds)")
    figure.add_argument("--y", metavar="COLUMN", help="column to draw (default: test_accuracy, else the loss)")
    control = "group, or axis entry, to subtract from each curve, paired by seed"
    figure.add_argument("--control", metavar="NAME", help=control)
    parts = parser.add_argument_group("grids and groups")
    parts.add_argument("--results", type=Path, metavar="DIR", help="folder of a grid's results (default: the file's)")
    parts.add_argument("--trust", action="store_true", help="import the grid's user-defined methods and problems")
    parts.add_argument("--only", action="append", default=[], metavar="AXIS=ENTRY[,ENTRY]", help="select runs")
    best = "keep the best step sizes by this column, such as validation_accuracy"
    parts.add_argument("--best", metavar="COLUMN", help=best)
    over = "axis of step sizes for --best (default: all axes that set nothing else)"
    parts.add_argument("--over", action="append", default=[], metavar="AXIS", help=over)
    return parser


def described(flags: argparse.Namespace) -> None:
    """Sets the flags that are left out to what a study's file describes (UserError: it is wrong)."""
    path, flags.table = flags.inputs[0], None
    tables = read_toml(path, "") if path.suffix == ".toml" else {}
    found = {name: tables[name] for name in DESCRIBED if name in tables}
    if flags.out is None:
        flags.out = Path(path.with_suffix(".pdf").name if found else "report.html")
    if flags.out.suffix == ".html":
        return
    for name, given in found.items():
        _check_described(f"{path}: {name}", given, DESCRIBED[name])
    for key, value in found.get("figure", {}).items():
        if not getattr(flags, key):
            setattr(flags, key, value)
    if flags.x is not None:
        check_one_of(AGAINST, flags.x, "--x")
    flags.table = found.get("table")


def _check_described(where: str, given: Any, kinds: Mapping[str, type]) -> None:
    if not isinstance(given, dict):
        raise UserError(f"{where} = {given!r}: must be a table of {', '.join(kinds)}")
    for key, value in given.items():
        check_one_of(kinds, key, "key", f"{where}: ")
        words = value if isinstance(value, list) else [value]
        if type(value) is not kinds[key] or not all(isinstance(word, str) for word in words):
            told = "a list of words" if kinds[key] is list else "a word"
            raise UserError(f"{where}: {key} = {value!r}: must be {told}")


def write(flags: argparse.Namespace) -> list[Path]:
    """Writes page or figure, tells what is left out; returns the files' paths.

    UserError: a result cannot be read, nothing can be drawn, or a file not be written.
    """
    out, is_page = flags.out, flags.out.suffix == ".html"
    if out.suffix not in (".html", *FIGURES):
        raise UserError(f"--out {out} ends in neither .html nor {', '.join(FIGURES)}; name a file that does")
    if flags.over and not flags.best:
        raise UserError(f"--over {flags.over[0]}: names axes for --best; add --best validation_accuracy")
    for flag in ("x", "y", "control"):
        if is_page and getattr(flags, flag) is not None:
            raise UserError(f"--{flag} is for a figure, a page lets its reader choose; name an --out that ends in .pdf")
    paths = [out, *(out.with_suffix(suffix) for suffix in (() if is_page else BESIDE))]
    if flags.table is not None:
        paths += [out.with_name(out.stem + end) for end in TABLE]
    for path in paths:
        check_new_file(path, "--out", flags.force, flags.inputs)
    found = read(flags, is_page)
    if flags.best:
        from zofl_mpi.report.best import best

        found = best(found, flags.best, flags.over)
    try:
        if is_page:
            from zofl_mpi.report.page import page

            with new_file(out, "--out", flags.force, found.files) as made:
                made.write_text(page(found), encoding="utf-8", errors="backslashreplace")  # lone surrogates of files
            notes = list(found.notes)
        else:
            notes = _figure(flags, found, paths)
    except (ValueError, OverflowError) as exc:  # matplotlib's, of numbers near the largest ones
        raise UserError(f"{out} cannot be drawn ({exc}); a page (.html) shows what can be") from exc
    for note in notes:
        print(fold(plain(note), columns() if sys.stderr.isatty() else None), file=sys.stderr)
    return paths


def read(flags: argparse.Namespace, is_page: bool) -> groups.Groups:
    """The groups of the grid or of the results that are named."""
    grids = [path for path in flags.inputs if path.suffix == ".toml"]
    if grids and len(flags.inputs) > 1:
        raise UserError(
            f"{grids[0]} is a grid and {len(flags.inputs)} files are given; name one grid, or results alone"
        )
    if grids:
        return groups.of_grid(grids[0], flags.results, flags.only, flags.trust)
    for flag in ("results", "only"):
        if getattr(flags, flag):
            raise UserError(f"--{flag} is for a grid; name a grid (.toml), or the results alone")
    return groups.of_results([records.load(path) for path in flags.inputs], whole=not is_page)


def _figure(flags: argparse.Namespace, found: groups.Groups, paths: Sequence[Path]) -> list[str]:
    """Writes the figure with its numbers; returns what is to be told."""
    from zofl_mpi.report import figure, means
    from zofl_mpi.report.table import table

    x = flags.x or "rounds"
    if flags.control and x != "rounds":
        raise UserError(f"--x {x}: --control compares at equal rounds; leave one of them out")
    y = means.quantity(found.groups, flags.y)
    curves, notes = means.curves(found, y, x)
    if flags.control:
        curves, without = means.differences(curves, found, flags.control)
        notes += without
    notes = [plain(note) for note in (*found.notes, *notes)]
    drawn = figure.draw(curves, y, x, flags.control)
    texts = [figure.table(curves, y, x, flags.control), figure.tabular(curves, y, x, flags.control, notes)]
    if flags.table is not None:
        *told, more = table(found, **flags.table)
        texts += told
        notes += [plain(note) for note in more if plain(note) not in notes]
    with new_file(paths[0], "--out", flags.force, found.files) as made:
        drawn.savefig(made, dpi=300)
    for path, text in zip(paths[1:], texts, strict=True):
        with new_file(path, "--out", flags.force, found.files) as made:
            made.write_text(text, encoding="utf-8", errors="backslashreplace")
    return notes


if __name__ == "__main__":
    main()
