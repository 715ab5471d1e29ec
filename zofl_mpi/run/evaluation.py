"""--eval-samples: how many samples an evaluation reads, fixed by the configuration and the seed."""

from bisect import bisect_right
from dataclasses import replace
from typing import Any

from zofl_mpi.engine.setting import Drawable, Method, Setting
from zofl_mpi.engine.streams import Purpose, Streams

SHARE = 0.1
"""Most that auto lets all evaluations of a run cost, over the cost of its training."""
CHEAP = 1e11
"""FLOPs of all evaluations of a run that auto always allows: a second or two on one core, less than a run's start."""


def auto(method: Method[Any], rounds: int, every: int) -> int:
    """The N of auto: at most N samples of each part, so that evaluations cost a tenth of the training at most.

    Counted are passes of samples through the model (`engine.setting.Passes`), which a clock has no part in. 0: all
    samples, since the limit holds with them, or the method does not know its passes.
    """
    setting, between = method.setting, range(every, rounds, every)
    evaluations = len({1, rounds}) + len(between) - (1 in between)  # see `loop.Schedule`
    parts = (setting.test, setting.validation), (setting.server,), setting.data
    # one of each class: to ask each of many clients' data for a protocol's members takes long
    examples = {type(data): data for part in parts for data in part}
    kinds = {kind: isinstance(data, Drawable) for kind, data in examples.items()}
    held_out, of_server, of_clients = ([len(data) for data in part if kinds[type(data)]] for part in parts)
    asked = min(setting.eval_clients or setting.m, setting.m)
    passes = method.sample_passes(rounds, asked)
    if passes is None or not (held_out or of_server):
        return 0
    own = sorted(of_clients, reverse=True)[:asked]  # the largest: those that are asked may change with the round
    server = sum(of_server) if passes.own else 0

    def cost(N: int) -> float:
        """Passes of an evaluation of at most N samples of each part."""
        both = passes.held_out * sum(min(N, size) for size in held_out) + passes.own * sum(min(N, size) for size in own)
        return both + min(N, server)

    high, allowed = max([*held_out, *own, server, 1]), SHARE * passes.training / evaluations
    if cost(high) > allowed and (flops := passes.flops()) > 0:  # not nan, where they are unknown
        allowed = max(allowed, CHEAP / flops / evaluations)
    if cost(high) <= allowed:
        return 0
    return max(1, bisect_right(range(1, high), allowed, key=cost))


def limited(setting: Setting[Any], N: int) -> Setting[Any]:
    """The setting whose evaluations read at most N samples of each part; 0: all."""
    if not N:
        return setting
    test, validation = held_out(setting.test, setting.validation, setting.streams, N)
    return replace(setting, test=test, validation=validation, eval_samples=N)


def held_out(test: Any, validation: Any, streams: Streams, N: int) -> tuple[Any, Any]:
    """At most N samples of the test part and of the validation part, drawn by the seed; 0: all."""
    pairs = (test, Purpose.SPLIT), (validation, Purpose.VALIDATION)
    first, second = (data.drawn(N, streams(use)) if isinstance(data, Drawable) else data for data, use in pairs)
    return first, second


def line(N: int, test: Any) -> str:
    """The line at the start of a run whose evaluations read at most N samples of each part, where auto says so."""
    of = f", {min(N, len(test)):,} of the {len(test):,} test samples" if isinstance(test, Drawable) else ""
    what = f"at most {N:,} of each part's samples{of}"
    return f"evaluations read {what}: a tenth of the training's cost; --eval-samples 0 takes all"
