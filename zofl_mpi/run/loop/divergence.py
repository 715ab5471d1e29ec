"""Criterion for divergence; closing lines warn of it, and figures leave such runs out of means."""

DIVERGED_FACTOR = 1e3
"""An objective that exceeds its first value by this factor has diverged."""
DIVERGED_ABOVE = 1e9
"""An objective above this has diverged, perhaps before the first evaluation."""


def has_diverged(first: float, last: float) -> bool:
    """True if a loss has diverged from `first` to `last`, which may be non-finite."""
    return not abs(last) <= min(DIVERGED_FACTOR * max(abs(first), 1.0), DIVERGED_ABOVE)
