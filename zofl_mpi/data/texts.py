"""Encoded texts (contexts with completions), their mini-batches, and their partition among clients.

E2E as in the LoRA and SplitLoRA codes: context, END, a space and the text, END. The loss covers all tokens after the
context, the last END included. Unlike in those codes, a batch is as long as its longest text. Context and completion
are encoded as one text; `Vocabulary.encode_pairs` says where the context ends.

A row of the inputs (N, 2 + L), uint16 or uint32, holds the number of context tokens, the number of all tokens, and the
tokens. For each other completion of a choice its number of tokens and its tokens follow; then zeros. A label is the set
of slots of a meaning representation, or the label of a choice.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.data import Dataset, Federation, Raw, cache, e2e, lines, numbered, partition
from zofl_mpi.data.bpe import Vocabulary
from zofl_mpi.data.cache import Sources
from zofl_mpi.data.e2e import Pipeline
from zofl_mpi.data.lines import Text
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError

NONE = -100  # label of positions without loss: contexts and padding
HEAD = 2  # columns before the tokens
ENCODING = 4  # a new number invalidates all cache entries of texts

Rows = NDArray[np.int64]
Tokens = Literal["gpt2", "e2e", "model"]
Part = Literal["all", "pretrain", "finetune"]


def lengths(data: Dataset, positions: Rows) -> Rows:
    """Token counts (B,) of the samples at `positions`, both ENDs included."""
    return np.asarray(data.inputs[data.rows_of(positions), 1], np.int64)


def batch(data: Dataset, positions: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens (B, T) and labels (B, T) of the samples at `positions`, padded to the longest.

    A token's label is the next token, or NONE if that is context or padding (token 0).
    """
    stored = data.inputs[data.rows_of(positions)].astype(np.int64)
    context, length = stored[:, :1], stored[:, 1:2]
    longest = int(length.max())
    tokens, at = stored[:, HEAD : HEAD + longest], np.arange(1, longest)
    return tokens[:, :-1].copy(), np.where((at >= context) & (at < length), tokens[:, 1:], NONE)


def longest(data: Dataset | Raw) -> tuple[int, int]:
    """T of the longest of all N texts with any completion, and the largest number of trained labels of a text."""
    context, length = (np.asarray(data.inputs[:, k], np.int64) for k in range(HEAD))
    return int(_ends(data.inputs).max()) - 1, int((length - context).max())


def _ends(inputs: NDArray[Any]) -> Rows:
    """Token counts (N,) of the texts, each with its longest completion."""
    ends = np.asarray(inputs[:, 1], np.int64)
    if HEAD + ends.max() == inputs.shape[1]:  # only right completions, no others
        return ends
    return np.array([int(row[0]) + max(map(len, _completions(row))) for row in inputs], np.int64)


def _completions(row: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yields the tokens of each completion in a row, the right one first."""
    at = HEAD + int(row[1])
    yield row[HEAD + int(row[0]) : at]
    while at < len(row) and row[at]:
        start, at = at + 1, at + 1 + int(row[at])
        yield row[start:at]


def parts_of(files: Sequence[Path], pipeline: Pipeline) -> list[list[Text]]:
    """Texts of the training, validation and test part, from E2E's three CSV files or from one .jsonl file.

    Lines without "split" are training texts; if no line has it, a tenth of the contexts is the test part.
    """
    if len(files) == len(e2e.FILES):
        return [e2e.read(path, pipeline, part) for part, path in enumerate(files)]
    found = lines.read(files[0])
    if not any(text.split for text in found):
        found = lines.with_test_part(found)
    parts = [[text for text in found if (text.split or "train") == split] for split in lines.SPLITS]
    for part, name in ((0, "train"), (2, "test")):
        if not parts[part]:
            raise UserError(f'{files[0]} has no lines to {name} on: give some "split": "{name}"')
    return parts


def sources(data: str, files: Sequence[Path], vocabulary: Vocabulary, pipeline: Pipeline, tokens: Tokens) -> Sources:
    """Cache sources of the encoded texts, keyed by files and options.

    Args:
        data: the user's name for the data set.
        files: as in `parts_of`.
        tokens: gpt2 or model: all tokens; e2e: END and GPT-2's tokens that occur in the files.
    """
    read = partial(encoded, tuple(files), vocabulary, pipeline, tokens)
    numbers = {"encoding": ENCODING}
    if tokens == "model":
        numbers |= {"size": vocabulary.size, "end": vocabulary.end, "tokeniser": vocabulary.checksum}
    return cache.identify(f"{data} {pipeline} {tokens}", read, [*files, *vocabulary.files], numbers)


def encoded(files: Sequence[Path], vocabulary: Vocabulary, pipeline: Pipeline, tokens: Tokens) -> Raw:
    """Encodes the texts of training, validation and test part, concatenated (about ten seconds); see `sources`."""
    parts = parts_of(files, pipeline)
    samples = [sample for part in parts for sample in part]
    rows = _rows(samples, vocabulary, is_e2e=len(files) > 1)
    kept = np.arange(vocabulary.size)
    if tokens == "e2e":
        kept = np.unique([token for row in rows for run in row for token in run] + [vocabulary.end]).astype(np.int64)
    kinds = sorted({sample.kind for sample in samples})
    if (count := len(samples[0].completions)) > 1:  # all labels of a choice are classes, even if one never occurs
        kinds = list(range(count))
    places = {kind: k for k, kind in enumerate(kinds)}
    labels = np.array([places[sample.kind] for sample in samples], np.int64)
    clients, names = None, None
    if samples[0].client is not None:
        clients, names = numbered([str(sample.client) for sample in samples])
    held: dict[str, Any] = {"official_validation": len(parts[1]), "tokens": kept, "clients": clients, "names": names}
    return Raw(_packed(rows, kept), labels, len(kinds), len(parts[2]), **held)


def _rows(samples: Sequence[Text], vocabulary: Vocabulary, is_e2e: bool) -> list[list[list[int]]]:
    """Tokens of each text's context and of each completion, the right one first.

    E2E: END follows both, as in LoRA's code, and a space begins the text. Otherwise END follows a single completion,
    not those of a choice.
    """
    end, space = ([vocabulary.end], " ") if is_e2e else ([], "")
    pairs = {(sample.context, space + own): None for sample in samples for own in sample.completions}
    tokens, rows = dict(zip(pairs, vocabulary.encode_pairs(list(pairs)), strict=True)), []
    for sample in samples:
        last = [vocabulary.end] if len(sample.completions) == 1 else []
        context, *completions = _one_context([tokens[sample.context, space + own] for own in sample.completions])
        rows.append([context + end, *(own + last for own in completions)])
        if not all(rows[-1]):
            raise UserError(f"line {sample.line}: its context or a completion has no tokens: give each some text")
    return rows


def _one_context(split: Sequence[tuple[list[int], list[int]]]) -> list[list[int]]:
    """Context tokens common to all completions of a text, then each completion's remaining tokens."""
    contexts = [context for context, _ in split]
    count = sum(1 for _ in takewhile(lambda each: len(set(each)) == 1, zip(*contexts, strict=False)))
    return [contexts[0][:count], *(context[count:] + own for context, own in split)]


def _packed(rows: Sequence[Sequence[list[int]]], kept: NDArray[np.int64]) -> NDArray[Any]:
    """Input rows (N, 2 + L) as in the module's docstring, with tokens as indices into `kept`."""
    place = np.zeros(int(kept.max()) + 1, np.int64)
    place[kept] = np.arange(len(kept))
    packed = []
    for context, right, *others in rows:
        further = [part for own in others for part in ([len(own)], place[own])]
        packed.append(np.concatenate([[len(context), len(context) + len(right)], place[context + right], *further]))
    return _padded(packed, np.uint16 if len(kept) <= 1 << 16 else np.uint32)


def _padded(rows: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    """Rows padded with zeros to the longest (N, longest)."""
    inputs = np.zeros((len(rows), max(map(len, rows))), dtype)
    for whole, own in zip(inputs, rows, strict=True):
        whole[: len(own)] = own
    return inputs


def choices(data: Dataset, positions: Rows) -> Dataset:
    """The samples at `positions` with one row for each completion, the right one first."""
    rows = list[NDArray[Any]]()
    for row in data.inputs[data.rows_of(positions)]:
        context = row[HEAD : HEAD + int(row[0])]
        for own in _completions(row):
            rows.append(np.concatenate([[len(context), len(context) + len(own)], context, own]))
    return Dataset(_padded(rows, data.inputs.dtype), np.zeros(len(rows), np.int64), 1)


def check_lengths(raw: Raw, most: int, files: Sequence[Path], pipeline: Pipeline) -> None:
    """Raises UserError, with its line number, for the first text with more than `most` tokens before the last."""
    used = _ends(raw.inputs) - 1
    if used.max() <= most:
        return
    row, parts = int(np.argmax(used > most)), zip([*files] * 3, parts_of(files, pipeline), strict=False)
    path, line = [(path, text.line) for path, part in parts for text in part][row]
    raise UserError(
        f"{path}, line {line}: context and text have {used[row]} tokens, the model takes {most} at most: shorten or "
        "remove the line, or choose a model with a longer context"
    )


def part_rows(raw: Raw) -> list[Rows]:
    """Rows of the training, validation and test part."""
    test = len(raw.labels) - raw.official_test
    return np.split(np.arange(len(raw.labels)), [test - raw.official_validation, test])


def training_rows(raw: Raw, part: Part) -> tuple[Rows, str]:
    """Training rows of `part`, ascending, and their description; pretrain and finetune each take half the contexts."""
    rows = part_rows(raw)[0]
    if part == "all":
        return rows, f"all {len(rows)} training texts"
    numbers = context_numbers(raw, rows)
    contexts = int(numbers.max()) + 1
    taken = round(contexts / 2)
    if not 0 < taken < contexts:
        raise UserError(f"--part {part}: there must be two contexts or more to divide, not {contexts}; use --part all")
    is_pretraining = np.zeros(contexts, bool)
    # a fixed seed: runs with different seeds can start from one pretrained model
    is_pretraining[Streams(0)(Purpose.CONTEXTS).permutation(contexts)[:taken]] = True
    used = rows[is_pretraining[numbers] == (part == "pretrain")]
    count = taken if part == "pretrain" else contexts - taken
    return used, f"{part}: {len(used)} of {len(rows)} training texts, {count} of {contexts} contexts"


def context_numbers(raw: Raw, rows: Rows) -> Rows:
    """Context number (k,) of each row, numbered by first occurrence among the rows."""
    count = raw.inputs[rows, :1]
    tokens = raw.inputs[rows, HEAD : HEAD + int(count.max())]
    numbers: dict[bytes, int] = {}
    known = np.where(np.arange(tokens.shape[1]) < count, tokens, 0)
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in known], np.int64)


def shared_out(raw: Raw, rows: Rows, streams: Streams, validates: bool = True, **shares: Any) -> Federation:
    """Partitions training rows (k,), ascending, among clients; `shares` are arguments of `partition.client_rows`.

    The server has no samples. The validation part (if `validates`) and the test part are the data set's own.
    """
    data = Dataset(raw.inputs, raw.labels, raw.classes)
    clients = tuple(map(data.subset, partition.client_rows(raw, rows, streams, **shares)))
    _, chosen, test = map(data.subset, part_rows(raw))
    has = chosen if validates and len(chosen) else None
    return Federation(data.subset(rows[:0]), clients, test, validation=has, fingerprint=raw.known)
