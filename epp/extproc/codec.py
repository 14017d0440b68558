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

_VARINT, _LENGTH_DELIMITED = 0, 2
_REMEMBERED = 1024
"""Values shorter than this are frequent, as pieces of event streams are: what goes before them is kept."""
_CONTINUES = 0x80
_VARINTS = (FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_ENUM, FieldDescriptor.TYPE_INT32)


def varint(number: int) -> bytes:
    """Return a number as the format has lengths, tags and flags."""
    if number < _CONTINUES:
        return number.to_bytes()
    found = bytearray()
    while number >= _CONTINUES:
        found.append(number % _CONTINUES | _CONTINUES)
        number //= _CONTINUES
    found.append(number)
    return bytes(found)


def tag(message: type[Message], name: str) -> bytes:
    """Return what comes before the value of a field, or before its length."""
    field = message.DESCRIPTOR.fields_by_name[name]
    return varint(field.number << 3 | (_VARINT if field.type in _VARINTS else _LENGTH_DELIMITED))


def flag(message: type[Message], name: str, number: int = 1) -> bytes:
    """Return a field that is a bool, or of another number."""
    return tag(message, name) + varint(number)


def text(message: type[Message], name: str, value: str) -> bytes:
    """Return a field that is a string or bytes."""
    encoded = value.encode()
    return tag(message, name) + varint(len(encoded)) + encoded


class Nested:
    """A field within the last field of a message, and so on outwards; `Nested(...)(value)` is the outermost one.

    Each level is given as the bytes before its length: its tag, after all other fields of its message.
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
        """Return all bytes before an innermost value of this size, which is the end."""
        found = b""
        for level in self._levels:
            found = level + varint(len(found) + size) + found
        if size < _REMEMBERED:
            self._before[size] = found
        return found


_LARGE_BYTES: Final = 4096
"""Below this size decoding is as fast."""
_REQUEST_BODY: Final = tag(ProcessingRequest, "request_body")[0]
_BODY: Final = tag(HttpBody, "body")[0]
_ENDINGS: Final = {b"": False, flag(HttpBody, "end_of_stream"): True}
_LONGEST_ENDING: Final = max(map(len, _ENDINGS))
_NO_METADATA: Final = (b"", tag(ProcessingRequest, "metadata_context") + varint(0))
_NOTHING: Final = ProcessingRequest()
_LONGEST_LENGTH: Final = 5


class RequestPiece(msgspec.Struct, frozen=True):
    """The `HttpBody` of a request."""

    body: memoryview
    end_of_stream: bool
    beside: ProcessingRequest
    """All else that the message says."""


def decode(message: bytes) -> ProcessingRequest | RequestPiece:
    """Return what a message says; raises ProtocolError for one that is no ProcessingRequest."""
    try:
        if len(message) >= _LARGE_BYTES and message[0] == _REQUEST_BODY:
            piece = _request_piece(message)
            if piece is not None:
                return piece
        return ProcessingRequest.FromString(message)
    except DecodeError as error:
        problem = f"a message of {len(message)} bytes that is no ProcessingRequest"
        raise ProtocolError(problem, Fault.UNDECODABLE) from error


def _request_piece(message: bytes) -> RequestPiece | None:
    """Return the piece of a message in the usual form: body, end_of_stream if it is true, all else."""
    size, at = _length(message, 1)
    end = at + size
    if not at < end <= len(message) or message[at] != _BODY:
        return None
    size, at = _length(message, at + 1)
    body_end = at + size
    if size < 0 or not 0 <= end - body_end <= _LONGEST_ENDING:
        return None
    last = _ENDINGS.get(message[body_end:end])
    if last is None:
        return None
    rest = message[end:]
    beside = _NOTHING if rest in _NO_METADATA else ProcessingRequest.FromString(rest)
    if beside.WhichOneof("request") is not None:
        return None
    return RequestPiece(memoryview(message)[at:body_end], last, beside)


def _length(message: bytes, at: int) -> tuple[int, int]:
    """Return the length that begins at `at`, and the place after it; -1 for one that is too long."""
    size = shift = 0
    for byte in message[at : at + _LONGEST_LENGTH]:
        at += 1
        size |= (byte & ~_CONTINUES) << shift
        if byte < _CONTINUES:
            return size, at
        shift += 7
    return -1, at
