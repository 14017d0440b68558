# SPDX-License-Identifier: Apache-2.0
"""The status of a gRPC call, and the header blocks that servers answer with."""

from enum import IntEnum
from typing import Final
from urllib.parse import quote


class ErrorCode(IntEnum):
    """RFC 9113, section 7."""

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


class GoawayError(Exception):
    """The connection ends with GOAWAY."""

    def __init__(self, code: ErrorCode, problem: str) -> None:
        super().__init__(problem)
        self.code = code


class ResetError(Exception):
    """One stream ends with RST_STREAM."""

    def __init__(self, stream_id: int, code: ErrorCode, problem: str) -> None:
        super().__init__(problem)
        self.stream_id = stream_id
        self.code = code


class Status(IntEnum):
    """Status codes of gRPC that this server sends."""

    OK = 0
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class RpcError(Exception):
    """Ends a call with a status other than OK."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


_STATUS_200: Final = b"\x88"
_CONTENT_TYPE: Final = 31  # index of the name in the static table
_MOST_MESSAGE_BYTES = 1024
_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if code != ord("%"))


def field(name: bytes, value: bytes) -> bytes:
    """Return a literal header field without indexing and without Huffman coding, which is cheaper to decode."""
    return b"\x00" + _string(name) + _string(value)


def _indexed_name(index: int, value: bytes) -> bytes:
    return _integer(index, 4, 0x00) + _string(value)


def _string(text: bytes) -> bytes:
    return _integer(len(text), 7, 0x00) + text


def _integer(number: int, bits: int, first: int) -> bytes:
    most = (1 << bits) - 1
    if number < most:
        return bytes((first | number,))
    encoded = [first | most]
    number -= most
    while number >= 0x80:  # noqa: PLR2004  seven bits a byte
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))


HEADERS_BLOCK: Final = _STATUS_200 + _indexed_name(_CONTENT_TYPE, b"application/grpc")
"""The response headers of every call."""
OK_TRAILERS: Final = field(b"grpc-status", b"0")
_ACCEPTED_ENCODING: Final = field(b"grpc-accept-encoding", b"identity,deflate,gzip")


def trailers_block(status: Status, message: str = "") -> bytes:
    """Return the trailers that end a call; a long message is truncated."""
    if status is Status.OK and not message:
        return OK_TRAILERS
    block = field(b"grpc-status", b"%d" % status)
    if message:
        cut = message.encode("utf-8", "replace")[:_MOST_MESSAGE_BYTES].decode("utf-8", "ignore")
        block += field(b"grpc-message", quote(cut, safe=_PRINTABLE).encode("ascii"))
    if status is Status.UNIMPLEMENTED:
        block += _ACCEPTED_ENCODING
    return block


def not_grpc(method: str, content_type: str) -> tuple[bytes, bytes]:
    """Return headers and body of the answer to a request that is not gRPC."""
    if method == "POST":
        status, problem = b"415", f"content-type must be application/grpc, not {content_type[:80]!r}"
    else:
        status, problem = b"405", f"the method must be POST, not {method[:20]!r}"
    body = f"This is a gRPC server: {problem}.\n".encode()
    block = _indexed_name(8, status) + _indexed_name(_CONTENT_TYPE, b"text/plain; charset=utf-8")
    return block + _indexed_name(28, b"%d" % len(body)), body
