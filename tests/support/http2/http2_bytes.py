# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 frames as bytes, good ones and bad ones, made from the RFC and not from the code under test."""

import enum
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hpack import Encoder, HeaderTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME = 16_384
MOST_WINDOW = 2**31 - 1

Fields = Iterable[tuple[str | bytes, str | bytes]]


class Kind(enum.IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag(enum.IntFlag):
    NONE = 0
    ACK = 1
    END_STREAM = 1
    END_HEADERS = 4
    PADDED = 8
    PRIORITY = 32


class Setting(enum.IntEnum):
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Error(enum.IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    def __bytes__(self) -> bytes:
        return frame(self.kind, self.flags, self.stream, self.payload)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def data(stream: int, payload: bytes = b"", *, end: bool = False, pad: int | None = None) -> bytes:
    return frame(Kind.DATA, (Flag.END_STREAM if end else 0) | _padded(pad), stream, _with_padding(payload, pad))


def headers(
    stream: int,
    block: bytes,
    *,
    end: bool = False,
    end_headers: bool = True,
    pad: int | None = None,
    priority: tuple[int, int] | None = None,
) -> bytes:
    """`priority` is the stream it depends on, and the weight less one."""
    flags = (Flag.END_STREAM if end else 0) | (Flag.END_HEADERS if end_headers else 0) | _padded(pad)
    if priority is not None:
        flags |= Flag.PRIORITY
        block = struct.pack(">IB", *priority) + block
    return frame(Kind.HEADERS, flags, stream, _with_padding(block, pad))


def continuation(stream: int, block: bytes, *, end_headers: bool = True) -> bytes:
    return frame(Kind.CONTINUATION, Flag.END_HEADERS if end_headers else 0, stream, block)


def cut_headers(stream: int, block: bytes, sizes: Iterable[int], *, end: bool = False) -> bytes:
    """A header block in as many frames as there are sizes, and one for the rest."""
    pieces = []
    for size in sizes:
        pieces.append(block[:size])
        block = block[size:]
    pieces.append(block)
    first, *others = pieces
    made = headers(stream, first, end=end, end_headers=not others)
    for number, piece in enumerate(others, start=1):
        made += continuation(stream, piece, end_headers=number == len(others))
    return made


def priority(stream: int, depends_on: int = 0, weight: int = 15) -> bytes:
    return frame(Kind.PRIORITY, 0, stream, struct.pack(">IB", depends_on, weight))


def rst_stream(stream: int, code: int = Error.CANCEL) -> bytes:
    return frame(Kind.RST_STREAM, 0, stream, struct.pack(">I", code))


def settings(values: Iterable[tuple[int, int]] = ()) -> bytes:
    return frame(Kind.SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in values))


def settings_ack() -> bytes:
    return frame(Kind.SETTINGS, Flag.ACK, 0)


def ping(payload: bytes = bytes(8), *, ack: bool = False) -> bytes:
    return frame(Kind.PING, Flag.ACK if ack else 0, 0, payload)


def goaway(last_stream: int = 0, code: int = Error.NO_ERROR, debug: bytes = b"") -> bytes:
    return frame(Kind.GOAWAY, 0, 0, struct.pack(">II", last_stream, code) + debug)


def window_update(stream: int, increment: int) -> bytes:
    return frame(Kind.WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))


def grpc_message(payload: bytes, *, compressed: int = 0) -> bytes:
    return struct.pack(">BI", compressed, len(payload)) + payload


def grpc_messages(data: bytes) -> list[bytes]:
    """Return the messages in the data of a stream, which must be whole and not compressed."""
    found = []
    while data:
        compressed, length = struct.unpack_from(">BI", data)
        assert compressed == 0
        assert len(data) >= 5 + length, "the last message is not whole"
        found.append(data[5 : 5 + length])
        data = data[5 + length :]
    return found


def grpc_fields(path: str, more: Fields = (), **changed: str | None) -> list[tuple[str | bytes, str | bytes]]:
    """Return the header fields of a call; `changed` are pseudo headers by name, None for one that is left out."""
    pseudo = {"method": "POST", "scheme": "http", "path": path, "authority": "picker", **changed}
    return [
        *((f":{name}", value) for name, value in pseudo.items() if value is not None),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *more,
    ]


def encoded(encoder: Encoder, fields: Fields, *, huffman: bool = True) -> bytes:
    return encoder.encode([HeaderTuple(name, value) for name, value in fields], huffman=huffman)


def read_frames(buffer: bytearray) -> Iterator[Frame]:
    """Take the whole frames off the front of a buffer."""
    while len(buffer) >= HEADER_BYTES:
        length = int.from_bytes(buffer[:3], "big")
        if len(buffer) < HEADER_BYTES + length:
            return
        kind, flags, stream = struct.unpack_from(">BBI", buffer, 3)
        payload = bytes(buffer[HEADER_BYTES : HEADER_BYTES + length])
        del buffer[: HEADER_BYTES + length]
        yield Frame(kind, flags, stream & MOST_WINDOW, payload)


def _padded(pad: int | None) -> int:
    return 0 if pad is None else Flag.PADDED


def _with_padding(payload: bytes, pad: int | None) -> bytes:
    return payload if pad is None else bytes([pad]) + payload + bytes(pad)
