"""Encoded texts, each a context, an end, a completion and an end; their mini-batches and their division among clients.

As in the codes of LoRA and SplitLoRA: the tokens of the context and END, then those of a space and the text, and END.
The loss counts the tokens behind the context, the last END among them. Unlike theirs, a batch is as long as its longest
text.

A row of the inputs (N, 2 + L) uint16: the number of tokens of the context with its end; of all; the tokens; zeros. A
label is the type of the meaning representation, the set of its slots.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.data import Dataset, Federation, Raw, bpe, cache, e2e, partition
from zofl_mpi.data.bpe import Vocabulary
from zofl_mpi.data.cache import Sources
from zofl_mpi.data.e2e import Pipeline, Sample
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError

NONE = -100  # the label of a position that predicts nothing: of contexts and padding
HEAD = 2  # columns before the tokens
ENCODING = 2  # a new number makes all cache entries of texts anew

Rows = NDArray[np.int64]
Tokens = Literal["gpt2", "e2e"]
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


def longest(data: Dataset | Raw) -> tuple[int, int]:
    """T of the longest of all N texts, and the most labels besides NONE that a text has."""
    context, length = (np.asarray(data.inputs[:, k], np.int64) for k in range(HEAD))
    return int(length.max()) - 1, int((length - context).max())


def sources(
    data: str, files: Sequence[Path], vocabulary: Sequence[Path], pipeline: Pipeline, tokens: Tokens
) -> Sources:
    """Sources of the encoded texts for the cache: files and options.

    Args:
        data: the data set, by the name that the user gave.
        files: training, validation and test part, CSV files as E2E's.
        vocabulary: GPT-2's files, see `bpe.find`.
        tokens: all of GPT-2's, or only those that occur in the files, and END.
    """
    read = partial(encoded, tuple(files), tuple(vocabulary), pipeline, tokens)
    return cache.identify(f"{data} {pipeline} {tokens}", read, [*files, *vocabulary], {"encoding": ENCODING})


def encoded(files: Sequence[Path], vocabulary: Sequence[Path], pipeline: Pipeline, tokens: Tokens) -> Raw:
    """The texts of training, validation and test part, one after the other; see `sources` (about ten seconds)."""
    parts = [e2e.read(path, pipeline, part) for part, path in enumerate(files)]
    samples = [sample for part in parts for sample in part]
    types = {slots: k for k, slots in enumerate(sorted({sample.slots for sample in samples}))}
    labels = np.array([types[sample.slots] for sample in samples], np.int64)
    inputs = _inputs(samples, Vocabulary(tuple(vocabulary)))
    kept = np.arange(bpe.SIZE)
    if tokens == "e2e":
        is_token = np.arange(inputs.shape[1] - HEAD) < inputs[:, 1:HEAD]
        kept = np.unique(np.append(inputs[:, HEAD:][is_token], bpe.END)).astype(np.int64)
        inputs[:, HEAD:] = np.searchsorted(kept, inputs[:, HEAD:])  # of padding 0, as before
    sizes = [len(part) for part in parts]
    return Raw(inputs, labels, len(types), sizes[2], official_validation=sizes[1], tokens=kept)


def _inputs(samples: Sequence[Sample], vocabulary: Vocabulary) -> NDArray[np.uint16]:
    """(N, 2 + L) with GPT-2's own numbers."""
    contexts = list(dict.fromkeys(sample.context for sample in samples))
    heads = dict(zip(contexts, vocabulary.encode(contexts), strict=True))
    tails = vocabulary.encode([f" {sample.text}" for sample in samples])
    rows = [[*heads[sample.context], bpe.END, *tail, bpe.END] for sample, tail in zip(samples, tails, strict=True)]
    inputs = np.zeros((len(rows), HEAD + max(map(len, rows))), np.uint16)
    for row, sample, own in zip(inputs, samples, rows, strict=True):
        row[:HEAD], row[HEAD : HEAD + len(own)] = (len(heads[sample.context]) + 1, len(own)), own
    return inputs


def check_lengths(raw: Raw, most: int, files: Sequence[Path], pipeline: Pipeline) -> None:
    """Refuses texts that have more than `most` tokens without their last END; names the line of the first."""
    used = raw.inputs[:, 1].astype(np.int64) - 1
    if used.max() <= most:
        return
    row = int(np.argmax(used > most))
    starts = np.cumsum([0, *part_sizes(raw)])
    part = int(np.searchsorted(starts, row, side="right")) - 1
    line = e2e.read(files[part], pipeline, part)[row - starts[part]].line
    raise UserError(
        f"{files[part]}, line {line}: context and text have {used[row]} tokens, the model takes {most} at most: "
        "shorten or remove the line, or take a model with a longer context"
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
    return Federation(data.subset(rows[:0]), clients, test, validation=chosen if validates else None)
