"""What all scripts do alike: they refuse results that are missing or not theirs, and run from any folder."""

import json
import sys
from pathlib import Path
from typing import Any

import h5py
import pytest

from tests.analysis.made import Grids, grid_files, group_of
from tests.analysis.written import made_up_results
from tests.conftest import ROOT, run_process
from zofl_mpi.run import grid
from zofl_mpi.run.records.hdf5 import set_attributes

SCRIPTS = sorted(path.stem for path in (ROOT / "analysis").glob("[abcd]_*.py"))
OF_B = {"b_fig1": "b_figure", "b_methods": "b_methods"}
OF_C = dict.fromkeys(("c_budget", "c_fig2", "c_table2"), "c_methods") | {"c_fig3": "c_clients", "c_fig4": "c_estimates"}
"""Script -> its grid."""


def damage(path: Path, how: str) -> None:
    """Make a good result into one that must not be averaged."""
    if how == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "text":
        path.write_text("not HDF5\n")
    else:
        with h5py.File(path, "r+") as file:
            config = json.loads(file.attrs["config"])
            file.attrs["schema"] = 99 if how == "schema" else file.attrs["schema"]
            config |= {"eta": 0.7} if how == "configuration" else {}
            set_attributes(file, {"config": config, "status": "interrupted" if how == "interrupted" else "done"})


HOW = ["truncated", "text", "schema", "interrupted", "configuration"]
OTHERS = [(*pair, how) for pair in (("a_table1", "a_table"), ("a_fig2", "a_taus")) for how in HOW]


@pytest.mark.parametrize(("name", "grid_name", "how"), OTHERS)
def test_a_result_that_is_not_of_this_run_is_refused_by_name(
    place: Grids, name: str, grid_name: str, how: str, refuses: Any
) -> None:
    runs = place(grid_name).read().runs
    damage(runs[3].out, how)
    lines = refuses(name, place(grid_name))
    assert len(lines) == 2 and lines[0].startswith(f"{name}: ") and runs[3].name in lines[0]
    assert f"1 of {len(runs)} results cannot be used" in lines[1]


@pytest.mark.parametrize(("name", "grid_name"), ({"a_table1": "a_table"} | OF_B | OF_C).items())
def test_a_missing_seed_is_refused_and_marked_with_partial(name: str, grid_name: str, wrote: Any, refuses: Any) -> None:
    (path,) = grid_files(grid_name)
    first, *others = grid.read(path, trust=True).runs
    with made_up_results(missing=[first.name]):
        lines = refuses(name, ["--grid", str(path)])
        told = wrote(name, ["--grid", str(path)], "--partial", pixels=False)
    assert len(lines) == 2 and first.name in lines[0]
    assert lines[1].endswith(f"1 of {1 + len(others)} results cannot be used; --partial goes on without them")
    seeds = [row["seeds"] for row in told.rows]
    assert first.name in told.err and "1" in seeds
    assert "1 of 2" in told.out if name in OF_C else seeds.count("1") == 1


@pytest.mark.parametrize(("name", "grid_name"), ({"a_table1": "a_table"} | OF_B | OF_C).items())
def test_a_group_without_any_seed_stays_in_the_table(name: str, grid_name: str, wrote: Any) -> None:
    (path,) = grid_files(grid_name)
    first, *others = grid.read(path, trust=True).runs
    same = [run.name for run in others if {**run.coordinates, "seed": ""} == {**first.coordinates, "seed": ""}]
    with made_up_results(missing=[first.name, *same]):
        seeds = [row["seeds"] for row in wrote(name, ["--grid", str(path)], "--partial", pixels=False).rows]
    assert "0" in seeds and (name in OF_C or seeds.count("0") == 1)


@pytest.mark.parametrize("name", ["a_table1", "a_budget"])
def test_no_result_at_all_is_refused_with_partial_too(listed: Grids, name: str, refuses: Any) -> None:
    lines = refuses(name, listed("a_table"), "--partial")
    assert len(lines) == 9 and lines[-1] == f"{name}: 8 of 8 results cannot be used"


@pytest.mark.parametrize(
    ("name", "grid_name", "sentence"),
    [
        ("a_table1", "a_readings", "has the axis reading, which would be averaged over"),
        ("a_fig2", "a_table", "has the axis method, which would be averaged over"),
        ("a_fig2", "a_readings", "has the axis reading, which would be averaged over"),
        ("a_budget", "a_taus", "has the axis tau, which would be averaged over"),
        ("a_readings", "a_table", "has no axis reading; it has seed, method, cell"),
        ("a_tuned", "a_table", "has no axis of steps"),
        ("b_fig1", "b_methods", "has the axis rectifier, which would be averaged over"),
        ("b_methods", "b_figure", "has the axis eta, which would be averaged over"),
        ("b_fig1", "b_scales", "has the axis reading, which would be averaged over"),
    ],
)
def test_a_grid_of_another_figure_is_refused(
    listed: Grids, name: str, grid_name: str, sentence: str, refuses: Any
) -> None:
    (line,) = refuses(name, listed(grid_name))
    assert line.startswith(f"{name}: ") and f"{grid_name}.toml {sentence}" in line


@pytest.mark.parametrize(("name", "grid_name"), [("a_fig2", "a_taus"), ("a_table1", "a_table")])
def test_a_file_in_the_way_is_a_sentence(
    made: Grids, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str], name: str, grid_name: str
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as caught:
        script(name).main(made(grid_name).words(tmp_path / "file" / "t"))
    told = capsys.readouterr().err
    assert caught.value.code == 2 and told.startswith(f"{name}: cannot ") and told.count("\n") == 1


OF_HERON = ("c_fig2", "c_fig3", "c_table2_full", "c_fig6", "c_lm", "c_lm_random", "c_lm_tuned")
NAMED = dict.fromkeys(OF_HERON, "shared.heron") | {"c_pays": "shared.pays", "c_pays_search": "shared.pays"}
NAMED |= dict.fromkeys(("b_methods", "b_methods_cifar"), "b_methods")
"""Grid -> the module that spells its methods."""


@pytest.mark.parametrize(("name", "module"), NAMED.items())
def test_each_method_of_a_grid_in_the_repository_has_a_name(script: Any, name: str, module: str) -> None:
    assert set(grid.read(ROOT / "jobs" / f"{name}.toml", trust=True).axes["method"]) <= set(script(module).NAMES)


def test_the_grids_of_b_in_the_repository_are_those_of_the_scripts(script: Any) -> None:
    for name, needed in (("b_fig1", {"eta", "H"}), ("b_fig1_sum", {"reading", "H"}), ("b_methods", {"method", "step"})):
        study = grid.read(ROOT / "jobs" / f"{name}.toml", trust=True)
        assert needed <= set(study.axes) and study.folder == Path(f"results/{name}")
    figure = grid.read(ROOT / "jobs" / "b_fig1.toml", trust=True)
    assert (figure.axes["eta"], figure.axes["H"]) == (("0.1", "0.01", "0.001"), ("1", "5", "10", "20"))


@pytest.mark.parametrize("name", ["c_fig2", "c_fig3", "c_lm", "c_lm_random"])
def test_methods_of_one_figure_differ_in_their_looks(script: Any, name: str) -> None:
    """Mutation: a ninth look, which is the first one again."""
    methods = grid.read(ROOT / "jobs" / f"{name}.toml", trust=True).axes["method"]
    places = {script("shared.heron").place(group_of(where={"method": m})) for m in methods if m != "heron-still"}
    assert len({place % len(script("shared.figures").LOOKS) for place in places}) == len(set(methods) - {"heron-still"})


def test_the_grids_of_c_in_the_repository_are_those_of_the_scripts(script: Any) -> None:
    """All that they have is drawn. Mutation: a cell that no panel has."""
    names, Group = script("shared.heron").NAMES, script("shared.groups").Group
    assert set(grid.read(ROOT / "jobs" / "c_fig2.toml", trust=True).axes["method"]) == set(names) - {
        "heron-group",
        "splitlora",
        "decomfl",
    }
    third = script("c_fig3")
    runs = grid.read(ROOT / "jobs" / "c_fig3.toml", trust=True).runs[:27]
    groups = [Group(run.coordinates, 3, dict(run.flags), ()) for run in runs]
    assert {key: len(each) for key, each in third.panels_of(groups).items()} == {"alpha": 10, "m": 11, "beta": 8}
    for group in groups:
        other, is_heron = third.control(group, groups), group.entry("method") == "heron"
        assert (other is not None) == is_heron
        assert other is None or (other.entry("cell"), other.entry("method")) == (group.entry("cell"), "heron-frozen")
    steps = {g.config["h"] * g.config["m"] * g.config.get("beta", 1.0) for g in groups}
    assert steps == {100}, "local steps of a round"
    fourth, runs = script("c_fig4"), grid.read(ROOT / "jobs" / "c_fig4.toml", trust=True).runs[:20]
    groups = [Group(run.coordinates, 3, dict(run.flags), ()) for run in runs]
    rows = [{"frozen": fourth.frozen(g), **{key: fourth.value(g, key) for key in ("mu", "n_p")}} for g in groups]
    assert {key: len(each) for key, each in fourth.panels_of(rows).items()} == {"mu": 12, "n_p": 8}
    assert [fourth.control(g, groups) is None for g in groups].count(True) == 2


# --- as programs

ALL = """
import os, runpy, sys
import h5py, matplotlib.pyplot, numpy, scipy.optimize, torch, zofl_mpi.run.command.cli, zofl_mpi.run.grid
import zofl_mpi.methods, zofl_mpi.heron_sfl, zofl_mpi.problems.split_images, zofl_mpi.settings.split_lm
import zofl_mpi.rounds.split.costs
paths, children = sys.argv[1:], {}
for path in paths:
    if (child := os.fork()) == 0:
        sys.argv, sys.path[0] = [path, "--help"], os.path.dirname(path)
        os.dup2(os.open(os.path.basename(path) + ".out", os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(os.open(os.path.basename(path) + ".err", os.O_WRONLY | os.O_CREAT), 2)
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0 if end.code in (None, 0) else 1)  # to take torch down takes a second
        raise RuntimeError("--help ends a script")
    children[child] = path
for child, path in children.items():
    assert os.waitpid(child, 0)[1] == 0, path
"""
"""Each script with --help, in processes of their own that a single start of Python is the parent of."""


def test_every_script_tells_its_flags(tmp_path: Path) -> None:
    files = [ROOT / "analysis" / f"{name}.py" for name in SCRIPTS]
    done = run_process([sys.executable, "-c", ALL, *map(str, files)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr + "".join(path.read_text() for path in tmp_path.glob("*.err"))
    for name in SCRIPTS:
        out, err = ((tmp_path / f"{name}.py.{end}").read_text() for end in ("out", "err"))
        assert err == "" and out.startswith(f"usage: {name}")
        told = "".join(out.split())
        assert f"default:results/{name};" in told
