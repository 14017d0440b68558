# SPDX-License-Identifier: Apache-2.0
"""One stream, and the gRPC messages in its bytes."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from types import MappingProxyType
from typing import Final

from epp.extproc.http2.limits import Account
from epp.extproc.http2.service import Call, Cancellable, RpcError, Status

PREFIX: Final = Struct(">BL")
PREFIX_BYTES: Final = 5
_SMALL_BYTES = 4096
"""Smaller pieces are merged to save memory and the time to join them."""
_MERGED_BYTES = 65_536
_WINDOW_BITS: Mapping[str, int] = MappingProxyType({"gzip": 31, "deflate": 15})
"""The `wbits` of zlib for each encoding; gRPC's deflate is the zlib format."""
_MOST_DECOMPRESSED_BYTES = 8 * 1024 * 1024
"""Limit for one message: this takes about 20 ms of the event loop. Gateways send bodies in pieces or uncompressed."""


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
    """Decompress a message; raises RpcError for one that is broken or too large."""
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


def append_piece(pieces: list[bytes | bytearray | memoryview], piece: bytes | memoryview) -> None:
    """Append bytes; small pieces are merged."""
    size = len(piece)
    if size >= _SMALL_BYTES:
        pieces.append(piece)
    elif size:
        last = pieces[-1] if pieces else None
        if isinstance(last, bytearray) and len(last) < _MERGED_BYTES:
            last += piece
        else:
            pieces.append(bytearray(piece))


class Inbox:
    """gRPC messages in the bytes of a stream: `feed` bytes, then take messages with `next` until it returns None."""

    __slots__ = ("_compressed", "_encoding", "_length", "_max_bytes", "_pieces", "_start", "size")

    def __init__(self, max_bytes: int, encoding: str) -> None:
        self._max_bytes = max_bytes
        self._encoding = encoding
        self._compressed = False
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._start = 0  # of the remaining bytes in the first piece
        self._length: int | None = None  # of the current message; None before its prefix
        self.size = 0

    @property
    def in_message(self) -> bool:
        """Whether a message is incomplete."""
        return self._length is not None or self.size > 0

    def feed(self, piece: bytes | memoryview) -> None:
        self.size += len(piece)
        append_piece(self._pieces, piece)

    def own(self) -> None:
        """Copy the last pieces that are views of something larger."""
        pieces = self._pieces
        for at in range(len(pieces) - 1, -1, -1):
            piece = pieces[at]
            if not isinstance(piece, memoryview):
                return
            pieces[at] = bytes(piece)

    def next(self) -> bytes | None:
        """Return the next complete message or None; raises RpcError for an unreadable one."""
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


@dataclass(slots=True, eq=False)
class Stream:
    """One stream that is not closed in both directions."""

    id: int
    inbox: Inbox
    account: Account
    receive_window: int
    send_window: int
    heard_at: float
    """Time of the last bytes from the peer."""
    call: Call | None = None
    """None before it is opened and after it is closed."""
    ready: bool = False
    """Whether the next message can bypass the inbox and the checks."""
    counted: int = 0
    """Bytes of the inbox and the outbox that the account includes."""
    outbox: list[memoryview] = field(default_factory=list)
    """Bytes that wait for the peer's windows."""
    unsent: int = 0
    """Number of bytes in the outbox."""
    stuck: tuple[int, float] | None = None
    """Bytes in the outbox at the last check, and since when."""
    ending: bytes | None = None
    """The trailers after the outbox; empty for none, None for a stream that continues."""
    refusal: tuple[bytes, bytes] | None = None
    """Headers and body of the answer to a request that is not gRPC."""
    headers_sent: bool = False
    remote_ended: bool = False
    half_closed: bool = False
    """Whether the call was notified of the end of the client's side."""
    held: int = 0
    """Bytes in the inbox that are not returned to the receive window."""
    length_left: int | None = None
    """Remaining bytes by content-length; None without one."""
    waiting: Cancellable | None = None
    deadline: Cancellable | None = None
    silence: Cancellable | None = None

    def count(self) -> None:
        """Update the account to the bytes in the inbox and the outbox."""
        waiting = self.inbox.size + self.unsent
        if waiting != self.counted:
            self.account.put(waiting - self.counted)
            self.counted = waiting

    @property
    def blocked(self) -> bool:
        """Whether messages must wait: for an answer, for the peer to read, or because there is no call."""
        return self.call is None or self.waiting is not None or bool(self.outbox)
