"""Text on its way to a screen: what comes from a file moves no cursor, forges no line, and is not a megabyte."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from zofl_mpi.data import sources
from zofl_mpi.engine.world import Ended, SingleProcess
from zofl_mpi.errors import LONGEST, UserError, plain, refused, warn
from zofl_mpi.problems.lm_models import SIZES
from zofl_mpi.report import charts, facts, watch
from zofl_mpi.report.groups import Group
from zofl_mpi.run import devices
from zofl_mpi.run.command import stored
from zofl_mpi.run.records import Run

FORGED = "\x1b[2J\x1b]0;title\x07 done\nzofl_mpi: all is well\r\u202e\u2028\ud800"


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Z", "C"]), max_size=200))
def test_any_text_becomes_one_printable_line(text: str) -> None:
    """Mutations: only ASCII's control characters; new lines kept; a surrogate, which no file can hold in UTF-8."""
    shown = plain(text)
    assert shown.isprintable() and shown.encode() is not None and len(shown.splitlines()) <= 1
    assert plain(shown) == shown
    if text.isprintable():
        assert shown == text


def test_a_long_text_is_its_ends() -> None:
    """Mutations: the beginning alone; a length by the escaped text."""
    text = "begin" + 900_000 * "x" + "end"
    assert len(plain(text)) < LONGEST + 100 and plain(text).startswith("begin") and plain(text).endswith("end")
    assert plain(LONGEST * "x") == LONGEST * "x"


def test_errors_and_warnings_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Mutations: an error raw; a warning raw."""
    refused(UserError(f"{FORGED}: no"))
    warn(FORGED)
    lines = capsys.readouterr().err.split("\n")
    assert len(lines) == 3 and all(line.isprintable() for line in lines)
    assert str(UserError("a sentence")) == "a sentence"


class Stranger:
    """A result whose texts are hostile."""

    def __init__(self) -> None:
        nothing = np.zeros(1)
        self.path, self.length, self.rounds = Path("x.h5"), 0, dict[str, Any]()
        self.clients = {"bytes_down": nothing, "bytes_up": nothing}
        self.ranks = {"transport_sent": nothing, "transport_received": nothing}
        self.attrs = {"status": FORGED, "ranks": 1, "command": FORGED, "data": 50_000 * "[/]"}
        self.config = {"method": f"[bold]{FORGED}[/nothing]", "rounds": FORGED}


def test_texts_of_a_result_reach_table_and_page_as_they_are_read() -> None:
    """Mutations: rich's markup alive, of which [/nothing] ends --watch by an exception; a raw cell; a raw origin."""
    run = cast(Run, Stranger())
    screen = Console(file=io.StringIO(), width=400)
    screen.print(watch.table([run]))
    shown = cast(io.StringIO, screen.file).getvalue()
    assert "[bold]" in shown and "[/nothing]" in shown and "\x1b" not in shown and "\u202e" not in shown
    texts = [*facts.labels([run]), *facts.summary(run).values(), *facts.origin(run).values()]
    assert all(text.isprintable() and len(text) < LONGEST + 100 for text in texts)


def test_names_of_columns_and_steps_reach_the_page_as_they_are_read() -> None:
    """Mutations: a column's name, unit or description raw; another name in the menu than at the curve."""
    one = {"bytes_down": np.zeros((2, 1, 1)), "bytes_up": np.zeros((2, 1, 1))}
    told = {FORGED: f"{FORGED} {10_000 * 'x'}"}
    run = SimpleNamespace(
        rounds={FORGED: np.ones(2)}, length=2, clients=one, units=told, descriptions=told, steps=[FORGED]
    )
    found = charts.curves([cast(Group, SimpleNamespace(runs=[run], label="a"))])
    texts = [*found["columns"][0].values(), *charts.step_bytes(cast(Run, run))["data"][0]["x"]]
    assert all(text.isprintable() and len(text) < LONGEST + 100 for text in texts)
    assert found["columns"][0]["name"] in found["groups"][0]["y"]


def test_a_traceback_of_a_client_is_shown_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    """Mutations: raw; all of it in one line."""
    with pytest.raises(Ended):
        SingleProcess().abort("Traceback\n  File x\nKeyError: \x1b[2J\u202e\n")
    assert capsys.readouterr().err == "Traceback\n  File x\nKeyError: \\x1b[2J\\u202e\n"


def test_values_that_zofl_mpi_knows_by_name_are_all_that_a_file_may_choose() -> None:
    """Mutations: a name that is missing or no more; .jsonl, a bare folder's name or random:FOLDER taken for known."""
    assert stored.KNOWN["data"] == (*sources.NAMES, "e2e")
    assert stored.KNOWN["model"] == ("gpt2", *(f"random:{name}" for name in SIZES))
    assert stored.KNOWN["devices"] == ("", *devices.NAMES)
    for name, value in (
        ("data", "a.jsonl"), ("data", "folder"), ("data", "a.npz"), ("model", "random:folder"), ("model", "own/model"),
        ("devices", "d.toml"), ("pretrained", "p.h5"), ("data", ""), ("model", "gpt3"),
    ):  # fmt: skip
        assert stored.is_place(name, value), (name, value)
    assert not any(stored.is_place(name, value) for name, values in stored.KNOWN.items() for value in values)


class Checkpoint:
    def __init__(self, **attrs: Any) -> None:
        self.attrs = {"config": '{"method": "fedavg", "problem": "toy", "rounds": 3}', "kernel": ""}
        self.attrs = {name: value for name, value in (self.attrs | attrs).items() if value is not None}


@pytest.mark.parametrize(
    "attrs",
    [
        {"config": None},
        {"kernel": None},
        {"config": "[]"},
        {"config": '{"method": "fedavg", "problem": "toy", "rounds": [3]}'},
        {"config": '{"method": "fedavg", "problem": "toy", "rounds": "3"}'},
        {"config": '{"method": "fedavg", "problem": "toy", "tau": {"a": 1}}'},
        {"config": '{"method": "fedavg", "problem": "toy", "tau": [[1]]}'},
        {"config": '{"method": "fedavg", "problem": "toy", "tau": null}'},
        {"config": '{"method": 3, "problem": "toy"}'},
    ],
)
def test_a_checkpoints_configuration_is_checked_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch, attrs: dict[str, Any]
) -> None:
    """Mutations: an attribute that may be missing taken by its name; a list for --rounds; a table as a value."""
    monkeypatch.setattr("zofl_mpi.run.records.load_checkpoint", lambda path, whole: Checkpoint(**attrs))
    with pytest.raises(UserError, match="the checkpoint's configuration is damaged"):
        stored.config_of("run.h5")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("words", [["zofl_mpi"], ["zofl_mpi.run.grid", "g.toml"], ["zofl_mpi.doctor"]])
def test_a_full_or_closed_standard_output_is_no_traceback(tmp_path: Path, words: list[str]) -> None:
    """Mutations: a command that catches neither; one that ends with 0."""
    (tmp_path / "g.toml").write_text(
        'module = "zofl_mpi.zo_hfl"\nfolder = "r"\nname = "{seed}"\n[axes]\nseed = [1, 2]\n'
    )
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", *words], stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
    said = "zofl_mpi: standard output cannot be written (No space left on device): send it elsewhere\n"
    assert (ended.returncode, ended.stderr) == (2, said)
    pipe = f"set -o pipefail; {sys.executable} -m {' '.join(words)} | true; exit ${{PIPESTATUS[0]}}"
    closed = subprocess.run(["bash", "-c", pipe], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert closed.returncode in (0, 1) and not re.search("Traceback|ignored", closed.stderr)
    none = f"exec {sys.executable} -m {' '.join(words)} >&-"
    assert subprocess.run(["bash", "-c", none], capture_output=True, text=True, cwd=tmp_path).stderr == ""
