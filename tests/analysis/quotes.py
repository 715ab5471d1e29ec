"""Numbers of the pages, each by a query over the tables kept in analysis/results: `analysis/results/quotes/*.sql`.

A file begins with its page. A comment quotes the page, with # for each number; the query below it has the numbers, row
by row, without its nulls. A column k is none of them: it orders the rows, and leaves out those where it is null.
A comment without # is a claim: every number is 1. A comment that begins like the header of a table stands for that
table: the query's first column is the beginning of a line, its other columns, of all its rows, are the line's numbers.
Queries without a comment make views. half(sd, n) and half_apart(sd, other, n) are half the 95 % t intervals of a mean
of n values, and of the difference of two independent ones (pooled variance). Every CSV file of analysis/results is a
table, and every text as NAME_txt, a row for each line with at least two spaces between cells c1, c2, ...

`python -m tests.analysis.quotes` writes the numbers that differ into the pages.
"""

import csv
import math
import re
import sqlite3
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path

from tests.conftest import ROOT
from zofl_mpi.report.groups import t_half_width

KEPT = ROOT / "analysis/results"
NUMBER = r"([-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?)"


@dataclass(frozen=True)
class Quote:
    """Words of a page, and the query that has their numbers."""

    page: str
    words: str
    query: str


class Median:
    """An aggregate function of SQL."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def step(self, value: float | None) -> None:
        self.values += [] if value is None else [value]

    def finalize(self) -> float:
        return statistics.median(self.values)


def half(sd: float, n: int, freedom: int | None = None) -> float:
    """`t_half_width` as SQL takes it."""
    return float(t_half_width(sd, n, freedom))


def nth(entry: str, listed: str) -> int | None:
    """The place of an entry in a list `a | b | c`, from 1; None where it has none."""
    names = listed.split(" | ")
    return names.index(entry) + 1 if entry in names else None


def after(text: str, word: str) -> float | None:
    """The number behind a word."""
    found = re.search(re.escape(word) + NUMBER, text)
    return float(found[1]) if found else None


@cache
def tables() -> sqlite3.Connection:
    """The kept tables, and the views of all files."""
    found = sqlite3.connect(":memory:")
    found.create_function("nth", 2, nth)
    found.create_function("after", 2, after)
    found.create_function("half", 2, lambda sd, n: None if sd is None else half(sd, int(n)))
    found.create_function("half_apart", 3, lambda sd, other, n: half(math.hypot(sd, other), int(n), 2 * int(n) - 2))
    found.create_aggregate("median", 1, Median)  # type: ignore[arg-type]
    for path in KEPT.rglob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            head, *rows = csv.reader(file)
        keep(found, path.stem, head, rows)
    for path in KEPT.glob("*.txt"):
        lines = [re.split(r"\s{2,}", line.strip()) for line in path.read_text(encoding="utf-8").splitlines()]
        head = ["cells", *(f"c{k}" for k in range(1, 1 + max(map(len, lines))))]
        rows = [[str(len(line)), *line, *[""] * (len(head) - 1 - len(line))] for line in lines if len(line) > 1]
        keep(found, f"{path.stem}_txt", head, rows)
    for _, comment, query in statements():
        if not comment:
            found.execute(query)
    return found


def keep(tables: sqlite3.Connection, name: str, head: list[str], rows: list[list[str]]) -> None:
    """Makes a table: cells that are numbers are so, True and False are 1 and 0, an empty one is null."""
    columns = ", ".join(f'"{column}" real' for column in head)
    tables.execute(f"create table {name} ({columns})")
    words = {"": None, "True": 1, "False": 0}
    cells = [[words.get(cell, cell) for cell in row] for row in rows]
    tables.executemany(f"insert into {name} values ({', '.join('?' * len(head))})", cells)


def statements() -> Iterator[tuple[str, str, str]]:
    """The page, the comment and the query of each statement."""
    for path in sorted((KEPT / "quotes").glob("*.sql")):
        first, _, text = path.read_text(encoding="utf-8").partition("\n")
        for statement in re.findall(r"(?:^.*\n)*?^(?!--).*;\s*?$", text, re.MULTILINE):  # a comment may end in ;
            comments = re.findall(r"^-- (.*)$", statement, re.MULTILINE)
            query = re.sub(r"^--.*\n", "", statement.strip(), flags=re.MULTILINE).rstrip(";")
            yield first.removeprefix("-- page: "), " ".join(comments), query


QUOTES = [Quote(*each) for each in statements() if each[1]]


def rows_of(quote: Quote) -> list[list[object]]:
    """The rows of a query without column k, in its order."""
    cursor = tables().execute(quote.query)
    names = [column[0] for column in cursor.description]
    rows = cursor.fetchall()
    if "k" in names:
        at = names.index("k")
        rows = sorted((row for row in rows if row[at] is not None), key=lambda row: row[at])
        return [list(row[:at] + row[at + 1 :]) for row in rows]
    return [list(row) for row in rows]


def numbers(rows: list[list[object]]) -> list[float]:
    """All numbers row by row, also those within a text."""
    cells = [cell for row in rows for cell in row if cell is not None]
    found = [re.findall(NUMBER, cell) if isinstance(cell, str) else [cell] for cell in cells]
    return [float(number) for each in found for number in each]


def is_table(quote: Quote) -> bool:
    return quote.words.startswith("|") and "#" not in quote.words


def patterns(quote: Quote) -> list[tuple[str, list[float]]]:
    """Regular expressions with a group for each number, and the numbers: one, or one for each line of a table."""
    rows = rows_of(quote)
    if is_table(quote):
        lines: dict[str, list[float]] = {}
        for label, *cells in rows:
            lines.setdefault(str(label), []).extend(numbers([cells]))
        above, gap = re.escape(quote.words) + r".*\n(?:\|.*\n)*?\| ", r"[^\d\n]*?"
        return [
            (gap.join([above + re.escape(label) + r" \|", *[NUMBER] * len(of), r"\n"]), of)
            for label, of in lines.items()
        ]
    words = NUMBER.join(re.escape(part) for part in quote.words.split("#"))
    return [(re.sub(r"(\\ )+", r"\\s+", words), numbers(rows) if "#" in quote.words else [])]


def rounds_to(told: str, value: float) -> bool:
    """Whether a number of a text is this value, to the digits that it has; a tie may go either way."""
    quoted = Decimal(told.replace(",", ""))
    half = 10.0 ** int(quoted.as_tuple().exponent) / 2  # 0.317: 0.0005; 2e-7: 5e-8
    return abs(float(quoted) - value) <= half * (1 + 1e-9)


def spelled(told: str, value: float) -> str:
    """A value as the number `told` is written: its digits, its sign, its commas, its exponent."""
    mantissa = told.partition("e")[0]
    digits, sign, commas = len(mantissa.partition(".")[2]), "+" * told.startswith("+"), "," * ("," in told)
    return f"{value:{sign}{commas}.{digits}{'e' if 'e' in told else 'f'}}".replace("e-0", "e-")


def compared(quote: Quote, text: str) -> Iterator[tuple[re.Match[str], list[float]]]:
    """The one place of a quote in a text, or of each line of a table, with the numbers that it must have."""
    for pattern, values in patterns(quote):
        found = list(re.finditer(pattern, text))
        assert len(found) == 1, f"{quote.page} has {len(found)} times: {pattern if is_table(quote) else quote.words}"
        assert len(found[0].groups()) == len(values), f"{quote.words}: {len(values)} numbers in the tables"
        yield found[0], values


def main() -> None:
    for quote in QUOTES:
        path = ROOT / quote.page
        text = path.read_text(encoding="utf-8")
        wrong = [
            (place.span(k), spelled(place[k], value))
            for place, values in compared(quote, text)
            for k, value in enumerate(values, 1)
            if not rounds_to(place[k], value)
        ]
        for (begin, end), number in sorted(wrong, reverse=True):
            text = text[:begin] + number + text[end:]
            print(f"{Path(quote.page).name}: {number} in: {quote.words}")
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
