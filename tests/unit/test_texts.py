"""Encoded texts: batches of differing length, who holds which, and the flags that say so."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.prompts import prompts

from tests.threads import run_ranks
from tests.unit.made import complaint
from zofl_mpi.data import Dataset, Raw, bpe, texts
from zofl_mpi.data.texts import NONE, training_rows
from zofl_mpi.engine.streams import Streams
from zofl_mpi.engine.world import SingleProcess, World
from zofl_mpi.errors import UserError
from zofl_mpi.run.command.flags import flags_of
from zofl_mpi.settings.texts import Corpus, Texts

END = 9
THREE = (([1, 2], [3]), ([4], [5, 6, 0, 8]), ([0], [7]))
"""Contexts and texts of tokens below END; a token 0 is no padding."""


def rows(samples: Sequence[tuple[Sequence[int], Sequence[int]]]) -> np.ndarray[Any, Any]:
    """As the inputs of a data set store them."""
    whole = [[*context, END, *text, END] for context, text in samples]
    longest = max(map(len, whole))
    stored = [
        [len(context) + 1, len(own), *own, *[0] * (longest - len(own))]
        for (context, _), own in zip(samples, whole, strict=True)
    ]
    return np.array(stored, np.uint16)


DATA = Dataset(rows(THREE), np.zeros(3, np.int64), 1)


def test_labels_are_the_text_and_its_end_and_nothing_else() -> None:
    """Nor padding. Mutations: labels not shifted by one; the context's end or a token of it is a target; the text's end
    is none; labels up to the end of the batch: a row of zeros behind a text would be learnt; a view of the file."""
    tokens, labels = texts.batch(DATA, np.array([0, 1, 0]))
    assert (tokens.dtype, labels.dtype) == (np.int64, np.int64)
    assert tokens.tolist() == [[1, 2, END, 3, END, 0], [4, END, 5, 6, 0, 8], [1, 2, END, 3, END, 0]]
    assert labels.tolist() == [[NONE, NONE, 3, END, NONE, NONE], [NONE, 5, 6, 0, 8, END], labels[0].tolist()]
    tokens[:] = labels[:] = 1  # torch asks for what it may write to
    assert (DATA.inputs == rows(THREE)).all()


def test_a_batch_is_as_long_as_its_longest_text() -> None:
    """Of the batch, not of the data set. Mutations: the stored width; positions of the whole data set."""
    assert texts.batch(DATA, np.array([0, 2]))[0].shape == (2, 4)
    assert texts.batch(DATA, np.array([2]))[0].tolist() == [[0, END, 7]]
    assert texts.lengths(DATA, np.array([2, 1, 0])).tolist() == [4, 7, 5]
    assert texts.longest(DATA) == (6, 5)
    part = DATA.subset(np.array([2, 0]))
    assert texts.lengths(part, np.array([1, 0])).tolist() == [5, 4]
    assert texts.batch(part, np.array([1]))[0].tolist() == [[1, 2, END, 3]]


def many(contexts: int, each: int) -> Raw:
    """Training texts whose contexts come mixed, half of them a start of another; one validation and two test texts."""
    chance = Streams(3)(1)
    drawn = chance.permutation(np.repeat(np.arange(contexts), each))
    samples = [([1 + k // 2, 2][: 1 + k % 2], [3, *[4] * int(chance.integers(4))]) for k in drawn]
    held = [([8], [5]), ([8, 8], [5]), ([8], [6])]
    labels = np.append(drawn % 3, [0, 1, 2])
    return Raw(rows([*samples, *held]), labels, 3, 2, official_validation=1)


def contexts_of(raw: Raw, used: np.ndarray[Any, Any]) -> set[tuple[int, ...]]:
    return {tuple(row[2 : 2 + row[0]].tolist()) for row in raw.inputs[used]}


def test_pretraining_and_fine_tuning_have_no_context_in_common() -> None:
    """And leave none out. Mutations: rows drawn, not contexts; a context taken for another that begins alike; the two
    parts drawn apart; validation or test rows among them."""
    raw = many(12, 5)
    (pretrain, told), (finetune, rest) = (training_rows(raw, part) for part in ("pretrain", "finetune"))
    assert contexts_of(raw, pretrain) & contexts_of(raw, finetune) == set()
    assert sorted([*pretrain, *finetune]) == list(range(60))
    assert (np.diff(pretrain) > 0).all() and (np.diff(finetune) > 0).all()
    assert told == "pretrain: 30 of 60 training texts, 6 of 12 contexts"
    assert rest == "finetune: 30 of 60 training texts, 6 of 12 contexts"
    whole, all_of_them = training_rows(raw, "all")
    assert (whole.tolist(), all_of_them) == (list(range(60)), "all 60 training texts")
    drawn = [training_rows(raw, "pretrain")[0] for _ in range(2)]
    assert drawn[0].tolist() == drawn[1].tolist() != list(range(30)), "in the same way each time"
    with pytest.raises(UserError, match=r"^--part finetune: there must be two contexts or more to divide, not 1; "):
        training_rows(many(1, 5), "finetune")


def test_contexts_are_numbered_as_they_come() -> None:
    """So both pipelines divide them alike, whatever their tokens are. Mutation: in the order of their tokens."""
    samples = [([7], [1]), ([5, 5], [1]), ([7], [2]), ([5], [1]), ([5, 5], [3])]
    raw = Raw(rows(samples), np.zeros(5, np.int64), 1)
    assert texts.context_numbers(raw, np.arange(5)).tolist() == [0, 1, 0, 2, 1]
    assert texts.context_numbers(raw, np.array([3, 4])).tolist() == [0, 1]


def test_the_parts_are_those_of_the_data_set() -> None:
    """Mutations: validation and test swapped; clients that hold held-out rows; a server with texts."""
    raw = many(12, 5)
    parts = texts.shared_out(raw, np.arange(60), Streams(0), m=3, alpha=math.inf)
    assert parts.validation is not None and parts.test.rows is not None
    assert (parts.validation.rows.tolist(), parts.test.rows.tolist(), len(parts.server)) == ([60], [61, 62], 0)  # type: ignore[union-attr]
    assert sorted(np.concatenate([part.rows for part in parts.clients])) == list(range(60))
    assert texts.shared_out(raw, np.arange(60), Streams(0), m=3, alpha=math.inf, validates=False).validation is None
    even, uneven = (  # in their types
        texts.shared_out(many(60, 5), np.arange(300), Streams(0), m=3, alpha=alpha, min_samples=1).counts
        for alpha in (math.inf, 0.05)
    )
    assert even.sum() == uneven.sum() == 300
    spread = [np.abs(counts / counts.sum(axis=0) - 1 / 3).max() for counts in (even, uneven)]
    assert spread[0] < 0.2 < 0.6 < spread[1]


@pytest.fixture
def home(data_dir: Path) -> Path:
    pytest.importorskip("tokenizers", reason="the extra lm is not installed")
    bpe.find_vocabulary(data_dir)
    return data_dir


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six training texts for three contexts, one validation text, two test texts."""
    own = tmp_path / "own"
    own.mkdir()
    train = [
        'name[A],"It\'s A,\r\nyes."',
        "name[B],B is cheap.",
        "name[A],A it is.",
        '"name[A], food[Thai]",A is Thai.',
    ]
    lines = {"trainset.csv": [*train, "name[B],B it is.", "name[A],Aha."], "devset.csv": ["name[C],C it is."]}
    place = '"name[D], area[riverside]",'
    lines["testset_w_refs.csv"] = [place + "D is a place by the river.", place + "D it is."]
    for file, rows in lines.items():
        (own / file).write_bytes("\n".join(["mr,ref", *rows, ""]).encode())
    return own


def corpus(folder: Path, home: Path, world: World | None = None, most: int | None = None, **flags: Any) -> Corpus:
    flags = {"data": str(folder), "data_dir": str(home), "m": 1, "min_samples": 1, **flags}
    return Texts(**flags).corpus(world or SingleProcess(), Streams(0), most)


def test_a_text_is_encoded_with_both_ends(folder: Path, home: Path) -> None:
    """Mutations: no space before the text; no end behind the context or the text; contexts and texts mixed up."""
    made = corpus(folder, home)
    tokens, labels = texts.batch(made.federation.clients[0], np.array([1]))
    gpt2 = made.vocabulary
    context, text = gpt2.encode(["name : B", " B is cheap ."])
    assert tokens.tolist() == [[*context, 50256, *text]]
    assert labels.tolist() == [[NONE] * len(context) + text + [50256]]
    assert made.federation.counts.tolist() == [[0, 1, 5]]  # area and name, food and name, name
    official = corpus(folder, home, text="official").federation.test
    written = gpt2.decode(texts.batch(official, np.array([0]))[0][0])
    assert written == "name[D], area[riverside] D is a place by the river."


@pytest.mark.parametrize("text", ["official", "tokenised"])
def test_each_part_follows_its_own_rules(folder: Path, home: Path, text: str) -> None:
    """One text in all three files. Mutations: one tokeniser for all parts; two exchanged; a record without it."""
    for file in ("trainset.csv", "devset.csv", "testset_w_refs.csv"):
        (folder / file).write_text("mr,ref\nname[A],It isn't 5-star.\n")
    made = corpus(folder, home, text=text)
    assert made.federation.validation is not None
    texts_of = [
        made.vocabulary.decode(labels[labels != NONE])
        for part in (made.federation.clients[0], made.federation.validation, made.federation.test)
        for labels in [texts.batch(part, np.array([0]))[1]]
    ]
    moses, spacy = " It isn 't 5 - star .", " It is n't 5-star ."
    assert texts_of == ([moses, moses, spacy] if text == "tokenised" else [" It isn't 5-star."] * 3)
    found = prompts(made, "validation") + prompts(made, "test")
    assert [prompt.references for prompt in found] == [(own[1:],) for own in texts_of[1:]]
    told = ", texts by Moses's rules, those of the test part by spaCy's" if text == "tokenised" else ""
    assert made.division == "all 1 training texts" + told


def test_a_small_vocabulary_says_the_same(folder: Path, home: Path) -> None:
    """Mutations: padding among the tokens that occur; those of the test part left out; END not the last."""
    whole, small = (corpus(folder, home, vocabulary=tokens) for tokens in ("gpt2", "e2e"))
    assert 20 < small.vocabulary.size < 60
    assert small.vocabulary.kept is not None and 0 not in small.vocabulary.kept  # "!", which no text has
    for parts in zip(*((made.federation.test, made.federation.clients[0]) for made in (whole, small)), strict=True):
        batches = [texts.batch(part, np.arange(len(part))) for part in parts]
        assert (batches[0][1] == NONE).tolist() == (batches[1][1] == NONE).tolist()
        for mine, own in zip(*(labels for _, labels in batches), strict=True):
            assert whole.vocabulary.decode(mine[mine != NONE]) == small.vocabulary.decode(own[own != NONE])
    largest = max(int(texts.batch(part, np.arange(len(part)))[0].max()) for part in small.federation.clients)
    assert largest == small.vocabulary.end == small.vocabulary.size - 1
    assert prompts(small)[0].tokens[-1] == small.vocabulary.end


def test_prompts_have_all_their_references(folder: Path, home: Path) -> None:
    """Mutations: of the other part; with the text; without the context's end; as the files write them."""
    made = corpus(folder, home)
    (prompt,) = prompts(made, "test")
    assert prompt.references == ("D is a place by the river .", "D it is .")
    assert prompt.context == "name : D | area : riverside"
    first = texts.batch(made.federation.test, np.array([0]))[0][0]
    assert prompt.tokens == tuple(first[: len(prompt.tokens)]) and prompt.tokens[-1] == 50256
    assert [each.context for each in prompts(made, "validation", 1)] == ["name : C"]


def test_a_text_that_is_too_long_is_refused_by_its_line(folder: Path, home: Path) -> None:
    """The last end is never looked at. Mutations: off by one; counted in samples, not in lines; the wrong file."""
    made = corpus(folder, home)
    longest, _ = texts.longest(made.federation.test)
    corpus(folder, home, most=longest)
    assert complaint(corpus, folder, home, most=longest - 1) == (
        f"{folder / 'testset_w_refs.csv'}, line 2: context and text have {longest} tokens, the model takes "
        f"{longest - 1} at most: shorten or remove the line, or choose a model with a longer context"
    )
    thai = int(texts.lengths(made.federation.clients[0], np.array([3]))[0]) - 1
    with pytest.raises(UserError, match=rf"trainset\.csv, line 6: context and text have {thai} tokens"):
        corpus(folder, home, most=thai - 1)


def test_texts_are_encoded_once_a_node(folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And once for each pipeline and vocabulary. Mutation: each rank encodes; one entry for both pipelines."""
    calls: list[str] = []
    encoded = texts.encoded
    monkeypatch.setattr(texts, "encoded", lambda *words: (calls.append(words[2] + words[3]), encoded(*words))[1])
    made = run_ranks(3, lambda world: corpus(folder, home, world))
    assert calls == ["tokenisedgpt2"]
    assert len({each.federation.server.fingerprint() for each in made}) == 1
    fingerprints = {
        corpus(folder, home, **flags).federation.server.fingerprint()
        for flags in ({}, {"text": "official"}, {"vocabulary": "e2e"}, {"text": "official", "vocabulary": "e2e"}) * 2
    }
    assert len(calls) == len(fingerprints) == 4
    assert {"text", "vocabulary", "part"} <= set(flags_of({"data": Texts}))


@pytest.mark.parametrize("lacks", ["gpt2-bpe", "e2e", "own"])
def test_files_that_one_rank_lacks_end_all_ranks_with_a_sentence(
    lacks: str, folder: Path, home: Path, tmp_path: Path
) -> None:
    """Mutation: a rank raises by itself, and the others wait for ever."""
    empty = tmp_path / "empty"
    empty.mkdir()
    sentence = {
        "gpt2-bpe": f"--vocabulary: GPT-2's vocabulary, encoder.json and vocab.bpe, is not in {empty / 'gpt2-bpe'}",
        "e2e": f"--data e2e: no trainset.csv, devset.csv, testset_w_refs.csv in {empty / 'e2e'} or {empty}; fetch it",
        "own": f"--data {empty}: it must be e2e, FILE.jsonl, or a folder with trainset.csv, devset.csv, testset_w_refs",
    }[lacks]
    where = {"gpt2-bpe": {"data_dir": empty}, "e2e": {"data_dir": empty, "data": "e2e"}, "own": {"data": empty}}[lacks]

    def program(world: World) -> str:
        other = {name: str(path) for name, path in where.items()} if world.rank == 1 else {}
        return complaint(corpus, folder, home, world, **other)

    told = run_ranks(3, program)
    assert all(sentence in each for each in told), told


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"alpha": 0.0}, "--alpha 0.0: must be a Dirichlet concentration above 0"),
        ({"m": 7}, "--m 7: 6 samples are left for the clients, too few"),
    ],
)
def test_flags_out_of_range_are_refused(folder: Path, home: Path, flags: Any, sentence: str) -> None:
    assert complaint(corpus, folder, home, **flags).startswith(sentence)
