"""E2E's files as texts, against the LoRA code's lines, and GPT-2's byte-pair encoding from local files."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.unit.made import complaint
from zofl_mpi.data import bpe, e2e, tokenisers
from zofl_mpi.data.bpe import Vocabulary
from zofl_mpi.data.lines import Text
from zofl_mpi.errors import UserError
from zofl_mpi.problems.lm_files import vocabulary_of


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("It is, in short, cheap.", "It is , in short , cheap ."),
        ("family-friendly: yes!", "family - friendly : yes !"),
        ("a high- price place, not kid -friendly", "a high- price place , not kid -friendly"),
        ("£20-£25.", "£ 20- £ 25 ."),
        ("from £20-25 or £30.99, 1,000 even", "from £ 20 - 25 or £ 30.99 , 1,000 even"),
        ("It isn't, you'll see: the shop's.", "It isn 't , you 'll see : the shop 's ."),
        ("near 'The Bakers'. The '1 out of 5'", "near ' The Bakers ' . The ' 1 out of 5 '"),
        ('called "The Punter"', 'called " The Punter "'),
        ("food .price, .Taste", "food .price , .Taste"),
        ("1 out of 5. in the centre", "1 out of 5. in the centre"),
        ("1 out of 5. In the centre, 5.", "1 out of 5 . In the centre , 5 ."),
        ("5). it, a5. it, 5.. it, 1,000. it", "5 ) . it , a5 . it , 5 .. it , 1,000. it"),
        ("near St. John's College", "near St. John 's College"),
        ("Café Brazil", "Café Brazil"),
    ],
)
def test_words_and_marks_stand_apart_as_moses_sets_them(text: str, written: str) -> None:
    """Mutations: any of the RULES left out; no exceptions for full stops."""
    assert tokenisers.moses(text) == written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("It isn't; you can't, you'll see it's. Don't!", "It is n't ; you ca n't , you 'll see it 's . Do n't !"),
        ("thats cannot, we were well", "that s can not , we were well"),
        ("£20-£25, £20-25 or 20£-25.", "£ 20-£25 , £ 20 - 25 or 20£-25 ."),
        ("a 5-star, E20-E25, family-friendly place", "a 5-star , E20-E25 , family - friendly place"),
        ("a high- price place, not kid -friendly", "a high- price place , not kid -friendly"),
        ("kid friendly, .Blue city center., close", "kid friendly , .Blue city center . , close"),
        ("the centre.It shop,close to 5,riverside", "the centre . It shop , close to 5,riverside"),
        ("near St. John's, A. Mill", "near St. John 's , A. Mill"),
    ],
)
def test_words_and_marks_stand_apart_as_spacy_sets_them(text: str, written: str) -> None:
    """As spaCy 3.8 writes them with the hyphens of its versions before 3.3, which the LoRA code's test file has.
    Mutations: any rule left out; Moses's in its place; a mark that is taken off an exception."""
    assert tokenisers.spacy(text) == written


@pytest.mark.parametrize(
    ("part", "theirs", "lines", "length", "before", "behind"),
    [(1, "valid.txt", 4672, 1_195_927, 49, 0), (2, "test.txt", 4693, 1_346_527, 0, 91)],
    ids=["devset", "testset"],
)
def test_every_line_is_that_of_the_lora_code(
    data_dir: Path, part: int, theirs: str, lines: int, length: int, before: int, behind: int
) -> None:
    """The LoRA code's file: number of lines and of characters, how often `n 't` and ` n't` are in it; and, where it is
    there, each line. The rules are general: none of them names a line. Mutations: as above; the slots' new names; one
    part by the other's rules."""
    made = [
        f"{s.context}||{s.completions[0]} \n" for s in e2e.read(data_dir / "e2e" / e2e.FILES[part], "tokenised", part)
    ]
    assert (len(made), sum(map(len, made))) == (lines, length)
    assert tuple(sum(cut in line for line in made) for cut in ("n 't", " n't")) == (before, behind)
    known = data_dir / "e2e-lora" / theirs
    if known.is_file():
        assert "".join(made).split("\n") == known.read_text(encoding="utf-8").split("\n")


def written(folder: Path, *rows: str, columns: str = "mr,ref") -> Path:
    path = folder / "some.csv"
    path.write_bytes("\n".join([columns, *rows, ""]).encode())
    return path


MILL = '"name[The Mill], priceRange[£20-25], familyFriendly[yes]",'


def test_the_pipelines_differ_in_how_they_write_a_sample(tmp_path: Path) -> None:
    """Mutations: the official text tokenised; white space kept around it; slots in the file's order; a line too few."""
    path = written(tmp_path, MILL + '" It\'s cheap,\n they say. "', MILL + "Good.")
    official, tokenised = (e2e.read(path, pipeline, 0) for pipeline in ("official", "tokenised"))
    slots = ("familyFriendly", "name", "priceRange")
    rest = slots, None, "train"
    first = Text(MILL[1:-2], ("It's cheap,\n they say.",), *rest, 3)
    assert official == [first, Text(MILL[1:-2], ("Good.",), *rest, 4)]
    context = "name : The Mill | price : £ 20 - 25 | family friendly : yes"
    assert tokenised == [
        Text(context, ("It 's cheap , they say .",), *rest, 3),
        Text(context, ("Good .",), *rest, 4),
    ]


def test_a_context_comes_once_with_all_its_references(tmp_path: Path) -> None:
    """Mutation: only neighbours are joined."""
    path = written(tmp_path, MILL + "One.", "name[Cotto],Two.", MILL + "Three.")
    found = e2e.contexts(e2e.read(path, "official", 0))
    assert list(found.items()) == [(MILL[1:-2], ["One.", "Three."]), ("name[Cotto]", ["Two."])]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (MILL + '" \n "', r"some\.csv, line 5: the text \(ref\) of name\[The Mill\], .* is empty: write one"),
        ("name[The Mill]", r"some\.csv, line 4: the text .* is empty"),
        ("The Mill,Good.", r"some\.csv, line 4: mr is 'The Mill', it must be a list of slots, as in name\[The Mill\]"),
        ("name[The Mill] area,Good.", r"some\.csv, line 4: mr is 'name\[The Mill\] area', it must be"),
        ('"name[The Mill]"x,Good.', r"some\.csv is damaged or cut short .*: it must be a CSV file"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, row: str, sentence: str) -> None:
    """Counted in the file's lines, of which a sample can take several. Mutation: a text that is let through empty."""
    path = written(tmp_path, MILL + '"One\nline."', row)
    assert re.match(rf".*{sentence}", complaint(e2e.read, path, "tokenised", 0))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"some\.csv has no column ref but mr, text: it must be a CSV file"):
        e2e.read(written(tmp_path, MILL + "One.", columns="mr,text"), "official", 0)
    (tmp_path / "some.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"some\.csv is damaged or cut short \(UnicodeDecodeError"):
        e2e.read(tmp_path / "some.csv", "official", 0)


@pytest.fixture(scope="session")
def files(data_dir: Path) -> tuple[Path, ...]:
    pytest.importorskip("tokenizers", reason="the extra lm is not installed")
    return bpe.find_vocabulary(data_dir)


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
    texts = [f" {sample.completions[0]}" for sample in e2e.read(data_dir / "e2e" / "devset.csv", "tokenised", 1)]
    assert {"é", "£"} <= set("".join(texts))
    assert [gpt2.decode(tokens) for tokens in gpt2.encode(texts)] == texts
    assert gpt2.decode([15496, bpe.END, 995, bpe.END]) == "Hello world"


def test_every_text_of_e2e_has_the_tokens_of_transformers(
    gpt2: Vocabulary, files: tuple[Path, ...], data_dir: Path, tmp_path: Path
) -> None:
    """Contexts and texts of all three parts in both pipelines, as the tokeniser of transformers for GPT-2 has them,
    each alone; and those of a tokenizer.json that it keeps. Mutations: another split into words before merges; a
    space put first; a context that ends elsewhere."""
    transformers = pytest.importorskip("transformers", reason="the extra lm is not installed")
    vocabulary, merges = map(str, files)
    theirs = transformers.GPT2Tokenizer(vocab=vocabulary, merges=merges)
    own = {
        (sample.context, f" {sample.completions[0]}")
        for part, name in enumerate(e2e.FILES)
        for pipeline in ("official", "tokenised")
        for sample in e2e.read(data_dir / "e2e" / name, pipeline, part)  # type: ignore[arg-type]
    }
    assert len(own) > 90_000
    pairs = sorted(own)[::20]
    texts = sorted({text for pair in pairs for text in pair})
    expected = dict(zip(texts, theirs(texts)["input_ids"], strict=True))
    assert gpt2.encode_pairs(pairs) == [(expected[context], expected[text]) for context, text in pairs]
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    kept = vocabulary_of(str(tmp_path), transformers.GPT2Config())
    assert kept is not None and kept.end == gpt2.end
    assert kept.encode_pairs(pairs[::4]) == gpt2.encode_pairs(pairs[::4])


def test_kept_tokens_are_numbered_anew(gpt2: Vocabulary, files: tuple[Path, ...]) -> None:
    """Mutations: decoded by GPT-2's numbers; a token that is not kept becomes its neighbour."""
    few = Vocabulary(files).keeping(np.array([995, 15496, 18435, bpe.END]))
    assert (few.size, few.end) == (4, 3)
    assert few.encode(["Hello world", " Hello world"]) == [[1, 0], [2, 0]]
    assert few.decode([1, 0, 3]) == "Hello world"
    for text in ("Hello word", "!", "Hello world wide"):
        with pytest.raises(UserError, match=f"--vocabulary e2e: it has not all tokens of '{text}'; use"):
            few.encode([text])


def test_missing_files_are_named_with_where_and_how(tmp_path: Path) -> None:
    folder = tmp_path / "gpt2-bpe"
    folder.mkdir()
    (folder / "encoder.json").write_text("{}")
    assert complaint(bpe.find_vocabulary, tmp_path) == (
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
        Vocabulary(bpe.find_vocabulary(tmp_path)).encode(["Hello"])


def test_without_tokenizers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"texts need the package tokenizers: pip install 'zofl_mpi\[lm\]'"):
        Vocabulary((Path("encoder.json"), Path("vocab.bpe"))).encode(["Hello"])
