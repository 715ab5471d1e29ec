"""Array types, and a context for arithmetic that may overflow."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""Any shape and type."""
Vector = NDArray[np.float64]
Integers = NDArray[np.int64]
no_numpy_warnings = np.errstate(all="ignore")
"""Decorator without NumPy's warnings; the caller checks that values are finite."""
