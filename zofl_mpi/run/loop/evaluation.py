"""Caps the samples that evaluations read (--eval-samples), drawn once by the seed."""

from dataclasses import replace
from typing import Any

from zofl_mpi.engine.setting import Drawable, Setting
from zofl_mpi.engine.streams import Purpose, Streams


def cap_eval_samples(setting: Setting[Any], N: int) -> Setting[Any]:
    """Copies a setting whose evaluations read at most N samples of each data set; 0: all."""
    if not N:
        return setting
    test, validation = held_out(setting.test, setting.validation, setting.streams, N)
    return replace(setting, test=test, validation=validation, eval_samples=N)


def held_out(test: Any, validation: Any, streams: Streams, N: int) -> tuple[Any, Any]:
    """Draws at most N samples each of the test and validation data by the seed; 0: all."""
    pairs = (test, Purpose.SPLIT), (validation, Purpose.VALIDATION)
    first, second = (data.drawn(N, streams(use)) if isinstance(data, Drawable) else data for data, use in pairs)
    return first, second
