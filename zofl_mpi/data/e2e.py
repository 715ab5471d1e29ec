"""E2E: descriptions of restaurants in words, each for a meaning representation; and two ways to write both as texts.

J. Novikova, O. Dusek, V. Rieser, The E2E dataset: new challenges for end-to-end generation (SIGDIAL 2017); v1.0.0, CSV
files with the columns mr and ref. A meaning representation (mr) is a list of slots, `name[The Mill], area[riverside]`;
a reference (ref) is one of several descriptions of it. The first is the context that a model is given, the second what
it is to write.

- `official`: both as they stand in the files, without white space around them.
- `tokenised`: as the example of the LoRA code (microsoft/LoRA, examples/NLG/data/e2e), which SplitLoRA's takes over,
  trains on them: `name : The Mill | area : riverside`, and words and punctuation marks apart, `family - friendly`.
  Training and validation part follow the rules of the Moses tokeniser, the test part those of spaCy, as that code's
  files do (see `tokenisers`): all 4,672 lines of the validation part are equal to ours. Of the test part, whose file is
  not at hand in the tests, ours has the 4,693 lines and 1,346,527 characters of the original, and its contractions.

Two of the rules for the training part rest on little: that a number keeps its full stop before a word in lower case is
seen in one line (it concerns 32 texts of the training part), and which abbreviations keep theirs in none (11 texts).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from zofl_mpi.data import tokenisers
from zofl_mpi.data.reading import reading_file
from zofl_mpi.errors import UserError

Pipeline = Literal["official", "tokenised"]
Tokeniser = Callable[[str], str]
FILES = ("trainset.csv", "devset.csv", "testset_w_refs.csv")
"""Training, validation and test part."""
TOKENISERS = (tokenisers.moses, tokenisers.moses, tokenisers.spacy)
"""Of each part, under `tokenised`."""
RULES = {"official": "", "tokenised": ", texts by Moses's rules, those of the test part by spaCy's"}
"""How the texts are written, for the record of a run."""
COLUMNS = ("mr", "ref")
SLOT = re.compile(r"\s*([^\[\],]+?)\s*\[([^\]]*)\]\s*")
RENAMED = {"eatType": "Type", "priceRange": "price", "familyFriendly": "family friendly"}
"""Names of slots in the tokenised texts; the others keep theirs."""
LINE = "{context}||{text} \n"
"""A line of the LoRA code's files."""


@final
@dataclass(frozen=True)
class Sample:
    """A context and the text to be written for it.

    Attributes:
        slots: names of the context's slots, sorted: the type of its meaning representation.
        line: where it ends in its file, counted from 1.
    """

    context: str
    text: str
    slots: tuple[str, ...]
    line: int


@final
@dataclass(frozen=True)
class Context:
    """A context with all its references, in the order of the file."""

    context: str
    references: tuple[str, ...]


def read(path: Path, pipeline: Pipeline, part: int) -> list[Sample]:
    """The samples of a CSV file, in its order.

    Args:
        part: of `FILES`, which the file is: 0 training, 1 validation, 2 test.

    Raises:
        UserError: it cannot be read, is no such file, or has a line without slots or without a text.
    """
    return list(_samples(path, TOKENISERS[part] if pipeline == "tokenised" else None))


def contexts(samples: Sequence[Sample]) -> list[Context]:
    """The contexts in the order in which they first come, each once, with the texts that belong to it."""
    texts: dict[str, list[str]] = {}
    for sample in samples:
        texts.setdefault(sample.context, []).append(sample.text)
    return [Context(context, tuple(references)) for context, references in texts.items()]


def _samples(path: Path, tokenise: Tokeniser | None) -> Iterator[Sample]:
    advice = f"it must be a CSV file (UTF-8) with the columns {' and '.join(COLUMNS)}, as E2E's are"
    with reading_file(path, advice), path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        lacking = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
        if lacking:
            found = ", ".join(reader.fieldnames or ()) or "nothing"
            raise UserError(f"{path} has no column {lacking[0]} but {found}: {advice}")
        for row in reader:
            yield _sample(row, tokenise, f"{path}, line {reader.line_num}", reader.line_num)


def _sample(row: Mapping[str, str | None], tokenise: Tokeniser | None, where: str, line: int) -> Sample:
    representation, text = ((row[column] or "").strip() for column in COLUMNS)
    slots = _slots(representation, where)
    if not text:
        raise UserError(f"{where}: the text (ref) of {representation} is empty: write one, or remove the line")
    names = tuple(sorted(name for name, _ in slots))
    if tokenise is None:
        return Sample(representation, text, names, line)
    return Sample(_tokenised_context(slots, tokenise), tokenise(text), names, line)


def _slots(representation: str, where: str) -> list[tuple[str, str]]:
    """Names and values of the slots, in their order."""
    found = [match.groups() for match in SLOT.finditer(representation)]
    rest = SLOT.sub("", representation).replace(",", "")
    if not found or rest:
        raise UserError(
            f"{where}: mr is {representation!r}, it must be a list of slots, as in name[The Mill], food[Thai]"
        )
    return [(name, value) for name, value in found]


def _tokenised_context(slots: Sequence[tuple[str, str]], tokenise: Tokeniser) -> str:
    """The context that the LoRA code's files have for slots, (name, value) each, in their order."""
    return " | ".join(f"{RENAMED.get(name, name)} : {tokenise(value)}" for name, value in slots)
