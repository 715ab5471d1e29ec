"""Texts of one's own, on lines of JSON: tokens, clients, parts; choices; hostile lines; tokenizer.json."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.unit.made import complaint
from zofl_mpi.data import lines, texts
from zofl_mpi.data.bpe import Vocabulary
from zofl_mpi.engine.streams import Streams
from zofl_mpi.engine.world import SingleProcess
from zofl_mpi.settings.texts import Corpus, Texts

tokenizers = pytest.importorskip("tokenizers", reason="the extra lm is not installed")
WORDS = ["<s>", "</s>", "good", "bad", "film", "a", "very", "it", "is", ":"]
START, END = 0, 1


def tokenizer(folder: Path, words: list[str]) -> Path:
    """A tokenizer.json of these words, in a folder; each text begins with the first."""
    own = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: k for k, word in enumerate(words)}, unk_token=words[1])
    )
    own.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    own.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{words[0]} $A", special_tokens=[(words[0], START)]
    )
    own.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, int, int]:
    """A tokeniser of words that begins each text with <s>, of a model that knows two tokens more."""
    return tokenizer(tmp_path, WORDS), len(WORDS) + 2, END


def test_the_pages_conversions_give_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files as the sets are published. Mutation: labels the other way round."""
    monkeypatch.chdir(tmp_path)
    for folder in ("SST-2", "boolq"):
        Path(folder).mkdir()
    Path("SST-2/train.tsv").write_text('sentence\tlabel\na "fine film \t1\ndull \t0\n')
    asked = {"question": "is it", "title": "T", "answer": True, "passage": "It is."}
    Path("boolq/train.jsonl").write_text(json.dumps(asked) + "\n")
    row = {"instruction": "Say it.", "input": "", "output": "It."}
    Path("alpaca_data.json").write_text(json.dumps([row, row | {"output": " "}, row | {"input": "Now."}]))
    page = (ROOT / ".docs/howto/language_model.md").read_text()
    for code in re.findall(r"^```py\n(.*?)^```$", page, re.S | re.M):
        exec(code, {})
    told = [lines.read(Path(f"{name}.jsonl")) for name in ("sst2", "boolq", "alpaca")]
    assert [(own.context, own.completions[0]) for part in told for own in part] == [
        ('a "fine film It was', " great"),
        ("dull It was", " terrible"),
        ("It is. is it?", " Yes"),
        ("Say it.\nAnswer:", " It."),
        ("Say it.\nNow.\nAnswer:", " It."),
    ]


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path / "cache"))


def written(folder: Path, *rows: Any) -> Path:
    """A file of these objects; bytes as they are."""
    path = folder / "own.jsonl"
    path.write_bytes(b"\n".join(row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows))
    return path


def vocabulary(path: Path, size: int, end: int) -> Vocabulary:
    """The tokens of a tokenizer.json, of a model that knows so many."""
    return Vocabulary(size=size, end=end, own=tokenizers.Tokenizer.from_file(str(path)), name="own tokens")


def corpus(path: Path, model: Any, most: int | None = None, **flags: Any) -> Corpus:
    own = Texts(**{"data": str(path), "m": 1, "min_samples": 1, **flags})
    return own.corpus(SingleProcess(), Streams(0), most, vocabulary(*model))


def text(context: str, completion: str, **more: Any) -> dict[str, Any]:
    return {"context": context, "completion": completion, **more}


def test_a_text_is_encoded_by_the_models_own_tokeniser(tmp_path: Path, model: Any) -> None:
    """A context begins a text, a completion ends with END; others as many as there are. Mutations: an END behind the
    context; a completion that begins as a text; parts exchanged; the tokens that occur renumbered."""
    rows = [
        text("film : it", " is good"),
        text("a film", " bad", split="test"),
        text("film", " it", split="validation"),
    ]
    made = corpus(written(tmp_path, *rows), model)
    tokens, labels = texts.batch(made.federation.clients[0], np.array([0]))
    assert tokens.tolist() == [[START, 4, 9, 7, 8, 2]]
    assert labels.tolist() == [[texts.NONE] * 3 + [8, 2, END]]
    assert made.federation.validation is not None
    assert made.vocabulary.size == len(WORDS) + 2 and made.choices == 1
    held = [texts.batch(part, np.array([0]))[0].tolist() for part in (made.federation.validation, made.federation.test)]
    assert held == [[[START, 4, 7]], [[START, 5, 4, 3]]]


def test_a_tenth_of_the_contexts_tests_where_no_line_says_so(tmp_path: Path, model: Any) -> None:
    """The same ones for every seed. Mutations: by the run's seed; the first lines; a tenth of the lines."""
    path = written(tmp_path, *(text(f"film {'a ' * (k + 1)}", "very") for k in range(40)))
    own = vocabulary(*model)
    made = [Texts(data=str(path), m=2).corpus(SingleProcess(), Streams(seed), None, own) for seed in (0, 1)]
    held = [part.federation.test.rows.tolist() for part in made]
    assert held[0] == held[1] == [36, 37, 38, 39] and made[0].federation.validation is None
    lengths = texts.lengths(made[0].federation.test, np.arange(4)) - 4
    assert sorted(lengths.tolist()) != [37, 38, 39, 40] and sum(map(len, made[0].federation.clients)) == 36


@pytest.mark.parametrize("kind", ["completions", "choices"])
def test_no_test_context_is_trained_on(tmp_path: Path, model: Any, kind: str) -> None:
    """All completions of a context are on one side, wherever they stand. Mutation: a tenth of the lines."""
    often = {"completions": ["good", "bad"], "label": 0} if kind == "choices" else {"completion": "good"}
    rows = [{"context": f"film {'a ' * (1 + k % 30)}", **often} for k in range(120)]
    made = corpus(written(tmp_path, *rows), model).federation

    def contexts(data: Any) -> list[int]:
        return data.inputs[data.rows_of(np.arange(len(data))), 0].tolist()  # type: ignore[no-any-return]

    tested, trained = contexts(made.test), contexts(made.clients[0])
    assert not set(tested) & set(trained) and len(set(tested)) == 3 and len(tested) == 12 and len(trained) == 108
    assert "has no lines to train on" in complaint(corpus, written(tmp_path, *[text("film", "good")] * 20), model)


def test_a_byte_order_mark_begins_a_file(tmp_path: Path) -> None:
    """Mutation: one that is taken away from each line."""
    path = written(tmp_path, b"\xef\xbb\xbf" + json.dumps(GOOD).encode(), GOOD)
    assert len(lines.read(path)) == 2
    assert "line 2: it is not JSON" in complaint(lines.read, written(tmp_path, GOOD, b"\xef\xbb\xbf{}"))


def test_lines_name_their_clients(tmp_path: Path, model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole numbers in their order. Mutations: clients in the order of their lines, or of texts; 10 and "10" apart;
    test lines a client's; places in place of names."""
    owners = ["b", 10, "b", "10", "a", 2, 2]
    rows = [text("film", " good", client=own) for own in owners] + [text("film", "bad", client="c", split="test")]
    made = corpus(written(tmp_path, *rows), model, partition="natural")
    held = [part.rows_of(np.arange(len(part))).tolist() for part in made.federation.clients]
    assert held == [[5, 6], [1, 3], [4], [0, 2]] and ", clients crc32 " in made.federation.fingerprint
    assert not capsys.readouterr().err
    corpus(written(tmp_path, *rows), model, partition="natural", min_samples=2)
    assert (
        "--partition natural: 1 of 4 clients (a) left out, with fewer than --min-samples 2" in capsys.readouterr().err
    )
    with_m = corpus(written(tmp_path, *rows), model, m=2)
    assert len(with_m.federation.clients) == 2


def test_a_choice_has_its_completions_beside_each_other(tmp_path: Path, model: Any) -> None:
    """The right one first, without END; labels are classes, though one does not occur. Mutations: the first completion
    for the right one; a context that is lost; lengths exchanged."""
    options = [" good", " very bad", " it"]
    chosen = ((1, "train"), (0, "test"), (1, "test"))
    rows = [{"context": "film :", "completions": options, "label": k, "split": split} for k, split in chosen]
    made = corpus(written(tmp_path, *rows), model)
    assert made.choices == made.federation.test.classes == 3
    assert made.federation.clients[0].labels[made.federation.clients[0].rows_of(np.arange(1))].tolist() == [1]
    tokens, labels = texts.batch(made.federation.clients[0], np.array([0]))
    assert tokens.tolist() == [[START, 4, 9, 6]] and labels.tolist() == [[texts.NONE, texts.NONE, 6, 3]]
    every = texts.choices(made.federation.test, np.arange(2))
    found = [texts.batch(every, np.array([k]))[1][0] for k in range(6)]
    assert [own[own != texts.NONE].tolist() for own in found] == [[2], [6, 3], [7], [6, 3], [2], [7]]
    assert all(texts.batch(every, np.array([k]))[0][0][:3].tolist() == [START, 4, 9] for k in range(6))


GOOD = {"context": "film", "completion": " good"}
CHOICE = {"context": "film", "completions": [" good", " bad"], "label": 0}


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (b"\xff", "line 2: it is not UTF-8 from byte 0 on"),
        (b"{", "line 2: it is not JSON (Expecting property name enclosed in double quotes"),
        (b"[" * 100_000, "line 2: it is not JSON ("),
        (b'"' + b"x" * 10_000_000 + b'"', "line 2: it is longer than 1048576 bytes: shorten or remove it"),
        ([], 'line 2: it must be {"context": TEXT, "completion": TEXT} or'),
        ({"context": "film"}, "line 2: it must be"),
        (GOOD | {"completion": ""}, "line 2: it must be"),
        (GOOD | {"completion": 3}, "line 2: it must be"),
        (GOOD | {"context": "\ud800"}, "without lone surrogates"),
        (GOOD | {"client": 1.5}, 'line 2: "client" is 1.5: must be a text or a whole number'),
        (GOOD | {"client": "x" * 10_000}, "must be a text or a whole number, of at most 200 characters"),
        (GOOD | {"client": "a"}, 'line 2: either all lines have a "client", or none'),
        (GOOD | {"split": "dev"}, "line 2: \"split\" is 'dev': must be one of train, validation, test"),
        (CHOICE | {"label": 2}, 'line 2: "label" is 2: must be a whole number from 0 to 1'),
        (CHOICE | {"label": True}, 'line 2: "label" is True: must be'),
        (CHOICE | {"completions": []}, "line 2: it must be"),
        (CHOICE, "line 2: it has 2 completions, line 1 has 1: give all equally many"),
    ],
)
def test_a_hostile_line_is_refused_by_its_number(tmp_path: Path, row: Any, sentence: str) -> None:
    told = complaint(lines.read, written(tmp_path, GOOD, row))
    assert sentence in told and str(tmp_path) in told and "\n" not in told and len(told) < 400


def test_other_faults_are_sentences(tmp_path: Path, model: Any) -> None:
    goods, options = ([own | {"context": "film " * (1 + k % 5)} for k in range(20)] for own in (GOOD, CHOICE))
    assert "own.jsonl has no lines" in complaint(lines.read, written(tmp_path))
    assert "cannot be read (No such file" in complaint(lines.read, tmp_path / "none.jsonl")
    told = complaint(corpus, written(tmp_path, GOOD, GOOD | {"completion": " very" * 9}, *goods[:3]), model, most=6)
    assert "own.jsonl, line 2: context and text have 11 tokens, the model takes 6 at most" in told
    wrong = CHOICE | {"completions": [" good", " very" * 9], "label": 0}
    told = complaint(corpus, written(tmp_path, *options, wrong), model, most=9)
    assert "own.jsonl, line 21: context and text have 10 tokens, the model takes 9 at most" in told
    made = corpus(written(tmp_path, *options, wrong), model, most=10)
    assert texts.longest(made.federation.test) == (10, 1)
    told = complaint(corpus, written(tmp_path, GOOD | {"split": "train"}), model)
    assert 'own.jsonl has no lines to test on: give some "split": "test"' in told
    told = complaint(corpus, written(tmp_path, *goods), (model[0], 4, END))
    assert told.startswith("own tokens: 'film' in 'film ") and "has number 4, the model has 4 tokens; remove" in told
    corpus(written(tmp_path, *goods), (model[0], 5, END))  # of tokens beyond these no text has one


def test_more_tokens_than_16_bits_hold(tmp_path: Path, model: Any) -> None:
    """Mutation: uint16 for every model."""
    rows = [GOOD | {"context": "film " * (k + 1)} for k in range(20)]
    made = corpus(written(tmp_path, *rows), (model[0], 70_000, 69_999))
    assert texts.batch(made.federation.test, np.array([0]))[1].max() == 69_999
