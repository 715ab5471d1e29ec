"""check_method finds each mistake of `faulty`, and none in a method of the package."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import zofl_mpi
from tests.conftest import ROOT, Capsys, Patch, run_process
from tests.e2e.faulty import FAULTS, Sound
from zofl_mpi import check, fedrzo, heron_sfl, zo_hfl
from zofl_mpi.api import checking, processes
from zofl_mpi.api.arguments import Arguments
from zofl_mpi.api.checking import check_all, check_method
from zofl_mpi.api.findings import Checked
from zofl_mpi.errors import UserError
from zofl_mpi.run.command import flags
from zofl_mpi.run.command.plan import groups_of, role_of

PROBLEMS = {"Bilevel": "bilevel_bowls", "SecondOrder": "saddle", "Split": "split_mlp", "Lipschitz": "bowls"}
"""{role: the smallest problem that plays it}; else the family's own."""
TINY = {"tau": 2, "T": 2, "N": 2, "T_lower": 2, "h": 2, "n_p": 2, "align_epochs": 3, "batch": 4}
TINY |= {"synthetic_samples": 450}
"""Flags, of methods that have them, by which a round is short, and most of 300 clients have one sample."""


def ours() -> dict[str, Arguments]:
    """Every method of the package, once, on a small problem."""
    found = dict[str, Arguments]()
    for family in (zo_hfl, fedrzo, heron_sfl):
        for name, cls in family.METHODS.items():
            problem = PROBLEMS.get(role_of(cls) or "", "toy" if family is zo_hfl else "bowls")
            known = flags.flags_of(groups_of(family, name, problem))
            tiny = {flag: value for flag, value in TINY.items() if flag in known}
            data = "synthetic" if "data" in known else None
            found.setdefault(name, Arguments(name, problem, data, family.__name__.removeprefix("zofl_mpi."), tiny))
    return found


@pytest.fixture(scope="module")
def findings() -> dict[str, Checked]:
    """What is found in all of them, by name; a start of processes serves all."""
    calls = {cls.__name__: Arguments(cls, "toy", None, "", {"n": 3}) for cls in FAULTS} | ours()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(checking.FEW, "beta", 0.01)  # ours with many clients: all of them would take minutes
        patch.setattr(checking, "MANY_CLIENTS", 300)  # more than `Table` has; 1,000 are below
        patch.setattr(checking, "ROUNDS", 3)
        return dict(zip(calls, check_all(list(calls.values())), strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("method", FAULTS, ids=lambda cls: cls.__name__)
def test_each_mistake_is_found_by_its_own_check(method: type[Sound], findings: dict[str, Checked]) -> None:
    """Mutations: any of the checks left out; a process that is not new; ranks that share a process."""
    found = findings[method.__name__]
    assert set(found.failed) == FAULTS[method], str(found)
    assert all(bool(each.advice) == (each.status == "failed") for each in found.findings)


@pytest.mark.slow
@pytest.mark.parametrize("name", ours())
def test_nothing_is_found_in_our_own_methods(name: str, findings: dict[str, Checked]) -> None:
    """Mutation: planned bytes of a message that has changed since, in any method."""
    found = findings[name]
    assert found.ok, str(found)
    skipped = [each.detail for each in found.findings if each.status == "not checked"]
    assert skipped == ["no client sends anything"] * (name == "server_sgd"), str(found)


PAGE = (ROOT / ".docs/howto/add_a_method.md").read_text()
GUARD = re.compile(r"        if not np\.isfinite.*\n.*\n")


def test_the_pages_example_is_checked_as_the_page_shows(tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    """FeedSign; with and without the lines that refuse a loss that is not finite, which one start of processes serves.

    Mutations: one of the two is another text; a byte more in a message.
    """
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.S | re.M)
    (code, *_), (shown, failure) = ([text for word, text in blocks if word == wanted] for wanted in ("python", ""))
    (tmp_path / "feedsign.py").write_text(code)
    (tmp_path / "naive.py").write_text(GUARD.sub("", code))
    monkeypatch.syspath_prepend(str(tmp_path))
    good, naive = check_all([Arguments(f"{name}:FeedSign", None, None, "", {}) for name in ("feedsign", "naive")])
    assert f"{good}\n" == shown and good.ok
    assert naive.failed == ["NaN"] and "".join(f"{each}\n" for each in naive.findings if each.advice) == failure


SCRIPT = '''
from dataclasses import dataclass
import zofl_mpi
from tests.e2e import faulty


@dataclass(frozen=True)
class Own(faulty.Sound):
    """A class of the script itself, with a flag and messages of its own."""

    scale: float = 1.0

    def gradient(self, client, model):
        return Slope(self.scale * super().gradient(client, model).g)


class Slope(faulty.Gradient):
    pass


if __name__ == "__main__":
    print(zofl_mpi.check_method(Own, "toy", n=3, m=3))
'''


@pytest.mark.slow
def test_a_class_of_a_script_goes_by_value(tmp_path: Path) -> None:
    """Mutations: messages of classes that other processes do not know; fields whose defaults are not missing there."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run_process([sys.executable, str(tmp_path / "script.py")], cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.count("passed") == 12, done.stdout + done.stderr


def test_what_cannot_be_checked_says_why(monkeypatch: Patch) -> None:
    """Mutations: a check that is left out counts as passed, or as failed."""
    monkeypatch.setattr(processes, "mpirun", lambda: None)
    monkeypatch.setattr(processes.ranks, "by_value", lambda: None)
    monkeypatch.setattr(Sound, "plan", lambda self, rounds: {})
    monkeypatch.setattr(Sound, "__module__", "__main__")
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 2
    data = zofl_mpi.Federation.of_clients([(x[:20], y[:20]), (x[20:40], y[20:40])], test=(x[40:], y[40:]))
    found = check_method(Sound, "softmax", data, family="zo_hfl")
    skipped = {each.name: each.detail for each in found.findings if each.status == "not checked"}
    assert found.ok and skipped == {
        "cut and resumed": "Sound is defined in the script itself: move it to a module, or install cloudpickle: "
        "pip install 'zofl_mpi[script]'",
        "3 ranks": "no mpirun",
        "resumed on 3 ranks": "no mpirun",
        "planned bytes": "no line of its plan is called 'bytes up, for each participant and round'",
        "m = 1": "the data say how many clients there are",
        "m = 1,000": "the data say how many clients there are",
    }


def test_it_is_refused_under_a_launcher(monkeypatch: Patch) -> None:
    """Mutation: every rank starts ranks of its own."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    with pytest.raises(UserError, match="run it without mpirun"):
        check_method(Sound, "toy")


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["tests.e2e.faulty:Mistyped", "--problem", "toy"], 1, "one process .*'Gradient' object has no attribute"),
        (["tests.e2e.faulty:Mistyped", "--problem", "toy", "--rounds", "2"], 2, "rounds: check_method sets this flag"),
        (["tests.e2e.faulty:Sound", "--problem", "bowl"], 2, "the nearest is bowls"),
        (["tests.e2e.faulty:Sound", "--problem", "saddle"], 2, "needs a Smooth problem"),
        (["tests.e2e.faulty:Sound", "toy"], 2, "toy: only flags follow the method"),
        (["tests.e2e.faulty:Model"], 2, "Model is no method, it lacks"),
        ([], 0, "python -m zofl_mpi.check mymethod:FedSGD"),
    ],
)
def test_the_command_ends_with_a_status(words: list[str], status: int, told: str, capsys: Capsys) -> None:
    """Mutations: status 0 where a check fails; a traceback."""
    try:
        check.main(words)
        found = 0
    except SystemExit as end:
        found = int(end.code or 0)
    out, err = capsys.readouterr()
    assert found == status and re.search(told, out + err), out + err
    assert err.count("\n") == (status == 2)
