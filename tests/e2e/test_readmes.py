"""What the pages show works as shown: every command, every snippet, every flag, file and link that they name."""

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from tests.conftest import LIMIT, ROOT, run_process
from tests.launch import launch, threads
from tests.tools import sentences
from zofl_mpi.data import npz, partition
from zofl_mpi.engine.streams import Streams
from zofl_mpi.report.same import differences
from zofl_mpi.run import records
from zofl_mpi.run.command import flags
from zofl_mpi.run.command.plan import groups_of, parse_plan
from zofl_mpi.run.grid import __main__ as grid_runner
from zofl_mpi.run.grid import read

SUMMARY = "analysis/results/README.md"
PAGES = [str(path.relative_to(ROOT)) for room in (".docs", ".github") for path in sorted((ROOT / room).rglob("*.md"))]
FILES = [
    "README.md",
    *(f"{room}/README.md" for room in ("zofl_mpi", "zofl_mpi/methods", "zofl_mpi/problems", "zofl_mpi/run", "jobs")),
    *PAGES,
    SUMMARY,
]
TEXT = {name: (ROOT / name).read_text() for name in FILES}
ALL = "\n".join(TEXT.values())
FAMILIES = ("zofl_mpi.zo_hfl", "zofl_mpi.fedrzo", "zofl_mpi.heron_sfl")
STARTERS = ("python", "mpirun", "bash", "sbatch", "grid", "pip", "zofl-report")
"""With these words a command begins that stands within a line of text; `grid FILE` is the results' short form."""
PLACEHOLDERS = re.compile(r"\b(FILE|GRID|FOLDER|MODULE|NAME|JOB|RESULT|OTHER|FAMILY)\b|\.\.\.|\bmymethod\b")
"""A command with such a word is a form to be filled in."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SCRIPTS = {name: place.partition(":")[0] for name, place in PROJECT["scripts"].items()}
EXTRAS = PROJECT["optional-dependencies"]
REDUCED = {"rounds": "1", "tau": "1", "T_lower": "2"}
"""What makes a long run short; any run is at work on the files of a data set for a second or two."""


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return [block for word, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M) if word == language]


def inline(text: str) -> list[str]:
    """What stands between backticks, outside of fenced blocks; a bar in a table is written with a backslash."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M).replace("\\|", "|"))


def lines(block: str) -> Iterator[list[str]]:
    """The commands of a block, in words, without comments."""
    for line in block.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


@cache
def commands() -> list[list[str]]:
    """Every command of the READMEs, in words; without `mpirun [--with-ft ulfm] -n N` and variables before it."""
    found = [words for text in TEXT.values() for block in blocks(text, "bash") for words in lines(block)]
    found += [shlex.split(text) for text in inline(ALL) if text.split()[0] in STARTERS and len(text.split()) > 1]
    found += [shlex.split(text) for text in re.findall(r'^"""[^"\n]*?(mpirun[^"\n]*)"""', ALL, re.M)]
    kept = (_bare(words) for words in found if not PLACEHOLDERS.search(" ".join(words)) and words != ["mpirun", "-n"])
    return [list(words) for words in dict.fromkeys(map(tuple, kept))]


def _bare(words: list[str]) -> list[str]:
    while "=" in words[0]:
        words = words[1:]
    if words[:3] == ["mpirun", "--with-ft", "ulfm"]:
        words = ["mpirun", *words[3:]]
    if words[:2] == ["mpirun", "--oversubscribe"]:
        words = ["mpirun", *words[2:]]
    if words[:2] == ["mpirun", "-n"]:
        assert int(words[2]) > 1
        words = words[3:]
    if words[0] == "grid":
        words = ["python", "-m", "zofl_mpi.run.grid", *words[1:], "--data-dir", "data", "--run"]
    return words


def called(words: Sequence[str]) -> str:
    """The module of `python -m`, else ""."""
    return words[2] if list(words[:2]) == ["python", "-m"] else ""


def runs() -> list[list[str]]:
    """The commands that run a method; one without a flag is a family's name."""
    return [words for words in commands() if called(words) in FAMILIES and len(words) > 3]


def own() -> dict[str, str]:
    """{module: code} of the snippets that commands name as MODULE:CLASS."""
    named = re.findall(r"--(?:method|problem) (\w+):(\w+)", ALL)
    codes = blocks(ALL, "python")
    return {module: code for module, name in named for code in codes if re.search(rf"^(class )?{name}\b", code, re.M)}


def grids() -> dict[str, str]:
    """{name: text} of the grids that a page shows: their first line is their name."""
    return {text.split("\n")[0].removeprefix("# "): text for text in blocks(ALL, "toml") if text.startswith("# ")}


def scripts(page: str) -> list[str]:
    """The Python of a page that is not a module named by a command."""
    return [code for code in blocks(TEXT[page], "python") if code not in own().values()]


def test_every_command_names_what_is_there(here: Path, capsys: Any) -> None:
    """Those that take minutes, download or need a cluster are understood, as far as that goes without doing it."""
    for name in FILES:
        for block in blocks(TEXT[name], "bash"):
            subprocess.run(["bash", "-n"], input=block, text=True, timeout=LIMIT, check=True)
    for words in commands():
        module = called(words)
        if module in FAMILIES or module == "build":
            continue  # below; of a tool of Python's, without flags
        if module == "zofl_mpi.run.grid":
            lists(words[3:], capsys)
        elif module or words[0] == "python":
            understood(importlib.util.find_spec(module).origin if module else ROOT / words[1], words[2:])  # type: ignore[union-attr]
        elif SCRIPTS.get(words[0]) in FAMILIES:
            parse_plan(importlib.import_module(SCRIPTS[words[0]]), words[1:])
        elif words[0] in SCRIPTS:
            understood(importlib.util.find_spec(SCRIPTS[words[0]]).origin, words[1:])  # type: ignore[union-attr]
        elif words[0] == "pip":
            assert set(re.findall(r"\w+", words[2].partition("[")[2])) <= EXTRAS.keys()
        elif words[0] == "sbatch":
            submitted(words[1:], capsys)
        elif words[0] == "bash":
            is_script(words[1])
        elif words[0] == "export":
            name, _, value = words[1].partition("=")
            environment = (ROOT / "jobs/environment.sh").read_text()
            of_mpi = f"{name.removeprefix('PRTE_MCA_')} = {value}" in environment or f"export {words[1]}" in environment
            assert of_mpi or name in (ROOT / "jobs/zo_hfl.sbatch").read_text()
        else:
            assert words[0] in (".", "module", "reframe"), f"no test knows the command {shlex.join(words)}"


def understood(source: str | Path | None, words: Sequence[str]) -> None:
    """The words are flags and names that a script, or the __main__ of a package, declares."""
    file = Path(str(source))
    file = file.with_name("__main__.py") if file.name == "__init__.py" else file
    assert {word for word in words if word.startswith("--")} <= flags_of_parser(file.read_text()), words


def flags_of_parser(source: str) -> set[str]:
    """The flags that a script's parser declares, also by what the scripts of analysis/ share."""
    shared = [path.read_text() for path in (ROOT / "analysis/shared").glob("*.py")] if "from shared" in source else []
    return set(re.findall(r'"(--[\w-]+)"', "\n".join([source, *shared])))


def is_script(name: str) -> None:
    assert (ROOT / name).is_file(), name
    subprocess.run(["bash", "-n", str(ROOT / name)], check=True, timeout=LIMIT)


def lists(words: list[str], capsys: Any) -> None:
    """The grid runner understands the words, and lists the runs."""
    words = [str(ROOT / word) if word.startswith("jobs/") else word for word in words if word != "--run"]
    assert grid_runner.main(words) == 0, capsys.readouterr().err
    assert "to do" in capsys.readouterr().out


def submitted(words: list[str], capsys: Any) -> None:
    """A job script, and what it passes on."""
    (script,) = [k for k, word in enumerate(words) if word.endswith(".sbatch")]
    is_script(words[script])
    rest = words[script + 1 :]
    if words[script] == "jobs/grid.sbatch" or (words[script] == "jobs/gpu.sbatch" and rest):
        lists(rest, capsys)
        assert f"--array=0-{len(read(ROOT / rest[0]).runs) - 1}" in words[:script]
    elif words[script] == "jobs/zo_hfl.sbatch" and "--resume" not in rest:
        parse_plan(importlib.import_module("zofl_mpi.zo_hfl"), rest)


@pytest.fixture(name="here")
def fixture_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the pages' own modules, grids, table and texts, and a cache of its own."""
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path / "cache"))
    for module, code in own().items():
        (tmp_path / f"{module}.py").write_text(code)
    for name, text in grids().items():
        (tmp_path / name).write_text(text)
    for file in ("table.npz", "own.jsonl"):
        exec(next(code for code in blocks(ALL, "python") if f'"{file}"' in code), {})
    yield tmp_path
    for module in own():
        sys.modules.pop(module, None)  # another test may have one of this name


def test_every_run_is_understood(here: Path, capsys: Any) -> None:
    """All flags are known to the method and the problem, with values that they can have."""
    tops = "\n".join(str(importlib.import_module(name).__doc__) for name in FAMILIES)  # the head of --help
    shown = [_bare(shlex.split(line)) for line in re.findall(r"^ +(mpirun .*)$", tops, re.M)]
    assert len(shown) >= len(FAMILIES)
    for words in [*runs(), *shown]:
        if "--resume" in words:
            continue  # below
        family = importlib.import_module(called(words))
        if "--help" in words:
            with pytest.raises(SystemExit, match=r"^0$"):
                parse_plan(family, words[3:])
            assert "usage: python -m" in capsys.readouterr().out
        else:
            parse_plan(family, words[3:])


def performed(several: Sequence[Sequence[str]], ranks: int = 0) -> list[str]:
    """What the command lines (module, flags) print, in the current folder; several ranks are threads."""
    ended = (threads if ranks else launch)(ranks, [(module, words) for module, *words in several])
    for words, one in zip(several, ended, strict=True):
        assert one.status == 0, f"{words}: {one.stderr}"
    return [one.stdout for one in ended]


def shortened(words: Sequence[str], out: str, data_dir: Path | None) -> list[str]:
    """(module, flags) of a run of one small round."""
    module, given = called(words), [word for word in words[3:] if word != "--help"]
    values = parse_plan(importlib.import_module(module), given).values
    for name, value in REDUCED.items():
        given += [f"--{flags.flag(name)}", value] if name in values else []
    given += ["--data-dir", str(data_dir)] if data_dir else []
    return [module, *given, "--out", out, "--quiet"]


def of_files(words: Sequence[str]) -> bool:
    """Whether a command reads a data set, or a vocabulary, from files."""
    return bool({"mnist", "fashion-mnist", "cifar10", "split_lm"} & set(words))


@pytest.mark.parametrize("files", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_run_runs(
    here: Path, files: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the digits, and on files, which take seconds to unpack: these are kept, as they are for users."""
    data_dir = request.getfixturevalue("data_dir") if files else None
    if files:
        monkeypatch.delenv("ZOFL_CACHE")
    several = [words for words in runs() if of_files(words) == files and not {"--help", "--resume"} & set(words)]
    assert len(several) == 7 if files else len(several) >= 15
    alone = [[word for word in words if word != "--survive"] for words in several]  # which one process cannot
    told = performed([shortened(words, f"{k}.h5", data_dir) for k, words in enumerate(alone)])
    for words, text in zip(several, told, strict=True):
        assert ("bytes down" if "--dry-run" in words else "result    ") in text


class Rows(list[dict[str, Any]]):
    """As a data set of Hugging Face, of which the environment has no library."""

    @classmethod
    def from_dict(cls, columns: dict[str, list[Any]]) -> "Rows":
        return cls(dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))

    def select(self, rows: Sequence[int]) -> "Rows":
        return Rows(self[k] for k in rows)


SHOWN = {"README.md": "done 0.", "zofl_mpi/run/README.md": "mean loss of x on the test samples"}
"""Words that a page's scripts print."""


@pytest.mark.parametrize("page", [name for name in FILES if scripts(name)])
def test_every_snippet_is_run_here(here: Path, page: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's scripts one after the other, beside a result. Mutations: a name of another page; a column gone."""
    if "mnist.h5" in TEXT[page]:
        performed([["zofl_mpi.zo_hfl", "--rounds", "2", "--quiet", "--out", "mnist.h5"]])
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(Dataset=Rows))
    names: dict[str, Any] = {"__name__": "__main__"}
    for code in scripts(page):
        exec(compile(code, page, "exec"), names)
    assert SHOWN.get(page, "") in capsys.readouterr().out


def test_the_readme_is_short_and_links_every_page() -> None:
    assert len(TEXT["README.md"].splitlines()) <= 120 and len(own()["fedsgd"].splitlines()) <= 40
    assert {path for path in PAGES if f"]({path})" not in TEXT["README.md"]} == set()
    assert set(own()) == {"fedsgd", "feedsign", "mynet", "myloss", "mysplit", "risk", "ridge"}


def test_every_command_that_resumes_does(here: Path) -> None:
    performed([["zofl_mpi.zo_hfl", "--rounds", "2", "--checkpoint-every", "1", "--quiet", "--out", "mnist.h5"]])
    several = [words for words in runs() if "--resume" in words]
    assert len(several) >= 2
    for k, words in enumerate(several, start=3):
        (told,) = performed([[called(words), *words[3:], "--rounds", str(k), "--quiet"]])
        assert "mnist.h5" in told and records.load("mnist.h5").length == k


@pytest.mark.slow
def test_the_grid_of_the_page_on_tuning_runs_and_is_drawn(here: Path, capsys: Any) -> None:
    """Mutation: a flag that one of its methods lacks."""
    several = [words[3:] for words in commands() if "tune.toml" in words]
    assert len(several) == 3 and [grid_runner.main(words) for words in several[:2]] == [0, 0]
    told = capsys.readouterr().out
    assert "8 runs: 0 finished, 0 to resume, 8 to do" in told and "12 runs: 12 done" in told
    done = run_process([sys.executable, "-m", "zofl_mpi.report", *several[2]], cwd=here)
    assert done.returncode == 0 and "the best of 4 by validation_accuracy" in done.stderr
    assert (here / "tune.pdf").is_file() and ",3," in (here / "tune.csv").read_text()
    assert re.search(r"^fedavg .* 3 of 3$", (here / "tune_table.txt").read_text(), re.M)


@pytest.mark.slow
def test_the_modules_run_on_any_number_of_ranks_and_learn(here: Path) -> None:
    """FedSGD, on a network too, where zero is no start; a network, and one in three parts, whose uplinks have the same
    bits; the first two rounds."""
    named = {module: next(words for words in runs() if any(f"{module}:" in word for word in words)) for module in own()}
    several = {module: [called(named[module]), *named[module][3:]] for module in ("fedsgd", "mynet", "mysplit")}
    several["seeds"] = [*several["mysplit"], "--uplink", "seeds"]
    several["network"] = [*several["fedsgd"], "--problem", "mlp"]
    performed([[*words, "--out", f"{name}.h5"] for name, words in several.items() if name != "seeds"])
    for ranks in (0, 3):
        short = {name: [*words, "--rounds", "2", "--out", f"{name}-{ranks}.h5"] for name, words in several.items()}
        performed(list(short.values()), ranks)
    for name in several:
        assert differences(here / f"{name}-0.h5", here / f"{name}-3.h5") == [], name
        assert name == "seeds" or records.load(here / f"{name}.h5").rounds["test_accuracy"][-1] > 0.8, name
    dense, seeds = (records.load(here / f"{name}-0.h5") for name in ("mysplit", "seeds"))
    assert dense.final["theta_s"].tobytes() == seeds.final["theta_s"].tobytes()
    assert dense.rounds["test_accuracy"][-1] == seeds.rounds["test_accuracy"][-1]
    assert (dense.table()["bytes_up"] > seeds.table()["bytes_up"]).all()


def test_the_quickstart_prints_what_the_readme_shows(here: Path) -> None:
    """The bytes to the last one; the accuracies to some test samples, since processors round differently."""
    (shown,) = [block for block in blocks(TEXT["README.md"], "") if block.startswith("reached")]
    assert "mpirun -n 11 python -m zofl_mpi.zo_hfl`" in TEXT["README.md"]
    assert "python -m zofl_mpi.zo_hfl --out " in (ROOT / "jobs/quickstart.sh").read_text()
    once = ["--eval-every", "100", "--checkpoint-every", "0", "--quiet"]  # what is counted and reached stays
    plain = [["zofl_mpi.zo_hfl", *words, *once, "--out", f"{k}.h5"] for k, words in enumerate(([], ["--paper"]))]
    told, _ = performed(plain)
    number = r"\d+\.\d+"
    reached, was = (text.splitlines()[0] for text in (told, shown))
    assert re.sub(number, "#", reached) == re.sub(number, "#", was)
    assert [*map(float, re.findall(number, reached))] == pytest.approx([*map(float, re.findall(number, was))], abs=0.02)
    (sent,) = [line for line in shown.splitlines() if line.startswith("sent ")]
    assert sent in told.splitlines()
    (percent,) = re.findall(r"\(`--paper`\) 100 rounds reach (\d+) %", TEXT["README.md"].replace("\n", " "))
    assert records.load("1.h5").rounds["test_accuracy"][-1] == pytest.approx(int(percent) / 100, abs=0.02)


def test_the_measured_numbers_are_those_of_the_results() -> None:
    """Every number of the table, and in the results' paragraph with what it counts, is in the results."""
    pages = sorted(path for path in (ROOT / "analysis/results").glob("*.md") if path.name != "README.md")
    results = re.sub(r"\s+", " ", " ".join(page.read_text() for page in pages))
    table = re.findall(r"^\| .* \| (.*) \| `[^|]*` \|$", TEXT[SUMMARY], re.M)
    (honest,) = re.findall(r"^## What we found\n(.*?)^## ", TEXT["README.md"], re.S | re.M)
    numbers = [n for text in table for n in re.findall(r"\d[\d,]*\.?\d*(?: ± \d+\.\d+)?", text)]
    counted = r"\d+(?:\.\d+)?(?: (?:to|and|±) \d+(?:\.\d+)?)*(?: %| points)?"
    phrases = re.findall(counted, re.sub(r"\s+", " ", honest).replace("Table 1's", ""))
    assert len(table) >= 12 and len(numbers) > 20 and len(phrases) >= 7
    for text in (*numbers, *(phrase.removesuffix(" %") for phrase in phrases)):  # the head of a table has the unit
        assert re.search(rf"(?<![\d.]){re.escape(text)}(?!\d|\.\d)", results), text


def table_of_methods() -> list[list[list[str]]]:
    """[commands, (what a client computes, what it sends)] of each row."""
    (table,) = re.findall(r"^\| you have \| .* \| command \|\n\|[-|]+\n(.*?)\n\n", TEXT["README.md"], re.S | re.M)
    return [[inline(row.rpartition(" | ")[2]), row.split(" | ")[1:3]] for row in table.splitlines()]


def test_the_table_of_methods_is_short_and_its_commands_run() -> None:
    """As all runs, above; without a flag in tests/e2e/test_first_try.py. Mutation: a command that `runs` overlooks."""
    several = [command.split() for typed, _ in table_of_methods() for command in typed]
    assert 8 <= len(several) <= 16 and all(command in runs() for command in several if len(command) > 3)


def test_the_table_of_methods_has_the_words_of_the_code() -> None:
    """Of a row's first command. Mutation: a client that computes or sends something else."""
    rows = table_of_methods()
    assert len(rows) == 6
    for typed, words in rows:
        chosen = parse_plan(importlib.import_module(typed[0].split()[2]), typed[0].split()[3:]).values["method"]
        family = importlib.import_module(typed[0].split()[2])
        method = family.METHODS[chosen]
        assert words == [method.computes, method.travels.split(" down, ")[1].removesuffix(" up")], typed


def test_the_readme_counts_and_names_the_baselines() -> None:
    """All names of the registries but the papers' own four. Mutation: a method more, or another number."""
    names = {name for family in FAMILIES for name in importlib.import_module(family).METHODS}
    baselines = names - {"zo_hfl", "fedrzo_nn", "fedrzo_bl", "heron"}
    text = re.sub(r"\s+", " ", TEXT["README.md"])
    assert f"the methods of three papers and {len(baselines)} baselines" in text
    (listed,) = re.findall(r"`--method (\w+)` \(([\w, ]+)\) runs a baseline", text)
    assert {listed[0], *listed[1].split(", ")} == baselines


def clients_of_table() -> tuple[list[int], Any, Any]:
    """(sizes of the four clients, inputs, targets) of table.npz, client by client."""
    raw = npz.read_npz(Path("table.npz"))
    assert raw.targets is not None
    parts = [own.rows for own in partition.split(raw, Streams(1), m=4, alpha=np.inf, server_fraction=0.0).clients]
    rows: Any = np.concatenate(parts)
    return [*map(len, parts)], raw.inputs[rows], raw.targets[rows]


def test_the_regression_is_within_1_percent_of_its_optimum(here: Path) -> None:
    """Mutations: t left out of the errors; targets of other rows; a sentence with another number."""
    (words,) = [words for words in runs() if "risk:CVaR" in words]
    performed([[called(words), *words[3:], "--quiet", "--out", "risk.h5"]])
    q, (sizes, U, v) = 1 - 0.9, clients_of_table()
    c, one = np.concatenate([np.full(size, 1 / (4 * size * q)) for size in sizes]), np.ones((len(U), 1))
    # min t + sum_j c_j z_j with z_j >= +-(<u_j, w> + b - v_j) - t and z >= 0
    above = np.block([[U, one, -one, -np.eye(len(U))], [-U, -one, -one, -np.eye(len(U))]])
    bounds = [(None, None)] * (U.shape[1] + 2) + [(0, None)] * len(U)
    least = linprog(np.r_[np.zeros(U.shape[1] + 1), 1, c], above, np.r_[v, -v], bounds=bounds).fun
    objective = records.load("risk.h5").rounds["objective"]
    assert objective[0] > 5 * least and least <= objective[-1] <= 1.01 * least
    assert f"within 1 % of the optimum that a linear program finds ({least:.3f})" in ALL


def test_a_bilevel_problem_of_ones_own_runs_on_any_number_of_ranks(here: Path) -> None:
    """Less regularisation fits better, so x is driven to its set's lower bound 0.5 and beyond it until the penalty
    (x - 0.5)/eta balances the slope of f(y(x)), which has a closed form: the clients hold equally many samples.
    Mutations: another client's samples; a penalty of another set."""
    u = np.random.Generator(np.random.Philox(1)).standard_normal((200, 4))
    np.savez("table.npz", x=u[:, :3], y=u @ [1, -2, 0.5, 1])
    words = "--method fedrzo_bl --problem ridge:Ridge --data table.npz --m 4 --lower local_sgd --T-lower 40"
    words += " --batch-lower 0 --gamma-lower 0.2 --batch 0 --dtype float64 --gamma 0.004 --eta 0.01 --H 10 --quiet"
    for ranks in (0, 3):
        performed([["zofl_mpi.fedrzo", *words.split(), "--rounds", "2", "--out", f"{ranks}.h5"]], ranks)
    assert differences(Path("0.h5"), Path("3.h5")) == []
    performed([["zofl_mpi.fedrzo", *words.split(), "--rounds", "10", "--eval-every", "9", "--out", "long.h5"]])
    _, U, v = clients_of_table()

    def fitted(x: float) -> float:
        y = np.linalg.solve(U.T @ U / len(U) + (0.1 + x**2) * np.eye(U.shape[1]), U.T @ v / len(U))
        return float(np.mean((U @ y - v) ** 2) / 2)

    found = records.load("long.h5")
    x = float(found.final["x"][0])
    assert found.rounds["lower_rounds"].tolist() == [80] * 10
    assert found.rounds["lower_residual"][-1] < 1e-4
    assert found.rounds["objective"][-1] == pytest.approx(fitted(x), rel=1e-6)
    slope = (fitted(x + 0.001) - fitted(x - 0.001)) / 0.002
    assert slope > 0.2
    assert 0.5 - x == pytest.approx(0.01 * slope, rel=0.05)


SHORT = sorted({*FILES, "zofl_mpi/api/README.md"} - {SUMMARY})
"""The pages that are held to short sentences."""


@pytest.mark.parametrize("name", SHORT)
def test_no_sentence_has_more_than_30_words(name: str) -> None:
    assert sentences.too_long((ROOT / name).read_text()) == []


def test_a_sentence_is_counted_as_it_is_read() -> None:
    """Mutations: code or a link's address counted; a cell that goes on in the next; an end that is not found."""
    text = "# A head\n\nOne `--flag of code` and [two words](a/long/address.md). Three.\n\n"
    text += "| a; b | c |\n|---|---|\n- d e\n- f\n"
    lengths = [sentences.length(sentence) for sentence in sentences.sentences(text)]
    assert (
        lengths == [2, 5, 1, 1, 1, 1, 2, 1]
        and sentences.too_long("word " * 31)
        and not sentences.too_long("word " * 30)
    )


OTHERS = {"breakpoint", "BeginTime", "SlurmdTimeout", "validation_personal_NAME"}
"""Names of Python and Slurm, and one that stands for several."""


@pytest.mark.parametrize("name", FILES)
def test_every_name_of_the_pages_is_one_of_the_code(name: str) -> None:
    """Mutation: a function that was renamed."""
    named = {text for text in inline(TEXT[name]) if re.fullmatch(r"[A-Za-z_][\w.]*(\(.*\))?", text)}
    assert {text.partition("(")[0].rpartition(".")[2] for text in named} - names_of_the_code() <= OTHERS


@cache
def names_of_the_code() -> set[str]:
    """The words of the code, of what it reads and of the pages' own modules."""
    rooms = ("zofl_mpi", "jobs", "analysis", "tests/tools", "tests/bench")
    files = [
        path
        for room in rooms
        for path in (ROOT / room).rglob("*")
        if path.suffix in (".py", ".toml", ".sh", ".sbatch", ".txt")
    ]
    texts = [path.read_text() for path in (*files, ROOT / "pyproject.toml")]
    return set(re.findall(r"\w+", " ".join([*texts, *blocks(ALL, "python")])))


@pytest.mark.parametrize("name", FILES)
def test_a_table_is_in_one_piece(name: str) -> None:
    """Its first row is followed by the line of dashes. Mutation: an empty line within a table."""
    lines = re.sub(r"^```.*?^```$", "", TEXT[name], flags=re.S | re.M).split("\n")
    first = [k for k, line in enumerate(lines) if line.startswith("|") and not lines[k - 1].startswith("|")]
    assert [lines[k] for k in first if not re.fullmatch(r"\|(?: ?:?-+:? ?\|)+", lines[k + 1])] == []


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_there(name: str) -> None:
    """No host, and no place of one machine. Links: tests/e2e/test_site.py."""
    written, place = {*(f"{module}.py" for module in own()), *grids()}, (ROOT / name).parent
    for text in inline(TEXT[name]):
        if re.fullmatch(r"[\w./-]+\.(py|sh|sbatch|toml|txt|md)|(zofl_mpi|jobs|tests|analysis)/[\w./-]*", text):
            assert text in written or (ROOT / text).exists() or (place / text).exists(), text
    assert not re.search(r"://|/home/|/root/|/work/|/tmp/", TEXT[name])
    if name == "jobs/README.md":
        named = set(re.findall(r"`(jobs/\w+\.toml)`", TEXT[name]))
        assert named == {f"jobs/{path.name}" for path in (ROOT / "jobs").glob("*.toml")}


def test_every_flag_that_the_readmes_name_exists() -> None:
    """In text and in tables; those of the commands are tried above."""
    known_flags = {"help"} | set(re.findall(r'"--([\w-]+)"', (ROOT / "zofl_mpi/run/grid/__main__.py").read_text()))
    known_flags |= {"quick", "empty", "family"}  # of the benchmarks, of the cache, of a check
    known_flags |= {"with-ft", "oversubscribe", "no-kill", "gpu-bind", "mpi"}  # of mpirun, sbatch and srun
    known_flags |= {"adapter", "own", "long"}  # of analysis/export.py and of tests.tools.sentences
    known_flags |= set(re.findall(r'"--([\w-]+)"', (ROOT / "zofl_mpi/report/__main__.py").read_text()))
    for family in map(importlib.import_module, FAMILIES):
        for method, cls in family.METHODS.items():
            fitting = [name for name, choice in family.PROBLEMS.items() if cls.needs.__name__ in choice.roles]
            for problem in fitting:
                known_flags |= {flags.flag(name) for name in flags.flags_of(groups_of(family, method, problem))}
    named = {name for text in inline(ALL) for name in re.findall(r"--([A-Za-z][A-Za-z0-9-]*)", text)}
    assert len(named) > 60
    assert named - known_flags == set()


def test_the_tables_name_every_method_and_problem() -> None:
    """By family, each with its file or with the roles that it offers."""
    for name, table, second in (("methods", "METHODS", 1), ("problems", "PROBLEMS", 0)):
        text = TEXT[f"zofl_mpi/{name}/README.md"]
        told: dict[str, dict[str, str]] = {}
        for first, then in re.findall(r"^\| (`[^|]+?) \|([^|]*)\|", text.replace("\\|", "/"), re.M):
            if first.startswith("`python -m "):
                family = told.setdefault(first.strip("`").removeprefix("python -m "), {})
            elif told and re.search(r"`[\w.]+`", then):
                family |= dict.fromkeys(re.findall(r"`(\w+)`", first), then)
        networks = {key: told["zofl_mpi.zo_hfl"][key] for key in ("mlp", "cnn")} if not second else {}
        for module in FAMILIES:
            real = getattr(importlib.import_module(module), table)
            shown = told[module] | (networks if module == "zofl_mpi.fedrzo" else {})
            assert set(shown) >= set(real), (module, table)
            for key, value in real.items():
                if second:
                    assert shown[key] == f" `{value.__module__.rpartition('.')[2]}.py` ", key
                else:
                    assert set(re.findall(r"`(\w+)`", shown[key])) == set(value.roles), key


def test_the_drawing_for_contributors_has_every_folder_and_file_of_the_package() -> None:
    """Mutations: a folder that is not drawn; one that is not there."""
    (drawing,) = [block for block in blocks(TEXT["zofl_mpi/README.md"], "") if "errors.py" in block]
    drawn = set(re.findall(r"\w+/|\w+\.py", drawing)) - {"split/", "analytic/", "kernels/"}  # folders of folders
    package = ROOT / "zofl_mpi"
    real = {f"{path.name}/" for path in package.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert drawn == real | {path.name for path in package.glob("*.py")} - {"__init__.py"}
