"""Small formulas that scorers share."""

import numpy as np

from epp.framework.arrays import Floats


def lower_is_better(values: Floats) -> Floats:
    """Map the lowest value to 1 and the highest to 0, linearly; all equal give 1.

    A candidate that nobody reported on (NaN) gets 0.5 beside others that are known, and 1 where nothing is known:
    what is unknown is neither idle nor busy.
    """
    low, high = values.min(), values.max()
    if low == high:
        return np.ones(len(values))
    if low < high:  # not so where a NaN is
        scores: Floats = (high - values) / (high - low)
        return scores
    known = ~np.isnan(values)
    if not known.any():
        return np.ones(len(values))
    return np.where(known, lower_is_better(values[known])[np.cumsum(known) - 1], 0.5)
