"""E2E's files as texts: both ways to write them, the second against the lines of the LoRA code's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from zofl_mpi.data import e2e, tokenisers
from zofl_mpi.errors import UserError


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("It is, in short, cheap.", "It is , in short , cheap ."),
        ("family-friendly: yes!", "family - friendly : yes !"),
        ("non-family-friendly", "non - family - friendly"),
        ("a high- price place, not kid -friendly", "a high- price place , not kid -friendly"),
        ("£20-£25.", "£ 20- £ 25 ."),
        ("from £20-25 or £30.99, 1,000 even", "from £ 20 - 25 or £ 30.99 , 1,000 even"),
        ("shop,close to 5,riverside", "shop , close to 5 , riverside"),
        ("It isn't, you'll see: the shop's.", "It isn 't , you 'll see : the shop 's ."),
        ("near 'The Bakers'. The '1 out of 5'", "near ' The Bakers ' . The ' 1 out of 5 '"),
        ("of the 1990's", "of the 1990 's"),
        ('called "The Punter"', 'called " The Punter "'),
        ("friendly.. It", "friendly .. It"),
        ("low ratings...but", "low ratings ... but"),
        ("city center., close", "city center . , close"),
        ("food .price, .Taste", "food .price , .Taste"),
        ("Chinese food.  it is", "Chinese food . it is"),
        ("1 out of 5. in the centre", "1 out of 5. in the centre"),
        ("1 out of 5. In the centre, 5.", "1 out of 5 . In the centre , 5 ."),
        ("4.5. it, .5. to, -5. a, 1,000. it", "4.5. it , .5. to , -5. a , 1,000. it"),
        ("5). it, a5. it, 5.. it", "5 ) . it , a5 . it , 5 .. it"),
        ("less than £20. its rating", "less than £ 20 . its rating"),
        ("near St. John's College", "near St. John 's College"),
        ("one line\r\n  and   another ", "one line and another"),
        ("Café Brazil", "Café Brazil"),
        (" . ", "."),
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
        ("3 out of 5. yes", "3 out of 5 . yes"),
        ("hors d'oeuvre at the 'Mill'", "hors d'oeuvre at the ' Mill '"),
        ("kid friendly, .Blue city center., close", "kid friendly , .Blue city center . , close"),
        ("the centre.It shop,close to 5,riverside", "the centre . It shop , close to 5,riverside"),
        ("friendly.. It, ratings...but (30%)", "friendly .. It , ratings ... but ( 30 % )"),
        ("near St. John's, A. Mill", "near St. John 's , A. Mill"),
    ],
)
def test_words_and_marks_stand_apart_as_spacy_sets_them(text: str, written: str) -> None:
    """As spaCy 3.8 writes them with the hyphens of its versions before 3.3, which the LoRA code's test file has.

    Mutations: any rule left out; Moses's in its place; a mark that is taken off an exception.
    """
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
    there, each line. The rules are general: none of them names a line.

    Mutations: as above; the slots' new names; one part by the other's rules.
    """
    made = [f"{s.context}||{s.text} \n" for s in e2e.read(data_dir / "e2e" / e2e.FILES[part], "tokenised", part)]
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
    first = e2e.Sample(MILL[1:-2], "It's cheap,\n they say.", slots, 3)
    assert official == [first, e2e.Sample(MILL[1:-2], "Good.", slots, 4)]
    context = "name : The Mill | price : £ 20 - 25 | family friendly : yes"
    assert tokenised == [
        e2e.Sample(context, "It 's cheap , they say .", slots, 3),
        e2e.Sample(context, "Good .", slots, 4),
    ]


def test_a_context_comes_once_with_all_its_references(tmp_path: Path) -> None:
    """Mutation: only neighbours are joined."""
    path = written(tmp_path, MILL + "One.", "name[Cotto],Two.", MILL + "Three.")
    found = e2e.contexts(e2e.read(path, "official", 0))
    assert list(found.items()) == [(MILL[1:-2], ["One.", "Three."]), ("name[Cotto]", ["Two."])]


@pytest.mark.slow
def test_the_contexts_are_as_many_in_both_pipelines(data_dir: Path) -> None:
    """So a split by contexts is the same one in both. Mutation: a slot or a value that is lost."""
    for part, count in enumerate((4862, 547, 630)):
        path = data_dir / "e2e" / e2e.FILES[part]
        read = [e2e.contexts(e2e.read(path, pipeline, part)) for pipeline in ("official", "tokenised")]
        assert [len(contexts) for contexts in read] == [count, count]


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
    with pytest.raises(UserError, match=sentence) as caught:
        e2e.read(path, "tokenised", 0)
    assert "\n" not in str(caught.value)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"some\.csv has no column ref but mr, text: it must be a CSV file"):
        e2e.read(written(tmp_path, MILL + "One.", columns="mr,text"), "official", 0)
    (tmp_path / "some.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"some\.csv is damaged or cut short \(UnicodeDecodeError"):
        e2e.read(tmp_path / "some.csv", "official", 0)
