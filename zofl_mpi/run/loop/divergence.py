"""Criterion for a diverged loss, for a run's closing lines and for figures."""

DIVERGED_FACTOR = 1e3
"""An objective that exceeds its first value by this factor has diverged."""
DIVERGED_ABOVE = 1e9
"""An objective above this has diverged, perhaps before the first evaluation."""


def has_diverged(first: float, last: float) -> bool:
    """True if a loss that began at `first` and ended at `last` (maybe not finite) has diverged."""
    return not abs(last) <= min(DIVERGED_FACTOR * max(abs(first), 1.0), DIVERGED_ABOVE)
