"""95 % intervals of means over seeds, by Student's t: the one convention of the pages in analysis/results.

A mean over n seeds, of standard deviation s (divided by n - 1), has the interval mean ± t s/sqrt(n). Differences are
taken seed by seed where a table has them; else both means are taken as independent, with n seeds each.
"""

import math

T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t, two-sided 95 %, for 1 to 10 degrees of freedom."""


def t95(freedom: int) -> float:
    """Student's t, two-sided 95 %, for so many degrees of freedom."""
    return T95[freedom - 1] if freedom <= len(T95) else 1.96 + 2.37 / freedom + 2.8 / freedom**2


def half_width(sd: float, n: int) -> float:
    """Half the width of the 95 % interval of a mean of n values; nan for fewer than two."""
    return t95(n - 1) * sd / math.sqrt(n) if n > 1 else math.nan


def half_width_of_difference(sd: float, other: float, n: int) -> float:
    """The same of the difference of two independent means of n values each (pooled variance, 2 n - 2 degrees)."""
    return t95(2 * n - 2) * math.sqrt((sd**2 + other**2) / n) if n > 1 else math.nan
