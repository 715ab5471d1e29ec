"""What a user sees: lines that are neither too many nor too few."""

from pathlib import Path

import pytest

from tests.conftest import Capsys, Hands, Patch
from zofl_mpi.run import progress
from zofl_mpi.run.progress import Progress


@pytest.fixture
def hands(monkeypatch: Patch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(progress, "time", hands)
    return hands


def printed(lines: Progress, hands: Hands, rounds: int, seconds: float, capsys: Capsys) -> list[int]:
    """The rounds that had a line."""
    for done in range(1, rounds + 1):
        hands.now += seconds
        lines.update(done, "objective 1.0", seconds)
    return [int(line.split("/")[0].removeprefix("round")) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("rounds", "seconds", "shown"),
    [(25, 1.0, [1, 6, 11, 16, 21, 25]), (4, 60.0, [1, 2, 3, 4]), (1000, 0.001, [1, 1000])],
)
def test_lines_come_first_then_every_five_seconds_and_last(
    hands: Hands, capsys: Capsys, rounds: int, seconds: float, shown: list[int]
) -> None:
    assert printed(Progress(rounds), hands, rounds, seconds, capsys) == shown


def test_a_line_says_how_far_how_good_how_fast_and_how_long(hands: Hands, capsys: Capsys) -> None:
    lines = Progress(500)
    lines.update(20, "test accuracy 0.9000", 2.0)
    assert capsys.readouterr().out == "round  20/500  test accuracy 0.9000  2.000 s/round  0:16:00 left\n"
    hands.now += 10
    lines.update(21, "", 2.0)
    assert "0:15:58 left" in capsys.readouterr().out
    quiet = Progress(500, quiet=True)  # the pace follows rounds that grow longer
    assert (quiet.pace(1.0), quiet.pace(2.0)) == (1.0, pytest.approx(1.1))
    assert [quiet.pace(3.0) for _ in range(100)][-1] == pytest.approx(3.0, rel=1e-3)


def test_quiet_prints_nothing(capfd: Capsys) -> None:
    Progress(3, quiet=True).update(1, "note", 1.0)
    assert capfd.readouterr() == ("", "")


def test_the_outermost_launcher_among_the_ancestors_is_found(monkeypatch: Patch) -> None:
    """python (40) <- orted (30, no launcher) <- "prte (run)" (20) <- srun (10) <- bash (5)."""
    names = {40: ("python", 30), 30: ("orted", 20), 20: ("my mpirun) x", 10), 10: ("srun", 5), 5: ("bash", 1)}

    def read(path: Path) -> str:
        pid = int(path.parent.name)
        return f"{pid} ({names[pid][0]}) S {names[pid][1]} 0 0"

    monkeypatch.setattr(progress.os, "getppid", lambda: 40)
    monkeypatch.setattr(Path, "read_text", read)
    assert progress.outermost_launcher() == 10
    names[10] = ("sshd", 5)
    assert progress.outermost_launcher() == 20
    names[20] = ("sshd", 10)
    assert progress.outermost_launcher() is None
