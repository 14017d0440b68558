# SPDX-License-Identifier: Apache-2.0
"""Token ids as bytes, four little-endian bytes each, without a Python object for each id."""

import sys
from array import array
from collections.abc import Iterable

import msgspec
import numpy as np

from epp.plugins.parsers.json_errors import empty, within
from epp.plugins.parsers.json_parser import TokenId

_decode_ids = msgspec.json.Decoder(list[TokenId] | None).decode
_MOST_ID = 2**32 - 1
_DIGITS_AND_SPACE = b"0123456789, \t\n\r"


def pack(ids: Iterable[int]) -> bytes:
    """Return token ids, each in [0, 2^32), as bytes."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def packed_json(raw: bytes) -> bytes | None:
    """Return a JSON array of token ids as bytes; None for any other JSON."""
    inside = raw[1:-1].strip()
    if not inside or inside.translate(None, _DIGITS_AND_SPACE):
        return None
    ids = np.fromstring(inside.decode(), np.int64, sep=",")  # numbers beyond 64 bits become the largest int64
    return ids.astype("<u4").tobytes() if ids.max() <= _MOST_ID else None


def read_ids(raw: msgspec.Raw, field: str) -> bytes:
    """Return a JSON array of token ids as bytes; raises ValidationError for other elements.

    Raises MalformedBodyError for null, absence and the empty array.
    """
    text = bytes(raw)
    packed = packed_json(text) if text.startswith(b"[") else None
    if packed is None:
        try:
            packed = pack(_decode_ids(text or b"null") or ())
        except msgspec.ValidationError as error:
            raise within(error, f"$.{field}") from error
    if not packed:
        raise empty(field, "send the prompt as token ids")
    return packed
