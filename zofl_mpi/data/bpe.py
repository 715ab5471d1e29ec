"""Tokenisers, by the package `tokenizers`: GPT-2's byte-pair encoding (BPE) from its two files, or a model's own.

A. Radford and others, Language models are unsupervised multitask learners (2019).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.data import published
from zofl_mpi.data.published import fetch_again, reading_file, remedy
from zofl_mpi.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

FOLDER = "gpt2-bpe"
FILES = ("encoder.json", "vocab.bpe")
SIZE = 50_257
END = 50_256  # ends a context and a text
END_TEXT = "<|endoftext|>"
ENCODED_AT_ONCE = 1 << 12  # texts; an encoding takes much more memory than its tokens
LONGEST_REASON = 300  # characters quoted of a library's message


def find_vocabulary(data_dir: Path) -> tuple[Path, ...]:
    """Paths of GPT-2's two files, both in `data_dir`/gpt2-bpe or both in `data_dir` (UserError: not found)."""
    what = f"GPT-2's vocabulary, {' and '.join(FILES)}, is not"
    return published.find_data_set(FOLDER, FILES, data_dir, what=what, asked="--vocabulary")


@contextmanager
def in_one_sentence(fault: str) -> Iterator[None]:
    """Context manager: turns a library's exceptions into a UserError that begins with `fault`."""
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as exc:  # a Rust panic is no Exception
        reason = str(exc).strip().partition("\n")[0][:LONGEST_REASON] or type(exc).__name__
        raise UserError(f"{fault}: {reason}") from exc


@final
@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Tokeniser: map between texts and token ids."""

    files: tuple[Path, ...] = ()  # GPT-2's, as `find_vocabulary` returns them; () for a model's own tokeniser
    size: int = SIZE  # V, number of tokens of the model
    end: int = END  # id of the token that ends a text
    kept: NDArray[np.int64] | None = None  # (V,) ascending, tokeniser ids of ids 0 to V - 1; None: the same ids
    own: Tokenizer | None = None  # the model's own tokeniser
    name: str = "GPT-2's tokens"  # printed at the start of a run

    def keeping(self, kept: NDArray[np.int64]) -> Vocabulary:
        """A vocabulary of the tokens `kept` (V,) only, ascending; they must include `end`."""
        name = f"{len(kept)} of {self.name}"
        return replace(self, size=len(kept), end=int(np.searchsorted(kept, self.end)), kept=kept, name=name)

    @cached_property
    def checksum(self) -> int:
        """CRC-32 of the tokeniser's full configuration."""
        return zlib.crc32(self._tokenizer.to_str().encode())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each text, with the tokeniser's own start tokens; see `encode_pairs`."""
        return [tokens for tokens, _ in self.encode_pairs([(text, "") for text in texts])]

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        """Tokens of each context and of its completion: encodes both as one text, then splits at the context's end.

        A token across the split belongs to the completion. The tokeniser's start tokens are kept, its end tokens
        dropped.

        Raises:
            UserError: a token is not in `kept` or unknown to the model, or the files are damaged.
        """
        found = []
        for start in range(0, len(pairs), ENCODED_AT_ONCE):
            part = pairs[start : start + ENCODED_AT_ONCE]
            joined = [context + text for context, text in part]
            with in_one_sentence(f"{self.name}: the tokeniser cannot encode the texts"):
                encoded = self._tokenizer.encode_batch(joined)
            places = [len(context) for context, _ in part]
            found += [self._split(*own) for own in zip(places, joined, encoded, strict=True)]
        return found

    def _split(self, place: int, text: str, encoding: Encoding) -> tuple[list[int], list[int]]:
        """Tokens before and after character `place` of a text."""
        of_text = [k for k, source in enumerate(encoding.sequence_ids) if source is not None]
        if not of_text:
            return [], []
        first, last = of_text[0], of_text[-1] + 1
        before = takewhile(lambda ends: ends[0] < place and ends[1] <= place, encoding.offsets[first:last])
        cut, ids = first + len(list(before)), self._known(text, encoding.ids[:last])
        return ids[:cut], ids[cut:]

    def _known(self, text: str, ids: list[int]) -> list[int]:
        """The model's ids of the tokeniser's `ids`."""
        if self.kept is None:
            if max(ids) >= self.size:
                token = self._tokenizer.id_to_token(max(ids))
                fault = (
                    f"{self.name}: {token!r} in {text[:60]!r} has number {max(ids)}, the model has {self.size} tokens"
                )
                raise UserError(f"{fault}; remove it from the texts, or use this model's tokeniser")
            return ids
        if not np.isin(ids, self.kept).all():
            raise UserError(f"--vocabulary e2e: it has not all tokens of {text[:60]!r}; use --vocabulary gpt2")
        return np.searchsorted(self.kept, ids).tolist()  # type: ignore[no-any-return]

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of some token ids, without end tokens."""
        numbers = np.array([number for number in tokens if number != self.end], np.int64)
        known = numbers if self.kept is None else self.kept[numbers]
        return self._tokenizer.decode(known.tolist(), skip_special_tokens=False)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        if self.own is not None:
            return self.own
        try:
            from tokenizers import Tokenizer, decoders, models, pre_tokenizers
        except ImportError as exc:
            raise UserError("texts need the package tokenizers: pip install 'zofl_mpi[lm]'") from exc

        encoder, merges = map(str, self.files)
        with reading_file(self.files[0].parent, fetch_again(FOLDER)):
            tokenizer = Tokenizer(models.BPE.from_file(encoder, merges))
        tokens, end = tokenizer.get_vocab_size(), tokenizer.token_to_id(END_TEXT)
        if (tokens, end) != (SIZE, END):
            raise UserError(
                f"{encoder} has {tokens} tokens and {END_TEXT} as number {end}, GPT-2's has {SIZE} and {END}: "
                f"delete it and {remedy(FOLDER)}"
            )
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer
