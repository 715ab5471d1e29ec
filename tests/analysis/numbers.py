"""Numbers of the pages without a query: `analysis/results/quotes/numbers.toml` has each, with its source or its reason.

A table of the file is a page, a key a source: a file of this repository, in which the number is found to its rounding
(or as a share of 1, told in %), or a reason why there is none. The values are words of the page around a number in
angle brackets, `batches of <64>`; they stand for that number wherever the page has these words.

`python -m tests.analysis.numbers` prints the words around each number that neither a query nor this file has.
"""

import re
import tomllib
from collections.abc import Iterator
from functools import cache

from tests.analysis.quotes import KEPT, QUOTES, compared, is_table, rounds_to
from tests.conftest import ROOT

TOKEN = r"(?<![\w.\-/^])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)"
NO_NUMBER = (
    r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)|\d{4}-\d\d-\d\d|arXiv:[\d.]+"  # code, addresses, days
    r"|(?i:tables?|figures?|section|algorithms?|theorem|seeds?) \d+(?:\.\d+)?(?:(?:,| to| and| or) \d+)*(?:'s)?"
)
PAGES = [str(path.relative_to(ROOT)) for path in sorted(KEPT.glob("*.md"))] + ["README.md"]
RESULTS = {"README.md": "## What we found"}
"""Of these pages one section tells results."""
LISTED: dict[str, dict[str, list[str]]] = tomllib.loads((KEPT / "quotes/numbers.toml").read_text(encoding="utf-8"))


@cache
def text_of(page: str) -> str:
    """A page."""
    return (ROOT / page).read_text(encoding="utf-8")


def found(text: str) -> list[re.Match[str]]:
    """The numbers of a text, without those in code, addresses, days and names of tables and figures."""
    hidden = re.sub(NO_NUMBER, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S | re.M)
    return list(re.finditer(TOKEN, hidden))


def queried(page: str, text: str) -> Iterator[range]:
    """Places of a page that a query compares: its words to the letter, its numbers; of a table, a line."""
    for quote in (quote for quote in QUOTES if quote.page == page):
        for place, _ in compared(quote, text):
            begin, end = place.span()
            if is_table(quote):
                yield range(begin, begin + len(quote.words))
                begin = text.rfind("\n", 0, end - 1)
            yield range(begin, end)


def places(words: str, text: str) -> Iterator[range]:
    """Places of the number in angle brackets."""
    before, number, after = re.split(r"[<>]", words)
    spaced = [re.sub(r"(\\ )+", r"\\s+", re.escape(part)) for part in (before, number, after)]
    begins = r"(?<![\w.])" if re.match(r"[\w+-]", before + number) else ""
    ends = r"(?!\w)" if re.search(r"\w$", number + after) else ""
    for match in re.finditer(rf"{begins}{spaced[0]}({spaced[1]}){spaced[2]}{ends}", text):
        yield range(*match.span(1))


def unqueried(page: str) -> list[re.Match[str]]:
    """The numbers of a page, or of its section of results, that no query compares."""
    text = text_of(page)
    begin = text.index(RESULTS[page]) if page in RESULTS else 0
    end = text.index("\n## ", begin + 1) if page in RESULTS else len(text)
    seen = {k for place in queried(page, text) for k in place}
    inside = [number for number in found(text) if begin <= number.start() < end]
    return [number for number in inside if not set(range(*number.span())) <= seen]


def listed(page: str, text: str) -> set[int]:
    """The places in a text of the numbers that the file has of this page."""
    words = [one for several in LISTED.get(page, {}).values() for one in several]
    return {k for one in words for place in places(one, text) for k in place}


def left(page: str) -> list[re.Match[str]]:
    """The numbers that neither a query nor the file has."""
    seen = listed(page, text_of(page))
    return [number for number in unqueried(page) if not set(range(*number.span())) <= seen]


@cache
def values(source: str) -> list[float]:
    """All numbers of a file, also those within names."""
    text = (ROOT / source).read_text(encoding="utf-8")
    tokens = re.findall(r"(?<![\d.])[-+]?\d[\d_]*(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?", text)
    return [float(token.replace(",", "").replace("_", "")) for token in tokens]


def is_in(number: str, source: str) -> bool:
    """Whether a file has a number, to the digits that are told, with its sign or told as a size."""
    sizes = {scale * value for value in values(source) for scale in (1, -1, 100, -100)}
    return any(rounds_to(number, value) for value in sizes)


def words_around(page: str, number: re.Match[str]) -> str:
    """Some words with a letter before a number, and one behind it, unless they are in another cell."""
    text = text_of(page)
    begin, end = number.span()
    before = re.split(r"[|\n]\s*(?=\|)|\|", text[max(0, begin - 80) : begin])[-1]
    parts = re.findall(r"\S+\s*", before)
    lead = ""
    for part in reversed(parts[1:] if len(before) >= 80 else parts):
        lead = part + lead
        if len(lead) > 40 or (len(lead) > 3 and re.search(r"[A-Za-zα-ω]", lead)):
            break
    behind = re.match(r"[^\s|\w]*(?:\s[^\s|]+)?", text[end:])
    tail = behind[0] if behind and len(behind[0]) < 25 else ""
    return re.sub(r"\s+", " ", f"{lead}<{number[0]}>{tail}".strip())


def main() -> None:
    for page in PAGES:
        for number in left(page):
            print(f"{page}: {words_around(page, number)}")


if __name__ == "__main__":
    main()
