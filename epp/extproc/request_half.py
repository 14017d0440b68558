# SPDX-License-Identifier: Apache-2.0
"""The request half of an exchange: the body mode determines when the request is routed and how it is answered."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil, isfinite

from epp.extproc import replies
from epp.extproc.budgets import Claim
from epp.extproc.codec import RequestPiece
from epp.extproc.exchange import (
    Answer,
    BodyMode,
    ExchangeSettings,
    Fault,
    GatewayTraits,
    Progress,
    ProtocolError,
    expect,
)
from epp.extproc.headers import MOST_BYTES, MOST_FIELDS, are_too_large, read_first, read_headers, read_some
from epp.extproc.http2.limits import nothing
from epp.extproc.http2.streams import append_piece
from epp.extproc.replies import Forwarding, MetadataValue
from epp.extproc.wire import HttpBody, HttpHeaders
from epp.framework import Endpoint, Headers, RequestError
from epp.framework.errors import BodyMissingError, BodyTooLargeError, HeadersTooLargeError
from epp.framework.headers import (
    CONTENT_LENGTH,
    ENDPOINT_ACCELERATOR,
    ENDPOINT_COST,
    ENDPOINT_REASON,
    ENDPOINT_SCORES,
    REQUEST_ID,
)
from epp.framework.refusals import ClientGoneError, TooManyBytesError, TooManyPendingError, TooManyStreamsError
from epp.routing.bodies.model_member import with_model, with_model_added, with_priority
from epp.routing.director import Director, PendingRequest, Routing, Subset
from epp.routing.director.observers import RequestTrace

_EXPECTED, _BODY, _ENDED = Progress
_BUFFERED = (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
_UNSEEN = (BodyMode.STREAMED, BodyMode.NONE)
"""Modes in which the gateway forwards the headers before the body: requests are routed only by their headers."""
_ENGINE_LABEL, _VLLM = "llm-d.ai/engine-type", "vllm"
_LACKS: Mapping[str, type[RequestError]] = {"streams": TooManyStreamsError, "pending_streams": TooManyPendingError}
_AFTER_HELD_SECONDS = 10
"""Time to answer after a pending request is released."""
_MOST_SECONDS = 3600
"""Envoy's upper limit for the time to wait for an answer."""
_STATUS = frozenset({":status"})
_NO_HEADERS = Headers()
_HEADERS_NOT_SHOWN = (
    "the request's headers were not shown and left without a destination: set request_header_mode SEND in "
    "processing_mode of the gateway's ext_proc filter"
)


class RequestHalf:
    """Answers request messages; `routing` is set once the request is routed."""

    def __init__(
        self,
        director: Director,
        settings: ExchangeSettings,
        traits: GatewayTraits,
        evict: Callable[[], None],
        *,
        claim: Claim,
        metadata: Mapping[str, str],
    ) -> None:
        self._director = director
        self._metadata = metadata
        self._began: float | None = None
        self._claim = claim
        self._evict = evict
        self._mode: BodyMode | None = None
        self._is_envoy = False
        self._settings = settings
        self._traits = traits
        self._progress = _EXPECTED
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._body_seen = False  # whether a piece of the body arrived, even an empty one
        self._size = 0
        self._counted = 0  # bytes of the body counted on the stream's account
        self._decided = False
        self._held: tuple[PendingRequest, Callable[[Routing], Sequence[bytes]]] | None = None
        self._ignored: Sequence[str] = ()
        self.headers = _NO_HEADERS
        self.subset: Subset | None = None
        self.routing: Routing | None = None
        self.trace: RequestTrace | None = None

    def begin(self, mode: BodyMode | None) -> None:
        """Set the mode that the first message states."""
        self._began = self._director.clock.now()
        self._mode = mode
        self._is_envoy = mode is not None  # other gateways do not state their modes

    @property
    def awaiting_body(self) -> bool:
        """Whether a gateway without stated modes may wait for an answer to the headers before it sends the body."""
        waits = self._mode is None and not self._traits.streams_body_unprompted
        return waits and self._progress is _BODY and not self._body_seen

    @property
    def is_incomplete(self) -> bool:
        """Whether the gateway must send more of the request soon; False while the gateway buffers the body."""
        return not self._decided and (self._mode not in _BUFFERED or self._progress is _EXPECTED)

    def processed(self) -> None:
        """Record the processing time of the request; only the first call counts."""
        if self._began is not None:
            self._director.processed(self._began)
            self._began = None

    def abandon(self) -> None:
        """Record a client that left before its request was complete or routed."""
        if self._held is not None:
            self._held[0].abandon()
        elif self._progress is not _EXPECTED and not self._decided:
            self._refuse(ClientGoneError("before its request was complete"))

    def release(self) -> None:
        """Release the body after the end of the exchange, which cannot be evicted afterwards."""
        self._pieces.clear()
        self._count(0)
        self._evict = nothing

    def answered_by_gateway(self, response: HttpHeaders) -> None:
        """Record a request that the gateway refused because its buffer is too small for the body."""
        if self._decided or self._mode not in _BUFFERED or are_too_large(response.headers):
            return
        if read_some(response.headers, _STATUS).get(":status") == str(BodyTooLargeError.status):
            self._refuse(BodyTooLargeError(self._settings.max_body_bytes))

    def give_up(self, error: RequestError) -> RequestError | None:
        """Drop an incomplete request; return its refusal, or None if it is complete."""
        if self._decided:
            return None
        self._pieces.clear()
        self._progress = _ENDED
        return self._refuse(error)

    def fail(self, error: RequestError) -> None:
        if self.routing is None:
            self._refuse(error)

    def on_silence(self) -> Sequence[Answer]:
        """Route by headers only: the gateway probably waits for an answer to them."""
        if not self.awaiting_body:
            return ()
        self._mode = BodyMode.STREAMED
        return self._route(b"", self._with_headers, incomplete=True)

    def on_headers(self, message: HttpHeaders) -> Sequence[Answer]:
        """Route a request without a body, or with a body that is shown too late; otherwise wait for the body."""
        if self._progress is not _EXPECTED:
            expect("request_headers", self._progress, _EXPECTED)
        if are_too_large(message.headers):
            self._take(read_first(message.headers))
            raise self._refuse(HeadersTooLargeError(MOST_FIELDS, MOST_BYTES))
        self._take(read_headers(message.headers))
        if self._claim.lack is not None:
            raise self._refuse(_LACKS[self._claim.lack.name]())
        if message.end_of_stream:
            self._progress = _ENDED
            return self._route(b"", self._with_headers)
        self._progress = _BODY
        if self._mode in _UNSEEN:
            return self._route(b"", self._with_headers, incomplete=True)
        return (replies.REQUEST_HEADERS_PASS,) if self._mode in _BUFFERED else ()

    def on_body(self, message: HttpBody | RequestPiece) -> Sequence[Answer]:
        """Gather the body, route at its end, and answer as the mode requires."""
        if self._progress is not _BODY:
            if self._progress is _EXPECTED:
                raise ProtocolError(_HEADERS_NOT_SHOWN, Fault.HEADERS_NOT_SHOWN)
            expect("request_body", self._progress, _BODY)
        last = message.end_of_stream
        if last:
            self._progress = _ENDED
        if self._mode is BodyMode.STREAMED:
            return (replies.REQUEST_BODY_PASS,)
        self._gather(message.body, whole=last or self._mode in _BUFFERED)
        if self._mode is None:
            self._traits.streams_body_unprompted = True
        if self._mode in _BUFFERED:
            incomplete = self._mode is BodyMode.BUFFERED_PARTIAL and not last
            body = self._gathered()
            return self._route(
                body, partial(self._with_body, body, last=last, incomplete=incomplete), incomplete=incomplete
            )
        if not last:
            return ()
        body = self._gathered()
        return self._route(body, partial(self._with_pieces, body, trailers=False))

    def on_trailers(self) -> Sequence[Answer]:
        """Forward the trailers; they end a full-duplex body."""
        expect("request_trailers", self._progress, _BODY)
        self._progress = _ENDED
        if self.routing is not None:
            return (replies.REQUEST_TRAILERS_PASS,)
        if self._mode in _BUFFERED:
            raise self._refuse(BodyMissingError())  # Envoy sends a buffered body before the trailers
        body = self._gathered()
        return self._route(body, partial(self._with_pieces, body, trailers=True))

    def resume(self) -> Sequence[bytes]:
        if self._held is None:
            return ()
        (held, answer), self._held = self._held, None
        self._count(0)
        return self._routed(held.routing(), answer)

    def _take(self, headers: Headers) -> None:
        ignored = self._settings.ignored_headers
        if ignored is not None and not ignored.trusts(self._traits.host):
            headers, self._ignored = ignored.left_out(headers)
        self.headers = headers
        if self._settings.tracer is not None:
            self.trace = self._settings.tracer.begin(headers, self._metadata)

    def _gather(self, piece: bytes | memoryview, *, whole: bool) -> None:
        size = len(piece)
        self._body_seen = True
        self._size += size
        if not whole:
            self._claim.progressed(size)
        if self._size > self._settings.max_body_bytes:
            raise self._refuse(BodyTooLargeError(self._settings.max_body_bytes))
        if self._pieces or not whole:  # a body in one piece is not buffered
            if not self._claim.account.add(size):
                raise self._refuse(TooManyBytesError())
            self._counted += size
        if whole:
            self._pieces.append(piece)
        else:
            append_piece(self._pieces, piece)

    def _count(self, size: int) -> None:
        if size != self._counted:
            self._claim.account.put(size - self._counted)
            self._counted = size

    def _gathered(self) -> bytes:
        """Return the body, without a copy if only one piece has bytes."""
        pieces = [piece for piece in self._pieces if piece]
        self._pieces.clear()
        first = pieces[0] if len(pieces) == 1 else None
        return first if isinstance(first, bytes) else b"".join(pieces)

    def _refuse(self, error: RequestError) -> RequestError:
        self._decided = True
        self._pieces.clear()
        self._count(0)
        self._claim.complete()
        return self._director.refuse(self.headers, error)

    def _route(
        self, body: bytes, answer: Callable[[Routing], Sequence[bytes]], *, incomplete: bool = False
    ) -> Sequence[Answer]:
        if self.routing is not None:
            raise ProtocolError("unexpected request_body: the body was complete and has been answered")
        self._decided = True
        self._claim.complete()
        self._count(0)
        trace = self.trace
        if trace is not None:
            trace.complete()
        outcome = self._director.route(
            self.headers, body, self.subset, incomplete=incomplete, trace=trace, began_at=self._began
        )
        if isinstance(outcome, PendingRequest):
            self._held = outcome, answer
            if not outcome.longest_seconds:  # otherwise it may be in a queue, which has its own limit
                self._count(len(body))
            return (*self._time_extension(outcome, body), outcome)
        return self._routed(outcome, answer)

    def _time_extension(self, held: PendingRequest, body: bytes) -> Sequence[bytes]:
        """Return a reply that extends Envoy's message timeout for a pending request; none for other gateways."""
        has_no_limit = self._mode is BodyMode.FULL_DUPLEX_STREAMED and body
        if not self._is_envoy or has_no_limit or not held.longest_seconds:
            return ()
        return (replies.more_time(ceil(min(held.longest_seconds + _AFTER_HELD_SECONDS, _MOST_SECONDS))),)

    def _routed(self, routing: Routing, answer: Callable[[Routing], Sequence[bytes]]) -> Sequence[bytes]:
        self.routing = routing
        answers = answer(routing)
        self.processed()
        traits = self._traits  # a reference to this object would be a cycle
        routing.let_expire(lambda: traits.shows_response_headers)
        routing.let_evict(self._evict)
        return answers

    def _with_headers(self, routing: Routing) -> Sequence[bytes]:
        return (replies.destination_with_headers(self._forwarding(routing)),)

    def _with_body(self, body: bytes, routing: Routing, *, last: bool, incomplete: bool) -> Sequence[bytes]:
        forwarding = self._forwarding(routing)
        sent = _rewritten(routing, body, incomplete=incomplete)
        changed = None if sent is body else sent
        _set_length(forwarding, len(sent), is_changed=changed is not None, whole=last)
        return (replies.destination_with_body(forwarding, changed),)

    def _with_pieces(self, body: bytes, routing: Routing, *, trailers: bool) -> Sequence[bytes]:
        forwarding = self._forwarding(routing)
        sent = _rewritten(routing, body)
        _set_length(forwarding, len(sent), is_changed=sent is not body, whole=not trailers)
        answers = [replies.destination_with_headers(forwarding)]
        if self._body_seen or not trailers:  # Envoy accepts a piece only after it sent one
            answers += replies.request_body_pieces(sent, end_of_stream=not trailers)
        return [*answers, replies.REQUEST_TRAILERS_PASS] if trailers else answers

    def _forwarding(self, routing: Routing) -> Forwarding:
        destination = routing.result.destination
        setting = dict(destination.headers)
        if REQUEST_ID not in self.headers:
            setting[REQUEST_ID] = routing.request.id
        if self.trace is not None:
            setting.update(self.trace.headers)
        pick_metadata = _pick_metadata(routing) if self._settings.emit_scores else None
        return Forwarding(
            ",".join(destination.addresses), setting, [*routing.control_names, *self._ignored], pick_metadata
        )


def _pick_metadata(routing: Routing) -> Mapping[str, MetadataValue]:
    """Return metadata for the gateway: the scores, and accelerator, price and reason of the pick."""
    primary, decision = routing.result.primary, routing.decision
    totals = zip(primary.candidates.endpoints, primary.totals.tolist(), strict=True)
    found: dict[str, MetadataValue] = {
        ENDPOINT_SCORES: {endpoint.hostport: total for endpoint, total in totals},
        ENDPOINT_REASON: decision.why(),
    }
    if decision.accelerator:
        found[ENDPOINT_ACCELERATOR] = decision.accelerator
    cost = decision.cost_per_hour
    if cost is not None and isfinite(cost):
        found[ENDPOINT_COST] = cost
    return found


def _rewritten(routing: Routing, body: bytes, *, incomplete: bool = False) -> bytes:
    """Return the body with the rewritten model and the priority; the same object if nothing changes."""
    request = routing.request
    if not body:
        return body
    if routing.pipeline.propagates_priority and not incomplete:
        body = with_priority(body, _priority_for(routing.result.targets[0], request.priority))
    if not request.rewrites_model:
        return body
    if not request.body.model:
        return with_model_added(body, request.model)
    return with_model(body, request.model, partial=incomplete)


def _priority_for(endpoint: Endpoint, priority: int) -> int:
    """Return the priority in the engine's convention: in vLLM, the default engine, lower values are more urgent."""
    return -priority if endpoint.labels.get(_ENGINE_LABEL, _VLLM) == _VLLM else priority


def _set_length(forwarding: Forwarding, size: int, *, is_changed: bool, whole: bool) -> None:
    """Set the content-length of a complete body; remove it from a changed body that more data or trailers follow.

    With a wrong length, a model server could read the rest of one request as another request. HTTP/1.1 does not allow
    trailers with a content-length.
    """
    if whole:
        forwarding.setting[CONTENT_LENGTH] = str(size)
    elif is_changed:
        forwarding.remove.append(CONTENT_LENGTH)
