# SPDX-License-Identifier: Apache-2.0
"""Limits on JSON bodies. They bound the time that one body holds the event loop; docs/limits.md lists them."""

from collections.abc import Callable

import msgspec
import numpy as np

from epp.framework.errors import MalformedBodyError

MOST_VALUES = 100_000
"""JSON values in a body: messages, content parts, tools and their members; token ids are counted apart."""
MOST_TOKEN_IDS = 1024 * 1024
"""Token ids in a body: the longest contexts of models have a million tokens."""
MOST_TEXT = 8 * 1024 * 1024
"""Characters of text in a prompt, about two million tokens; media are counted apart."""
MOST_ESCAPES = 2 * 1024 * 1024
"""Escapes in the strings of a body: these take longest to decode."""
MOST_MODEL = 64 * 1024
"""Characters of a model name."""
_WINDOW_BYTES = 64 * 1024
_MOST_QUOTES = 4 * MOST_VALUES
"""Of strings: a value may have two, with its key."""


def check(body: bytes, token_ids: Callable[[bytes], msgspec.Raw] | None = None) -> None:
    """Raise MalformedBodyError for a body beyond a limit.

    `token_ids` returns the JSON of the member that may have token ids; it may raise errors of msgspec.
    """
    if len(body) > MOST_ESCAPES and b"\\" in body and body.count(b"\\") > MOST_ESCAPES:
        raise beyond("escapes in strings", MOST_ESCAPES)
    commas = np.count_nonzero(np.frombuffer(body, np.uint8) == ord(","))  # those in strings too
    if commas <= MOST_VALUES:
        return
    most = MOST_VALUES if token_ids is None else MOST_VALUES + MOST_TOKEN_IDS
    values = commas if commas <= most else count_values(body, most)
    if values > most:
        raise beyond("JSON values" if token_ids is None else "JSON values and token ids", most)
    if token_ids is None:
        return
    ids = bytes(token_ids(body))
    inside = count_values(ids, MOST_TOKEN_IDS) if b'"' in ids else ids.count(b",")
    if inside > MOST_TOKEN_IDS:
        raise beyond("token ids", MOST_TOKEN_IDS)
    if ids.count(b"[") > MOST_VALUES or ids.count(b'"') > 2 * MOST_VALUES:
        raise beyond("JSON values", MOST_VALUES)
    if values - inside > MOST_VALUES and count_values(body, most) - inside > MOST_VALUES:
        raise beyond("JSON values", MOST_VALUES)


def count_values(text: bytes, most: int) -> int:
    """Return the number of commas outside of strings, which is about that of values; `most` + 1 for more than `most`.

    So many strings that there must be more than 100,000 values count as more too.
    """
    found = quotes = start = 0
    while start < len(text):
        window = text[start : start + _WINDOW_BYTES]
        if (len(window) - len(window.rstrip(b"\\"))) % 2:  # it ends within an escape
            window += text[start + _WINDOW_BYTES : start + _WINDOW_BYTES + 1]
        start += len(window)
        if b"\\" in window:
            window = window.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        parts = window.split(b'"')
        found += b"".join(parts[quotes % 2 :: 2]).count(b",")
        quotes += len(parts) - 1
        if found > most or quotes > _MOST_QUOTES:
            return most + 1
    return found


def beyond(what: str, most: int) -> MalformedBodyError:
    """Return the error for a body beyond a limit."""
    return MalformedBodyError(
        f"the request body has more than {most} {what}: send a shorter request", kind="invalid_value"
    )
