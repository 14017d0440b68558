# SPDX-License-Identifier: Apache-2.0
"""Header blocks of HEADERS and CONTINUATION frames, put together and without padding and priority."""

from typing import NamedTuple

from epp.extproc.http2.frames import END_HEADERS, END_STREAM, PADDED, PRIORITISED, word
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.status import ErrorCode, GoawayError, ResetError

_PRIORITY_BYTES = 5


class Block(NamedTuple):
    """A whole header block."""

    stream_id: int
    content: bytes
    end_stream: bool
    fault: ResetError | None
    """What is wrong with its stream, to be raised once the block is decoded."""


class BlockAssembler:
    """`begin` with HEADERS, `resume` with each CONTINUATION; both return the block once it is whole."""

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
    """Return what is wrong with the priority at the start of a payload; priorities have no other effect."""
    if word(payload) & 0x7FFF_FFFF == stream_id:
        return ResetError(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
    return None
