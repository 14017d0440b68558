# SPDX-License-Identifier: Apache-2.0
"""gRPC messages in the bytes of a stream, however these are cut; compressed ones are decompressed."""

import zlib
from collections.abc import Mapping
from struct import Struct
from types import MappingProxyType
from typing import Final

from epp.extproc.http2.status import RpcError, Status

PREFIX: Final = Struct(">BL")
PREFIX_BYTES: Final = 5
_SMALL_BYTES = 4096
"""Pieces below this size are put together: each takes memory beside its bytes, and time as they become a message."""
_MERGED_BYTES = 65_536
_WINDOW_BITS: Mapping[str, int] = MappingProxyType({"gzip": 31, "deflate": 15})
"""How zlib is told of an encoding; gRPC's deflate has zlib's frame."""
_MOST_DECOMPRESSED_BYTES = 8 * 1024 * 1024
"""Of one message: this takes about 20 ms of the event loop. Gateways send bodies in pieces, or uncompressed."""


def check_prefix(compressed: int, length: int, max_bytes: int, encoding: str) -> None:
    """Raise RpcError unless a message with this prefix can be read."""
    if compressed > 1:
        raise RpcError(Status.INTERNAL, f"a message with the flag {compressed}, which is neither 0 nor 1")
    if compressed and encoding and encoding not in _WINDOW_BITS:
        raise RpcError(
            Status.UNIMPLEMENTED,
            f"messages compressed with {encoding[:40]} are not supported: use gzip or deflate, or send them plain",
        )
    if compressed and not encoding:
        raise RpcError(Status.INTERNAL, "a message is compressed, and grpc-encoding names no compression")
    if length > max_bytes:
        raise RpcError(Status.RESOURCE_EXHAUSTED, f"a message of {length} bytes: at most {max_bytes} are accepted")


def decompressed(message: bytes, encoding: str, max_bytes: int) -> bytes:
    """Return a message as it was before its compression; raises RpcError for one that is broken or too large."""
    most = min(max_bytes, _MOST_DECOMPRESSED_BYTES)
    stream = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        whole = stream.decompress(message, most + 1)
    except zlib.error as error:
        raise RpcError(Status.INTERNAL, f"a message that is no {encoding}: {error}") from error
    if len(whole) > most:
        raise RpcError(
            Status.RESOURCE_EXHAUSTED,
            f"a message of more than {most} bytes once it is decompressed: send a larger one plain",
        )
    if not stream.eof:
        raise RpcError(Status.INTERNAL, f"a message whose {encoding} is cut short")
    return whole


class Inbox:
    """`feed` bytes, then take messages with `next` until it returns None."""

    __slots__ = ("_compressed", "_encoding", "_length", "_max_bytes", "_pieces", "_start", "size")

    def __init__(self, max_bytes: int, encoding: str) -> None:
        self._max_bytes = max_bytes
        self._encoding = encoding
        self._compressed = False
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._start = 0  # of what is not taken of the first piece
        self._length: int | None = None  # of the message that is coming; None before its prefix
        self.size = 0
        """Bytes that wait."""

    @property
    def in_message(self) -> bool:
        """Whether a message has begun and not ended."""
        return self._length is not None or self.size > 0

    def feed(self, piece: bytes | memoryview) -> None:
        """Take the next bytes."""
        size = len(piece)
        self.size += size
        if size >= _SMALL_BYTES:
            self._pieces.append(piece)
        elif size:
            last = self._pieces[-1] if self._pieces else None
            if isinstance(last, bytearray) and len(last) < _MERGED_BYTES:
                last += piece
            else:
                self._pieces.append(bytearray(piece))

    def own(self) -> None:
        """Copy the last pieces that are views of something larger."""
        pieces = self._pieces
        for at in range(len(pieces) - 1, -1, -1):
            piece = pieces[at]
            if not isinstance(piece, memoryview):
                return
            pieces[at] = bytes(piece)

    def next(self) -> bytes | None:
        """Return the next whole message, None before it has come; raises RpcError for one that cannot be read."""
        if self._length is None:
            if self.size < PREFIX_BYTES:
                return None
            compressed, length = PREFIX.unpack(self._take(PREFIX_BYTES))
            check_prefix(compressed, length, self._max_bytes, self._encoding)
            self._length, self._compressed = length, bool(compressed)
        if self.size < self._length:
            return None
        message = self._take(self._length)
        self._length = None
        return decompressed(message, self._encoding, self._max_bytes) if self._compressed else message

    def clear(self) -> None:
        """Drop what waits."""
        self._pieces.clear()
        self._start = 0
        self.size = 0

    def _take(self, size: int) -> bytes:
        pieces, taken = self._pieces, []
        missing, start = size, self._start
        used = 0  # pieces; removed together, as each removal moves all that follow
        while missing:
            piece = pieces[used]
            end = min(len(piece), start + missing)
            taken.append(piece[start:end] if start or end < len(piece) else piece)
            missing -= end - start
            start = end
            if end == len(piece):
                used, start = used + 1, 0
        del pieces[:used]
        self._start = start
        self.size -= size
        first = taken[0] if len(taken) == 1 else None
        return first if isinstance(first, bytes) else b"".join(taken)
