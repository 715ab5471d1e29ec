"""--eval-samples: as many samples as a tenth of the training pays for, counted, and the same ones each time."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.made import complaint
from zofl_mpi.data import Dataset
from zofl_mpi.engine.fields import check_ranges
from zofl_mpi.engine.setting import Passes, Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.rounds.base import eval_data
from zofl_mpi.run import evaluation, flags
from zofl_mpi.run.evaluation import CHEAP, auto, held_out, limited
from zofl_mpi.run.loop import Schedule
from zofl_mpi.run.plan import RunFlags


def samples(count: int) -> Dataset:
    return Dataset(np.zeros((count, 1)), np.zeros(count, np.int64), 1)


@dataclass(frozen=True)
class Counted:
    """A method whose passes are given."""

    setting: Setting[Any]
    known: Passes | None

    def sample_passes(self, rounds: int, asked: int) -> Passes | None:
        return self.known


def counted(training: float, held: float, own: float, flops: float = 1e30, most: int = 0, m: int = 4) -> Counted:
    """Parts of 40, 30, 20 (the server's) and 5, 6, ... samples."""
    clients = tuple(samples(5 + i) for i in range(m))
    parts = {"server": samples(20), "test": samples(40), "validation": samples(30), "eval_clients": most}
    return Counted(Setting(None, Streams(3), clients, **parts), Passes(training, held, own, lambda: flops))


@pytest.mark.parametrize("rounds", [1, 2, 9, 10, 11])
@pytest.mark.parametrize("every", [1, 3, 10, 20])
@pytest.mark.parametrize(("held", "own", "most"), [(1, 1, 0), (5, 1, 2), (1, 7, 3), (1, 0, 0)])
def test_auto_is_the_most_that_a_tenth_of_the_training_pays_for(
    rounds: int, every: int, held: int, own: int, most: int
) -> None:
    """Mutations: an evaluation too few; a part left out; the smallest clients; one sample too few or too many."""
    schedule, sizes = Schedule(rounds, every, 0), [8, 7, 6, 5][: most or 4]
    evaluations = sum(schedule.evaluates(done) for done in range(1, rounds + 1))

    def cost(N: int) -> int:
        of_clients = own * sum(min(N, size) for size in sizes)
        return held * (min(N, 40) + min(N, 30)) + of_clients + (min(N, 20) if own else 0)

    for N in (1, 2, 5, 7, 19, 39):
        exact = 10 * evaluations * cost(N)
        assert auto(counted(exact + 1, held, own, most=most), rounds, every) == N  # type: ignore[arg-type]
    assert auto(counted(10 * evaluations * cost(40) + 1, held, own, most=most), rounds, every) == 0  # type: ignore[arg-type]


def test_cheap_evaluations_and_methods_that_do_not_count_read_all() -> None:
    """Mutations: a limit by seconds or for each evaluation; FLOPs asked for where the tenth suffices; none refused."""
    assert auto(counted(0, 1, 0, flops=CHEAP / 2 / 70), 2, 1) == 0  # type: ignore[arg-type]
    assert auto(counted(0, 1, 0, flops=CHEAP / 2 / 20), 2, 1) == 10  # type: ignore[arg-type]
    assert auto(counted(0, 1, 0, flops=CHEAP / 20), 2, 1) == 5  # type: ignore[arg-type]
    assert auto(counted(0, 1, 0, flops=math.nan), 2, 1) == 1  # type: ignore[arg-type]
    never: Any = Counted(counted(1e9, 1, 1).setting, Passes(1e9, 1, 1, lambda: pytest.fail("was computed")))
    assert auto(never, 2, 1) == 0
    silent: Any = Counted(never.setting, None)
    assert auto(silent, 2, 1) == 0
    toy: Any = Counted(Setting(None, Streams(1), (range(1),) * 3, [1], [2]), Passes(0, 1, 1, lambda: 1e30))
    assert auto(toy, 2, 1) == 0


def test_a_thousand_clients_and_a_million_rounds_are_counted_at_once() -> None:
    """The clients that an evaluation asks count, not all. Mutation: a loop over rounds."""
    assert auto(counted(1e6 * 7 * 100, 0, 1, most=100, m=1000), 10**6, 10) == 6  # type: ignore[arg-type]


def test_the_same_samples_are_read_each_time_and_no_others() -> None:
    """Mutations: the first ones; one stream for all clients; the validation part left whole; the seed left out."""
    setting = counted(1, 1, 1, m=6).setting
    assert limited(setting, 0) is setting
    some = limited(setting, 5)
    assert (len(some.test), len(some.validation), some.eval_samples) == (5, 5, 5)
    assert len(limited(setting, 35).test) == 35 and limited(setting, 35).validation is setting.validation
    expected = np.sort(Streams(3)(Purpose.SPLIT).choice(np.arange(40), size=5, replace=False))  # as texts had them
    assert some.test.rows.tolist() == expected.tolist() != list(range(5))
    assert eval_data(some, some.data[0], 0) is some.data[0] and eval_data(setting, some.data[5], 5) is some.data[5]
    large = [samples(1000)] * 3
    rows = [eval_data(some, data, i).rows.tolist() for i, data in zip((0, 1, None), large, strict=True)]
    assert rows == [eval_data(some, data, i).rows.tolist() for i, data in zip((0, 1, None), large, strict=True)]
    assert len({tuple(each) for each in rows}) == 3 and all(len(set(each)) == 5 for each in rows)
    other = held_out(setting.test, None, Streams(4), 5)
    assert other[0].rows.tolist() != some.test.rows.tolist() and other[1] is None
    assert eval_data(some, range(9), 0) == range(9)


def test_the_flag_is_a_word_or_a_number() -> None:
    """Mutations: the word refused by the range; 'all' taken; a number read as a word."""
    groups = {"run": RunFlags}
    for words, value in (([], "auto"), (["--eval-samples", "auto"], "auto"), (["--eval-samples", "12"], 12)):
        values = flags.parse(groups, words, "", "")
        check_ranges(RunFlags, values)
        assert values["eval_samples"] == value
    said = complaint(flags.parse, groups, ["--eval-samples", "all"], "", "")
    assert said == "--eval-samples all: must be auto or a whole number"
    said = complaint(check_ranges, RunFlags, {"eval_samples": -1})
    assert said == "--eval-samples -1: must be auto or a whole number, at least 0 (0: all)"


def test_the_line_at_the_start_tells_the_number() -> None:
    assert "at most 4 of each part's samples, 4 of the 40 test samples:" in evaluation.line(4, samples(40))
    assert "at most 4 of each part's samples:" in evaluation.line(4, SimpleNamespace())
