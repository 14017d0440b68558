# SPDX-License-Identifier: Apache-2.0
"""Messages of the gateway out of their bytes: a large piece of a request body stays where it is, others are decoded.

Protobuf would copy such a piece twice: into its own memory, and out of it.
"""

from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from epp.extproc.encoding import flag, tag, varint
from epp.extproc.faults import Fault, ProtocolError
from epp.extproc.wire import HttpBody, ProcessingRequest

_LARGE_BYTES: Final = 4096
"""Below this size decoding is as fast."""
_REQUEST_BODY: Final = tag(ProcessingRequest, "request_body")[0]
_BODY: Final = tag(HttpBody, "body")[0]
_ENDINGS: Final = {b"": False, flag(HttpBody, "end_of_stream"): True}
_LONGEST_ENDING: Final = max(map(len, _ENDINGS))
_NO_METADATA: Final = (b"", tag(ProcessingRequest, "metadata_context") + varint(0))
_NOTHING: Final = ProcessingRequest()
_LONGEST_LENGTH: Final = 5
_CONTINUES: Final = 0x80


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
