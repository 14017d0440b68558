# SPDX-License-Identifier: Apache-2.0
"""Shared by both halves of an exchange: settings, progress, answers, and protocol errors."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import TypeAlias

from epp.extproc.headers import IgnoredHeaders
from epp.extproc.http2.limits import RateLimitedLog
from epp.extproc.modes import ResponseUsage
from epp.routing.director import PendingRequest
from epp.routing.director.tracing import RequestTracer


class Fault(StrEnum):
    """Kinds of protocol errors."""

    UNDECODABLE = "undecodable"
    """A message that is no ProcessingRequest."""
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
        """Take a problem in words, without content of the message."""
        super().__init__(problem)
        self.fault = fault


class Faults:
    """Counts protocol errors and logs them at a limited rate."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter({fault.value: 0 for fault in Fault})
        self._warnings = RateLimitedLog()

    @property
    def counts(self) -> Mapping[str, int]:
        """Errors by kind, those of 0 included; may be read in any thread."""
        return self._counts

    def note(self, error: ProtocolError, peer: str, now: float) -> None:
        """Count an error, and log that it ended the stream of a gateway."""
        self._counts[error.fault.value] += 1
        self._warnings.warn(
            "stream closed: protocol error", now, peer=peer, problem=str(error), fault=error.fault.value
        )


Answer: TypeAlias = bytes | PendingRequest
"""A serialised ProcessingResponse, or a held request: the carrier settles it before it asks for the next answer."""

DEFAULT_MAX_BODY_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """Settings of the operator."""

    emit_scores: bool = False
    """Whether the gateway is told the score of each candidate."""
    plain_errors: bool = False
    """Whether the body of every refusal is the sentence of llm-d-router instead of the API's error format."""
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    """A larger request body is refused with 413."""
    decision_headers: bool = False
    """Whether responses have headers with the endpoint that served and the reason."""
    response_usage: ResponseUsage = ResponseUsage.AUTO
    """Whether tokens are counted in responses, for metrics and log lines."""
    ignored_headers: IgnoredHeaders | None = None
    """Client headers to ignore; None for none."""
    tracer: RequestTracer | None = None
    """Traces requests; None without tracing."""


class NotReadyError(Exception):
    """The picker has just started: a fail-open gateway continues without it, others answer the client themselves."""


class Progress(Enum):
    """Progress of the request, or of the response; a response may start before its request has ended."""

    EXPECTED = auto()
    BODY = auto()
    ENDED = auto()


_STATES = {
    Progress.EXPECTED: "its headers have not come",
    Progress.BODY: "its headers have come already",
    Progress.ENDED: "it has ended already",
}


def expect(kind: str, progress: Progress, *wanted: Progress) -> None:
    """Raise ProtocolError unless a message of this kind may come now."""
    if progress not in wanted:
        raise ProtocolError(f"unexpected {kind}: {_STATES[progress]}")
