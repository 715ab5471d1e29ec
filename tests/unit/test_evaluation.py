"""--eval-samples: a fixed subset of each part, of at most that size."""

from typing import Any

import numpy as np
import pytest

from tests.unit.made import complaint
from zofl_mpi.data import Dataset
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.rounds.base import eval_data
from zofl_mpi.run.command import flags
from zofl_mpi.run.command.run_flags import RunFlags
from zofl_mpi.run.loop.evaluation import cap_eval_samples, held_out


def samples(count: int) -> Dataset:
    return Dataset(np.zeros((count, 1)), np.zeros(count, np.int64), 1)


def test_the_same_samples_are_read_each_time_and_no_others() -> None:
    """Mutations: the first ones; one stream for all clients; the validation part left whole; the seed left out."""
    parts: dict[str, Any] = {"server": samples(20), "test": samples(40), "validation": samples(30)}
    setting = Setting[Any](None, Streams(3), tuple(samples(5 + i) for i in range(6)), **parts)
    assert cap_eval_samples(setting, 0) is setting
    some = cap_eval_samples(setting, 5)
    assert (len(some.test), len(some.validation), some.eval_samples) == (5, 5, 5)
    assert (
        len(cap_eval_samples(setting, 35).test) == 35 and cap_eval_samples(setting, 35).validation is setting.validation
    )
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


@pytest.mark.parametrize(("word", "said"), [("auto", "must be a whole number"), ("1.5", "must be a whole number")])
def test_the_flag_is_a_number(word: str, said: str) -> None:
    """All by default. Mutations: another default; 'auto' taken."""
    assert flags.parse({"run": RunFlags}, [], "", "")["eval_samples"] == 0
    assert flags.parse({"run": RunFlags}, ["--eval-samples", "12"], "", "")["eval_samples"] == 12
    assert said in complaint(flags.parse, {"run": RunFlags}, ["--eval-samples", word], "", "")
