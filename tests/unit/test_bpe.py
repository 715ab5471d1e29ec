"""GPT-2's byte-pair encoding from local files: known numbers, there and back, and what can be wrong with the files."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from zofl_mpi.data import bpe, e2e
from zofl_mpi.data.bpe import Vocabulary
from zofl_mpi.errors import UserError


@pytest.fixture(scope="session")
def files(data_dir: Path) -> tuple[Path, ...]:
    pytest.importorskip("tokenizers", reason="the extra lm is not installed")
    return bpe.find(data_dir)


@pytest.fixture(scope="session")
def gpt2(files: tuple[Path, ...]) -> Vocabulary:
    return Vocabulary(files)


def test_words_have_gpt2s_numbers(gpt2: Vocabulary) -> None:
    """As published. Mutations: a space is put before a text; the end of a text is read from its letters."""
    assert (gpt2.size, gpt2.end) == (50257, 50256)
    assert gpt2.encode(["Hello world", " Hello", ""]) == [[15496, 995], [18435], []]
    assert gpt2.encode(["<|endoftext|>"]) == [[27, 91, 437, 1659, 5239, 91, 29]]


def test_a_text_comes_back(gpt2: Vocabulary, data_dir: Path) -> None:
    """Every byte of it: é and £ are two. Mutation: white space is cleaned up."""
    texts = [f" {sample.text}" for sample in e2e.read(data_dir / "e2e" / "devset.csv", "tokenised", 1)]
    assert {"é", "£"} <= set("".join(texts))
    assert [gpt2.decode(tokens) for tokens in gpt2.encode(texts)] == texts
    assert gpt2.decode([15496, bpe.END, 995, bpe.END]) == "Hello world"


def test_kept_tokens_are_numbered_anew(gpt2: Vocabulary, files: tuple[Path, ...]) -> None:
    """Mutations: decoded by GPT-2's numbers; a token that is not kept becomes its neighbour."""
    few = Vocabulary(files, np.array([995, 15496, 18435, bpe.END]))
    assert (few.size, few.end) == (4, 3)
    assert few.encode(["Hello world", " Hello world"]) == [[1, 0], [2, 0]]
    assert few.decode([1, 0, 3]) == "Hello world"
    for text in ("Hello word", "!", "Hello world wide"):
        with pytest.raises(UserError, match=f"--vocabulary e2e: it has not all tokens of '{text}'; take"):
            few.encode([text])


def test_missing_files_are_named_with_where_and_how(tmp_path: Path) -> None:
    folder = tmp_path / "gpt2-bpe"
    folder.mkdir()
    (folder / "encoder.json").write_text("{}")
    with pytest.raises(UserError) as caught:
        bpe.find(tmp_path)
    assert str(caught.value) == (
        f"--vocabulary: GPT-2's vocabulary, encoder.json and vocab.bpe, is not in {folder} or {tmp_path}; fetch it "
        f"with `python -m zofl_mpi.data.download gpt2-bpe --data-dir {tmp_path}`, or set --data-dir or ZOFL_DATA to "
        "the folder that holds it"
    )


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda json: json[:1000], r"gpt2-bpe is damaged or cut short \(.*\): delete it and fetch it with"),
        (lambda json: json.replace('"<|endoftext|>": 50256', '"<|end|>": 50256'), r"as number None, GPT-2's has 50257"),
        (lambda json: json.replace(', "<|endoftext|>": 50256', ""), r"has 50256 tokens and .*, GPT-2's has 50257"),
    ],
)
def test_other_files_are_refused(files: tuple[Path, ...], tmp_path: Path, damage, sentence: str) -> None:
    """Mutation: a vocabulary of another model is taken for GPT-2's."""
    folder = tmp_path / "gpt2-bpe"
    folder.mkdir()
    shutil.copy(files[1], folder)
    (folder / "encoder.json").write_text(damage(files[0].read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(UserError, match=sentence):
        Vocabulary(bpe.find(tmp_path)).encode(["Hello"])


def test_without_tokenizers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"texts need the package tokenizers: pip install 'zofl_mpi\[lm\]'"):
        Vocabulary((Path("encoder.json"), Path("vocab.bpe"))).encode(["Hello"])
