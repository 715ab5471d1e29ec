"""Step sizes and numbers of local steps, as functions of the round or of the local step."""

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
"""Local steps of a round that tau may ask for: years of computing, and more samples than any memory can hold."""


@final
@dataclass(frozen=True)
class Pace:
    """Step sizes of an optimiser, as in the schedules of transformers.

    Attributes:
        schedule: constant, or linear: down to 0 at the step `decay_steps`. Both after the warm-up.
        warmup: steps in which the size rises from 0 to the full one, t/warmup of it at step t; 0: none. The first of
            them has the size 0.
        decay_steps: steps of a client until the size of a linear schedule is 0, warm-up included.
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
        """True if all steps have one size."""
        return self.schedule == "constant" and self.warmup == 0

    def client(self, size: float, t: int) -> float:
        """The size of a client's step t = 0, 1, ..., where the full one is `size`."""
        return self._at(size, t, self.decay_steps)

    def server(self, size: float, t: int) -> float:
        """The size of the server's step t = 0, 1, ..., where the full one is `size`."""
        return self._at(size, t, self.decay_steps_server or self.decay_steps)

    def _at(self, size: float, t: int, last: int) -> float:
        if t < self.warmup:
            return size * (t / self.warmup)
        if self.schedule == "constant":
            return size
        return size * max(0.0, (last - t) / (last - self.warmup))


def parse_decay(text: str, flag: str = "step size schedule") -> tuple[float, float]:
    """Power and offset of the step sizes c / (t + offset)^power, t = 0, 1, ..., that `text` names.

    Power 1/2 is [A]'s gamma_r, 1 its local steps, one in (1/2, 1] the setting of [A] Theorem 2. Any other text is
    refused by the name `flag`.
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
    """(H,) the step sizes of the steps t = 0, ..., H - 1: c times the schedule; read-only."""
    power, offset = parse_decay(schedule)
    sizes: NDArray[np.float64] = c / (np.arange(H, dtype=np.float64) + offset) ** power
    sizes.setflags(write=False)  # the next caller gets the same array
    return sizes


def stepsize(schedule: str, c: float, t: int) -> float:
    """The step size of step t alone; the same bits as `stepsizes(schedule, c, t + 1)[t]`."""
    power, offset = parse_decay(schedule)
    return float((c / (np.array([t], np.float64) + offset) ** power)[0])


@functools.lru_cache(maxsize=4096)
def local_steps(schedule: str, tau: float, r: int) -> int:
    """H of round r: ceil(tau sqrt(r + 1)) for "sqrt" ([A] Algorithm 2), ceil(tau) for "constant".

    Exact: tau counts as the decimal number it was typed as, since ceil(16.6 * 15) is 250 in floating point.
    """
    square = Fraction(repr(float(tau))) ** 2 * (r + 1 if schedule == "sqrt" else 1)
    whole = math.ceil(square)  # H^2 >= square exactly if H^2 >= ceil(square)
    return math.isqrt(whole - 1) + 1 if whole else 0


def demand_tau(flag: str, taus: Sequence[float]) -> None:
    """Refuses numbers of local steps that are negative or beyond MOST_STEPS."""
    holds = all(0 <= t <= MOST_STEPS for t in taus)
    demand(holds, flag, tuple(taus), "a number of local steps, at least 0 and at most 1e9")


def to_number(text: str) -> float:
    """The number that a text stands for; nan where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def kind_and_number(
    flag: str, text: str, kinds: Mapping[str, Callable[[float], bool] | None], allowed: str
) -> tuple[str, float]:
    """The number of a flag such as topk:0.1; 0 for a kind without one (UserError: its number does not fit, or none).

    Args:
        kinds: {kind: whether a number fits; None: it has none}.
    """
    kind, colon, number = text.partition(":")
    amount, fits = to_number(number) if colon else 0.0, kinds.get(kind)
    if fits(amount) if fits else kind in kinds and not colon:
        return kind, amount
    raise UserError(f"--{flag} {text}: choose {allowed}")
