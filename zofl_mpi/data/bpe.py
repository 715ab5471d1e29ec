"""Texts to numbers and back, by `tokenizers`: GPT-2's byte-pair encoding (BPE) from its two files, or a tokenizer.json.

A. Radford and others, Language models are unsupervised multitask learners (2019).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.data import published
from zofl_mpi.data.published import fetch_again, reading_file, remedy
from zofl_mpi.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FOLDER = "gpt2-bpe"
FILES = ("encoder.json", "vocab.bpe")
SIZE = 50_257
END = 50_256  # ends a context and a text
END_TEXT = "<|endoftext|>"


def find(data_dir: Path) -> tuple[Path, ...]:
    """Paths of the two files, both in `data_dir`/gpt2-bpe or both in `data_dir` (UserError: they are not there)."""
    what = f"GPT-2's vocabulary, {' and '.join(FILES)}, is not"
    return published.find(FOLDER, FILES, data_dir, what=what, asked="--vocabulary")


@final
@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Map between texts and the numbers of their tokens."""

    files: tuple[Path, ...]  # GPT-2's, as `find` gives them; or a tokenizer.json
    size: int = SIZE  # V, how many tokens its model knows
    end: int = END  # number of the token that ends a text
    kept: NDArray[np.int64] | None = None  # (V,) ascending, the tokens that the numbers stand for; None: themselves

    def keeping(self, kept: NDArray[np.int64]) -> Vocabulary:
        """The same of these tokens alone (V,), ascending, `end` among them."""
        return replace(self, size=len(kept), end=int(np.searchsorted(kept, self.end)), kept=kept)

    @cached_property
    def begin(self) -> list[int]:
        """The token that every text begins with, if there is one."""
        return self._tokenizer.encode("").ids[:1]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each text (UserError: a token is not among `kept`; the files are damaged)."""
        encoded = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]
        if self.kept is None:
            return encoded
        for text, ids in zip(texts, encoded, strict=True):
            if not np.isin(ids, self.kept).all():
                raise UserError(f"--vocabulary e2e: it has not all tokens of {text[:60]!r}; take --vocabulary gpt2")
        return [np.searchsorted(self.kept, ids).tolist() for ids in encoded]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of some tokens, without the tokens that end texts."""
        numbers = np.array([number for number in tokens if number != self.end], np.int64)
        known = numbers if self.kept is None else self.kept[numbers]
        return self._tokenizer.decode(known.tolist(), skip_special_tokens=False)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        try:
            from tokenizers import Tokenizer, decoders, models, pre_tokenizers
        except ImportError as exc:
            raise UserError("texts need the package tokenizers: pip install 'zofl_mpi[lm]'") from exc

        if len(self.files) == 1:
            with reading_file(self.files[0], "it must be a tokenizer.json, as transformers saves one"):
                tokenizer = Tokenizer.from_file(str(self.files[0]))
            if tokenizer.get_vocab_size() > self.size:
                many = f"{self.files[0]} has {tokenizer.get_vocab_size()} tokens, its model knows {self.size}"
                raise UserError(f"{many}: take the tokenizer.json of this model")
            tokenizer.no_truncation()
            tokenizer.no_padding()
            return tokenizer
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
