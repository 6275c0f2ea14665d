"""How far is too far: rows that must not decide the features of all others. NumPy alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FAR = 1000.0  # a row at more than that many times the median squared distance counts as an outlier
FARTHEST = 8.0  # linear features of a row: longer ones are cut to that length
SPREAD = 9.0  # squared distances from the mean of which none is larger, by medians, hide no outlier


def outliers(squares: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which squared distances are beyond ``FAR`` medians, if they are few enough to be an accident."""
    far = squares > FAR * np.median(squares)
    return far if np.median(squares) > 0 and far.sum() <= max(1, len(far) // 100) else np.zeros_like(far)
