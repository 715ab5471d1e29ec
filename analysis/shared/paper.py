"""The numbers that [A] prints."""

import math
from typing import Any

from shared.groups import Group

TABLE_1 = {
    ("mnist", 1000.0, 0.9): {"fedavg": 87.17, "fedprox": 86.90, "scaffold": 91.54, "zo_hfl": 90.82},
    ("fashion-mnist", 1000.0, 0.9): {"fedavg": 77.52, "fedprox": 77.34, "scaffold": 82.25, "zo_hfl": 78.51},
    ("cifar10", 1000.0, 0.9): {"fedavg": 68.36, "fedprox": 67.52, "scaffold": 72.36, "zo_hfl": 68.12},
    ("mnist", 1.0, 0.5): {"fedavg": 77.33, "fedprox": 75.61, "scaffold": 91.25, "zo_hfl": 88.44},
    ("fashion-mnist", 1.0, 0.5): {"fedavg": 59.64, "fedprox": 60.28, "scaffold": 83.48, "zo_hfl": 85.51},
    ("cifar10", 1.0, 0.5): {"fedavg": 37.20, "fedprox": 38.55, "scaffold": 50.41, "zo_hfl": 58.06},
    ("mnist", 0.1, 0.1): {"fedavg": 39.19, "fedprox": 45.15, "scaffold": 87.36, "zo_hfl": 87.70},
    ("fashion-mnist", 0.1, 0.1): {"fedavg": 45.50, "fedprox": 49.44, "scaffold": 74.91, "zo_hfl": 76.86},
    ("cifar10", 0.1, 0.1): {"fedavg": 27.43, "fedprox": 29.03, "scaffold": 44.65, "zo_hfl": 52.51},
}
"""Table I: (data, alpha, beta) -> method -> test accuracy in %."""


def printed(group: Group) -> float:
    """The test accuracy in % that Table I has for a group; nan where it has none."""
    alpha, beta = (_number(group.config.get(key)) for key in ("alpha", "beta"))
    return TABLE_1.get((str(group.config.get("data")), alpha, beta), {}).get(group.entry("method"), math.nan)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
