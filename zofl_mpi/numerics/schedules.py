"""Schedules of step sizes and of numbers of local steps."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.errors import UserError, demand

STEPSIZES = "constant, sqrt, harmonic, harmonic:OFFSET (OFFSET > 0) or power:P (1/2 < P <= 1)"
MOST_STEPS = 10**9
"""Maximum of local steps in a round; more would take years and exhaust any memory with sample positions."""


@final
@dataclass(frozen=True)
class Pace:
    """Step size schedule of an optimiser, with warm-up, as in transformers.

    Attributes:
        schedule: step sizes after the warm-up: constant, or linear (down to 0 at step `decay_steps`).
        warmup: steps of the warm-up; step t has t/warmup of the full size, and step 0 has size 0. 0: no warm-up.
        decay_steps: a client's steps until the size of a linear schedule is 0, warm-up included.
        decay_steps_server: the same at the server, which takes a step for each upload of each client; 0: decay_steps.
    """

    schedule: Literal["constant", "linear"] = "constant"
    warmup: int = 0
    decay_steps: int = 0
    decay_steps_server: int = 0

    def __post_init__(self) -> None:
        demand(self.warmup >= 0, "warmup", self.warmup, "a number of steps, at least 0")
        if self.schedule == "constant":
            for flag, steps in (("decay_steps", self.decay_steps), ("decay_steps_server", self.decay_steps_server)):
                demand(steps == 0, flag, steps, "0 unless --schedule is linear")
            return
        least = self.warmup + 1
        allowed = f"a number of steps, at least {least} with --schedule linear --warmup {self.warmup}"
        demand(self.decay_steps >= least, "decay_steps", self.decay_steps, allowed)
        server = self.decay_steps_server
        demand(server == 0 or server >= least, "decay_steps_server", server, f"{allowed}, or 0 (--decay-steps)")

    @property
    def still(self) -> bool:
        """True if all steps have the same size."""
        return self.schedule == "constant" and self.warmup == 0

    def client(self, size: float, t: int) -> float:
        """Size of a client's step t = 0, 1, ...; `size` is the full one."""
        return self._at(size, t, self.decay_steps)

    def server(self, size: float, t: int) -> float:
        """Size of the server's step t = 0, 1, ...; `size` is the full one."""
        return self._at(size, t, self.decay_steps_server or self.decay_steps)

    def _at(self, size: float, t: int, last: int) -> float:
        if t < self.warmup:
            return size * (t / self.warmup)
        if self.schedule == "constant":
            return size
        return size * max(0.0, (last - t) / (last - self.warmup))


def parse_decay(text: str, flag: str = "step size schedule") -> tuple[float, float]:
    """Parses a step size schedule: power and offset in c / (t + offset)^power, t = 0, 1, ....

    Power 1/2 is [A]'s gamma_r, 1 its local steps, one in (1/2, 1] the setting of [A] Theorem 2.

    Raises:
        UserError: unknown schedule; the message names `flag`.
    """
    name, colon, number = text.partition(":")
    fixed = {"constant": 0.0, "sqrt": 0.5, "harmonic": 1.0}
    if not colon and name in fixed:
        return fixed[name], 1.0
    value = to_number(number)
    if name == "harmonic" and 0 < value < math.inf:
        return 1.0, value
    if name == "power" and 0.5 < value <= 1:
        return value, 1.0
    raise UserError(f"{flag} {text!r}: allowed are {STEPSIZES}")


@functools.lru_cache(maxsize=64)
def stepsizes(schedule: str, c: float, H: int) -> NDArray[np.float64]:
    """Step sizes (H,) of steps t = 0, ..., H - 1: c times the schedule; read-only."""
    power, offset = parse_decay(schedule)
    sizes: NDArray[np.float64] = c / (np.arange(H, dtype=np.float64) + offset) ** power
    sizes.setflags(write=False)  # the cache returns this array again
    return sizes


def stepsize(schedule: str, c: float, t: int) -> float:
    """Step size of step t, bit-identical to `stepsizes(schedule, c, t + 1)[t]`."""
    power, offset = parse_decay(schedule)
    return float((c / (np.array([t], np.float64) + offset) ** power)[0])


@functools.lru_cache(maxsize=4096)
def local_steps(schedule: str, tau: float, r: int) -> int:
    """Number of local steps H in round r: ceil(tau sqrt(r + 1)) for "sqrt" ([A] Algorithm 2), ceil(tau) for "constant".

    Exact in the decimal number tau as typed: in floating point ceil(16.6 * 15) is 250.
    """
    square = Fraction(repr(float(tau))) ** 2 * (r + 1 if schedule == "sqrt" else 1)
    whole = math.ceil(square)  # H^2 >= square exactly if H^2 >= ceil(square)
    return math.isqrt(whole - 1) + 1 if whole else 0


def demand_tau(flag: str, taus: Sequence[float]) -> None:
    """Raises UserError for a number of local steps that is negative or above MOST_STEPS."""
    holds = all(0 <= t <= MOST_STEPS for t in taus)
    demand(holds, flag, tuple(taus), "a number of local steps, at least 0 and at most 1e9")


def to_number(text: str) -> float:
    """Parses a float; nan if the text is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def kind_and_number(
    flag: str, text: str, kinds: Mapping[str, Callable[[float], bool] | None], allowed: str
) -> tuple[str, float]:
    """Parses a flag's value such as topk:0.1 into kind and number, 0 for a kind without one (UserError: invalid).

    Args:
        kinds: {kind: predicate of valid numbers; None: the kind has no number}.
    """
    kind, colon, number = text.partition(":")
    amount, fits = to_number(number) if colon else 0.0, kinds.get(kind)
    if fits(amount) if fits else kind in kinds and not colon:
        return kind, amount
    raise UserError(f"--{flag} {text}: choose {allowed}")
