# SPDX-License-Identifier: Apache-2.0
"""The head of a request: decoded, checked against the rules of HTTP/2, and reduced to the fields of a gRPC call."""

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType

from hpack import Decoder, HPACKError, OversizedHeaderListError

from epp.extproc.http2.service import ErrorCode, GoawayError

_MOST_CACHED = 32
_MOST_VALUE_BYTES = 2048
"""Longest metadata value; longer ones are omitted, because each stream keeps its metadata."""
_MOST_TABLE_SIZES = 2
"""Table size updates in one block: the smallest since the last block, and the final one."""
_TABLE_SIZE = 0x20
_CONNECTION_SPECIFIC = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_NAME = re.compile(rb"[!-9;-@\[-~]+")
"""Visible characters without capitals and colons."""
_VALUE = re.compile(rb"(?:[^\x00\r\n\t ](?:[^\x00\r\n]*[^\x00\r\n\t ])?)?")
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_NONE: Mapping[str, str] = MappingProxyType({})
_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}

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
    timeout: float | None
    """Seconds; NaN for a value that cannot be read."""
    content_length: int | None
    is_grpc: bool
    """Whether it is a gRPC request."""
    metadata: Mapping[str, str]
    """The header fields with wanted names."""


class HeadReader:
    """Decodes the header blocks of one connection.

    A block that does not change the dynamic table keeps its meaning until another block changes the table, so its head
    is cached. Gateways open all streams except the first of a connection with such a block.
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
    """Whether a block leaves the dynamic table unchanged: it has only indexed fields and literals without indexing."""
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
    raise GoawayError(ErrorCode.COMPRESSION_ERROR, "a header block that changes the size of the table again and again")


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
        raise MalformedError("a content-length that is no number")
    method, content_type = _text(pseudo[b":method"]), _text(regular.get(b"content-type", b""))
    kind = content_type.partition(";")[0].strip().lower()
    encoding = regular.get(b"grpc-encoding", b"")
    return Head(
        method=method,
        path=_text(pseudo.get(b":path", b"")),
        content_type=content_type,
        encoding="" if encoding == b"identity" else _text(encoding),
        timeout=_timeout(regular.get(b"grpc-timeout")),
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


def _timeout(value: bytes | None) -> float | None:
    if value is None:
        return None
    found = _TIMEOUT.fullmatch(value)
    return float("nan") if found is None else int(found[1]) * _SECONDS[found[2]]


def _text(value: bytes) -> str:
    return value.decode("latin-1")
