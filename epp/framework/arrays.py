"""The array types that cross plugin boundaries."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
"""One number per candidate, or per slot where said."""

Mask: TypeAlias = NDArray[np.bool_]
"""One truth value per candidate, or per slot where said."""

Positions: TypeAlias = NDArray[np.intp]
"""Positions within the candidates, or slots of the snapshot where said."""
