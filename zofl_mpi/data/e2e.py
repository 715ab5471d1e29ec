"""Reader of E2E (restaurant descriptions for meaning representations), with two text pipelines.

J. Novikova, O. Dusek, V. Rieser, The E2E dataset: new challenges for end-to-end generation (SIGDIAL 2017); v1.0.0, CSV
files with the columns mr and ref. A meaning representation (mr) is the model's context, a list of slots:
`name[The Mill], area[riverside]`. A reference (ref) is one of several descriptions of it.

- `official`: both as in the files, stripped of surrounding white space.
- `tokenised`: as in the LoRA code's example (microsoft/LoRA, examples/NLG/data/e2e): `name : The Mill | area :
  riverside`, punctuation separated, `family - friendly`; see `tokenisers`. All 4,672 lines of its validation part equal
  ours; our test part matches its 4,693 lines, 1,346,527 characters and contractions. Two rules for the training part
  rest on few texts: numbers that keep their full stop (32), and abbreviations (11).
"""

import csv
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from zofl_mpi.data import tokenisers
from zofl_mpi.data.lines import SPLITS, Text
from zofl_mpi.data.published import reading_file
from zofl_mpi.errors import UserError

Pipeline = Literal["official", "tokenised"]
FILES = ("trainset.csv", "devset.csv", "testset_w_refs.csv")  # training, validation and test part
TOKENISERS = (tokenisers.moses, tokenisers.moses, tokenisers.spacy)  # of each part, under `tokenised`
RULES = {"official": "", "tokenised": ", texts by Moses's rules, those of the test part by spaCy's"}
"""Description of each pipeline in a run's record."""
E2E_COLUMNS = ("mr", "ref")
SLOT = re.compile(r"\s*([^\[\],]+?)\s*\[([^\]]*)\]\s*")
RENAMED = {"eatType": "Type", "priceRange": "price", "familyFriendly": "family friendly"}
"""Slot names that differ in the tokenised texts."""


def read(path: Path, pipeline: Pipeline, part: int) -> list[Text]:
    """Reads the texts of a CSV file in order; `part` is its index in `FILES`.

    Raises:
        UserError: the file cannot be read, is no E2E file, or a line lacks slots or text.
    """
    advice = f"it must be a CSV file (UTF-8) with the columns {' and '.join(E2E_COLUMNS)}, as E2E's are"
    with reading_file(path, advice), path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        lacking = [column for column in E2E_COLUMNS if column not in (reader.fieldnames or ())]
        if lacking:
            found = ", ".join(reader.fieldnames or ()) or "nothing"
            raise UserError(f"{path} has no column {lacking[0]} but {found}: {advice}")
        return [_text(row, pipeline, part, path, reader.line_num) for row in reader]


def contexts(samples: Iterable[Text]) -> dict[str, list[str]]:
    """References of each context, both in file order."""
    references: dict[str, list[str]] = {}
    for sample in samples:
        references.setdefault(sample.context, []).extend(sample.completions)
    return references


def _text(row: Mapping[str, str | None], pipeline: Pipeline, part: int, path: Path, line: int) -> Text:
    context, text = ((row[column] or "").strip() for column in E2E_COLUMNS)
    slots: list[tuple[str, str]] = SLOT.findall(context)
    if not slots or SLOT.sub("", context).replace(",", ""):
        fault = f"{path}, line {line}: mr is {context!r}"
        raise UserError(f"{fault}, it must be a list of slots, as in name[The Mill], food[Thai]")
    if not text:
        raise UserError(f"{path}, line {line}: the text (ref) of {context} is empty: write one, or remove the line")
    if pipeline == "tokenised":
        tokenise = TOKENISERS[part]
        context = " | ".join(f"{RENAMED.get(name, name)} : {tokenise(value)}" for name, value in slots)
        text = tokenise(text)
    return Text(context, (text,), tuple(sorted(name for name, _ in slots)), None, SPLITS[part], line)
