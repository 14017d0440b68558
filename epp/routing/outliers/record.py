# SPDX-License-Identifier: Apache-2.0
"""Records of an endpoint's failures: in a row, and as a share of its requests."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import TypeAlias

from epp.framework.endpoint import Endpoint
from epp.routing.settings import OutlierSettings


class Verdict(StrEnum):
    """Result of a probe."""

    ANSWERS = "answers"
    REFUSES = "refuses"
    """The port refuses connections, or closes them without an answer."""
    SILENT = "silent"
    """No answer in time, or the probe failed."""


OnVerdict: TypeAlias = Callable[[Verdict], None]
ProbeRequest: TypeAlias = Callable[[Endpoint, OnVerdict], None]
"""Probes an endpoint soon, and reports the verdict once."""


class Failure(StrEnum):
    """Kind of a failed request, by its cause at the endpoint."""

    CONNECTION = "connection"
    """The gateway could not connect, or lost the connection before the response."""
    GATEWAY = "gateway"
    """Status 502, 503 or 504: the engine of the endpoint is not running."""
    SERVER = "server"
    """Any other server error, which the request may have caused; also status 200 without a token."""
    OVERLOAD = "overload"
    """Status 429; counts if the endpoint had no success shortly before."""
    MODEL = "model"
    """Status 404; counts while another endpoint answers requests for the same model."""


_NOT_IMPLEMENTED, _SERVER_ERROR = 501, 500
_NOT_FOUND, _TOO_MANY = 404, 429
_GATEWAY_ERRORS = frozenset({502, 503, 504})
_UNAVAILABLE, _TIMEOUT = 503, 504


def failure_of(status: int, *, by_gateway: bool, overloaded: bool) -> Failure | None:
    """Return the failure that a response with a status indicates; None if it is not a failure.

    `by_gateway` means that the gateway generated the response, `overloaded` that it has a `retry-after`. A 504 by the
    gateway is a timeout of its route, which long answers can exceed too, so it counts as a mere server error.
    """
    if status in (_NOT_FOUND, _TOO_MANY) and not by_gateway:
        return Failure.MODEL if status == _NOT_FOUND else Failure.OVERLOAD
    if status < _SERVER_ERROR or status == _NOT_IMPLEMENTED:
        return None
    if by_gateway:
        if status == _TIMEOUT:
            return Failure.SERVER
        return Failure.CONNECTION if status in _GATEWAY_ERRORS else None
    if status in _GATEWAY_ERRORS:
        return None if overloaded and status == _UNAVAILABLE else Failure.GATEWAY
    return Failure.SERVER


class State(Enum):
    """State of an endpoint."""

    IN = auto()
    SUSPECTED = auto()
    """A connection failed, and the port is being probed."""
    EJECTED = auto()
    ON_TRIAL = auto()
    """The ejection is over, and the endpoint may get one request."""
    TRIED = auto()
    """The trial request was sent."""

    @property
    def is_ejected(self) -> bool:
        return self in _OUT

    @property
    def is_avoided(self) -> bool:
        """Whether requests are sent to other endpoints, if there are any."""
        return self in _AVOIDED


_OUT = frozenset({State.EJECTED, State.ON_TRIAL, State.TRIED})
_AVOIDED = frozenset({State.SUSPECTED, State.EJECTED, State.TRIED})
HALF_WINDOW_SECONDS = 15.0


class RequestCounts:
    """Successful and failed requests of the last 15 to 30 seconds, in two intervals that are the same for all."""

    __slots__ = ("_half", "_now", "_past")

    def __init__(self, now: float) -> None:
        self._half = now // HALF_WINDOW_SECONDS
        self._now, self._past = [0, 0], [0, 0]
        """Failures and successes."""

    @property
    def failures(self) -> int:
        return self._now[0] + self._past[0]

    @property
    def successes(self) -> int:
        return self._now[1] + self._past[1]

    def add(self, now: float, *, success: bool) -> None:
        self.age(now)
        self._now[success] += 1

    def age(self, now: float) -> None:
        """Drop entries older than the window, or all entries if the clock was set back."""
        half = now // HALF_WINDOW_SECONDS
        if half != self._half:
            self._now, self._past = [0, 0], self._now if half == self._half + 1 else [0, 0]
            self._half = half


@dataclass(slots=True)
class Record:
    """Failures of an endpoint and its state; all times are seconds on the clock."""

    endpoint: Endpoint
    failed_at: float
    state: State = State.IN
    until: float = 0.0
    """End of the current state, unless an event ends it before."""
    seconds: float = 0.0
    """Duration of the current state."""
    has_failed: bool = False
    """Whether a request is the reason for suspicion, not a connection of the picker that ended."""
    content_hash: int = 0
    """Hash of the content of the last failed request."""
    requests: RequestCounts = field(init=False)
    """Requests since its first failure."""
    connections: int = 0
    """Responses with 502, 503 or 504, and failed connections although the port answered afterwards, in a row."""
    errors: int = 0
    """Responses that are failures, in a row."""
    successes_before: int = 0
    """Successes of the whole pool before the first of these errors."""
    ejections: int = 0
    """Past ejections; one is forgotten in each base ejection time."""
    last_failure: Failure = Failure.CONNECTION
    reason: str = ""
    """Reason for the last ejection."""
    is_by_peer: bool = False
    """Whether the ejection was reported by another picker."""

    def __post_init__(self) -> None:
        self.requests = RequestCounts(self.failed_at)

    @property
    def is_clean(self) -> bool:
        held = self.connections or self.errors or self.ejections or self.requests.failures
        return self.state is State.IN and not held

    def set_end(self, now: float, seconds: float) -> None:
        """Set the end of the current state, `seconds` from now."""
        self.until, self.seconds = now + seconds, seconds

    def clear_failures(self) -> None:
        """Forget the failures in a row, after an answer."""
        self.connections = self.errors = 0

    def age(self, now: float, settings: OutlierSettings) -> None:
        """Reduce the weight of old failures; a clock that was set back does not extend a deadline."""
        self.requests.age(now)
        self.failed_at = min(self.failed_at, now)
        if self.state is not State.IN:
            self.until = min(self.until, now + self.seconds)
            return
        base = settings.base_ejection_seconds
        past = int((now - self.failed_at) / base)
        if past:
            self.clear_failures()
            self.ejections = max(self.ejections - past, 0)
            self.failed_at += past * base
