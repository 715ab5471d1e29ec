"""Encoded texts, each a context, an end, a completion and an end; their mini-batches and their division among clients.

As in the codes of LoRA and SplitLoRA: the tokens of the context and END, then those of a space and the text, and END.
The loss counts the tokens behind the context, the last END among them. Unlike theirs, a batch is as long as its longest
text.

A row of the inputs (N, 2 + L) uint16 (uint32 for more tokens): the number of tokens of the context; of all; the tokens;
of each other completion of a choice the number of its tokens and these; zeros. A label is the type of the meaning
representation, the set of its slots, or that of a choice.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.data import Dataset, Federation, Raw, cache, e2e, lines, partition
from zofl_mpi.data.bpe import Vocabulary
from zofl_mpi.data.cache import Sources
from zofl_mpi.data.e2e import Pipeline
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError

NONE = -100  # the label of a position that predicts nothing: of contexts and padding
HEAD = 2  # columns before the tokens
ENCODING = 2  # a new number makes all cache entries of texts anew

Rows = NDArray[np.int64]
Tokens = Literal["gpt2", "e2e", "model"]
Part = Literal["all", "pretrain", "finetune"]


def lengths(data: Dataset, positions: Rows) -> Rows:
    """(B,) numbers of tokens of the samples at `positions`, with both ends."""
    return np.asarray(data.inputs[data.rows_of(positions), 1], np.int64)


def batch(data: Dataset, positions: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens (B, T) and labels (B, T) of the samples at `positions`, as long as the longest of them.

    The label of a token is the next one, NONE where that belongs to the context or to the padding (token 0).
    """
    stored = data.inputs[data.rows_of(positions)].astype(np.int64)
    context, length = stored[:, :1], stored[:, 1:2]
    longest = int(length.max())
    tokens, at = stored[:, HEAD : HEAD + longest], np.arange(1, longest)
    return tokens[:, :-1].copy(), np.where((at >= context) & (at < length), tokens[:, 1:], NONE)


def longest(data: Dataset | Raw, is_choice: bool = False) -> tuple[int, int]:
    """T of the longest of all N texts, with whichever completion, and the most labels that a text is trained on."""
    context, length = (np.asarray(data.inputs[:, k], np.int64) for k in range(HEAD))
    return int(_ends(data.inputs, is_choice).max()) - 1, int((length - context).max())


def _ends(inputs: NDArray[Any], is_choice: bool) -> Rows:
    """(N,) numbers of tokens of the texts, each with its longest completion."""
    ends = np.asarray(inputs[:, 1], np.int64)
    for k, row in enumerate(inputs if is_choice else ()):
        at, context = HEAD + int(row[1]), int(row[0])
        while at < len(row) and (size := int(row[at])):
            ends[k] = max(ends[k], context + size)
            at += 1 + size
    return ends


class Text(NamedTuple):
    """A context with its completions.

    Attributes:
        completions: the right one first.
        kind: its class among the clients: the type of its meaning representation, or the label of a choice.
        client: whose it is; None where the data do not say.
        line: where it ends in its file, counted from 1.
    """

    context: str
    completions: tuple[str, ...]
    kind: Any
    client: str | None
    line: int


def parts_of(files: Sequence[Path], pipeline: Pipeline) -> list[list[Text]]:
    """The texts of training, validation and test part, of three CSV files as E2E's or of a single file of lines.

    Lines that do not say of which part they are train; where none says it, a tenth of them, always the same, tests.
    """
    if len(files) == len(e2e.FILES):
        read = [e2e.read(path, pipeline, part) for part, path in enumerate(files)]
        return [[Text(own.context, (f" {own.text}",), own.slots, None, own.line) for own in part] for part in read]
    found = lines.read(files[0])
    splits = [line.split or "train" for line in found]
    if not any(line.split for line in found):
        for k in Streams(0)(Purpose.SPLIT).permutation(len(found))[: max(1, len(found) // 10)]:
            splits[k] = "test"
    parts: list[list[Text]] = [[], [], []]
    for line, split in zip(found, splits, strict=True):
        parts[lines.SPLITS.index(split)].append(Text(*line[:4], line.line))
    for part, name in ((0, "train"), (2, "test")):
        if not parts[part]:
            raise UserError(f'{files[0]} has no lines to {name} on: give some "split": "{name}"')
    return parts


def sources(data: str, files: Sequence[Path], vocabulary: Vocabulary, pipeline: Pipeline, tokens: Tokens) -> Sources:
    """Sources of the encoded texts for the cache: files and options.

    Args:
        data: the data set, by the name that the user gave.
        files: as in `parts_of`.
        tokens: all of GPT-2's or of the model's, or only those that occur in the files, and END.
    """
    read = partial(encoded, tuple(files), vocabulary, pipeline, tokens)
    numbers = {"encoding": ENCODING} | ({"size": vocabulary.size, "end": vocabulary.end} if tokens == "model" else {})
    return cache.identify(f"{data} {pipeline} {tokens}", read, [*files, *vocabulary.files], numbers)


def encoded(files: Sequence[Path], vocabulary: Vocabulary, pipeline: Pipeline, tokens: Tokens) -> Raw:
    """The texts of training, validation and test part, one after the other; see `sources` (about ten seconds)."""
    parts = parts_of(files, pipeline)
    samples = [sample for part in parts for sample in part]
    rows = _rows(samples, vocabulary, is_e2e=len(files) > 1)
    kept = np.arange(vocabulary.size)
    if tokens == "e2e":
        kept = np.unique([token for row in rows for run in row for token in run] + [vocabulary.end]).astype(np.int64)
    kinds = {kind: k for k, kind in enumerate(sorted({sample.kind for sample in samples}))}
    labels, classes = np.array([kinds[sample.kind] for sample in samples], np.int64), len(kinds)
    if choices := len(samples[0].completions) - 1:  # labels are these places, whether each occurs or not
        labels, classes = np.array([sample.kind for sample in samples], np.int64), choices + 1
    names = sorted({sample.client for sample in samples if sample.client is not None})
    numbers = {name: k for k, name in enumerate(names)}
    clients = np.array([numbers[sample.client] for sample in samples if sample.client is not None], np.int64)
    held: dict[str, Any] = {"official_validation": len(parts[1]), "tokens": kept, "clients": clients if names else None}
    return Raw(_packed(rows, kept), labels, classes, len(parts[2]), **held)


def _rows(samples: Sequence[Text], vocabulary: Vocabulary, is_e2e: bool) -> list[list[list[int]]]:
    """Of each text the tokens of its context and those of each completion, the right one first.

    Of E2E an END follows both, as in LoRA's code. Else a text begins as the tokeniser begins one, and an END follows a
    completion that is to be written, none one that is to be chosen.
    """
    begin, end = [] if is_e2e else vocabulary.begin, [vocabulary.end]
    contexts = list(dict.fromkeys(sample.context for sample in samples))
    heads = {
        context: [*begin, *own, *(end if is_e2e else [])]
        for context, own in zip(contexts, vocabulary.encode(contexts), strict=True)
    }
    tails, rows = iter(vocabulary.encode([text for sample in samples for text in sample.completions])), []
    for sample in samples:
        own = [next(tails) for _ in sample.completions]
        rows.append([heads[sample.context], *([*tail, *(end if len(own) == 1 else [])] for tail in own)])
        if not all(rows[-1]):
            raise UserError(f"line {sample.line}: its context or a completion has no tokens: give each some text")
    return rows


def _packed(rows: Sequence[Sequence[list[int]]], kept: NDArray[np.int64]) -> NDArray[Any]:
    """(N, 2 + L) the rows as this module describes them, tokens by their place among `kept`."""
    place = np.zeros(int(kept.max()) + 1, np.int64)
    place[kept] = np.arange(len(kept))
    flat = [[*row[0], *row[1], *(n for own in row[2:] for n in (-len(own), *own))] for row in rows]
    kind = np.uint16 if len(kept) <= 1 << 16 else np.uint32
    inputs = np.zeros((len(rows), HEAD + max(map(len, flat))), kind)
    for row, own, runs in zip(inputs, flat, rows, strict=True):
        numbers = np.array(own)
        row[:HEAD] = len(runs[0]), len(runs[0]) + len(runs[1])
        row[HEAD : HEAD + len(own)] = np.where(numbers < 0, -numbers, place[np.maximum(numbers, 0)])
    return inputs


def choices(data: Dataset, positions: Rows, number: int) -> Dataset:
    """The samples at `positions`, each of its `number` completions in a row of its own, the right one first."""
    rows = list[NDArray[Any]]()
    for row in data.inputs[data.rows_of(positions)]:
        context, at = int(row[0]), HEAD + int(row[1])
        rows.append(row[:at])
        for _ in range(number - 1):
            size = int(row[at])
            head = np.array([context, context + size], row.dtype)
            rows.append(np.concatenate([head, row[HEAD : HEAD + context], row[at + 1 : at + 1 + size]]))
            at += 1 + size
    inputs = np.zeros((len(rows), max(map(len, rows))), data.inputs.dtype)
    for whole, own in zip(inputs, rows, strict=True):
        whole[: len(own)] = own
    return Dataset(inputs, np.zeros(len(rows), np.int64), 1)


def check_lengths(raw: Raw, most: int, files: Sequence[Path], pipeline: Pipeline) -> None:
    """Refuses texts that have more than `most` tokens without their last one; names the line of the first."""
    used = _ends(raw.inputs, len(files) == 1) - 1
    if used.max() <= most:
        return
    row = int(np.argmax(used > most))
    starts = np.cumsum([0, *part_sizes(raw)])
    part = int(np.searchsorted(starts, row, side="right")) - 1
    line = parts_of(files, pipeline)[part][row - starts[part]].line
    raise UserError(
        f"{files[min(part, len(files) - 1)]}, line {line}: context and text have {used[row]} tokens, the model takes "
        f"{most} at most: shorten or remove the line, or take a model with a longer context"
    )


def part_sizes(raw: Raw) -> tuple[int, int, int]:
    """Numbers of samples of the training, validation and test part."""
    held = raw.official_validation, raw.official_test
    return len(raw.labels) - sum(held), *held


def training_rows(raw: Raw, part: Part) -> tuple[Rows, str]:
    """Rows, ascending, of all contexts, or of the half to pretrain or to fine-tune on; and their description."""
    rows = np.arange(part_sizes(raw)[0])
    if part == "all":
        return rows, f"all {len(rows)} training texts"
    numbers = context_numbers(raw, rows)
    contexts = int(numbers.max()) + 1
    taken = round(contexts / 2)
    if not 0 < taken < contexts:
        raise UserError(f"--part {part}: there must be two contexts or more to divide, not {contexts}; take --part all")
    is_pretraining = np.zeros(contexts, bool)
    # by a seed of their own: runs with several seeds can begin from one model
    is_pretraining[Streams(0)(Purpose.CONTEXTS).permutation(contexts)[:taken]] = True
    used = rows[is_pretraining[numbers] == (part == "pretrain")]
    count = taken if part == "pretrain" else contexts - taken
    return used, f"{part}: {len(used)} of {len(rows)} training texts, {count} of {contexts} contexts"


def context_numbers(raw: Raw, rows: Rows) -> Rows:
    """(k,) number of each row's context; contexts are numbered as they first occur among the rows."""
    count = raw.inputs[rows, :1]
    tokens = raw.inputs[rows, HEAD : HEAD + int(count.max())]
    numbers: dict[bytes, int] = {}
    known = np.where(np.arange(tokens.shape[1]) < count, tokens, 0)
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in known], np.int64)


def shared_out(
    raw: Raw,
    rows: Rows,
    streams: Streams,
    *,
    m: int,
    alpha: float,
    by: str = "by_class",
    min_samples: int = 10,
    validates: bool = True,
) -> Federation:
    """Divides training rows among m clients; the server has none. Validation and test part are the data set's own.

    Args:
        rows: the training rows, ascending.
        alpha, by, min_samples: as in `partition.split`; a class is a type of meaning representation.
        validates: whether there is a validation part.
    """
    shares = partition.shares(raw, rows, streams, m=m, alpha=alpha, partition=by, min_samples=min_samples)
    data = Dataset(raw.inputs, raw.labels, raw.classes)
    train, validation, _ = part_sizes(raw)
    held = np.split(np.arange(train, len(raw.labels)), [validation])
    chosen, test = map(data.subset, held)
    clients = tuple(map(data.subset, shares))
    whose = "" if raw.clients is None else f"clients crc32 {crc32(raw.clients.tobytes()):08x}"
    has = chosen if validates and validation else None
    return Federation(data.subset(rows[:0]), clients, test, validation=has, whose=whose)
