"""Types of arrays, and the context of arithmetic whose results may overflow."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""Any shape and type."""
Vector = NDArray[np.float64]
Integers = NDArray[np.int64]
no_numpy_warnings = np.errstate(all="ignore")
"""Decorator: NumPy gives no warnings; the caller checks that values are finite."""
