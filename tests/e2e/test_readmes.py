"""What the READMEs show works as shown: every command, every snippet, every flag, file and link that they name."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LIMIT, ROOT
from tests.launch import launch
from tests.tools.agreement import differences
from zofl_mpi.data import published
from zofl_mpi.run import flags, records
from zofl_mpi.run.grid import __main__ as grid_runner
from zofl_mpi.run.grid import read
from zofl_mpi.run.plan import groups_of, understand

FILES = [
    "README.md",
    *(f"{room}/README.md" for room in ("zofl_mpi", "zofl_mpi/methods", "zofl_mpi/problems", "zofl_mpi/run", "jobs")),
]
TEXT = {name: (ROOT / name).read_text() for name in FILES}
ALL = "\n".join(TEXT.values())
FAMILIES = ("zofl_mpi.zo_hfl", "zofl_mpi.fedrzo", "zofl_mpi.heron_sfl")
STARTERS = ("python", "mpirun", "bash", "sbatch", "grid")
"""With these words a command begins that stands within a line of text; `grid FILE` is the README's short form."""
REDUCED = {"rounds": "1", "tau": "1", "T_lower": "2"}
"""What makes a long run short; any run is at work on the files of a data set for a second or two."""
OF_THE_RUN = {"--out", "--quiet", "--resume"}


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
    kept = (_bare(words) for words in found if "FILE" not in words and words != ["mpirun", "-n"])
    return [list(words) for words in dict.fromkeys(map(tuple, kept))]


def _bare(words: list[str]) -> list[str]:
    while "=" in words[0]:
        words = words[1:]
    if words[:3] == ["mpirun", "--with-ft", "ulfm"]:
        words = ["mpirun", *words[3:]]
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
    return {module: code for module, name in named for code in codes if re.search(rf"^class {name}\b", code, re.M)}


# --- commands


@pytest.mark.parametrize("name", FILES)
def test_every_block_of_commands_is_well_formed(name: str) -> None:
    for block in blocks(TEXT[name], "bash"):
        done = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, timeout=LIMIT, check=False)
        assert done.returncode == 0 and not done.stderr, block


def test_every_command_is_of_a_kind_that_is_tried_here(here: Path, capsys: Any, monkeypatch: Any) -> None:
    """Those that take minutes, download or need a cluster are understood, as far as that goes without doing it."""
    monkeypatch.syspath_prepend(str(ROOT / "analysis"))
    kinds: dict[str, Callable[[list[str]], None]] = {
        "zofl_mpi.run.grid": lambda words: lists(words[3:], capsys),
        "zofl_mpi.data.download": lambda words: known(words[3:], ["--data-dir"], published.REMOTES),
        "zofl_mpi.settings.export": lambda words: exported(words[3:]),
        "zofl_mpi": lambda words: known(words[3:], [], []),
        "zofl_mpi.doctor": lambda words: known(words[3:], [], []),
        "pydoc": lambda words: importable(words[3]),
        "tests.tools.agreement": lambda words: importable("tests.tools.agreement"),
        "tests.tools.revisions": lambda words: known(words[3:], [], ["main"]),
        "tests.adversary": lambda words: known(words[3:], [], ["killed_ranks"]),
        "export": lambda words: launchers(words[1:]),
        "reframe": lambda words: listable(words),
        "sbatch": lambda words: submitted(words[1:], capsys),
        "bash": lambda words: is_script(words[1]),
        ".": lambda words: known(words[1:], [], [".venv/bin/activate"]),
        "module": lambda words: known(words[1:], [], ["load", "openmpi"]),
    }
    for words in commands():
        module = called(words)
        if module in FAMILIES:
            continue  # below
        if module.startswith("tests.bench."):
            importable(module)
            known(words[3:], re.findall(r'"(--\w+)"', (ROOT / f"{module.replace('.', '/')}.py").read_text()), ["cnn"])
        elif words[0] == "python" and not module:
            drawn(words[1], words[2:], capsys)
        else:
            assert (module or words[0]) in kinds, f"no test knows the command {shlex.join(words)}"
            kinds[module or words[0]](words)


def known(words: Sequence[str], names: Sequence[str], values: Any) -> None:
    """Every flag is one of `names`; a word that no flag precedes is one of `values`."""
    for k, word in enumerate(words):
        if word.startswith("--"):
            assert word in names, words
        elif not (k and words[k - 1].startswith("--")) or word in values:
            assert word in values, words


def exported(words: Sequence[str]) -> None:
    """A result of a grid, into a folder."""
    grid, result, folder = Path(words[0]).parent.name, Path(words[0]).stem, words[1]
    assert result in [one.name for one in read(ROOT / "jobs" / f"{grid}.toml").runs] and len(words) == 2 and folder


def importable(module: str) -> None:
    assert importlib.util.find_spec(module), module


def listable(words: Sequence[str]) -> None:
    """The files that ReFrame is given are there; `tests.e2e.test_scaling_study` has it list them."""
    assert all((ROOT / words[words.index(flag) + 1]).is_file() for flag in ("-C", "-c"))


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
        understand(importlib.import_module("zofl_mpi.zo_hfl"), rest)


def launchers(words: list[str]) -> None:
    """A variable that the job scripts read."""
    for word in words:
        assert word.partition("=")[0] in (ROOT / "jobs/zo_hfl.sbatch").read_text()


def drawn(script: str, words: Sequence[str], capsys: Any) -> None:
    """A script of analysis/ knows the flags; the files that it is given are grids, results or reports."""
    assert (ROOT / script).is_file(), script
    with contextlib.suppress(SystemExit):
        importlib.import_module(Path(script).stem).main(["--help"])
    results = ["mnist.h5", "RESULT.h5", "results/scaling/local.json"]
    known(words, re.findall(r"--[\w-]+", capsys.readouterr().out), results)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the READMEs' own modules and table, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path / "cache"))
    for module, code in own().items():
        (tmp_path / f"{module}.py").write_text(code)
    exec(next(code for code in blocks(ALL, "python") if '"table.npz"' in code), {})
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
                understand(family, words[3:])
            assert "usage: python -m" in capsys.readouterr().out
        else:
            understand(family, words[3:])


def performed(several: Sequence[Sequence[str]], ranks: int = 0) -> list[str]:
    """What the command lines (module, flags) print, in the current folder; all in one start."""
    place = {"cwd": Path.cwd(), "env": {"ZOFL_CACHE": os.environ["ZOFL_CACHE"]}} if ranks else {}
    ended = launch(ranks, [(module, words) for module, *words in several], **place)
    for words, one in zip(several, ended, strict=True):
        assert one.status == 0, f"{words}: {one.stderr}"
    return [one.stdout for one in ended]


def shortened(words: Sequence[str], out: str, data_dir: Path | None) -> list[str]:
    """(module, flags) of a run of one small round."""
    module, given = called(words), [word for word in words[3:] if word != "--help"]
    values = understand(importlib.import_module(module), given).values
    for name, value in REDUCED.items():
        given += [f"--{flags.flag(name)}", value] if name in values else []
    given += ["--data-dir", str(data_dir)] if data_dir else []
    return [module, *given, "--out", out, "--quiet"]


def of_files(words: Sequence[str]) -> bool:
    """Whether a command reads a data set from files."""
    return bool({"mnist", "fashion-mnist", "cifar10"} & set(words))


def test_every_run_on_the_digits_runs(here: Path) -> None:
    several = [words for words in runs() if not of_files(words) and not {"--help", "--resume"} & set(words)]
    assert len(several) >= 9
    alone = [[word for word in words if word != "--survive"] for words in several]  # which one process cannot
    told = performed([shortened(words, f"{k}.h5", None) for k, words in enumerate(alone)])
    for words, text in zip(several, told, strict=True):
        assert ("bytes down" if "--dry-run" in words else "result    ") in text


@pytest.mark.slow
def test_every_run_on_files_runs(here: Path, data_dir: Path) -> None:
    several = [words for words in runs() if of_files(words)]
    assert len(several) == 5
    told = performed([shortened(words, f"{k}.h5", data_dir) for k, words in enumerate(several)])
    for words, text in zip(several, told, strict=True):
        assert ("bytes down" if "--dry-run" in words else "result    ") in text


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_a_download_checks_the_files_that_are_there(data_dir: Path, name: str) -> None:
    from zofl_mpi.data import download

    assert f"python -m zofl_mpi.data.download {name} --data-dir data" in ALL
    if not all((data_dir / name / file).is_file() for file in published.REMOTES[name].files):
        pytest.skip(f"{name} is not there")
    assert download.main([name, "--data-dir", str(data_dir)]) == 0


# --- snippets and what they show


def test_every_snippet_is_run_here(here: Path, capsys: Any) -> None:
    """A module by the commands that name it, as above and below; all others after one another, beside a result."""
    scripts = [code for code in blocks(ALL, "python") if code not in own().values()]
    assert set(own()) == {"fedsgd", "mynet", "mysplit", "risk"} and len(scripts) == 3
    performed([["zofl_mpi.zo_hfl", "--rounds", "2", "--checkpoint-every", "1", "--quiet", "--out", "mnist.h5"]])
    (here / "table.npz").unlink()
    for code in scripts:
        exec(compile(code, "README.md", "exec"), {})
    assert (here / "table.npz").is_file()
    shown = capsys.readouterr().out
    assert "test_accuracy" in shown and "(640,)" in shown and "mean loss of x on the test samples" in shown
    (resume,) = [words for words in runs() if "--resume" in words]
    (told,) = performed([[called(resume), *resume[3:], "--rounds", "3", "--quiet"]])
    assert "mnist.h5" in told and records.load("mnist.h5").length == 3


@pytest.mark.slow
def test_the_modules_run_on_any_number_of_ranks_and_learn(here: Path) -> None:
    """FedSGD, a network, and a network in three parts, whose server's part learns with either uplink."""
    named = {module: next(words for words in runs() if any(f"{module}:" in word for word in words)) for module in own()}
    several = {module: [called(named[module]), *named[module][3:]] for module in ("fedsgd", "mynet", "mysplit")}
    several["seeds"] = [*several["mysplit"], "--uplink", "seeds"]
    for ranks in (0, 3):
        performed([[*words, "--out", f"{name}-{ranks}.h5"] for name, words in several.items()], ranks)
    for name in several:
        assert differences(here / f"{name}-0.h5", here / f"{name}-3.h5") == [], name
        assert records.load(here / f"{name}-0.h5").rounds["test_accuracy"][-1] > 0.8, name
    dense, seeds = (records.load(here / f"{name}-0.h5") for name in ("mysplit", "seeds"))
    assert dense.rounds["test_accuracy"][-1] == seeds.rounds["test_accuracy"][-1]
    assert (dense.table()["bytes_up"] > seeds.table()["bytes_up"]).all()


def test_the_readme_and_its_method_are_short(here: Path, capsys: Any) -> None:
    """And the method's docstring is its help."""
    assert len(TEXT["README.md"].splitlines()) <= 220
    assert len(own()["fedsgd"].splitlines()) <= 40
    with pytest.raises(SystemExit, match=r"^0$"):
        understand(importlib.import_module("zofl_mpi.zo_hfl"), ["--method", "fedsgd:FedSGD", "--help"])
    assert re.search(r"--gamma FLOAT +step size\. \(default: 0\.5\)", capsys.readouterr().out)


def test_the_quickstart_prints_what_the_readme_shows(here: Path) -> None:
    """The bytes to the last one; the accuracies to some test samples, since processors round differently."""
    (shown,) = [block for block in blocks(TEXT["README.md"], "") if block.startswith("reached")]
    assert "mpirun -n 11 python -m zofl_mpi.zo_hfl --gamma 1`" in TEXT["README.md"]
    assert "python -m zofl_mpi.zo_hfl --gamma 1 " in (ROOT / "jobs/quickstart.sh").read_text()
    plain = [["zofl_mpi.zo_hfl", *gamma, "--quiet", "--out", f"{len(gamma)}.h5"] for gamma in (["--gamma", "1"], [])]
    told, _ = performed(plain)
    number = r"\d+\.\d+"
    reached, was = (text.splitlines()[0] for text in (told, shown))
    assert re.sub(number, "#", reached) == re.sub(number, "#", was)
    assert [*map(float, re.findall(number, reached))] == pytest.approx([*map(float, re.findall(number, was))], abs=0.02)
    (sent,) = [line for line in shown.splitlines() if line.startswith("sent ")]
    assert sent in told.splitlines()
    (percent,) = re.findall(r"100 of them reach (\d+) %", TEXT["README.md"].replace("\n", " "))
    assert records.load("0.h5").rounds["test_accuracy"][-1] == pytest.approx(int(percent) / 100, abs=0.02)


def test_the_measured_numbers_are_those_of_the_results() -> None:
    """Every number of the table, and in the results' paragraph with what it counts, is in the results."""
    pages = sorted((ROOT / "analysis/results").glob("*.md"))
    results = re.sub(r"\s+", " ", " ".join(page.read_text() for page in pages))
    table = re.findall(r"^\| .* \| (.*) \| `[^|]*` \|$", TEXT["README.md"], re.M)
    (honest,) = re.findall(r"^## Results, honestly\n(.*?)^## ", TEXT["README.md"], re.S | re.M)
    numbers = [n for text in table for n in re.findall(r"\d[\d,]*\.?\d*(?: ± \d+\.\d+)?", text)]
    counted = r"\d+(?:\.\d+)?(?: (?:to|and|±) \d+(?:\.\d+)?)*(?: %| points)?"
    phrases = re.findall(counted, re.sub(r"\s+", " ", honest).replace("Table 1's", ""))
    assert len(table) >= 12 and len(numbers) > 20 and len(phrases) >= 7
    for text in (*numbers, *phrases):
        assert re.search(rf"(?<![\d.]){re.escape(text)}(?!\d|\.\d)", results), text


# --- names


def test_every_flag_that_the_readmes_name_exists() -> None:
    """In text and in tables; those of the commands are tried above."""
    known_flags = {"help"} | set(re.findall(r'"--([\w-]+)"', (ROOT / "zofl_mpi/run/grid/__main__.py").read_text()))
    known_flags |= {"quick", "tiny", "json"}  # of the benchmarks
    known_flags |= {"with-ft", "no-kill"}  # of mpirun and sbatch
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


@pytest.mark.parametrize("name", FILES)
def test_every_file_that_a_readme_names_exists(name: str) -> None:
    written = {f"{module}.py" for module in own()}
    for text in inline(TEXT[name]):
        if re.fullmatch(r"[\w./-]+\.(py|sh|sbatch|toml|txt|md)|(zofl_mpi|jobs|tests|analysis)/[\w./-]*", text):
            assert text in written or (ROOT / text).exists() or ((ROOT / name).parent / text).exists(), text


def test_the_drawing_for_contributors_has_every_folder_and_file_of_the_package() -> None:
    """Mutations: a folder that is not drawn; one that is not there."""
    (drawing,) = [block for block in blocks(TEXT["zofl_mpi/README.md"], "") if "errors.py" in block]
    drawn = set(re.findall(r"\w+/|\w+\.py", drawing)) - {"split/", "analytic/", "kernels/"}  # folders of folders
    package = ROOT / "zofl_mpi"
    real = {f"{path.name}/" for path in package.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert drawn == real | {path.name for path in package.glob("*.py")} - {"__init__.py"}


@pytest.mark.parametrize("name", FILES)
def test_every_link_leads_somewhere(name: str) -> None:
    for path, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", TEXT[name]):
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.exists(), path
        if anchor:
            titles = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
            assert anchor in [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles], anchor


@pytest.mark.parametrize("name", FILES)
def test_a_readme_names_no_host_and_no_place_of_one_machine(name: str) -> None:
    assert not re.search(r"://|/home/|/root/|/work/|/tmp/", TEXT[name])


def test_every_grid_has_a_line_in_the_readme_of_the_jobs() -> None:
    named = set(re.findall(r"`(jobs/\w+\.toml)`", TEXT["jobs/README.md"]))
    assert named == {f"jobs/{path.name}" for path in (ROOT / "jobs").glob("*.toml")}


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.toml")), ids=lambda path: path.stem)
def test_the_commands_at_the_top_of_a_grid_are_its_own(path: Path) -> None:
    """They name this file, scripts that exist, and as many tasks as there are runs."""
    top = re.sub(r"\\\n# +", "", "".join(line for line in path.read_text().splitlines(True) if line.startswith("#")))
    given = [shlex.split(line[1:]) for line in top.splitlines() if re.match(r"#   +(python|sbatch)", line)]
    assert {called(words) or words[0] for words in given} >= {"zofl_mpi.run.grid", "sbatch"}
    for words in given:
        assert all((ROOT / word).is_file() for word in words if word.endswith((".py", ".sbatch", ".toml")))
    (array,) = [word for words in given for word in words if word.startswith("--array=")]
    assert array == f"--array=0-{len(read(path).runs) - 1}"
