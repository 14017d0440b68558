# SPDX-License-Identifier: Apache-2.0
"""Routed requests: destination, response, and ledger entries, which are closed exactly once."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Literal

from epp.admission.quotas import Reservation
from epp.framework.endpoint import Endpoint
from epp.framework.errors import PluginFailedError, RequestError
from epp.framework.plugin import Failure, Guard, PluginObserver
from epp.framework.refusals import SupersededError
from epp.framework.request import Headers, Request, Response, Usage
from epp.framework.result import SchedulingResult
from epp.framework.roles import Metadata, MetadataValue, PreRequest, ResponseHeaders, ResponseReporter, ResponseTiming
from epp.routing.bodies.usage import GrpcUsageReader, UsageReader
from epp.routing.datastore import Ticket
from epp.routing.director.decision import Decision
from epp.routing.director.pipeline import Pipeline
from epp.routing.outliers.outlier_detector import OutlierDetector
from epp.routing.outliers.record import Failure as EndpointFailure
from epp.routing.outliers.record import Verdict

SERVER_ERROR = 500
CLIENT_ERROR = 400
_HASHED_BYTES = 4096
_NO_HEADERS = Headers()


class Cause(StrEnum):
    """Cause of the end of a routed request."""

    NATURAL = "natural"
    """The response is complete."""
    CLIENT_DISCONNECT = "client-disconnect"
    """The gateway closed the exchange before the end of the response; presumably the client disconnected."""
    SERVER_LOST = "server-lost"
    """The gateway closed the exchange during the response, and the model server refuses connections."""
    UNSEEN = "unseen"
    """The gateway closed the exchange after the response headers; it does not send bodies, so the end is unknown."""
    EVICTED = "evicted"
    """Ended to make room for a request of higher priority."""
    SUPERSEDED = "superseded"
    """The gateway sent the request again."""
    ERROR = "error"
    """The exchange broke, or this program failed."""


class RoutingObserver(PluginObserver):
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def response_started(self, routing: "Routing") -> None:
        """Record the headers of a response."""

    def first_piece(self, routing: "Routing") -> None:
        """Record the first piece of the body of a response."""

    def expired(self, routing: "Routing") -> None:
        """Record that a routed request no longer counts as load, since its endpoint has not answered in time."""

    def completed(self, routing: "Routing", cause: Cause) -> None:
        """Record the end of a routed request."""


@dataclass(slots=True, eq=False, repr=False)
class Routing:
    """A routed request; reports of its response have no effect after `complete`."""

    request: Request
    result: SchedulingResult
    credit: Ticket
    pipeline: Pipeline
    _: KW_ONLY
    guard: Guard
    observer: RoutingObserver
    find: Callable[[str], tuple[int, Endpoint] | None]
    outliers: OutlierDetector
    reservation: Reservation | None = None
    """Reservation in the tenant's quota; released with the credit."""
    settled: "Callable[[Routing], None]" = lambda _: None
    """Called at least once: when the endpoint has answered, or the request expires or ends."""
    status: int = 0
    """HTTP status of the response; 0 before the response."""
    response_bytes: int = 0
    first_byte_at: float | None = None
    """Seconds on the clock."""
    ended_at: float | None = None
    """Seconds on the clock, if the observer is notified later."""
    served: Endpoint = field(init=False)
    """The endpoint that serves it, as far as known."""
    is_committed: bool = False
    """Whether the endpoint has answered."""
    is_stream: bool = field(init=False)
    """Whether the response is streamed: the client requested it, or it is an event stream."""
    processing_seconds: float = 0.0
    """Time that the exchange spent on the response; 0 if it is not measured."""
    _shows_headers: Callable[[], bool] | None = None
    """Returns whether the gateway has sent the headers of any response."""
    _served_address: str = ""
    _response_headers: Headers = field(init=False)
    _usage: UsageReader | GrpcUsageReader | None = None
    _on_interval: Callable[[float], None] | None = None
    _last_piece_at: float = 0.0
    _completed: bool = False
    _awaits_token: bool = True
    _is_timed: bool = False
    """Whether the end was reported to plugins."""
    _is_unseen: bool = False
    _on_end: "tuple[Callable[[Routing], None], ...]" = ()
    _evict: Callable[[], None] | None = None
    _eviction: tuple[RequestError, bool] | None = None

    def __post_init__(self) -> None:
        self.served = self.result.targets[0]
        self._response_headers = _NO_HEADERS
        self.is_stream = self.request.body.streaming

    @property
    def slot(self) -> int:
        return self.credit.slot

    @property
    def is_answered(self) -> bool:
        """Whether the client may have received a part of the body."""
        return self.first_byte_at is not None or self._is_unseen

    def add_end_listener(self, on_end: "Callable[[Routing], None]") -> None:
        """Call `on_end` when the request ends; until then it can be evicted."""
        self._on_end = (*self._on_end, on_end)

    @property
    def is_evictable(self) -> bool:
        return bool(self._on_end) and not self._completed

    def let_evict(self, evict: Callable[[], None]) -> None:
        """Call `evict` once if the request must end before its response does; `eviction` then has the error."""
        if not self.is_evictable:
            return
        self._evict = evict
        if self._eviction is not None:
            evict()

    def evict(self, error: RequestError, *, even_if_answered: bool) -> bool:
        """End the request with an error soon; return False if it has ended."""
        if self._completed:
            return False
        self._eviction = error, even_if_answered
        if self._evict is not None:
            self._evict()
        return True

    def supersede(self, error: SupersededError) -> None:
        """Release its reservations immediately, and end it soon, since the gateway has sent the request again."""
        self._release(failed=False)
        self.evict(error, even_if_answered=True)

    def let_expire(self, shows_headers: Callable[[], bool]) -> None:
        """Let the request expire only after the gateway has sent the headers of some response."""
        self._shows_headers = shows_headers

    def expire(self) -> bool:
        """Release its reservations while its exchange is open; return False if its answer may have been missed."""
        if self._shows_headers is not None and not self._shows_headers():
            return False
        self.settled(self)
        self._release(failed=False)
        self.observer.expired(self)
        self._notify_end()
        return True

    @property
    def eviction(self) -> RequestError | None:
        """The error to end the request with; None if it is not evicted, has ended, or is spared as answered."""
        if self._eviction is None or self._completed:
            return None
        error, even_if_answered = self._eviction
        return error if even_if_answered or not self.is_answered else None

    @property
    def decision(self) -> Decision:
        return Decision(self.request, self.result)

    @property
    def control_names(self) -> list[str]:
        """Headers of the client that must not reach the endpoint."""
        return self.pipeline.control_names(self.request.headers)

    @property
    def usage(self) -> Usage | None:
        """Tokens as counted by the endpoint; None if the response has not reported them."""
        return None if self._usage is None else self._usage.usage

    @property
    def reports_cached(self) -> bool:
        """Whether the response reports the number of prompt tokens that were cached."""
        return self._usage is not None and self._usage.reports_cached

    def time_pieces(self, on_interval: Callable[[float], None]) -> None:
        """Call `on_interval` with the seconds between each two pieces of the body."""
        self._on_interval = on_interval

    @property
    def counts_tokens(self) -> bool:
        """Whether the body of the response is read for its token counts."""
        return self._usage is not None

    def served_by(self, hostport: str) -> None:
        """Record the address that the gateway used, possibly that of a fallback.

        An endpoint that has since taken over the address of a target is not credited.
        """
        is_new, self._served_address = hostport != self._served_address, hostport
        destination = self.result.destination
        expected: Endpoint | None = None
        if hostport in destination.addresses:  # perhaps the address of a proxy in front of the target
            number = destination.addresses.index(hostport)
            expected = destination.targets[number]
            if number and is_new:
                for passed_over in destination.targets[:number]:  # the gateway had no connection to them
                    self.outliers.failed(passed_over, EndpointFailure.CONNECTION)
        found = self.find(hostport if expected is None else expected.hostport)
        if found is None or self._completed:
            return
        slot, served = found
        if expected is None or not served.identity.is_another_than(expected.identity):
            moved = slot != self.credit.slot
            self.served = served
            self.credit.move(slot)
            if moved and self.reservation is not None:
                self.reservation.move(self.result.primary.candidates.snapshot, slot)

    def needs_response(self, *, event_stream: bool) -> bool:
        needs = self.pipeline.response_needs
        return needs.body or (needs.streams and event_stream)

    def response_started(
        self,
        status: int,
        headers: Callable[[], Headers],
        *,
        event_stream: bool,
        count_tokens: bool = True,
        failure: EndpointFailure | None = None,
    ) -> dict[str, str]:
        """Record status and kind of body of the response; return the headers that plugins add.

        `headers` returns the response headers; it is called once, and only if a plugin reads responses. `failure` is
        the failure of the endpoint that the response indicates.
        """
        self.status = status
        if failure is not None:
            self._failed(failure)
        elif CLIENT_ERROR <= status < SERVER_ERROR:
            self.outliers.succeeded(self.served, self.request.model)
        self._commit()
        self.is_stream = self.is_stream or event_stream
        if self.pipeline.sees_responses:
            self._response_headers = headers()
        if count_tokens and not self.request.body.skip_response:
            grpc, streams = self.request.body.grpc_response, event_stream
            self._usage = (
                UsageReader(event_stream=streams) if grpc is None else GrpcUsageReader(grpc, event_stream=streams)
            )
        added: dict[str, str] = {}
        for plugin in self.pipeline.of(ResponseHeaders):
            add = plugin.response_headers
            found = self.guard.call(ResponseHeaders.role, plugin, add, self.request, self._response())
            if not isinstance(found, Failure):
                added.update(found)
        self.observer.response_started(self)
        return added

    def report(self) -> Metadata:
        """Return the dynamic metadata that plugins send to the gateway at the end of the response."""
        metadata: dict[str, dict[str, MetadataValue]] = {}
        for plugin in self.pipeline.of(ResponseReporter):
            found = self.guard.call(ResponseReporter.role, plugin, plugin.report, self.request, self._response())
            if not isinstance(found, Failure):
                for namespace, values in found.items():
                    metadata.setdefault(namespace, {}).update(values)
        return metadata

    def response_piece(self, piece: bytes, *, last: bool, now: Callable[[], float]) -> None:
        """Record a piece of the response body; the first one shows that the prompt has been computed.

        `now` returns the seconds on the clock; it is called only for pieces whose time is recorded.
        """
        self.response_bytes += len(piece)
        usage = self._usage
        if usage is not None:
            usage.feed(piece, last=last)
        if self._awaits_token and piece and self.status < CLIENT_ERROR and (usage is None or usage.has_content):
            self._first_token()
            self._time("first_token", now() - self.request.received_at)
        if self.first_byte_at is None and piece:
            self.first_byte_at = self._last_piece_at = now()
            self.observer.first_piece(self)
        elif self._on_interval is not None and piece:
            at = now()
            self._on_interval(at - self._last_piece_at)
            self._last_piece_at = at
        if last and self.first_byte_at is not None and not self._awaits_token:
            self._is_timed = True
            self._time("ended", now() - self.first_byte_at)

    def response_unseen(self, now: float, *, event_stream: bool) -> None:
        """Record that the gateway will not send the body: the time of the headers replaces that of the first byte.

        Event streams have no such time, since most servers send their headers before the first token.
        """
        self._is_unseen = True
        if not event_stream:
            self.first_byte_at = now
        self._first_token()

    def complete(self, cause: Cause) -> None:
        """Release the credit of the endpoints and the reservation; only the first call counts."""
        if self._completed:
            return
        self._completed = True
        if not self.is_committed:
            self.settled(self)
        if cause in (Cause.EVICTED, Cause.SUPERSEDED) and self._eviction is not None and not self.status:
            self.status = self._eviction[0].status
        if self._awaits_token and self.status:
            self._end_without_token(cause)
        self._release(failed=self.status >= SERVER_ERROR)
        if cause is not Cause.CLIENT_DISCONNECT or not self.status or not self._probe():
            self.observer.completed(self, cause)
        self._notify_end()
        if not self._is_timed:
            for plugin in self.pipeline.of(ResponseTiming):
                self.guard.call(ResponseTiming.role, plugin, plugin.interrupted, self.request, self._response())

    def _probe(self) -> bool:
        """Probe whether the model server has stopped; return False if probes are impossible."""
        self.ended_at = self.outliers.now
        return self.outliers.probe(self.served, self._probed)

    def _probed(self, verdict: Verdict) -> None:
        lost = verdict is Verdict.REFUSES
        if lost:
            self.credit.fail()
            if self._awaits_token:
                self._report_uncomputed()
        self.observer.completed(self, Cause.SERVER_LOST if lost else Cause.CLIENT_DISCONNECT)

    def _commit(self) -> None:
        if not self.is_committed:
            self.is_committed = True
            self.settled(self)

    def _first_token(self) -> None:
        self._awaits_token = False
        self.outliers.succeeded(self.served, self.request.model)
        self._commit()
        self.credit.first_token()
        if self.reservation is not None:
            self.reservation.first_token()

    def _failed(self, failure: EndpointFailure) -> None:
        self.outliers.failed(self.served, failure, _hash_of(self.request), self.request.model)

    def _end_without_token(self, cause: Cause) -> None:
        if self.status >= CLIENT_ERROR:
            self._report_uncomputed()
        elif cause is Cause.UNSEEN:
            self.outliers.succeeded(self.served, self.request.model)
        elif cause is Cause.NATURAL:
            if self.request.model:  # an empty response, or an error with status 200
                self._failed(EndpointFailure.SERVER)
            self._report_uncomputed()

    def _report_uncomputed(self) -> None:
        """Notify plugins that the endpoint did not compute the prompt."""
        for plugin in self.pipeline.of(PreRequest):
            with suppress(PluginFailedError):
                self.guard.call(PreRequest.role, plugin, plugin.request_failed, self.request, self.result)

    def _release(self, *, failed: bool) -> None:
        self.credit.close(failed=failed)
        if self.reservation is not None:
            reservation, self.reservation = self.reservation, None
            reservation.release(self.usage)

    def _notify_end(self) -> None:
        listeners, self._on_end = self._on_end, ()
        for on_end in listeners:
            on_end(self)

    def _time(self, event: Literal["first_token", "ended"], seconds: float) -> None:
        for plugin in self.pipeline.of(ResponseTiming):
            method = plugin.first_token if event == "first_token" else plugin.ended
            self.guard.call(ResponseTiming.role, plugin, method, self.request, self._response(), seconds)

    def _response(self) -> Response:
        events, headers = 0 if self._usage is None else self._usage.events, self._response_headers
        served, address = self.served, self._served_address
        return Response(served, address, self.status, headers, self.usage, events, self.reports_cached)


def _hash_of(request: Request) -> int:
    """Return a hash of the request; of a long prompt, only the beginning and the end are hashed."""
    prompt = request.body.prompt
    return hash((request.size_bytes, prompt[:_HASHED_BYTES], prompt[-_HASHED_BYTES:]))
