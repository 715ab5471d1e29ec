"""Names the commit that last changed each table of analysis/results, in made.csv: `python -m tests.tools.tables`.

A row of made.csv is a table: its files by their suffixes, the script and the grids that make it. Who changes a table
commits it, and then runs this, which fills in the commit and its day; a new table needs its row first.
"""

import csv
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

KEPT = ROOT / "analysis/results"
MADE = KEPT / "made.csv"
COLUMNS = ("table", "files", "script", "grids", "commit", "day")


def rows() -> list[dict[str, str]]:
    """The rows of made.csv."""
    with MADE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def files(row: dict[str, str]) -> list[Path]:
    """The files of a table."""
    return [(KEPT / row["table"]).with_suffix(suffix) for suffix in row["files"].split()]


def git(*words: str) -> subprocess.CompletedProcess[bytes]:
    """What git says of this checkout."""
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=False)


def main() -> int:
    """Writes commits and days; 1 if a table differs from its last commit."""
    made, unknown = rows(), False
    for row in made:
        names = list(map(str, files(row)))
        if git("diff", "--quiet", "HEAD", "--", *names).returncode:
            print(f"{row['table']}: commit it first, then run this again", file=sys.stderr)
            unknown = True
            continue
        row["commit"], row["day"] = (
            git("log", "-1", "--format=%h %cs", "--abbrev=8", "--", *names).stdout.decode().split()
        )
    with MADE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(made)
    return int(unknown)


if __name__ == "__main__":
    sys.exit(main())
