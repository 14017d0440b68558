# SPDX-License-Identifier: Apache-2.0
"""Long work in steps, between which others have a turn of the event loop."""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Text: TypeAlias = bytes | memoryview
Steps: TypeAlias = Generator[list[bytes] | None, bytes | None, T]
"""Work in steps, each of a millisecond or two, with a result.

A step may yield pieces instead of None: it is then sent the join of them, made in a thread, or None to do that itself.
"""
Turns: TypeAlias = Steps[None]

LONG_BYTES = 1536 * 1024
"""A text that takes a few milliseconds to be read at once."""
_COPIED_BYTES = 1024 * 1024


def joined(pieces: list[bytes]) -> Steps[bytes]:
    """Return the join of pieces."""
    if sum(map(len, pieces)) < LONG_BYTES or len(pieces) == 1:
        return b"".join(pieces)
    found = yield pieces
    return b"".join(pieces) if found is None else found


def joined_slices(pieces: list[bytes | bytearray | memoryview]) -> Steps[bytes]:
    """Return the join of pieces, which may be long and of any kind; the list is empty then."""
    slices: list[bytes] = []
    block: list[memoryview] = []
    size = 0
    pieces.reverse()
    while pieces:
        piece = pieces.pop()
        for start in range(0, len(piece), _COPIED_BYTES):
            part = memoryview(piece)[start : start + _COPIED_BYTES]
            block.append(part)
            size += len(part)
            if size >= _COPIED_BYTES:
                slices.append(b"".join(block))  # Python's lock is held while anything but bytes is joined
                block, size = [], 0
                yield None
    slices.append(b"".join(block))
    return (yield from joined(slices))
