# SPDX-License-Identifier: Apache-2.0
"""Protobuf's wire format by hand: replies are encoded, and large pieces of a request body are not copied.

`proto/ext_proc.proto` has the numbers of the fields. Fields of a message may come in any order; the variable part comes
last, so that the bytes before it depend on its length only.
"""

from typing import Final

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from epp.extproc.exchange import Fault, ProtocolError
from epp.extproc.wire import HttpBody, ProcessingRequest
from epp.framework.protobuf import read_varint, varint

_VARINT, _LENGTH_DELIMITED = 0, 2
_REMEMBERED = 1024
"""Prefixes of values shorter than this are cached: pieces of event streams are short and frequent."""
_VARINTS = (FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_ENUM, FieldDescriptor.TYPE_INT32)
_LARGE_BYTES: Final = 4096
"""Below this size decoding is as fast."""
_NOTHING: Final = ProcessingRequest()


def tag(message: type[Message], name: str) -> bytes:
    """Return the tag of a field: the bytes before its value or its length."""
    field = message.DESCRIPTOR.fields_by_name[name]
    return varint(field.number << 3 | (_VARINT if field.type in _VARINTS else _LENGTH_DELIMITED))


def flag(message: type[Message], name: str, number: int = 1) -> bytes:
    """Return a bool, enum or int32 field."""
    return tag(message, name) + varint(number)


def text(message: type[Message], name: str, value: str) -> bytes:
    """Return a string or bytes field."""
    encoded = value.encode()
    return tag(message, name) + varint(len(encoded)) + encoded


class Nested:
    """Nested messages around one varying innermost value; `Nested(...)(value)` returns the outermost field.

    Each level, from the innermost outwards, is given as the bytes before its length: the other fields, then its tag.
    """

    __slots__ = ("_before", "_levels")

    def __init__(self, *levels: bytes) -> None:
        self._levels = levels
        self._before: dict[int, bytes] = {}

    def __call__(self, value: bytes) -> bytes:
        """Return the field with this innermost value."""
        size = len(value)
        return (self._before.get(size) or self.before(size)) + value

    def before(self, size: int) -> bytes:
        """Return all bytes before an innermost value of this size; no bytes follow the value."""
        found = b""
        for level in self._levels:
            found = level + varint(len(found) + size) + found
        if size < _REMEMBERED:
            self._before[size] = found
        return found


_REQUEST_BODY: Final = tag(ProcessingRequest, "request_body")[0]
_BODY: Final = tag(HttpBody, "body")[0]
_ENDINGS: Final = {b"": False, flag(HttpBody, "end_of_stream"): True}
_LONGEST_ENDING: Final = max(map(len, _ENDINGS))
_NO_METADATA: Final = (b"", tag(ProcessingRequest, "metadata_context") + varint(0))


class RequestPiece(msgspec.Struct, frozen=True):
    """The `HttpBody` of a request."""

    body: memoryview
    end_of_stream: bool
    beside: ProcessingRequest
    """The other fields of the message."""


def decode(message: bytes) -> ProcessingRequest | RequestPiece:
    """Decode a message; raises ProtocolError unless it is a ProcessingRequest.

    A large request body stays a view of the message: Protobuf would copy it twice.
    """
    try:
        if len(message) >= _LARGE_BYTES and message[0] == _REQUEST_BODY:
            piece = _request_piece(message)
            if piece is not None:
                return piece
        return ProcessingRequest.FromString(message)
    except DecodeError as error:
        problem = f"a message of {len(message)} bytes is not a ProcessingRequest"
        raise ProtocolError(problem, Fault.UNDECODABLE) from error


def _request_piece(message: bytes) -> RequestPiece | None:
    """Decode a message whose fields come in the usual order; None for any other."""
    try:
        size, at = read_varint(message, 1)
        end = at + size
        if not at < end <= len(message) or message[at] != _BODY:
            return None
        size, at = read_varint(message, at + 1)
    except ValueError:
        return None
    body_end = at + size
    if not 0 <= end - body_end <= _LONGEST_ENDING:
        return None
    last = _ENDINGS.get(message[body_end:end])
    if last is None:
        return None
    rest = message[end:]
    beside = _NOTHING if rest in _NO_METADATA else ProcessingRequest.FromString(rest)
    if beside.WhichOneof("request") is not None:
        return None
    return RequestPiece(memoryview(message)[at:body_end], last, beside)
