"""The numbers that the READMEs quote are those of the tables kept in analysis/results."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.analysis import quotes
from tests.analysis.made import group_of, table_of
from tests.analysis.quotes import KEPT, NUMBER, QUOTES, Quote, compared, is_table, numbers, rounds_to, rows_of
from tests.conftest import ROOT
from zofl_mpi.run.grid import read

SUMMARY = "analysis/results/README.md"
PAGES = [str(path.relative_to(ROOT)) for path in KEPT.glob("*.md") if path != ROOT / SUMMARY]
PAGES += ["README.md", "zofl_mpi/methods/README.md"]


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("quote", QUOTES, ids=[f"{q.page}: {q.words[:60]}" for q in QUOTES])
def test_a_page_has_the_numbers_of_its_tables(quote: Quote) -> None:
    """Mutations: a digit of a page; a sentence that is there twice; a number that a query lacks."""
    for place, values in compared(quote, text_of(quote.page)):
        wrong = [(n, v) for n, v in zip(place.groups(), values, strict=True) if not rounds_to(n, v)]
        assert wrong == [], "(quoted, in the table)"
    if "#" not in quote.words and not is_table(quote):
        assert set(numbers(rows_of(quote))) == {1}


@pytest.mark.parametrize("page", PAGES)
def test_every_mean_with_a_deviation_is_compared(page: str) -> None:
    """No `a ± b` stands on a page that the test above does not look at."""
    text = text_of(page)
    places = [place for q in QUOTES if q.page == page for place, _ in compared(q, text)]
    seen = {place.start(k) for place in places for k in range(1, 1 + len(place.groups()))}
    means = list(re.finditer(rf"{NUMBER}\s±\s{NUMBER}", text))
    assert [m[0] for m in means if not {m.start(1), m.start(2)} <= seen] == []


def test_a_comment_may_end_in_a_semicolon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: every line that ends in one ends its statement."""
    (tmp_path / "quotes").mkdir()
    text = "-- page: a.md\n\n-- # rounds;\n-- then none\nselect 3;\n\ncreate view b as\n  select 4;\n"
    (tmp_path / "quotes/a.sql").write_text(text)
    monkeypatch.setattr(quotes, "KEPT", tmp_path)
    assert list(quotes.statements()) == [
        ("a.md", "# rounds; then none", "select 3"),
        ("a.md", "", "create view b as\n  select 4"),
    ]


def test_the_first_page_repeats_numbers_of_the_others() -> None:
    """Those that it marks by % or ± stand on a page whose numbers are compared with the tables."""
    told = re.findall(rf"{NUMBER}\s±\s{NUMBER}|{NUMBER}\s(?=%)", text_of(SUMMARY))
    numbers = {number for groups in told for number in groups if number}
    assert len(numbers) > 15
    others = " ".join(text_of(page) for page in PAGES if page.startswith("analysis/results"))
    assert {n for n in numbers if not re.search(rf"(?<![\d.]){re.escape(n)}(?![\d.])", others)} == set()


def test_rounding_is_by_the_digits_that_are_told() -> None:
    near = [("0.317", 0.3174), ("91.4", 91.35), ("91.3", 91.35), ("2e-7", 1.75e-7), ("1,196.4", 1196.428)]
    far = [("0.317", 0.3176), ("2e-7", 1.4e-7), ("-0.04", 0.04), ("74", 73.4)]
    assert [rounds_to(*pair) for pair in near + far] == [True] * 5 + [False] * 4


# --- the scripts print the kept tables


WORDS = {"data", "method", "step", "steps", "at_edge", "cell", "rectifier", "problem"}


def table_rows(name: str) -> list[dict[str, Any]]:
    """The rows of a kept table as the script makes them: numbers, but for the columns of words."""

    def cell(key: str, value: str) -> Any:
        if key in WORDS or "by_seed" in key:
            return value
        whole = key in ("seeds", "seeds_planned", "round")
        return value == "True" if key == "best" else int(float(value)) if whole else float(value or "nan")

    return [{key: cell(key, value) for key, value in row.items()} for row in table_of(KEPT / f"{name}.csv")]


TUNED, METHODS = ("a_tuned", "a_tuned_iid", "a_rules"), ("b_methods", "b_methods_cifar")
SCRIPT_OF = dict.fromkeys(TUNED, "a_tuned") | dict.fromkeys(METHODS, "b_methods")


@pytest.mark.parametrize("name", [*TUNED, *METHODS, "a_personal", "b_fednest", "c_bytes", "c_decomfl_mnist"])
def test_the_kept_tables_are_those_that_the_scripts_print(name: str, script: Any) -> None:
    """Mutation: a table that was made before the CSV."""
    module = script(SCRIPT_OF.get(name, name))
    printed = module.text if name.startswith("c_") else module.tables
    assert (KEPT / f"{name}.txt").read_text().startswith(printed(table_rows(name)))


@pytest.mark.parametrize("name", TUNED)
def test_the_kept_best_steps_are_those_of_the_highest_validation(name: str) -> None:
    told = table_rows(name)
    for method in {r["method"] for r in told}:
        of = [r for r in told if r["method"] == method]
        assert [r for r in of if r["best"]] == [max(of, key=lambda r: r["chosen_by_percent"])]


def test_three_seeds_of_the_best_steps_and_the_printed_numbers_are_kept(script: Any) -> None:
    """Mutation: a printed number that changed."""
    for method in script("c_bytes").NAMES:
        assert [r["seeds"] for r in table_rows("c_bytes") if r["method"] == method and r["best"]] == [3]
    printed = script("c_decomfl_mnist").PRINTED
    for r in (rows := table_rows("c_decomfl_mnist")):
        assert printed[r["method"]][r["round"]] == (r["printed_least_percent"], r["printed_largest_percent"])
    assert len(rows) == sum(map(len, printed.values()))


@pytest.mark.parametrize("name", TUNED)
def test_the_kept_edges_are_those_of_the_kept_steps(name: str, script: Any) -> None:
    axes = tomllib.loads((ROOT / f"jobs/{name}.toml").read_text(encoding="utf-8"))["axes"]
    steps = {axis: list(axes[axis]) for axis in ("local", "server")}
    groups: dict[str, list[tuple[dict[str, str], Any]]] = {}
    for row in table_of(KEPT / f"{name}.csv"):
        words = row["step"].split()
        where = {axis: next((w for w in words if w in of), f"{axis}-none") for axis, of in steps.items()}
        assert {word for word in where.values() if not word.endswith("none")} == set(words)
        groups.setdefault(row["method"], []).append((row, group_of([0.5], where=where)))
    for same in groups.values():
        for row, group in same:
            ends = script("shared.edges").at_edge(group, [g for _, g in same], steps) if row["best"] == "True" else []
            assert row["at_edge"] == " ".join(ends)


@pytest.mark.parametrize("name", METHODS)
def test_the_kept_edges_are_those_of_each_methods_steps(name: str) -> None:
    steps: dict[tuple[str, ...], list[str]] = {}
    for r in (rows := table_rows(name)):
        steps.setdefault((r["data"], r["method"], r["rectifier"]), []).append(r["step"])
    for r in rows:
        of = steps[r["data"], r["method"], r["rectifier"]]
        assert r["at_edge"] == ("step" if r["best"] and r["step"] in (of[0], of[-1]) else "")


def test_the_tuned_personal_models_have_the_steps_that_were_chosen(script: Any) -> None:
    """In the grid, as flags. Mutations: another method's steps; MNIST's on Fashion-MNIST; another cell's."""
    module = script("a_personal")
    best = {
        (*(row[axis] for axis in module.PLACE), row["step"])
        for row in table_of(KEPT / "a_personal.csv")
        if row["best"] == "True"
    }
    assert len(best) == 2 * 3 * 8
    tried, tuned = (read(ROOT / f"jobs/a_personal_{name}.toml") for name in ("steps", "tuned"))
    place, steps = module.PLACE, module.STEPS
    flags = {}
    for run in tried.runs:
        at = run.coordinates
        step = " ".join(f"{axis}-{at[axis]}" for axis in steps if at[axis])
        key = tuple(at[axis] for axis in place)
        if (*key, step) in best:
            flags[key] = run.flags
    assert len(tuned.runs) == 3 * len(best) == 3 * len(flags)
    for run in tuned.runs:
        assert {**run.flags, "seed": 1} == flags[tuple(run.coordinates[axis] for axis in place)]
