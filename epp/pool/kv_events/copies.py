# SPDX-License-Identifier: Apache-2.0
"""Numbers of copies of blocks within one cache: engines may store a block several times, and remove each copy."""

import numpy as np
from numpy.typing import NDArray

from epp.pool.kv_events.rows import Keys, RowTable

_MOST_COPIED = 1 << 20
"""Blocks whose copies are counted: 22 bytes each."""


class Copies:
    """Copies beyond the first one, by a name for a block in a cache; the least recently used are forgotten."""

    def __init__(self, secret: int) -> None:
        self._table = RowTable(_MOST_COPIED, secret)
        self._counts: NDArray[np.int32] = self._table.column(np.int32)

    def __len__(self) -> int:
        return self._table.count

    def add(self, names: Keys, now: int) -> None:
        """Count one more copy of each; `now` is a time in any unit."""
        rows = self._table.put(np.maximum(names, 1), now)
        np.add.at(self._counts, rows[rows >= 0], 1)

    def drop(self, names: Keys) -> NDArray[np.bool_]:
        """Count one copy less of each, and return where there was one."""
        rows = self._table.find(np.maximum(names, 1))
        found = rows >= 0
        np.subtract.at(self._counts, rows[found], 1)
        left = np.unique(rows[found])
        self._table.remove(left[self._counts[left] <= 0])
        return found
