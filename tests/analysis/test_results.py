"""The numbers that the READMEs quote are those of the tables kept in analysis/results."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from functools import cache

import pytest

from tests.analysis.quotes import FRONT, METHODS, QUOTES, RESULTS, Quote
from tests.conftest import ROOT

NUMBER = r"([-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?)"


@cache
def text_of(name: str) -> str:
    """A text on one line, without the marks of bold words."""
    return re.sub(r"\s+", " ", (ROOT / name).read_text(encoding="utf-8").replace("**", ""))


def pattern(words: str) -> str:
    """A regular expression for the words, a group for each number."""
    return NUMBER.join(re.escape(part) for part in words.split("#"))


def rounds_to(told: str, value: float) -> bool:
    """Whether a number of a text is this value, to the digits that it has; a tie may go either way."""
    quoted = Decimal(told.replace(",", ""))
    half = 10.0 ** int(quoted.as_tuple().exponent) / 2  # 0.317: 0.0005; 2e-7: 5e-8
    return abs(float(quoted) - value) <= half * (1 + 1e-9)


@pytest.mark.parametrize("quote", QUOTES, ids=[f"{q.text}: {q.words[:60]}" for q in QUOTES])
def test_a_sentence_has_the_numbers_of_its_table(quote: Quote) -> None:
    found = re.findall(pattern(quote.words), text_of(quote.text))
    assert len(found) == 1, f"{quote.text} has {len(found)} times: {quote.words}"
    told = found[0] if isinstance(found[0], tuple) else (found[0],)
    assert len(told) == len(quote.numbers)
    wrong = [(n, v) for n, v in zip(told, quote.numbers, strict=True) if not math.isnan(v) and not rounds_to(n, v)]
    assert wrong == [], "(quoted, in the table)"


@pytest.mark.parametrize("name", [FRONT, METHODS, RESULTS])
def test_every_mean_with_a_deviation_is_compared(name: str) -> None:
    """No `a ± b` stands in a text that the test above does not look at."""
    text = text_of(name)
    looked_at = [m.span() for q in QUOTES if q.text == name for m in re.finditer(pattern(q.words), text)]
    means = list(re.finditer(rf"{NUMBER} ± {NUMBER}", text))
    assert [m[0] for m in means if not any(a <= m.start() and m.end() <= b for a, b in looked_at)] == []


@pytest.mark.parametrize(
    ("told", "value", "same"),
    [
        ("0.317", 0.3174, True),
        ("0.317", 0.3176, False),
        ("91.4", 91.35, True),  # a tie
        ("91.3", 91.35, True),
        ("2e-7", 1.75e-7, True),
        ("2e-7", 1.4e-7, False),
        ("1,196.4", 1196.428, True),
        ("-0.04", 0.04, False),
        ("74", 73.4, False),
    ],
)
def test_rounding_is_by_the_digits_that_are_told(told: str, value: float, same: bool) -> None:
    assert rounds_to(told, value) == same
