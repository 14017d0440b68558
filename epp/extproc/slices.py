# SPDX-License-Identifier: Apache-2.0
"""Long pieces of responses, cut so that other requests have a turn of the event loop in between."""

from collections.abc import Iterator

import numpy as np

SHORT_BYTES = 8 * 1024
"""A piece that is always read at once."""
_LONG_BYTES = 64 * 1024
_SLICE_BYTES = 32 * 1024
_DENSE_BYTES = 8
"""Lines and brackets are farther apart on average, even in events of a single token."""
_MARKS = b"\n\r{["


def slice_bytes(piece: bytes) -> int:
    """Return the size of the slices in which to read a piece; 0 for at once."""
    size = len(piece)
    if size <= SHORT_BYTES:
        return 0
    codes = np.frombuffer(piece, np.uint8)
    if sum(np.count_nonzero(codes == mark) for mark in _MARKS) * _DENSE_BYTES > size:
        return SHORT_BYTES
    return _SLICE_BYTES if size > _LONG_BYTES else 0


def slices(piece: bytes, size: int) -> Iterator[bytes]:
    """Yield the slices of a piece that is not empty."""
    for start in range(0, len(piece), size):
        yield piece[start : start + size]
