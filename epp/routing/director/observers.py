# SPDX-License-Identifier: Apache-2.0
"""Observers of requests: callbacks, a composite of several observers, reports of flow control, and traces."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from epp.admission.flow_control.control import FlowObserver
from epp.admission.flow_control.in_flight_eviction import EvictionObserver
from epp.admission.flow_control.settings import AT_ONCE, QUEUEING_OUTCOME, WAITING, Outcome, QueueingOutcome
from epp.admission.quotas import QuotaObserver
from epp.framework.errors import RequestError
from epp.framework.request import DataKey, Headers, Request
from epp.framework.result import SchedulingResult
from epp.framework.snapshot import Snapshot
from epp.routing.director.pipeline import Rewrite
from epp.routing.director.routing import Cause, Routing, RoutingObserver
from epp.routing.outliers.outlier_detector import OutlierObserver


class RequestTrace(ABC):
    """The spans of this picker in a trace, from the headers of a request to the end of its response."""

    __slots__ = ()

    @property
    @abstractmethod
    def headers(self) -> Mapping[str, str]:
        """Request headers with the trace context for the endpoint."""

    @property
    @abstractmethod
    def ids(self) -> Mapping[str, str]:
        """The ids of trace and span in hexadecimal, for log lines."""

    @abstractmethod
    def complete(self) -> None:
        """Record that the request has arrived completely, so that routing starts."""

    @abstractmethod
    def refused(self, error: RequestError) -> None:
        """Record the refusal of the request; only the first call counts."""

    @abstractmethod
    def ended(self, routing: Routing | None, cause: Cause) -> None:
        """Record the end of the exchange; only the first call counts."""


class RequestTracer(ABC):
    """Starts traces, or continues a client's or gateway's trace."""

    __slots__ = ()

    @property
    @abstractmethod
    def fields(self) -> frozenset[str]:
        """Names of headers, in lower case, with trace context."""

    @abstractmethod
    def begin(self, headers: Headers, metadata: Mapping[str, str]) -> RequestTrace:
        """Return the trace of a request with these headers; `metadata` is that of the gateway's call."""


TRACE: DataKey[RequestTrace] = DataKey("trace")
"""Trace of the request, if requests are traced."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that is not routed: it is refused, or its client has disconnected."""

    error: RequestError
    headers: Headers = field(default_factory=Headers)
    model: str = ""
    """Model in the body; empty if the body names none or was not read."""
    seconds: float = 0.0
    """Time since the request was complete."""
    request: Request | None = None
    """None for an unreadable request."""


class DirectorObserver(RoutingObserver, EvictionObserver, FlowObserver, QuotaObserver, OutlierObserver):
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def model_rewritten(self, request: Request, rewrite: Rewrite) -> None:
        """Record that a rule replaced the model of a request."""

    def candidates_found(self, request: Request, snapshot: Snapshot, eligible: int, left: int) -> None:
        """Record the number of endpoints in the gateway's subset, and of those that screeners kept."""

    def held(self, request: Request, plugin: str) -> None:
        """Record that an admitter holds a request."""

    def scheduled(self, request: Request, seconds: float, result: SchedulingResult | None) -> None:
        """Record the duration of a run of the scheduler; `result` is None if it found no destination."""

    def routed(self, request: Request, result: SchedulingResult, scheduling_seconds: float) -> None:
        """Record a routed request."""

    def refused(self, refusal: Refusal) -> None:
        """Record a request that is not routed."""

    def request_processed(self, seconds: float) -> None:
        """Record the time from the first message of a request until it is routed or refused."""


_EVENTS = [name for name in dir(DirectorObserver) if not name.startswith("_")]


class Observers(DirectorObserver):
    """Passes each event to all observers, in order.

    If only one observer overrides an event, its method is used directly, since events are frequent.
    """

    def __init__(self, *observers: DirectorObserver) -> None:
        for event in _EVENTS:
            ignored = getattr(DirectorObserver, event)
            methods = [getattr(each, event) for each in observers]
            methods = [method for method in methods if getattr(method, "__func__", None) is not ignored]
            if methods:
                setattr(self, event, methods[0] if len(methods) == 1 else _all(methods))


def _all(methods: Sequence[Callable[..., None]]) -> Callable[..., None]:
    def notify(*arguments: object) -> None:
        for method in methods:
            method(*arguments)

    return notify


class FlowReports(FlowObserver):
    """Writes the queueing outcome to each request, and passes events to the observer."""

    def __init__(self, observer: FlowObserver) -> None:
        self._observer = observer
        self.cycled = observer.cycled  # type: ignore[method-assign]  # avoids a call
        self.enqueued = observer.enqueued  # type: ignore[method-assign]

    def queued(self, request: Request) -> None:
        request.put(QUEUEING_OUTCOME, WAITING)
        self._observer.queued(request)

    def left(self, request: Request, outcome: Outcome, seconds: float) -> None:
        at_once = outcome is Outcome.DISPATCHED and request.get(QUEUEING_OUTCOME) is not WAITING
        request.put(QUEUEING_OUTCOME, AT_ONCE if at_once else QueueingOutcome(outcome, seconds))
        self._observer.left(request, outcome, seconds)
