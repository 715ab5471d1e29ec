"""Paths that users give: home folders, and what no path can be, in one sentence wherever they are given."""

import errno
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Capsys, Patch
from tests.unit.made import complaint
from zofl_mpi import paths
from zofl_mpi.data import cache, download, published, sources
from zofl_mpi.engine.streams import Streams
from zofl_mpi.engine.world import SingleProcess
from zofl_mpi.report.__main__ import main as report
from zofl_mpi.run.command import flags
from zofl_mpi.run.grid import file as grid
from zofl_mpi.run.loop import rounds as loop
from zofl_mpi.settings.samples import Samples

GRID = 'module = "zofl_mpi.zo_hfl"\nfolder = "FOLDER"\n[axes]\nseed = [1]\n'


def of_grid(path: str) -> Any:
    Path("grid.toml").write_text(GRID.replace("FOLDER", path))
    return grid.read("grid.toml").folder


def of_report(path: str) -> Any:
    with pytest.raises(SystemExit) as end:
        report([path])
    assert end.value.code == 2


GIVEN: dict[str, Callable[[str], Any]] = {
    "--resume": loop.result_of,
    "--config": lambda path: flags.read_toml(path, "--config "),
    "--data": lambda path: sources.find_sources(f"{path}/a.npz", None, Streams(0)),
    "--data-dir": lambda path: Samples(data="mnist", data_dir=path).federation(SingleProcess(), Streams(0)),
    "folder =": of_grid,
    "ZOFL_CACHE": lambda path: _with("ZOFL_CACHE", path, cache.default_cache_dir),
    "ZOFL_DATA": lambda path: _with("ZOFL_DATA", path, published.default_data_dir),
}


def _with(variable: str, value: str, call: Callable[[], Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variable, value)
        return call()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path / "home"


def _nobody(monkeypatch: Patch) -> None:
    def unknown(_: object) -> None:
        raise KeyError("no entry")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.parametrize("flag", GIVEN)
def test_a_home_that_nobody_knows_is_a_sentence(flag: str, monkeypatch: Patch) -> None:
    """Mutations: RuntimeError's traceback; a folder named ~ in this one."""
    said = complaint(GIVEN[flag], "~nosuchuser/place")
    assert f"{flag} ~nosuchuser/place" in said and "there is no user nosuchuser; write the whole path" in said
    _nobody(monkeypatch)
    assert "this process has no home folder (HOME is not set)" in complaint(GIVEN[flag], "~/place")
    assert not Path("~").exists()


def test_a_tilde_is_the_home_folder_wherever_a_path_is_given(home: Path, capsys: Capsys) -> None:
    """Mutation: a folder named ~ in this one, as a shell leaves it to us in --out=~/a.h5."""
    assert loop.result_of("~/a.ckpt.h5") == home / "a.h5" and of_grid("~/runs") == home / "runs"
    assert _with("ZOFL_CACHE", "~/c", cache.default_cache_dir) == home / "c"
    (home / "mnist").mkdir(parents=True)
    assert str(home / "mnist") in complaint(GIVEN["--data-dir"], "~")
    (home / "a.toml").write_bytes(b"\xef\xbb\xbfrounds = 3\n")
    assert flags.read_toml("~/a.toml") == {"rounds": 3}, "a byte order mark may begin it"
    assert download.main(["mnist", "--data-dir", "~nosuchuser"]) == 2
    of_report("~nosuchuser/a.h5")
    assert capsys.readouterr().err.count("there is no user nosuchuser") == 2


@pytest.mark.parametrize("path", ["caf\udce9.h5", "\udcff", "a\0b"])
def test_what_is_no_text_is_refused_before_anything_starts(path: str) -> None:
    """Mutation: refused when the result's attribute is written, after round 1."""
    said = complaint(paths.user_path, path, "--out")
    assert (
        said.startswith("--out ") and ("it is not UTF-8" in said or "no path has a NUL" in said) and said.isprintable()
    )
    if "\0" not in path:
        for words in (["--rounds", "3", "--out", path], [f"--out={path}"], [path]):
            assert "it is not UTF-8" in complaint(flags.split, words)
    os.fsencode(path)


def test_no_home_is_a_sentence_where_a_folder_is_needed(monkeypatch: Patch) -> None:
    _nobody(monkeypatch)
    for variable, call in (("ZOFL_CACHE", cache.default_cache_dir), ("ZOFL_DATA", published.default_data_dir)):
        monkeypatch.delenv(variable, raising=False)
        assert complaint(call) == f"this process has no home folder (HOME is not set): set {variable} to a folder"


def kept(folder: Path) -> dict[str, str]:
    """What a folder holds: names with the words of files, and what else they are."""
    return {
        path.name: path.read_text() if path.is_file() and not path.is_symlink() else "other"
        for path in folder.iterdir()
    }


def test_a_new_file_takes_its_name_when_it_is_complete(tmp_path: Path) -> None:
    """With the rights of any new file. Mutations: it is written in place; one beside it is left; it is private."""
    out = tmp_path / "a.txt"
    with paths.new_file(out, "--out") as made:
        assert made.parent == tmp_path and made.suffix == ".txt" and not out.exists()
        made.write_text("whole")
    (tmp_path / "usual").write_text("")
    assert out.stat().st_mode == (tmp_path / "usual").stat().st_mode
    with paths.new_file(out, "--out", force=True) as made:
        made.write_text("again")
    assert kept(tmp_path) == {"a.txt": "again", "usual": ""}


@pytest.mark.parametrize("at", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: Patch, at: str) -> None:
    """Mutations: the old file is removed first; half of a new one is left beside it."""
    out = tmp_path / "a.txt"
    out.write_text("old")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write() -> None:
        with paths.new_file(out, "--out", force=True) as made:
            made.write_text("half")
            if at == "write":
                full()
            else:
                monkeypatch.setattr(paths.os, at, full)

    said = complaint(write)
    assert said == f"--out {out}: cannot be written (No space left on device); choose another place, or make room"
    assert kept(tmp_path) == {"a.txt": "old"}


def test_a_fault_of_the_writer_leaves_what_was_there(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), paths.new_file(tmp_path / "a.txt", "--out") as made:
        made.write_text("half")
        raise KeyboardInterrupt
    assert kept(tmp_path) == {}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", ["file", "link", "lost link", "folder", "pipe", "input", "second name of an input"])
def test_only_a_free_place_or_a_file_of_ones_own_is_written(tmp_path: Path, kind: str, force: bool) -> None:
    """Mutations: links are followed; --force replaces what was read; a pipe is waited for."""
    out, read, work = tmp_path / "a.txt", tmp_path / "read", tmp_path / "work"
    read.write_text("read")
    work.write_text("work")
    make: dict[str, Callable[[], Any]] = {
        "file": lambda: out.write_text("old"),
        "link": lambda: out.symlink_to(work),
        "lost link": lambda: out.symlink_to(tmp_path / "none"),
        "folder": out.mkdir,
        "pipe": lambda: os.mkfifo(out),
        "input": lambda: read.rename(out),
        "second name of an input": lambda: out.hardlink_to(read),
    }
    make[kind]()
    before = kept(tmp_path)

    def write() -> None:
        with paths.new_file(out, "--out", force, [read if kind != "input" else out]) as made:
            made.write_text("new")

    if kind == "file" and force:
        write()
        assert kept(tmp_path) == before | {"a.txt": "new"}
        return
    assert complaint(write).startswith(f"--out {out}")
    assert kept(tmp_path) == before


def test_a_file_that_comes_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    def write() -> None:
        with paths.new_file(tmp_path / "a.txt", "--out") as made:
            made.write_text("new")
            (tmp_path / "a.txt").write_text("another's")

    assert "exists: choose another name or add --force" in complaint(write)
    assert kept(tmp_path) == {"a.txt": "another's"}
