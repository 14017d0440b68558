"""Small formulas that scorers share."""

import numpy as np

from epp.framework.arrays import Floats


def lower_is_better(values: Floats) -> Floats:
    """Map the lowest value to 1 and the highest to 0, linearly; all equal give 1.

    A candidate that nobody reported on (NaN) gets 0.5 beside others that are known, and 1 where nothing is known:
    what is unknown is neither idle nor busy.
    """
    known = ~np.isnan(values)
    if not known.any():
        return np.ones(len(values))
    low, high = values[known].min(), values[known].max()
    scores = np.ones(len(values)) if high == low else (high - values) / (high - low)
    return np.where(known, scores, 0.5)
