"""Reader of a user's texts: one JSON object per line (.jsonl).

A line is `{"context": ..., "completion": ...}` or a choice, `{"context": ..., "completions": [...], "label": k}`; all
lines have equally many completions. Optional keys: `"client"`, and `"split"` (train, validation or test). Other keys
and a leading byte order mark are ignored.
"""

import codecs
import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from zofl_mpi.data import LONGEST_NAME
from zofl_mpi.data.published import reading_file
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError

SUFFIX = ".jsonl"
LONGEST = 1 << 20  # maximum bytes of a line
SPLITS = ("train", "validation", "test")
FORM = 'it must be {"context": TEXT, "completion": TEXT} or {"context": TEXT, "completions": [TEXT, ...], "label": K}'


class Text(NamedTuple):
    """A context and its completions."""

    context: str
    completions: tuple[str, ...]  # the right one first
    kind: Any  # class for partitioning: slot names of a meaning representation, or label of a choice
    client: str | None  # name of its client; None: not given
    split: str  # one of `SPLITS`; "": not given
    line: int  # last line in its file, counted from 1


def read(path: Path) -> list[Text]:
    """Reads the texts of a .jsonl file in order (UserError: the file or a line is invalid)."""
    lines = list[Text]()
    with reading_file(path, FORM), path.open("rb") as file:
        for number in count(1):
            raw = file.readline(LONGEST + 1)
            if not raw:
                break
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            if raw.strip():
                lines.append(_line(raw, f"{path}, line {number}", number))
    if not lines:
        raise UserError(f"{path} has no lines: write one text a line, {FORM}")
    for line in lines:
        if len(line.completions) != len(lines[0].completions):
            fault = f"{path}, line {line.line}: it has {len(line.completions)} completions"
            raise UserError(f"{fault}, line {lines[0].line} has {len(lines[0].completions)}: give all equally many")
        if (line.client is None) != (lines[0].client is None):
            raise UserError(f'{path}, line {line.line}: either all lines have a "client", or none')
    return lines


def with_test_part(found: Sequence[Text]) -> list[Text]:
    """Assigns a fixed random tenth of the contexts to the test part, the rest to training.

    Texts of one context stay together: a model trained on one of them knows the context.
    """
    numbers: dict[str, int] = {}
    of = [numbers.setdefault(text.context, len(numbers)) for text in found]
    tests = set(Streams(0)(Purpose.SPLIT).permutation(len(numbers))[: max(1, len(numbers) // 10)].tolist())
    return [text._replace(split="test" if k in tests else "train") for text, k in zip(found, of, strict=True)]


def _line(raw: bytes, where: str, number: int) -> Text:
    if len(raw) > LONGEST:
        raise UserError(f"{where}: it is longer than {LONGEST} bytes: shorten or remove it")
    try:
        found: Any = json.loads(raw.decode())
    except UnicodeDecodeError as exc:
        raise UserError(f"{where}: it is not UTF-8 from byte {exc.start} on: write the file in UTF-8") from exc
    except (ValueError, RecursionError) as exc:
        raise UserError(f"{where}: it is not JSON ({str(exc).partition(':')[0]}): {FORM}") from exc
    found = found if isinstance(found, dict) else {}
    several = "completions" in found
    texts = found["completions"] if several else [found.get("completion")]
    context, label, client, split = (found.get(key) for key in ("context", "label", "client", "split"))
    if not (_is_text(context) and isinstance(texts, list) and texts and all(map(_is_text, texts)) and all(texts)):
        raise UserError(f"{where}: {FORM}, without lone surrogates and empty completions")
    at = label if several else 0
    if not (type(at) is int and 0 <= at < len(texts)):
        raise UserError(f'{where}: "label" is {label!r}: must be a whole number from 0 to {len(texts) - 1}')
    if not (client is None or type(client) is int or _is_text(client)) or len(str(client)) > LONGEST_NAME:
        shown = repr(client) if len(repr(client)) < LONGEST_NAME else f"{repr(client)[:LONGEST_NAME]}..."
        fault = f'{where}: "client" is {shown}: must be a text or a whole number'
        raise UserError(f"{fault}, of at most {LONGEST_NAME} characters")
    if not (split is None or split in SPLITS):
        raise UserError(f'{where}: "split" is {split!r}: must be one of {", ".join(SPLITS)}')
    right = (texts[at], *texts[:at], *texts[at + 1 :])
    return Text(context, right, at, None if client is None else str(client), split or "", number)


def _is_text(value: Any) -> bool:
    """True for a string without lone surrogates, which JSON permits."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)
