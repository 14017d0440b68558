# SPDX-License-Identifier: Apache-2.0
"""Size of an image that a request itself carries, from the head of its file."""

import re
import struct
from binascii import Error, a2b_base64

_INLINE = re.compile(rb"""(?:;base64,|"data"\s*:\s*")([A-Za-z0-9+/\\]+)""")
_KEYS_BYTES = 1024
_HEAD_BYTES = (4 * 1024, 24 * 1024)
"""Of the base64 text, tried in this order: a JPEG has its size behind metadata. Longer heads cost more than parsing."""
_MOST_SEGMENTS = 64
_LEAD = 0xFF
_PNG = b"\x89PNG\r\n\x1a\n"
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def pixels(part: bytes) -> tuple[int, int]:
    """Return width and height of the image in the JSON of a content part; zeros for one that only has an address.

    PNG, GIF and JPEG in base64: a data URL, or the member `data`.
    """
    found = _INLINE.search(part, 0, _KEYS_BYTES)
    if found is None:
        return 0, 0
    for size in _HEAD_BYTES:
        text = part[found.start(1) : found.start(1) + size].partition(b'"')[0].replace(b"\\/", b"/")
        try:
            head = a2b_base64(text[: len(text) // 4 * 4])
            if head.startswith(_PNG):
                return struct.unpack_from(">II", head, 16)
            if head.startswith((b"GIF87a", b"GIF89a")):
                return struct.unpack_from("<HH", head, 6)
            if not head.startswith(b"\xff\xd8"):
                break
            return _jpeg_pixels(head)
        except Error:
            break
        except struct.error:  # the head ends too early
            continue
    return 0, 0


def _jpeg_pixels(head: bytes) -> tuple[int, int]:
    """Return the size in the first frame header; raises struct.error where the head ends before it."""
    at = 2
    for _ in range(_MOST_SEGMENTS):
        lead, marker = struct.unpack_from(">BB", head, at)
        if lead != _LEAD:
            break
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", head, at + 5)
            return width, height
        at += 2 if marker in _WITHOUT_LENGTH else 2 + struct.unpack_from(">H", head, at + 2)[0]
    return 0, 0
