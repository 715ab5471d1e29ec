"""Privacy accounts: the epsilon of so many noised rounds, by the package dp-accounting; never by formulas of our own.

Poisson participation: one client more or less, by a privacy loss distribution (Koskela et al., AISTATS 2020). A fixed
number: one client for another, so twice the sensitivity, by Renyi differential privacy (Wang et al., AISTATS 2019),
which is looser. Pure epsilon adds up over rounds, amplified by sampling (Balle et al., NeurIPS 2018).
"""

import functools
import math
from dataclasses import dataclass
from typing import Any, final

from zofl_mpi.errors import UserError

GRIDS = (1e-3, 1e-4)
"""Widths of a loss distribution's cells; any gives an upper bound, the finer one where epsilon is below 1."""
ORDERS = (*range(2, 17), *range(18, 33, 2), 40, 48, 64, 128, 256, 512)
"""Renyi orders: half of the package's, whose fractional ones are slow, for less than 0.1 % of epsilon."""
COARSE = 50.0
"""Epsilon from which on the Renyi bound stands: distributions of larger losses take memory, and protect nobody."""


@final
@dataclass(frozen=True)
class Account:
    """What rounds cost a client.

    Attributes:
        m: clients, of which `asked` take part in a round, by Poisson sampling the expected number.
        delta: the failure probability; 0: pure epsilon (Laplace and K-norm noise, else Gaussian).
    """

    m: int
    asked: float
    poisson: bool
    delta: float

    def epsilon(self, z: float, rounds: int) -> float:
        """Epsilon after so many rounds with noise z times the clipping norm; inf without noise."""
        if rounds == 0 or z == 0:
            return math.inf if rounds else 0.0
        alone, q = z if self.poisson else z / 2, self.asked / self.m
        if not self.delta:
            return rounds * (math.log1p(q * math.expm1(1 / alone)) if alone > 1 / 700 else 1 / alone)
        orders, once = _renyi(alone, self.m, self.asked, self.poisson)
        found = float(_library().rdp.rdp_privacy_accountant.compute_epsilon(orders, rounds * once, self.delta)[0])
        for grid in GRIDS if (self.poisson or q == 1) and found < COARSE else ():
            if found < 1 or grid == GRIDS[0]:
                found = min(found, _distribution(alone, q, rounds, self.delta, grid))
        return found

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


def _library() -> Any:
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
        event = dp.SampledWithoutReplacementDpEvent(m, round(asked), event)
    accountant = dp.rdp.RdpAccountant(ORDERS, relation).compose(event)
    return accountant.orders, accountant.rdp


@functools.lru_cache(maxsize=1024)
def _distribution(z: float, q: float, rounds: int, delta: float, grid: float) -> float:
    dp = _library()
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z)), rounds)
    return float(dp.pld.PLDAccountant(value_discretization_interval=grid).compose(event).get_epsilon(delta))
