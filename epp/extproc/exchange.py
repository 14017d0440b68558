# SPDX-License-Identifier: Apache-2.0
"""Shared by both halves of an exchange: body modes, settings, progress, answers, and protocol errors."""

import time
from collections import Counter
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import NamedTuple, TypeAlias

from epp.extproc.headers import IgnoredHeaders
from epp.extproc.http2.limits import RateLimitedLog
from epp.extproc.settings import DEFAULT_MAX_BODY_BYTES, ResponseSettings
from epp.extproc.wire import ProcessingRequest
from epp.routing.director import PendingRequest
from epp.routing.director.observers import RequestTracer

_CONCLUSIVE_EXCHANGES = 10
Answer: TypeAlias = bytes | PendingRequest
"""A serialised ProcessingResponse, or a pending request, which the carrier must settle before the next answer."""


class BodyMode(IntEnum):
    """Form in which a gateway shows a body; the names and numbers are Envoy's."""

    NONE = 0
    """The body is not shown."""
    STREAMED = 1
    """Pieces, each with an answer; the headers are forwarded before the first piece."""
    BUFFERED = 2
    """The whole body; the headers wait for the answer."""
    BUFFERED_PARTIAL = 3
    """Like BUFFERED up to the gateway's buffer limit; the rest is not shown."""
    FULL_DUPLEX_STREAMED = 4
    """Pieces with answers at any time; the headers wait for their own answer."""


class Modes(NamedTuple):
    """Modes stated in the first message of a stream; None if not stated."""

    request: BodyMode | None = None
    response: BodyMode | None = None


_MODES = tuple(BodyMode)


class GatewayTraits:
    """Observed behaviour of one gateway, shared by its streams."""

    __slots__ = ("_exchanges_without_headers", "host", "shows_response_headers", "streams_body_unprompted")

    def __init__(self, host: str = "") -> None:
        self.host = host
        """Host in gRPC's format: `ipv4:10.0.0.1`."""
        self._exchanges_without_headers: int | None = 0  # None once the behaviour is known
        self.streams_body_unprompted = False
        """Whether the gateway sent a body before an answer to the headers; then it never waits for that answer."""
        self.shows_response_headers = False
        """Whether the gateway has shown the headers of a response; if not, responses may pass unseen."""

    def end_of_exchange(self, *, headers_shown: bool) -> bool:
        """Count an exchange that ended; return True once, after ten exchanges without response headers.

        A single exchange is not enough: its client may have left before the response.
        """
        count = self._exchanges_without_headers
        if count is None:
            return False
        is_conclusive = count + 1 == _CONCLUSIVE_EXCHANGES
        self._exchanges_without_headers = None if headers_shown or is_conclusive else count + 1
        return is_conclusive and not headers_shown


def read_modes(message: ProcessingRequest) -> Modes:
    """Return the modes of a stream from its first message; raises ProtocolError for an unsupported one."""
    if not message.HasField("protocol_config"):
        return Modes()
    stated = message.protocol_config
    return Modes(_mode(stated.request_body_mode, "request"), _mode(stated.response_body_mode, "response"))


def _mode(number: int, side: str) -> BodyMode:
    if 0 <= number < len(_MODES):
        return _MODES[number]
    problem = (
        f"{side}_body_mode {number} is not supported: set one of {', '.join(BodyMode.__members__)} in processing_mode "
        "of the gateway's ext_proc filter"
    )
    raise ProtocolError(problem, Fault.UNKNOWN_MODE)


IN_PLACE = (BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
"""Modes in which each piece of a response gets one answer, which may replace it."""
_FIXED = (None, BodyMode.FULL_DUPLEX_STREAMED)
"""Modes that cannot be changed by a request."""


def response_mode(modes: Modes, *, needed: bool, read: bool) -> BodyMode | None:
    """Return the response mode to request from the gateway, None for no change: show only bodies that are read."""
    if modes.request in _FIXED or modes.response in _FIXED:
        return None
    if modes.response is BodyMode.NONE:
        return BodyMode.STREAMED if needed else None
    return None if read else BodyMode.NONE


class Fault(StrEnum):
    """Kinds of protocol errors."""

    UNDECODABLE = "undecodable"
    """A message that is not a ProcessingRequest."""
    OUT_OF_ORDER = "out-of-order"
    """A part of an exchange that is not allowed now."""
    UNKNOWN_PART = "unknown-part"
    """A message that is not a part of an exchange."""
    UNKNOWN_MODE = "unknown-mode"
    """A body mode that is not supported."""
    HEADERS_NOT_SHOWN = "headers-not-shown"
    """A request whose headers left before a destination could be named."""
    TOO_LARGE = "too-large"
    """A message above the size limit."""
    UNREADABLE = "unreadable"
    """A truncated or malformed gRPC message, or a compression other than gzip and deflate."""


class ProtocolError(Exception):
    """The gateway sent a message that the protocol does not allow, or that this picker cannot answer."""

    def __init__(self, problem: str, fault: Fault = Fault.OUT_OF_ORDER) -> None:
        super().__init__(problem)
        self.fault = fault


class Faults:
    """Counts protocol errors and logs them at a limited rate."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter({fault.value: 0 for fault in Fault})
        """Number of errors of each kind; may be read in any thread."""
        self._warnings = RateLimitedLog()

    def record(self, error: ProtocolError, peer: str) -> None:
        """Count an error, and log that it ended the stream of a gateway."""
        fault = error.fault.value
        self.counts[fault] += 1
        event, now = "stream closed: protocol error", time.monotonic()
        self._warnings.warn(event, now, peer=peer, problem=str(error), fault=fault)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSettings(ResponseSettings):
    """Settings of the operator."""

    emit_scores: bool = False
    """Whether the gateway gets the score of each candidate as metadata."""
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    """A larger request body is refused with 413."""
    ignored_headers: IgnoredHeaders | None = None
    """Client headers to ignore; None for none."""
    tracer: RequestTracer | None = None
    """Traces requests; None without tracing."""


class NotReadyError(Exception):
    """The picker has just started: a fail-open gateway continues without it, others answer the client themselves."""


class Progress(Enum):
    """Progress of the request or of the response; the values are parts of error messages.

    A response may start before its request has ended.
    """

    EXPECTED = "the headers have not arrived"
    BODY = "the headers have already arrived"
    ENDED = "it has already ended"


def expect(kind: str, progress: Progress, *wanted: Progress) -> None:
    """Raise ProtocolError unless a message of this kind is allowed now."""
    if progress not in wanted:
        raise ProtocolError(f"unexpected {kind}: {progress.value}")
