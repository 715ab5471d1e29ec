"""Each number of the pages of results is compared with a table, found in a file that is named, or has its reason."""

import re

import pytest

from tests.analysis import numbers
from tests.analysis.numbers import LISTED, PAGES, is_in, left, listed, places, text_of, unqueried, words_around
from tests.conftest import ROOT

ENTRIES = [
    (page, source, words)
    for page, sources in LISTED.items()
    for source, several in sources.items()
    for words in several
]


@pytest.mark.parametrize("page", PAGES)
def test_no_number_is_without_a_source(page: str) -> None:
    """Mutations: a digit of a page; a new sentence with a number."""
    assert [words_around(page, number) for number in left(page)] == []


def test_the_listed_words_are_on_their_pages() -> None:
    """Mutation: a sentence that is gone."""
    assert [words for page, _, words in ENTRIES if not any(places(words, text_of(page)))] == []
    assert len(set(ENTRIES)) == len(ENTRIES) and set(LISTED) <= set(PAGES)


def test_the_listed_numbers_are_in_the_files_that_are_named() -> None:
    """Mutations: a grid's setting that changed; a number of a table that was made again."""
    of_files = [(source, re.findall("<(.*)>", words)[0]) for _, source, words in ENTRIES if (ROOT / source).is_file()]
    assert [(source, number) for source, number in of_files if not is_in(number, source)] == []
    assert len(of_files) > 150
    reasons = {source for _, source, _ in ENTRIES} - {source for source, _ in of_files}
    assert len(reasons) < 15 and not any(re.fullmatch(r"\S+/\S+", reason) for reason in reasons), "a file that is gone"


@pytest.mark.parametrize("page", PAGES)
def test_a_changed_digit_of_a_listed_number_is_seen(page: str) -> None:
    """Each number with its last digit raised, among the words around it, is no longer one of the list."""
    text, unseen = text_of(page), []
    for number in unqueried(page):
        begin, end = number.span()
        first = max(0, begin - 120)
        changed = text[first : end - 1] + str((int(text[end - 1]) + 1) % 10) + text[end : end + 60]
        if set(range(begin - first, end - first)) <= listed(page, changed):
            unseen.append(words_around(page, number))
    assert unseen == []


@pytest.mark.parametrize(
    ("number", "there"), [("0.317", True), ("31.7", True), ("1.2", True), ("0.318", False), ("12", True)]
)
def test_a_number_is_found_to_its_rounding(number: str, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as a share told in %, and without its sign. Mutation: a number that is merely near."""
    monkeypatch.setattr(numbers, "values", lambda source: [0.31738, -1.1999, 0.12])
    assert is_in(number, "a file") is there
