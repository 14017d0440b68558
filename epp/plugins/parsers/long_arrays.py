# SPDX-License-Identifier: Apache-2.0
"""Long JSON arrays, cut at commas into short ones: each is read in a turn of the event loop of its own."""

from collections.abc import Iterator

import numpy as np

from epp.framework.steps import LONG_BYTES, Steps, Text

BATCH_BYTES = 4 * 1024
"""Of an array that is read at once, unless a single element is longer: 2,048 elements of the shortest kind."""
MOST_COMMAS = 2048
"""Of a body that is read at once."""
_WINDOW_BYTES = 64 * 1024
_QUOTE, _COMMA, _BACKSLASH = b'",\\'

_STRUCTURE = np.zeros(256, np.bool_)
_STRUCTURE[list(b",[]{}")] = True
_DEPTH = np.zeros(256, np.int8)
_DEPTH[list(b"[{")] = 1
_DEPTH[list(b"]}")] = -1
_ENDS_VALUE = np.zeros(256, np.bool_)
_ENDS_VALUE[list(b'"}]0123456789 \t\n\r')] = True
_WORD_ENDS = tuple(int.from_bytes(word[-3:], "big") for word in (b"true", b"false", b"null"))


def is_dense(body: bytes) -> bool:
    """Return whether a JSON text may have more than 2,048 commas between values, those within strings apart.

    There are as many elements and members as commas, but for the first ones. Of commas within strings, those are
    counted that follow what may end a value.
    """
    if len(body) <= MOST_COMMAS or np.count_nonzero(np.frombuffer(body, np.uint8) == _COMMA) <= MOST_COMMAS:
        return False
    found = 0
    for start in range(0, len(body), _WINDOW_BYTES):
        window = np.frombuffer(body[max(start - 3, 0) : start + _WINDOW_BYTES], np.uint8)
        found += _between_values(window)
        if found > MOST_COMMAS:
            return True
    return False


def is_dense_in_turns(text: memoryview) -> Steps[bool]:
    """Return the same for a text that may be long."""
    if len(text) < LONG_BYTES:
        return is_dense(bytes(text))
    found = 0
    for start in range(0, len(text), _WINDOW_BYTES):
        found += _between_values(np.frombuffer(text[max(start - 3, 0) : start + _WINDOW_BYTES], np.uint8))
        if found > MOST_COMMAS:
            return True
        yield None
    return False


def _between_values(text: "np.typing.NDArray[np.uint8]") -> int:
    """Return the number of commas, the first three bytes apart, that follow what may end a value."""
    at = np.flatnonzero(text[3:] == _COMMA) + 3
    last, second, third = text[at - 1], text[at - 2], text[at - 3]
    ends = _ENDS_VALUE[last] & ~((last == _QUOTE) & (second == _BACKSLASH) & (third != _BACKSLASH))
    words = at[(last == ord("e")) | (last == ord("l"))]
    spelled = text[words - 3].astype(np.int32) << 16 | text[words - 2].astype(np.int32) << 8 | text[words - 1]
    return int(np.count_nonzero(ends)) + int(np.count_nonzero(np.isin(spelled, _WORD_ENDS)))


def batches(array: Text) -> Iterator[tuple[int, Text]]:
    """Yield a JSON array as arrays of at most 4 KiB, each with the index of its first element.

    A longer element is a view of that element only, with the space around it. The array is valid JSON, and its
    elements keep their order. An empty array is one batch; an empty batch stands for 64 KiB that were searched for the
    end of an element in vain.
    """
    array = memoryview(array)
    first, start = 0, 1
    for commas in _element_commas(array):
        if not len(commas):
            yield first, b""
        done = 0
        while done < len(commas):
            # as many elements as fit, at least one
            fitting = int(np.searchsorted(commas, start + BATCH_BYTES - 2, "right")) - 1
            last = max(fitting, done)
            end = int(commas[last])
            yield first, _batch(array[start:end])
            first += last + 1 - done
            start, done = end + 1, last + 1
    yield first, _batch(array[start : len(array) - 1])


def _batch(elements: memoryview) -> Text:
    return b"[%b]" % bytes(elements) if len(elements) + 2 <= BATCH_BYTES else elements


def _element_commas(array: memoryview) -> "Iterator[np.typing.NDArray[np.intp]]":
    """Yield the positions of the commas between elements, for a window at a time; none is one too."""
    depth, quoted = 0, 0
    position, end = 1, len(array) - 1
    while position < end:
        window = _whole_escapes(array, position, min(position + _WINDOW_BYTES, end))
        size = len(window)
        if b"\\" in window:
            window = window.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        codes = np.frombuffer(window, np.uint8)
        quotes = np.cumsum(codes == _QUOTE, dtype=np.int32) + quoted
        marks = np.flatnonzero(_STRUCTURE[codes])
        marks = marks[quotes[marks] & 1 == 0]
        depths = np.cumsum(_DEPTH[codes[marks]], dtype=np.int32) + depth
        yield marks[(depths == 0) & (codes[marks] == _COMMA)] + position
        depth = int(depths[-1]) if len(depths) else depth
        quoted = int(quotes[-1]) & 1
        position += size


def _whole_escapes(text: memoryview, start: int, end: int) -> bytes:
    """Return the bytes from start to end, and one more where they end within an escape."""
    window = bytes(text[start:end])
    backslashes = len(window) - len(window.rstrip(b"\\"))
    return bytes(text[start : end + 1]) if backslashes % 2 else window
