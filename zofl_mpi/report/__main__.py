"""A page about one run or several: what was run, curves, bytes, seconds of each rank, clients.

    zofl-report RESULT.h5 [MORE.h5 ...]              # report.html, which a browser opens from the file
    zofl-report RESULT.h5 --out figure.pdf           # a figure for a paper: .png, .pdf or .svg, of one run
    zofl-report RESULT.h5 [MORE.h5 ...] --watch      # the table in the terminal, while runs go on; Ctrl-C ends it

python -m zofl_mpi.report is the same. A result of a run that goes on, or was killed, is shown as far as it went.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from zofl_mpi.errors import UserError, printing, refused
from zofl_mpi.paths import new_file, user_path
from zofl_mpi.run import records

FIGURES = (".png", ".pdf", ".svg")


@printing
def main(words: Sequence[str] | None = None) -> None:
    """Writes the page or the figure and prints its path; exit status 2 and one sentence where it cannot."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="zofl-report", description=__doc__, formatter_class=form)
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULT", help="HDF5 results, growing ones too")
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), help="the file to write: .html, or .png, .pdf, .svg of one run"
    )
    parser.add_argument("--force", action="store_true", help="replace the page or figure at --out")
    parser.add_argument("--watch", action="store_true", help="show the table in the terminal, anew every 2 seconds")
    flags = parser.parse_args(words)
    try:
        flags.results = [user_path(path, "RESULT") for path in flags.results]
        flags.out = user_path(flags.out, "--out")
    except UserError as error:
        raise SystemExit(refused(error)) from error
    checkpoints = {records.checkpoint_path(path) for path in flags.results}  # which results/*.h5 names, too
    flags.results = [path for path in flags.results if path not in checkpoints]
    try:
        if flags.watch:
            from zofl_mpi.report.watch import watch

            return watch(flags.results)
        write(flags.results, flags.out, flags.force)
    except UserError as error:
        raise SystemExit(refused(error)) from error
    print(flags.out)


def write(results: Sequence[Path], out: Path, force: bool = False) -> None:
    """Writes the page, or the figure of one run (UserError: a result cannot be read, or the file not be written)."""
    if out.suffix not in (".html", *FIGURES):
        raise UserError(f"--out {out} ends in neither .html nor {', '.join(FIGURES)}; name a file that does")
    if out.suffix in FIGURES and len(results) > 1:
        raise UserError(f"--out {out} is a figure of one run and {len(results)} results are given; .html compares runs")
    with new_file(out, "--out", force, results) as made:
        runs = [records.load(path) for path in results]
        try:
            if out.suffix == ".html":
                from zofl_mpi.report.page import page

                made.write_text(page(runs), encoding="utf-8", errors="backslashreplace")  # lone surrogates of files
            else:
                from zofl_mpi.report.figure import draw

                draw(runs[0]).savefig(made, dpi=300)
        except (ValueError, OverflowError) as exc:  # matplotlib's, of numbers near the largest ones
            raise UserError(f"{out} cannot be drawn ({exc}); a page (.html) shows what can be") from exc


if __name__ == "__main__":
    main()
