# SPDX-License-Identifier: Apache-2.0
"""Places where a JSON string can be cut in two, each of them a JSON string by itself."""

import re

_ESCAPE_BYTES = 6
_HIGH_HALF = re.compile(rb"\\u[dD][89abAB]")
_HEAD, _CONTINUES = 0xC0, 0x80


def string_cut(text: bytes, wanted: int) -> int:
    """Return a place near to the wanted one, of text that begins in a string and outside of escapes and characters.

    It is behind the wanted place, by 16 bytes at most, in a text that goes on for as long.
    """
    cut = wanted
    escape = _last_escape(text, wanted)
    if escape >= 0:
        size = _ESCAPE_BYTES if text[escape + 1 : escape + 2] == b"u" else 2
        if escape + size > wanted:
            cut = escape + size
        if escape + size >= wanted and _HIGH_HALF.match(text, escape):
            return escape + 2 * _ESCAPE_BYTES  # half of a pair is no string
    for _ in range(3):
        if cut < len(text) and text[cut] & _HEAD == _CONTINUES:
            cut += 1
    return cut


def _last_escape(text: bytes, end: int) -> int:
    """Return where the last escape begins that may reach the end; -1 where none does."""
    last = text.rfind(b"\\", max(end - _ESCAPE_BYTES, 0), end)
    run = last + 1 - len(text[: last + 1].rstrip(b"\\"))
    return last if run % 2 else -1
