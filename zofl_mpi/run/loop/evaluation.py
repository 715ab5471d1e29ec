"""--eval-samples: limit the samples that an evaluation reads of each part."""

from dataclasses import replace
from typing import Any

from zofl_mpi.engine.setting import Setting, drawn
from zofl_mpi.engine.streams import Purpose, Streams


def cap_eval_samples(setting: Setting[Any], N: int) -> Setting[Any]:
    """The setting with at most N evaluation samples of each part; 0: all."""
    if not N:
        return setting
    test, validation = held_out(setting.test, setting.validation, setting.streams, N)
    return replace(setting, test=test, validation=validation, eval_samples=N)


def held_out(test: Any, validation: Any, streams: Streams, N: int) -> tuple[Any, Any]:
    """At most N samples of test part and validation part, drawn by the seed; 0: all."""
    pairs = (test, Purpose.SPLIT), (validation, Purpose.VALIDATION)
    first, second = (drawn(data, N, streams(use)) for data, use in pairs)
    return first, second
