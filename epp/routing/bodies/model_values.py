# SPDX-License-Identifier: Apache-2.0
"""Positions of the values of top-level `model` members in a whole JSON object, found at C speed."""

import msgspec
import numpy as np

MOST_MODELS = 2
_SPACE = b" \t\n\r"


class _Model(msgspec.Struct, gc=False):
    model: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_Model).decode


class TooManyModelsError(Exception):
    """The object has more than two members `model`."""


def model_values(body: bytes) -> list[tuple[int, int]] | None:
    """Return start and end of each value, in order; None for a body that is no JSON object.

    Raises TooManyModelsError. Of several members msgspec returns the last, so each is looked for in what comes before
    the one found: hence the limit.
    """
    found: list[tuple[int, int]] = []
    rest = body
    while True:
        try:
            model = _decode(rest).model
        except (ValueError, RecursionError):  # not JSON, no object, not UTF-8, or nested too deep
            return None
        if isinstance(model, msgspec.UnsetType):
            return found[::-1]
        if len(found) == MOST_MODELS:
            raise TooManyModelsError
        start = _address(model) - _address(rest)
        found.append((start, start + len(memoryview(model))))
        before = _before_member(rest, start)
        if before is None:
            return found[::-1]
        rest = before


def _address(data: bytes | msgspec.Raw) -> int:
    """Return where the bytes are in memory: a raw value is a view of the bytes that it was decoded from."""
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])


def _before_member(body: bytes, value: int) -> bytes | None:
    """Return the object without the member of this value and all behind it; None where no `model` can be left."""
    quote = body.rfind(b'"', 0, value)
    key = body.rfind(b'"', 0, quote)  # no spelling of the key has a quote
    if body.find(b'"model"', 0, key) < 0 and body.find(rb"\u00", 0, key) < 0:
        return None
    before = body[:key].rstrip(_SPACE)
    return before[:-1] + b"}" if before.endswith(b",") else None
