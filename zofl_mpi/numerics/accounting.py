"""Privacy accounts: the epsilon of so many noised rounds, by the package dp-accounting; never by formulas of our own.

Poisson participation: one client more or less, by a privacy loss distribution (Koskela et al., AISTATS 2020). A fixed
number: one client for another, so twice the sensitivity, by Renyi differential privacy (Wang et al., AISTATS 2019),
which is looser. Pure epsilon adds up over rounds, amplified by sampling (Balle et al., NeurIPS 2018). What is not
computed is infinite.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from zofl_mpi.errors import UserError

LEAST_NOISE = 0.04
"""The least z; with less noise one round in which a client takes part may cost more than `LARGEST_EPSILON`."""
LARGEST_EPSILON = 1000.0
"""The largest epsilon; from a fraction of it on, nobody is protected."""
ROUNDS = 10**5
"""The most rounds: their epsilon takes a second, the z of a budget fifteen times that."""
DELTA = 1e-12
"""The least delta: loss distributions leave out 1e-15."""
LARGEST_RENYI = 2e5
"""A Renyi bound from which on no distribution is computed: epsilon is above `LARGEST_EPSILON`, or not far below."""
CELLS = 1e5
"""Of a round's loss distribution, at most some; a second of work."""
FLAT = 2.0**27
"""Noise above which the package takes the logarithm of 0, where it samples without replacement."""
ROUNDING = 1e-13
"""Of a Renyi divergence, at most."""
ORDERS = (*range(2, 17), *range(18, 33, 2), 40, 48, 64, 128, 256, 512)
"""Renyi orders: half of the package's, whose fractional ones are slow, for less than 0.1 % of epsilon."""


@final
@dataclass(frozen=True)
class Account:
    """Privacy cost of rounds for a client.

    Attributes:
        m: clients, of which `asked` take part in a round, by Poisson sampling the expected number.
        delta: the failure probability; 0: pure epsilon (Laplace and K-norm noise, else Gaussian).
    """

    m: int
    asked: float
    poisson: bool
    delta: float

    def epsilon(self, z: float, rounds: int) -> float:
        """Epsilon after so many rounds with noise z times the clipping norm; inf where it is not computed."""
        if rounds == 0 or not LEAST_NOISE <= z < math.inf or rounds > ROUNDS:
            return math.inf if rounds else 0.0
        alone, q = z if self.poisson else z / 2, self.asked / self.m
        if not self.delta:
            found = rounds * math.log1p(q * math.expm1(1 / alone))
            return found if found <= LARGEST_EPSILON else math.inf
        orders, once = _renyi(alone, self.m, self.asked, self.poisson)
        found = float(_library().rdp.rdp_privacy_accountant.compute_epsilon(orders, rounds * once, self.delta)[0])
        width, finer = math.inf, max(-3, _cell(found, alone))
        while (self.poisson or q == 1) and found < LARGEST_RENYI and finer < width:
            width = finer
            found = min(found, _distribution(alone, q, rounds, self.delta, 10.0**width))
            finer = _cell(found, alone)
        return found if found <= LARGEST_EPSILON else math.inf

    def noise(self, epsilon: float, rounds: int) -> float:
        """The least z, to a thousandth of it, by which so many rounds cost epsilon (UserError: none below 2^30)."""
        low, high = 0.0, 1.0
        while self.epsilon(high, rounds) > epsilon:
            low, high = high, 2 * high
            if high > 2**30:
                raise UserError(f"--epsilon {epsilon:g}: no noise below 2^30 reaches it; a larger one, or fewer rounds")
        while high - low > high / 1000:
            middle = (low + high) / 2
            low, high = (middle, high) if self.epsilon(middle, rounds) > epsilon else (low, middle)
        return high


def _cell(epsilon: float, alone: float) -> int:
    """The width of a loss distribution's cells, as a power of 10; any gives an upper bound, a finer one a closer bound.

    A round's losses reach from about -8/alone to 1/(2 alone^2) + 8/alone.
    """
    least = math.ceil(math.log10((0.5 / alone**2 + 16 / alone) / CELLS))
    return max(least, -4 if epsilon < 1 else -3 + max(0, math.ceil(math.log10(epsilon / 500))))


def _library() -> Any:
    import logging  # 2 ms, which a run without privacy does not pay

    logging.getLogger("absl").setLevel(logging.ERROR)  # rounding below 0 is dealt with in `_renyi`
    try:
        import dp_accounting
        from dp_accounting import pld, rdp  # noqa: F401  (attributes of it from here on)
    except ModuleNotFoundError as exc:
        needed = "noise is accounted for by dp-accounting, which is not installed"
        raise UserError(f"{needed}: pip install 'zofl_mpi[privacy]'") from exc
    return dp_accounting


@functools.lru_cache(maxsize=64)
def _renyi(z: float, m: int, asked: float, poisson: bool) -> tuple[Any, Any]:
    """Orders, and the Renyi divergences of one round at these."""
    dp = _library()
    event, relation = dp.GaussianDpEvent(z), dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    if poisson:
        event = dp.PoissonSampledDpEvent(asked / m, event)
    elif asked < m:
        relation = dp.NeighboringRelation.REPLACE_ONE
        event = dp.GaussianDpEvent(min(z, FLAT))  # less noise: an upper bound
        event = dp.SampledWithoutReplacementDpEvent(m, round(asked), event)
    accountant = dp.rdp.RdpAccountant(ORDERS, relation).compose(event)
    return accountant.orders, np.maximum(accountant.rdp, ROUNDING)  # one below 0 would count as an epsilon of 0


@functools.lru_cache(maxsize=1024)
def _distribution(z: float, q: float, rounds: int, delta: float, grid: float) -> float:
    dp = _library()
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z)), rounds)
    return float(dp.pld.PLDAccountant(value_discretization_interval=grid).compose(event).get_epsilon(delta))
