"""`python -m zofl_mpi` lists what can be typed."""

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.conftest import ROOT
from zofl_mpi.__main__ import TOOLS, lines
from zofl_mpi.errors import SCRIPTS
from zofl_mpi.run.command.family import FAMILIES
from zofl_mpi.run.loop.screen import fold

PACKAGE = ROOT / "zofl_mpi"
METHOD = """
import gc
from zofl_mpi.methods.fedavg import FedAvg

print("while imported", gc.isenabled())

class Collecting(FedAvg):
    def round(self, *given):
        print("in a round", gc.isenabled())
        return super().round(*given)
"""


def test_every_command_method_and_problem_has_its_place() -> None:
    """Mutations: a module that runs is in no list; a family's last method is left out; a line without a text."""
    runs = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        for file in PACKAGE.rglob("*.py")
        if 'if __name__ == "__main__"' in file.read_text()
    }
    assert runs - {"zofl_mpi"} == {*FAMILIES, *TOOLS}
    listed = list(lines())
    for command in runs - {"zofl_mpi"}:
        assert sum(line.split()[:3] == ["python", "-m", command] and len(line.split()) > 4 for line in listed) == 1
    for name in FAMILIES:
        family, start = import_module(name), next(k for k, line in enumerate(listed) if f"-m {name} " in line)
        methods, words = (listed[start + k : start + 1 + 2 * len(family.METHODS) : 2] for k in (1, 2))
        assert [line.split()[:2] for line in methods] == [["--method", method] for method in family.METHODS]
        assert all(len(line.split()) > 3 for line in methods)
        for line, made in zip(words, family.METHODS.values(), strict=False):
            assert line.strip() == f"a client: {made.computes}; {made.travels}"
        assert listed[start + 1 + 2 * len(family.METHODS)].split(maxsplit=1)[1] == ", ".join(family.PROBLEMS)


def table() -> Iterator[str]:
    """Rows of the page's table: methods with their clients' computation and messages; equal rows merged."""
    alike = dict[tuple[str, ...], list[str]]()
    for name in FAMILIES:
        for method, made in import_module(name).METHODS.items():
            same = alike.setdefault((made.computes, *made.travels.split(" down, ")), [])
            same += [f"`{method}`"] * (f"`{method}`" not in same)
    yield from ("| `--method` | a client computes | gets | sends |", "|---|---|---|---|")
    yield from (
        f"| {', '.join(m)} | {does} | {down} | {up.removesuffix(' up')} |" for (does, down, up), m in alike.items()
    )


def test_the_page_has_the_table_of_the_code() -> None:
    """Every method once. Mutations: a method without words; a page that says something else."""
    page, names = (PACKAGE / "methods/README.md").read_text(), {m for f in FAMILIES for m in import_module(f).METHODS}
    rows = list(table())
    assert "\n".join(rows) in page
    listed = [word.strip(" `") for row in rows[2:] for word in row.split("|")[1].split(",")]
    assert sorted(listed) == sorted(names)
    assert all(cell.strip() for row in rows[2:] for cell in row.split("|")[1:-1])
    assert f"Commands for {len(names)} methods" in next(lines())


@pytest.mark.parametrize("command", [*FAMILIES, "zofl_mpi.run.grid", "zofl_mpi.doctor"])
def test_ctrl_c_while_modules_are_imported_ends_a_command_without_a_traceback(command: str, tmp_path: Path) -> None:
    """Mutations: the hook is set after the imports; for a part of the commands; also for scripts of a user's."""
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt")
    (tmp_path / "own.py").write_text(f"import {command}")
    where = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    for words, is_quiet in ((["-m", command], True), (["own.py"], False)):
        done = subprocess.run([sys.executable, *words], env=where, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == -signal.SIGINT
        assert ("Traceback" not in done.stderr) == is_quiet


def test_garbage_is_left_alone_during_a_start_and_in_no_script(tmp_path: Path) -> None:
    """Mutations: it is never collected again; a command imports with it; a script of a user's is changed."""
    (tmp_path / "collecting.py").write_text(METHOD)
    command = [sys.executable, "-m", "zofl_mpi.zo_hfl", "--method", "collecting:Collecting", "--problem", "softmax"]
    run = subprocess.run([*command, "--rounds", "1", "--m", "2"], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "while imported False" in run.stdout and "in a round True" in run.stdout
    script = "import gc, zofl_mpi.zo_hfl; print(gc.isenabled())"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "True\n"


def test_the_console_scripts_are_known() -> None:
    """A new one would show a traceback at Ctrl-C."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sorted(SCRIPTS) == sorted(project["scripts"])


def test_the_list_fits_a_narrow_terminal() -> None:
    """Rows of 60 columns, with every word in its order; what follows a name goes on under what it says. Mutations: a
    word that is cut; later rows at the margin."""
    for line in lines():
        rows = fold(line, 60).splitlines()
        assert max(map(len, rows), default=0) <= 60 and " ".join(rows).split() == line.split()
    assert fold("python -m zofl_mpi.x  aaa bbb ccc", 32).splitlines() == [
        "python -m zofl_mpi.x",
        "    aaa bbb ccc",
    ]
