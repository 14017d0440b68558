# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 frames: constants, serialisation of outgoing frames, and header blocks assembled from frames."""

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from epp.extproc.http2.limits import Limits
from epp.extproc.http2.status import ErrorCode, GoawayError, ResetError

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

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

HEAD: Final = Struct(">BHBBL")
"""Length (high byte, low half), type, flags, stream; 9 bytes."""
MESSAGE_HEAD: Final = Struct(">BHBBLBL")
"""The head of a DATA frame, and the prefix of the gRPC message in it; 14 bytes."""
_SETTING: Final = Struct(">HL")
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
    """Return any frame."""
    size = len(payload)
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def settings_frame(values: dict[Setting, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(key, value) for key, value in values.items()))


def rst_stream_frame(stream_id: int, code: ErrorCode) -> bytes:
    """Return an RST_STREAM frame."""
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


_PRIORITY_BYTES = 5


class Block(NamedTuple):
    """A whole header block."""

    stream_id: int
    content: bytes
    end_stream: bool
    fault: ResetError | None
    """The error of its stream, to be raised after the block is decoded."""


class BlockAssembler:
    """`begin` with HEADERS, `resume` with each CONTINUATION; both return the block once it is complete."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._first: Block | None = None
        self._pieces: list[bytes] = []
        self._size = 0

    @property
    def awaited(self) -> int | None:
        """The stream whose CONTINUATION must be the next frame."""
        return None if self._first is None else self._first.stream_id

    def begin(self, flags: int, stream_id: int, payload: bytes) -> Block | None:
        """Take a HEADERS frame."""
        content = bytes(unpadded(payload)) if flags & PADDED else payload
        fault = None
        if flags & PRIORITISED:
            if len(content) < _PRIORITY_BYTES:
                raise GoawayError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
            fault = priority_fault(stream_id, content)
            content = content[_PRIORITY_BYTES:]
        block = Block(stream_id, content, bool(flags & END_STREAM), fault)
        if flags & END_HEADERS:
            return self._checked(block)
        self._first = block
        self._pieces = [content]
        self._size = len(content)
        return None

    def resume(self, flags: int, stream_id: int, payload: bytes) -> Block | None:
        """Take a CONTINUATION frame."""
        first = self._first
        if first is None or first.stream_id != stream_id:
            raise GoawayError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS before it")
        self._pieces.append(payload)
        self._size += len(payload)
        if len(self._pieces) > self._limits.max_continuations or self._size > self._limits.max_header_block_bytes:
            raise GoawayError(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too large")
        if not flags & END_HEADERS:
            return None
        self._first = None
        return first._replace(content=b"".join(self._pieces))

    def _checked(self, block: Block) -> Block:
        if len(block.content) > self._limits.max_header_block_bytes:
            raise GoawayError(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too large")
        return block


def unpadded(payload: bytes | memoryview) -> bytes | memoryview:
    """Return a padded payload without its padding."""
    if not payload:
        raise GoawayError(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without a length of its padding")
    end = len(payload) - payload[0]
    if end < 1:
        raise GoawayError(ErrorCode.PROTOCOL_ERROR, "padding as long as its frame")
    return payload[1:end]


def priority_fault(stream_id: int, payload: bytes) -> ResetError | None:
    """Return the error in the priority at the start of a payload, if any; priorities have no other effect."""
    if word(payload) & 0x7FFF_FFFF == stream_id:
        return ResetError(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
    return None
