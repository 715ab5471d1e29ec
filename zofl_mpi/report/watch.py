"""Live table of runs in the terminal."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from zofl_mpi.report import facts
from zofl_mpi.run import records

SECONDS = 2.0
"""Between two looks at the files."""


def watch(results: Sequence[Path], console: Console | None = None) -> None:
    """Shows the table until every run has ended, or Ctrl-C (UserError: a result cannot be read)."""
    console = console or Console()
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        while True:
            runs = [records.load(path) for path in results]
            live.update(table(runs), refresh=True)
            if all(facts.state(run) != "running" for run in runs):
                break
            time.sleep(SECONDS)
    if not console.is_terminal:
        console.line()


def table(runs: Sequence[records.Run]) -> Table:
    """One column a run, which fits a narrow terminal better than one row a run."""
    names, cells = facts.table(runs)
    shown = Table("")
    for label in facts.labels(runs):
        shown.add_column(Text(label))  # no markup: it may come from a file
    for name, row in zip(names, zip(*cells, strict=True), strict=True):
        shown.add_row(name, *map(Text, row))
    return shown
