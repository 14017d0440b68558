# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 frames: constants and serialisation."""

from enum import IntEnum
from struct import Struct
from typing import Final

from epp.extproc.http2.service import ErrorCode, GoawayError

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20

HEAD_BYTES: Final = 9
MAX_WINDOW: Final = 2**31 - 1
MAX_STREAM_ID: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65_535
MIN_MAX_FRAME: Final = 16_384
"""Every endpoint accepts payloads up to this size."""
MAX_MAX_FRAME: Final = 2**24 - 1
LARGEST_FRAME: Final = 65_536
"""Largest outgoing frame; peers may allow 16 MiB, which is too much for one write."""

HEAD: Final = Struct(">BHBBL")
"""Length (high byte, low half), type, flags, stream; 9 bytes."""
MESSAGE_HEAD: Final = Struct(">BHBBLBL")
"""The head of a DATA frame, and the prefix of the gRPC message in it; 14 bytes."""
SETTING: Final = Struct(">HL")
_WORD: Final = Struct(">L")
_TWO_WORDS: Final = Struct(">LL")


class Setting(IntEnum):
    """RFC 9113, section 6.5.2."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def settings_frame(values: dict[Setting, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(key, value) for key, value in values.items()))


def rst_stream_frame(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, _WORD.pack(code))


def goaway_frame(last_stream_id: int, code: ErrorCode, problem: str = "") -> bytes:
    """Return a GOAWAY frame with the problem as debug data."""
    return frame(GOAWAY, 0, 0, _TWO_WORDS.pack(last_stream_id, code) + problem.encode("utf-8", "replace"))


def window_update_frame(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, _WORD.pack(increment))


def word(payload: bytes, at: int = 0) -> int:
    """Return the 32-bit number at this place."""
    number: int = _WORD.unpack_from(payload, at)[0]
    return number


def unpadded(payload: bytes | memoryview) -> bytes | memoryview:
    """Return a padded payload without its padding."""
    if not payload:
        raise GoawayError(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without the length of its padding")
    end = len(payload) - payload[0]
    if end < 1:
        raise GoawayError(ErrorCode.PROTOCOL_ERROR, "padding as long as its frame")
    return payload[1:end]
