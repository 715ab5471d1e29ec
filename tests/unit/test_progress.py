"""What a user sees: lines that are neither too many nor too few, a bar only where a person looks at it."""

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import Capsys, Hands, Patch, Terminal, environment
from zofl_mpi.run.loop import progress
from zofl_mpi.run.loop.progress import Bar, Lines, Progress, with_progress
from zofl_mpi.run.loop.screen import aligned, fold

CLOCKED = progress


def printed(lines: Lines, hands: Hands, rounds: int, seconds: float, capsys: Capsys) -> list[int]:
    """The rounds that had a line."""
    lines.begin(0, rounds)
    with lines:
        for done in range(1, rounds + 1):
            hands.now += seconds
            lines.update(done, "objective 1.0", seconds)
    shown = (line for line in capsys.readouterr().out.splitlines() if line.startswith("round"))
    return [int(line.split("/")[0].removeprefix("round")) for line in shown]


@pytest.mark.parametrize(
    ("rounds", "seconds", "shown"),
    [
        (25, 1.0, [1, 6, 11, 16, 21, 25]),
        (4, 60.0, [1, 2, 3, 4]),
        (1000, 0.001, [1, 1000]),
        (8, 100.0, [1, 2, 3, 4, 5, 6, 7, 8]),
        (10**4, 10.0, 140),
    ],
)
def test_lines_come_first_then_every_five_seconds_then_more_seldom_and_last(
    hands: Hands, capsys: Capsys, rounds: int, seconds: float, shown: list[int] | int
) -> None:
    lines = printed(Lines(), hands, rounds, seconds, capsys)
    assert (len(lines) if isinstance(shown, int) else lines) == shown


@pytest.mark.parametrize(("before", "seconds", "told"), [(0, 6.1, True), (0, 5.9, False), (50, 12.1, True)])
def test_a_run_of_more_than_ten_minutes_says_so_after_its_first_round(
    capsys: Capsys, before: int, seconds: float, told: bool
) -> None:
    """Mutations: said again after the second round; of a continued run, by all of its rounds."""
    lines = Lines()
    lines.begin(before, 101)
    for done in (before + 1, before + 2):
        lines.update(done, "", seconds)
    words = "so the run takes about 10 minutes: a smaller --rounds"
    assert capsys.readouterr().out.count(words) == told


def test_a_line_says_how_far_how_good_how_fast_and_how_long(hands: Hands, capsys: Capsys) -> None:
    lines = Lines()
    lines.begin(0, 500)
    lines.update(20, "test accuracy 0.9000", 2.0)
    assert capsys.readouterr().out == "round  20/500  test accuracy 0.9000  2.000 s/round  0:16:00 left\n"
    hands.now += 10
    lines.update(21, "", 2.0)
    assert "0:15:58 left" in capsys.readouterr().out
    quiet = Progress()  # the pace follows rounds that grow longer
    quiet.begin(0, 1000)
    assert [quiet.pace(done, done)[0] for done in (1, 2)] == ["1.000 s/round", "1.100 s/round"]
    assert [quiet.pace(900, 3.0) for _ in range(100)][-1] == ("3.000 s/round", "0:05:00 left")


def drawn() -> None:
    """What a rank shows of itself."""
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    progress.announce(3)
    with progress.progress(quiet=False) as own:
        own.begin(0, 10)
        own.update(5, "objective 2.0000", 0.5)


def below(names: Sequence[str], outermost: int, own: int, **variables: str) -> None:
    """Call `drawn` in a process with ancestors of these names, of which the outermost and the process have outputs.

    The chain begins below init: the tests may have been started by a launcher themselves.
    """
    ends, end = os.pipe()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of threads, which nobody there needs
        child = os.fork()
    if not child:
        if os.fork():
            os._exit(0)
        os.close(ends)
        os.environ.pop("SLURM_PTY_PORT", None)
        os.environ |= variables
        for k, name in enumerate(names):
            os.dup2(own if k else outermost, 1)
            Path("/proc/self/comm").write_text(name)
            if ranks := os.fork():
                os.waitpid(ranks, 0)
                os._exit(0)
        Path("/proc/self/comm").write_text("python")
        os.dup2(own, 1)
        with suppress(BaseException):
            drawn()
        os._exit(0)
    os.close(end)
    os.waitpid(child, 0)
    os.read(ends, 1)  # until all of them have gone
    os.close(ends)


@pytest.mark.parametrize(
    ("names", "outermost", "own", "variables", "where"),
    [
        ((), "file", "terminal", {}, "terminal"),
        ((), "file", "file", {}, "file"),
        (("mpirun",), "terminal", "file", {}, "terminal"),
        (("prterun", "orted"), "terminal", "file", {}, "terminal"),
        (("mpirun",), "file", "terminal", {}, "terminal as lines"),
        (("mpirun",), "gone", "file", {}, "file"),
        (("srun", "bash", "my mpirun) x"), "terminal", "file", {}, "terminal"),
        (("slurmstepd",), "file", "terminal", {}, "terminal as lines"),
        (("slurmstepd",), "file", "terminal", {"SLURM_PTY_PORT": "1"}, "terminal"),
        (("orted",), "file", "terminal", {}, "terminal as lines"),
        (("prted",), "file", "terminal", {}, "terminal as lines"),
    ],
)
def test_a_bar_is_drawn_only_where_a_person_looks(
    tmp_path: Path, names: Sequence[str], outermost: str, own: str, variables: dict[str, str], where: str
) -> None:
    """Without a launcher on standard output; below one on its terminal, whatever a rank's output is: Open MPI gives its
    ranks a pseudo-terminal in any case, MPICH a pipe; so does a daemon, but for `srun --pty`. Mutations: the innermost
    launcher; the bar's escape sequences in a job's log; an announcement elsewhere; a terminal that has gone."""
    log = tmp_path / "log"
    with Terminal() as terminal, Terminal() as lost, log.open("w") as file:
        outputs = {"terminal": terminal.writer, "file": file.fileno(), "gone": lost.writer}
        if outermost == "gone":
            os.close(lost.reader)
            lost.reader = os.dup(0)
        below(names, outputs[outermost], outputs[own], **variables)
        shown = {"terminal": terminal.read(""), "file": log.read_text()}
    text, other = shown.pop(where.removesuffix(" as lines")), shown.popitem()[1]
    assert text.startswith("start     connecting 3 ranks") and "5/10" in text and other == ""
    assert ("\x1b[" in text) == (where == "terminal")


def on_a_terminal(*words: str) -> str:
    """What a command writes on a terminal, with the lines of Python's imports between."""
    started = [sys.executable, "-X", "importtime", "-m", *words]
    with Terminal() as terminal:
        run = subprocess.Popen(started, stdout=terminal.writer, stderr=terminal.writer, env=environment())
        text = terminal.read("")
    assert run.wait() == 0
    return text


def test_the_first_sign_on_a_terminal_comes_before_torch(tmp_path: Path) -> None:
    """Mutations: none before the bar; one under --quiet."""
    small = ["--problem", "mlp", "--method", "fedavg", "--m", "2", "--tau", "1", "--rounds", "1"]
    told = on_a_terminal("zofl_mpi.zo_hfl", *small, "--out", str(tmp_path / "a.h5"))
    assert 0 < told.index("start     loading") < re.search(r"\| +torch\r", told).start()  # type: ignore[union-attr]
    assert "start     loading" not in on_a_terminal("zofl_mpi.zo_hfl", "--help")
    assert "start     loading" not in on_a_terminal(
        "zofl_mpi.zo_hfl", *small, "--quiet", "--out", str(tmp_path / "b.h5")
    )


def test_a_log_has_the_steps_of_a_start_that_takes_long(hands: Hands, capsys: Capsys) -> None:
    """Mutations: 24 s in silence; a line for each step of a short start; evaluations in the log."""
    lines = Lines()
    for seconds, name in ((1.0, "data"), (5.0, "method"), (1.0, "compiling"), (9.0, "result")):
        hands.now += seconds
        lines.step(f"start: {name}", 4)
    lines.begin(0, 10)
    hands.now += 100.0
    lines.step("evaluation after round 1")
    assert capsys.readouterr().out == "start     method\nstart     result\n"


@pytest.mark.parametrize("width", [60, 200])
def test_the_bar_is_one_line_at_any_width(width: int, monkeypatch: Patch) -> None:
    """Mutation: at 60 columns its words wrap into a column each."""
    with Terminal() as terminal:
        monkeypatch.setattr(progress.os, "get_terminal_size", lambda number: os.terminal_size((width, 20)))
        with Bar(terminal.name) as bar:
            bar.begin(0, 4000)
            bar.update(3999, "test accuracy 0.8423 (round 3990)  objective 0.1234", 0.5)
            text = terminal.read("0:00:00 left")
    assert ("━" in text) == (width == 200)
    lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in re.split(r"[\r\n]+", text)]
    last = next(line for line in lines if "3999" in line)
    assert "test accuracy" in last and "left" in last and len(last) <= width


def shown(hands: Callable[[Bar], None], until: str) -> str:
    """What a terminal shows while the bar is used, up to some words."""
    with Terminal() as terminal, Bar(terminal.name) as bar:
        hands(bar)
        return terminal.read(until)


def test_a_step_of_the_start_is_shown_with_its_progress_while_no_round_is_done(monkeypatch: Patch) -> None:
    """Mutations: no step before the first round; a step without its parts; the rounds' clock on from the start."""
    monkeypatch.setattr(progress, "SHORT", 0.0)
    monkeypatch.setattr(progress.os, "get_terminal_size", lambda number: os.terminal_size((200, 20)))
    text = shown(lambda bar: bar.step("start: compiling", 4, 2), "start: compiling")
    assert "2/4" in shown(lambda bar: bar.step("start: compiling", 4, 2), "2/4") and "/10" not in text
    assert "-:--:--" in text


def test_an_evaluation_is_a_step_that_advances_by_reply_and_goes(monkeypatch: Patch) -> None:
    """Mutations: replies counted at once, or never; a step that stays; a step that ends at once shown."""
    monkeypatch.setattr(progress, "SHORT", 0.0)

    def evaluate(bar: Bar) -> None:
        bar.begin(3, 10)
        replies = with_progress(clients, bar, "evaluation after round 4").ask(lambda: None, None)  # type: ignore[arg-type]
        assert next(iter(replies)) == (0, "a")

    clients: Any = SimpleNamespace(m=2, ledger=None, survives=False, lost=[], sharing=None)
    clients.ask = lambda step, message, to: iter([(0, "a"), (1, "b")])
    text = shown(evaluate, "1/2")
    assert "evaluation after round 4" in text and "1/2" in text and "3/10" in text

    def over(bar: Bar) -> None:
        bar.begin(0, 10)
        bar.step("evaluation after round 4")
        bar.step("")
        assert [task.description for task in bar._bar.tasks] == ["round"]

    shown(over, "0/10")
    monkeypatch.setattr(progress, "SHORT", 1e9)
    assert "evaluation" not in shown(lambda bar: (bar.step("evaluation"), bar.begin(5, 10))[1], "5/10")


def test_lines_and_quiet_runs_say_nothing_of_steps(capfd: Capsys) -> None:
    with progress.progress(quiet=True) as quiet:
        assert type(quiet) is Progress
        quiet.update(1, "note", 1.0)
    for silent in (quiet, Lines()):
        silent.step("start", 4)
        silent.advance()
        silent.begin(0, 5)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ("reached   accuracy 0.9  loss 0.75", ["reached   accuracy 0.9", "          loss 0.75"]),
        ("a warning that has no label of its own", ["a warning that has no", "    label of its own"]),
        ("3  missing  python -m a --b 1 --c", ["3  missing", "python -m a --b 1 \\", "    --c"]),
        ("ended; continue with: mpirun -n 3 a b", ["ended; continue with:", "mpirun -n 3 a b"]),
        ("python -m a --name 'two words' --rounds 100", ["python -m a --name 'two words' --rounds 100"]),
        ("result    /" + 30 * "x", ["result", "          /" + 30 * "x"]),
        ("bytes of a step   36,864 in all", ["bytes of a step", "    36,864 in all"]),
        ("see `python -m a` for more words", ["see `python -m a` for", "    more words"]),
    ],
)
def test_lines_are_folded_under_their_label_and_commands_stay_commands(line: str, rows: list[str]) -> None:
    """Mutations: rows at the margin; a quoted word broken; a path cut; backslashes in a sentence."""
    assert fold(line, 22).splitlines() == rows
    assert fold(line, None) == fold(line, len(line)) == line


def test_a_table_that_is_too_wide_is_a_line_for_each_row() -> None:
    """Mutation: rows of a table folded without their titles."""
    cells = [("rank", "host", "device"), ("0", "a", "cpu"), ("1", "b", "-")]
    assert aligned(cells, None) == aligned(cells, 18) == "rank  host  device\n0     a     cpu\n1     b     -"
    assert aligned(cells, 17) == "rank 0, host a, device cpu\nrank 1, host b"
