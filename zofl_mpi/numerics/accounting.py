"""Privacy accounting: the epsilon of a number of noised rounds, by the package dp-accounting.

- Poisson participation: add or remove one client; privacy loss distributions (Koskela et al., AISTATS 2020).
- A fixed number of participants: replace one client, so twice the sensitivity; Renyi differential privacy (Wang et al.,
  AISTATS 2019), a looser bound.
- Pure epsilon adds up over rounds, amplified by sampling (Balle et al., NeurIPS 2018).

Epsilon is infinite where it is not computed.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from zofl_mpi.errors import UserError

LEAST_NOISE = 0.04
"""Smallest z; below it a single round may cost more than `LARGEST_EPSILON`."""
LARGEST_EPSILON = 1000.0
"""Largest epsilon reported; far smaller ones already protect nobody."""
ROUNDS = 10**5
"""Most rounds: their epsilon takes a second, the z of a budget fifteen times that."""
DELTA = 1e-12
"""Smallest delta: loss distributions truncate 1e-15."""
LARGEST_RENYI = 2e5
"""Renyi bound above which no distribution is computed: epsilon is above `LARGEST_EPSILON`, or just below."""
CELLS = 1e5
"""Approximate maximum of cells in a round's loss distribution: a second of work."""
FLAT = 2.0**27
"""Noise above which dp-accounting takes log 0 in sampling without replacement."""
ROUNDING = 1e-13
"""Bound of the rounding error of a Renyi divergence."""
ORDERS = (*range(2, 17), *range(18, 33, 2), 40, 48, 64, 128, 256, 512)
"""Renyi orders: half of dp-accounting's, without its slow fractional ones; costs less than 0.1 % of epsilon."""


@final
@dataclass(frozen=True)
class Account:
    """Privacy cost of a run for one client.

    Attributes:
        m: number of clients.
        asked: participants of a round; their expected number with Poisson sampling.
        poisson: True for Poisson sampling, False for a fixed number of participants.
        delta: failure probability of Gaussian noise; 0: pure epsilon (Laplace and K-norm noise).
    """

    m: int
    asked: float
    poisson: bool
    delta: float

    def epsilon(self, z: float, rounds: int, enough: float = 0.0) -> float:
        """Epsilon after `rounds` rounds with noise z times the clipping norm; inf if not computed.

        A bound of at most `enough` is not tightened, which takes most of the time.
        """
        if rounds == 0 or not LEAST_NOISE <= z < math.inf or rounds > ROUNDS:
            return math.inf if rounds else 0.0
        alone, q = z if self.poisson else z / 2, self.asked / self.m
        if not self.delta:
            found = rounds * math.log1p(q * math.expm1(1 / alone))
            return found if found <= LARGEST_EPSILON else math.inf
        orders, once = _renyi(alone, self.m, self.asked, self.poisson)
        found = float(_library().rdp.rdp_privacy_accountant.compute_epsilon(orders, rounds * once, self.delta)[0])
        width, finer = math.inf, max(-3, _cell(found, alone))
        while (self.poisson or q == 1) and enough < found < LARGEST_RENYI and finer < width:
            width = finer
            found = min(found, _distribution(alone, q, rounds, self.delta, 10.0**width))
            finer = _cell(found, alone)
        return found if found <= LARGEST_EPSILON else math.inf

    def noise(self, epsilon: float, rounds: int) -> float:
        """Smallest noise z, to 0.1 %, at which `rounds` rounds cost at most epsilon (UserError: none below 2^30)."""
        low, high = 0.0, 1.0
        while self.epsilon(high, rounds, epsilon) > epsilon:
            low, high = high, 2 * high
            if high > 2**30:
                raise UserError(f"--epsilon {epsilon:g}: no noise below 2^30 reaches it; raise it, or run fewer rounds")
        while high - low > high / 1000:
            middle = (low + high) / 2
            low, high = (middle, high) if self.epsilon(middle, rounds, epsilon) > epsilon else (low, middle)
        return high


def _cell(epsilon: float, alone: float) -> int:
    """Cell width of a loss distribution, as a power of 10; every width gives an upper bound, finer ones tighter.

    A round's losses range from about -8/alone to 1/(2 alone^2) + 8/alone.
    """
    least = math.ceil(math.log10((0.5 / alone**2 + 16 / alone) / CELLS))
    return max(least, -4 if epsilon < 1 else -3 + max(0, math.ceil(math.log10(epsilon / 500))))


def _library() -> Any:
    import logging  # takes 2 ms, spared in runs without privacy

    logging.getLogger("absl").setLevel(logging.ERROR)  # `_renyi` handles rounding below 0
    try:
        import dp_accounting
        from dp_accounting import pld, rdp  # noqa: F401  (makes them attributes)
    except ModuleNotFoundError as exc:
        needed = "privacy accounting needs dp-accounting, which is not installed"
        raise UserError(f"{needed}: pip install 'zofl_mpi[privacy]'") from exc
    return dp_accounting


@functools.lru_cache(maxsize=64)
def _renyi(z: float, m: int, asked: float, poisson: bool) -> tuple[Any, Any]:
    """Renyi orders and one round's divergences at them."""
    dp = _library()
    event, relation = dp.GaussianDpEvent(z), dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    if poisson:
        event = dp.PoissonSampledDpEvent(asked / m, event)
    elif asked < m:
        relation = dp.NeighboringRelation.REPLACE_ONE
        event = dp.GaussianDpEvent(min(z, FLAT))  # less noise: an upper bound
        event = dp.SampledWithoutReplacementDpEvent(m, round(asked), event)
    accountant = dp.rdp.RdpAccountant(ORDERS, relation).compose(event)
    return accountant.orders, np.maximum(accountant.rdp, ROUNDING)  # a negative one would give an epsilon of 0


@functools.lru_cache(maxsize=1024)
def _distribution(z: float, q: float, rounds: int, delta: float, grid: float) -> float:
    dp = _library()
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z)), rounds)
    return float(dp.pld.PLDAccountant(value_discretization_interval=grid).compose(event).get_epsilon(delta))
