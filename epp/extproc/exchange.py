# SPDX-License-Identifier: Apache-2.0
"""What both halves of an exchange share: settings, progress, answers, protocol errors."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from epp.extproc.client_headers import IgnoredHeaders
from epp.extproc.faults import ProtocolError
from epp.extproc.modes import ResponseUsage
from epp.routing.director import PendingRequest
from epp.routing.director.observers import RequestTracer

Answer: TypeAlias = bytes | PendingRequest
"""A serialised ProcessingResponse, or a held request: the carrier settles it before it asks for the next answer."""

DEFAULT_MAX_BODY_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """Settings of the operator."""

    emit_scores: bool = False
    """Whether the gateway is told the score of each candidate."""
    plain_errors: bool = False
    """Whether every refusal is the sentence of llm-d-router, whatever the API."""
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    """A larger request body is refused with 413."""
    decision_headers: bool = False
    """Whether responses tell the endpoint that served, and why."""
    response_usage: ResponseUsage = ResponseUsage.AUTO
    """Whether tokens are counted in responses, for metrics and log lines."""
    ignored_headers: IgnoredHeaders | None = None
    """Headers of clients that do not count; None where all do."""
    tracer: RequestTracer | None = None
    """Traces requests; None where nothing does."""


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
