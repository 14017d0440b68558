# SPDX-License-Identifier: Apache-2.0
"""Token ids as bytes, four little-endian ones each; long lists without a Python object for each id."""

import sys
from array import array
from collections.abc import Iterable

import numpy as np

_MOST_ID = 2**32 - 1
_DIGITS_AND_SPACE = b"0123456789, \t\n\r"


def pack(ids: Iterable[int]) -> bytes:
    """Return token ids, each in [0, 2^32), as bytes."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def are_ids(part: bytes) -> bool:
    """Return whether a part of a JSON array holds nothing but numbers without sign or fraction."""
    return not part.translate(None, _DIGITS_AND_SPACE)


def packed_json(raw: bytes) -> bytes | None:
    """Return a JSON array of token ids as bytes; None for any other JSON."""
    inside = raw[1:-1].strip()
    if not inside or not are_ids(inside):
        return None
    ids = np.fromstring(inside.decode(), np.int64, sep=",")  # numbers beyond 64 bits become the largest one
    return ids.astype("<u4").tobytes() if ids.max() <= _MOST_ID else None
