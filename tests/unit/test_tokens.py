"""Which tokens a text has: a model's own tokeniser, and a context and its completion as one text."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.made import complaint
from zofl_mpi.data import lines, texts
from zofl_mpi.data.bpe import Vocabulary

tokenizers = pytest.importorskip("tokenizers", reason="the extra lm is not installed")
pytest.importorskip("transformers", reason="the extra lm is not installed")
from zofl_mpi.problems.lm_files import vocabulary_of  # noqa: E402  (it imports both)

WORDS = ["<unk>", "<s>", "</s>", "▁the", "▁cat", "▁", "t", "▁ca", ":", "▁runs", "r", "runs", "▁car"]
THE, CAT, COLON, RUNS, CAR, START = 3, 4, 8, 9, 12, 1


def unigram(folder: Path, template: str = "", metaspace: bool = False, **changes: Any) -> str:
    """A folder with a tokenizer.json of `WORDS` that puts a space in front of a text, as SentencePiece does."""
    own = tokenizers.Tokenizer(
        tokenizers.models.Unigram([(word, -1.0 - 0.1 * k) for k, word in enumerate(WORDS)], unk_id=0)
    )
    if metaspace:
        own.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    else:
        parts = [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
        own.normalizer = tokenizers.normalizers.Sequence(parts)
    own.add_special_tokens(["<s>", "</s>", "<pad>"])
    if template:
        special = [(word, WORDS.index(word)) for word in ("<s>", "</s>")]
        own.post_processor = tokenizers.processors.TemplateProcessing(single=template, special_tokens=special)
    written = json.loads(own.to_str()) | changes
    (folder / "tokenizer.json").write_text(json.dumps(written))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return str(folder)


def config(size: int = 20, end: Any = 2) -> Any:
    text = SimpleNamespace(vocab_size=size, eos_token_id=end)
    return SimpleNamespace(get_text_config=lambda: text)


def tokens_of(folder: str, size: int = 20, end: Any = 2) -> Vocabulary:
    found = vocabulary_of(folder, config(size, end))
    assert found is not None
    return found


@pytest.mark.parametrize("metaspace", [False, True])
def test_context_and_completion_are_one_text(metaspace: bool, tmp_path: Path) -> None:
    """A token that spans the end is the completion's. Mutations: each encoded alone, with two spaces, or as words that
    neither has; a token that begins in the context is its own."""
    own = tokens_of(unigram(tmp_path, metaspace=metaspace))
    pairs = [("the cat:", " runs"), ("the ca", "t runs"), ("", "the cat"), ("the cat", "")]
    assert own.encode_pairs(pairs) == [
        ([THE, CAT, COLON], [RUNS]),
        ([THE], [CAT, RUNS]),
        ([], [THE, CAT]),
        ([THE, CAT], []),
    ]


def test_completions_of_a_choice_have_one_context(tmp_path: Path) -> None:
    """The tokens that all have. Mutation: those of the first completion."""
    own = tokens_of(unigram(tmp_path))
    sample = lines.Text("the cat: the ca", ("t runs", "r", ": runs"), 0, None, "", 1)
    context, *completions = texts._rows([sample], own, is_e2e=False)[0]
    assert context == [THE, CAT, COLON, THE]
    assert completions == [[CAT, RUNS], [CAR], [WORDS.index("▁ca"), COLON, RUNS]]
    told = complaint(texts._rows, [sample._replace(context="", line=7)], own, is_e2e=False)
    assert told == "line 7: its context or a completion has no tokens: give each some text"


@pytest.mark.parametrize(
    ("template", "begin"), [("", []), ("$A </s>", []), ("<s> $A", [START]), ("<s> <s> $A </s>", [START, START])]
)
def test_a_text_begins_as_the_tokeniser_begins_one(template: str, begin: list[int], tmp_path: Path) -> None:
    """What it appends is no beginning. Mutations: the first token of an empty text; one of several."""
    own = tokens_of(unigram(tmp_path, template))
    assert own.encode_pairs([("the", " cat")]) == [([*begin, THE], [CAT])]
    assert own.encode(["the cat"]) == [[*begin, THE, CAT]]


def test_tokens_beyond_the_model_are_refused_where_a_text_has_them(tmp_path: Path) -> None:
    """Mutations: refused for a pad token that no text has; passed on to an embedding that is shorter."""
    own = tokens_of(unigram(tmp_path), len(WORDS))  # <pad> is one more
    assert own.encode(["the cat"]) == [[THE, CAT]]
    told = complaint(own.encode, ["the cat<pad>"])
    assert "'<pad>' in 'the cat<pad>' has number 13, the model has 13 tokens; remove it from the texts" in told


def test_the_token_that_ends_a_text(tmp_path: Path) -> None:
    """Of config.json, the first of several, else of the tokeniser, below the vocabulary. Mutation: GPT-2's tokens."""
    folder = unigram(tmp_path)
    assert [tokens_of(folder, end=end).end for end in (2, [1, 2], [99, 2])] == [2, 1, 2]
    assert "name no token that ends a text; write eos_token_id" in complaint(vocabulary_of, folder, config(end=None))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    assert [tokens_of(folder, end=end).end for end in (None, 50256, -1, True)] == [2, 2, 2, 2]


def test_vocabulary_and_merges_are_a_tokeniser(tmp_path: Path) -> None:
    """Mutation: GPT-2's own in its place."""
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert vocabulary_of(str(tmp_path), config()) is None
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    own = tokens_of(str(tmp_path), end=3)
    assert own.encode(["aba"]) == [[2, 0]] and "4 tokens of the own tokeniser of --model" in own.name


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "cannot be read: Precompiled"),
        ({"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 9}}, "cannot be read: "),
        ({"model": None}, "cannot be read: "),
    ],
)
def test_a_broken_tokeniser_is_one_sentence(changes: Any, sentence: str, tmp_path: Path) -> None:
    """Panics of Rust, which are no Exception, among them. Mutation: `except Exception`."""
    told = complaint(vocabulary_of, unigram(tmp_path, **changes), config())
    assert sentence in told and "\n" not in told


def test_a_template_without_its_tokens_is_one_sentence(tmp_path: Path) -> None:
    """A panic where texts are encoded. Mutation: only the opening is watched."""
    pieces = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    broken = {"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": {}}
    own = tokens_of(unigram(tmp_path, post_processor=broken))
    assert "the tokeniser cannot encode the texts: " in complaint(own.encode, ["the cat"])
