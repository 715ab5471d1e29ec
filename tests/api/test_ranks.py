"""The same script on three ranks under mpirun: every rank learns the end, whatever it is, and the next run works."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT, start
from zofl_mpi.run import records


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], dict[str, Any]]:
    """The folder, what each of three ranks saw, and what a process alone saw."""
    folder, alone = tmp_path_factory.mktemp("ranks"), tmp_path_factory.mktemp("alone")
    program = ["-m", "tests.api.program"]
    done = start(3, *program, folder)
    assert done.returncode == 0, done.stderr
    subprocess.run([sys.executable, *program, alone], cwd=ROOT, check=True, timeout=300)
    ranks = [json.loads((folder / f"seen-{k}.json").read_text()) for k in range(3)]
    return folder, ranks, json.loads((alone / "seen-0.json").read_text()) | {"folder": str(alone)}


def test_all_ranks_learn_the_end_and_the_bits_are_those_of_one_process(seen: Any) -> None:
    """Mutations: a status of rank 0's alone; data that are not spread."""
    folder, ranks, alone = seen
    for name in ("run", "again", "at rank 0 alone"):
        for k, each in enumerate(ranks):
            assert each[name] == [k, *alone["run"][1:]] and each[name][1] == "done", name
    for name in ("run", "spread", "early", "lead-1"):
        mine, other = (records.load(Path(each) / f"{name}.h5") for each in (folder, alone["folder"]))
        np.testing.assert_array_equal(mine.final["x"], other.final["x"])
    assert [each["early"][:2] for each in ranks] == [["stopped", "the script ended it"]] * 3
    assert ranks[0]["table"] == 4 and ranks[1]["table"].startswith("UserError: rank 1 has no tables")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("refused", "UserError: unknown flag --tua"),
        ("different", "UserError: ranks 0 and 1 call simulate with different arguments: 0.1 and 1.1"),
        ("planned", "UserError: ranks 0 and 1 call simulate with different arguments: "),
        ("other data", "UserError: the ranks hold different data or networks"),
        ("data elsewhere", "UserError: rank 1 has data in memory and rank 0 has not"),
        ("client", "round 1: client 0 (rank 1) failed in step 'train'"),
        ("unread", "round 2: LookupError: planted after client 0"),
        ("unsummed", "round 1: LookupError: planted before the sum"),
    ],
)
def test_what_fails_is_raised_on_all_ranks(seen: Any, name: str, words: str) -> None:
    """And the next runs have their bits (above). Mutations: MPI_Abort; a rank that waits; replies left in flight."""
    _, ranks, alone = seen
    for k, each in enumerate(ranks):
        assert words in each[name], (k, each[name])
    assert ranks[0][name].split(":")[0] == ranks[1][name].split(":")[0]
    if name not in ("different", "planned", "other data", "data elsewhere", "client"):  # which need ranks
        assert words in alone[name]


def test_a_scripts_exception_ends_the_run_everywhere(seen: Any) -> None:
    folder, ranks, _ = seen
    assert ranks[0]["broken"] == "ValueError: of the script"
    assert [each["broken"] for each in ranks[1:]] == ["RunFailed: rank 0: ValueError: of the script"] * 2
    assert records.load(folder / "broken.h5").length == 3


def test_a_callback_at_rank_0_learns_of_a_failure_and_no_rank_waits(seen: Any) -> None:
    """Its own exception reaches nobody, and the next runs have their bits (above). Mutations: on_end on every rank, or
    before the others are told; an exception of it that leaves them waiting."""
    _, ranks, alone = seen
    for each in (*ranks, alone):
        told, status, reason = each["ended"]
        assert status == "failed" and reason.startswith("round 2: LookupError: planted after client 0")
        assert told == ([] if each["rank"] else ["failed", reason, 1])


def test_an_interruption_of_rank_0_is_told_before_all_ranks_end(tmp_path: Path) -> None:
    """Mutation: the others ended first, and this rank with them."""
    done = start(3, "-m", "tests.api.program", tmp_path, "interrupted")
    assert done.returncode != 0 and done.stdout.count('["interrupted", "KeyboardInterrupt", 1]') == 1
    assert records.load(tmp_path / "interrupted.h5").attrs["status"] == "interrupted"


def test_rank_0_leads_and_the_others_serve(seen: Any) -> None:
    """A class made in a function goes by value. Mutations: others that run the function, too; a failed run that ends
    the serving; a second `lead` that waits for ranks that serve."""
    _, ranks, alone = seen
    assert ranks[0]["lead"] == alone["lead"] and len(ranks[0]["lead"]) == 3 and ranks[0]["lead"][2] == "round 2:"
    assert [each["lead"] for each in ranks[1:]] == [None, None]
    assert [each["lead within"] for each in ranks] == [alone["run"], None, None]
    assert ranks[0]["lead fails"] == "ZeroDivisionError: division by zero"
    assert [each["lead fails"] for each in ranks[1:]] == ["RunFailed: rank 0: ZeroDivisionError: division by zero"] * 2


def test_a_result_is_continued_on_all_ranks(seen: Any) -> None:
    """The others have their own arguments at hand, as rank 0. Mutation: a result of theirs that knows no method."""
    _, ranks, alone = seen
    for k, each in enumerate(ranks):
        assert each["continued"] == [k, *alone["run"][1:]]
    assert ranks[0]["lead continues"] == alone["run"] and ranks[1]["lead continues"] is None


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ("first", "rank 2 has waited 1 s for ranks that have not called what it has: all ranks must"),
        ("later", "ranks 1 have not called what rank 0 has: all ranks must"),
    ],
)
def test_ranks_that_do_not_come_are_named_and_all_end(when: str, words: str, tmp_path: Path) -> None:
    """Mutation: a rank that waits for ever."""
    since = time.monotonic()
    done = start(3, "-m", "tests.api.program", tmp_path, when)
    assert done.returncode != 0 and time.monotonic() - since < 50
    assert words in done.stderr


def test_a_pruned_trial_ends_on_all_ranks_and_is_raised_at_rank_0(seen: Any) -> None:
    """The run after it has its bits (above). Mutation: TrialPruned as the failure of a run."""
    folder, ranks, alone = seen
    for each in (ranks[0], alone):
        assert each["pruned"].startswith("TrialPruned: Optuna pruned the trial at test_accuracy")
    for k in (1, 2):
        assert ranks[k]["pruned"][:2] == [k, "stopped"] and "Optuna pruned" in ranks[k]["pruned"][2]
    assert records.load(folder / "pruned.h5").attrs["status"] == "stopped"
