# SPDX-License-Identifier: Apache-2.0
"""One stream: the head of its request, decoded and checked, and the gRPC messages in its bytes."""

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from struct import Struct
from types import MappingProxyType
from typing import Final

from hpack import Decoder, HPACKError, OversizedHeaderListError

from epp.extproc.http2.limits import Account
from epp.extproc.http2.service import Call, ErrorCode, GoawayError, RpcError, Status, Timer

_MOST_CACHED = 32
_MOST_VALUE_BYTES = 2048
"""Longest metadata value; longer values are dropped, because each stream keeps its metadata."""
_MOST_TABLE_SIZES = 2
"""Most table size updates in one block: the smallest size since the last block, and the final size."""
_TABLE_SIZE = 0x20
_CONNECTION_SPECIFIC = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_NAME = re.compile(rb"[!-9;-@\[-~]+")
"""Visible characters except capitals and colons."""
_VALUE = re.compile(rb"(?:[^\x00\r\n\t ](?:[^\x00\r\n]*[^\x00\r\n\t ])?)?")
_NONE: Mapping[str, str] = MappingProxyType({})

Fields = Sequence[tuple[bytes, bytes]]


class MalformedError(Exception):
    """A list of header fields that HTTP/2 does not allow."""


@dataclass(frozen=True, slots=True)
class Head:
    """The fields of a request's headers that a gRPC server needs."""

    method: str
    path: str
    content_type: str
    encoding: str
    """Compression of messages; empty for none."""
    content_length: int | None
    is_grpc: bool
    """Whether it is a gRPC request."""
    metadata: Mapping[str, str]
    """The header fields with wanted names."""


class HeadReader:
    """Decodes the header blocks of one connection.

    The head of a block that does not change the dynamic table is cached until another block changes the table. Gateways
    open all streams of a connection except the first with such blocks.
    """

    def __init__(self, max_list_bytes: int, metadata_names: AbstractSet[str] = frozenset()) -> None:
        self._decoder = Decoder(max_list_bytes)
        self._names = [(name, name.encode()) for name in sorted(metadata_names)]
        self._known: dict[bytes, Head] = {}

    def request(self, block: bytes) -> Head:
        """Return the head of a request; raises GoawayError or MalformedError."""
        head = self._known.get(block)
        if head is None:
            fields = self._decode(block)
            head = read_head(fields, self._names)
            if len(self._known) < _MOST_CACHED and leaves_table(block):
                self._known[block] = head
        return head

    def trailers(self, block: bytes) -> None:
        """Check the trailers of a request; raises GoawayError or MalformedError."""
        for name, value in self._decode(block):
            if name.startswith(b":"):
                raise MalformedError("a pseudo-header among the trailers")
            _check(name, value)

    def _decode(self, block: bytes) -> Fields:
        if not leaves_table(block):
            self._known.clear()
        _check_table_sizes(block)
        try:
            return [(field[0], field[1]) for field in self._decoder.decode(block, raw=True)]
        except OversizedHeaderListError as error:
            raise GoawayError(ErrorCode.ENHANCE_YOUR_CALM, "the header list is too large") from error
        except (HPACKError, IndexError, ValueError) as error:
            raise GoawayError(ErrorCode.COMPRESSION_ERROR, "a header block cannot be decoded") from error


def leaves_table(block: bytes) -> bool:
    """Return whether a block leaves the dynamic table unchanged: only indexed fields and literals without indexing."""
    at, end = 0, len(block)
    while at < end:
        first = block[at]
        if first & 0x80:
            _, at = _integer(block, at, 7)
        elif first & 0x60:  # a literal with indexing, or a new size of the table
            return False
        else:
            index, at = _integer(block, at, 4)
            for _ in range(1 if index else 2):
                if at >= end:
                    return False
                length, at = _integer(block, at, 7)
                at += length
    return at == end


def _check_table_sizes(block: bytes) -> None:
    """Raise GoawayError for more table size updates than RFC 7541, section 4.2, needs."""
    at = 0
    for _ in range(_MOST_TABLE_SIZES + 1):
        if at >= len(block) or block[at] & 0xE0 != _TABLE_SIZE:
            return
        _, at = _integer(block, at, 5)
    raise GoawayError(ErrorCode.COMPRESSION_ERROR, "a header block changes the size of the table too often")


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """Return a number and the index after it; an index beyond the end if the block is truncated or the number huge."""
    most = (1 << bits) - 1
    number = block[at] & most
    at += 1
    if number < most:
        return number, at
    for shift in range(0, 28, 7):
        if at >= len(block):
            break
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if not byte & 0x80:
            return number, at
    return number, len(block) + 1


def read_head(fields: Iterable[tuple[bytes, bytes]], wanted: Iterable[tuple[str, bytes]] = ()) -> Head:
    """Return the head in a list of fields, with the `wanted` metadata; raises MalformedError."""
    pseudo: dict[bytes, bytes] = {}
    regular: dict[bytes, bytes] = {}
    for name, value in fields:
        if name.startswith(b":"):
            if regular or name in pseudo or name not in _PSEUDO:
                raise MalformedError("a pseudo-header that is unknown, repeated or after others")
            if not _VALUE.fullmatch(value):
                raise MalformedError("a pseudo-header with a value that is not allowed")
            pseudo[name] = value
            continue
        _check(name, value)
        if name == b"content-length" and regular.get(name, value) != value:
            raise MalformedError("two values of content-length")
        regular[name] = value
    _check_pseudo(pseudo, regular)
    length = regular.get(b"content-length")
    if length is not None and not (length.isdigit() and len(length) < 19):  # noqa: PLR2004  digits of 2**63
        raise MalformedError("a content-length that is not a number")
    method, content_type = _text(pseudo[b":method"]), _text(regular.get(b"content-type", b""))
    kind = content_type.partition(";")[0].strip().lower()
    encoding = regular.get(b"grpc-encoding", b"")
    return Head(
        method=method,
        path=_text(pseudo.get(b":path", b"")),
        content_type=content_type,
        encoding="" if encoding == b"identity" else _text(encoding),
        content_length=None if length is None else int(length),
        is_grpc=method == "POST" and (kind == "application/grpc" or kind.startswith("application/grpc+")),
        metadata=_metadata(regular, wanted) if wanted else _NONE,
    )


def _metadata(regular: Mapping[bytes, bytes], wanted: Iterable[tuple[str, bytes]]) -> Mapping[str, str]:
    values = ((name, regular.get(raw)) for name, raw in wanted)
    return {name: _text(value) for name, value in values if value is not None and len(value) <= _MOST_VALUE_BYTES}


def _check(name: bytes, value: bytes) -> None:
    if not _NAME.fullmatch(name):
        raise MalformedError("a header name with a capital or a character that is not allowed")
    if not _VALUE.fullmatch(value):
        raise MalformedError("a header value with a character that is not allowed")
    if name in _CONNECTION_SPECIFIC or (name == b"te" and value != b"trailers"):
        raise MalformedError("a header that belongs to one connection of HTTP/1.1")


def _check_pseudo(pseudo: dict[bytes, bytes], regular: dict[bytes, bytes]) -> None:
    connect = pseudo.get(b":method") == b"CONNECT"
    required = (b":method", b":authority") if connect else (b":method", b":scheme", b":path")
    if not all(pseudo.get(name) for name in required):
        raise MalformedError("a pseudo-header is missing or empty")
    if connect and (b":scheme" in pseudo or b":path" in pseudo):
        raise MalformedError("CONNECT with a scheme or a path")
    if b"host" in regular and regular[b"host"] != pseudo.get(b":authority", regular[b"host"]):
        raise MalformedError("a host that differs from the authority")


def _text(value: bytes) -> str:
    return value.decode("latin-1")


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
            f"messages compressed with {encoding[:40]} are not supported: use gzip, deflate or no compression",
        )
    if compressed and not encoding:
        raise RpcError(Status.INTERNAL, "a message is compressed, but grpc-encoding names no compression")
    if length > max_bytes:
        raise RpcError(Status.RESOURCE_EXHAUSTED, f"a message of {length} bytes: at most {max_bytes} are accepted")


def decompressed(message: bytes, encoding: str, max_bytes: int) -> bytes:
    """Decompress a message; raises RpcError for one that is broken or too large."""
    most = min(max_bytes, _MOST_DECOMPRESSED_BYTES)
    stream = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        whole = stream.decompress(message, most + 1)
    except zlib.error as error:
        raise RpcError(Status.INTERNAL, f"a message is not valid {encoding}: {error}") from error
    if len(whole) > most:
        raise RpcError(
            Status.RESOURCE_EXHAUSTED,
            f"a message has more than {most} bytes after decompression: send large messages uncompressed",
        )
    if not stream.eof:
        raise RpcError(Status.INTERNAL, f"a message has truncated {encoding} data")
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
        """Copy the last pieces if they are views of a larger buffer."""
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
    received_at: float
    """Time of the last bytes from the peer."""
    call: Call | None = None
    """None before it is opened and after it is closed."""
    ready: bool = False
    """Whether the next message can bypass the inbox and the checks."""
    counted: int = 0
    """Bytes of the inbox and the outbox that the account includes."""
    outbox: list[memoryview] = field(default_factory=list)
    """Bytes that wait for room in the peer's windows."""
    unsent: int = 0
    """Number of bytes in the outbox."""
    stuck: tuple[int, float] | None = None
    """Number of bytes in the outbox at the last check, and the time since which it is unchanged."""
    ending: bytes | None = None
    """The trailers after the outbox; empty for none, None for a stream that continues."""
    refusal: tuple[bytes, bytes] | None = None
    """Headers and body of the answer to a request that is not gRPC."""
    headers_sent: bool = False
    remote_ended: bool = False
    half_closed: bool = False
    """Whether the call was notified of the end of the client's side."""
    held: int = 0
    """Number of bytes in the inbox that are not returned to the receive window."""
    length_left: int | None = None
    """Remaining bytes by content-length; None without one."""
    waiting: Callable[[], object] | None = None
    """Cancels the wait for an answer; None without one."""
    silence: Timer | None = None

    def count(self) -> None:
        """Update the account to the bytes in the inbox and the outbox."""
        waiting = self.inbox.size + self.unsent
        if waiting != self.counted:
            self.account.put(waiting - self.counted)
            self.counted = waiting

    @property
    def blocked(self) -> bool:
        """Whether messages must wait: for an answer or for the peer to read, or because there is no call."""
        return self.call is None or self.waiting is not None or bool(self.outbox)
