# SPDX-License-Identifier: Apache-2.0
"""The request half of an exchange: the body mode decides when the request is routed and how it is answered."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

from epp.bodies import with_model, with_model_added
from epp.director import Director, Held, Routing, Subset
from epp.extproc import replies
from epp.extproc.exchange import Progress, ProtocolError, Reply, expect
from epp.extproc.headers import read_headers
from epp.extproc.modes import BodyMode, GatewayTraits
from epp.extproc.wire import HttpBody, HttpHeaders
from epp.framework import Headers, RequestError
from epp.framework.errors import BodyTooLargeError, ClientGoneError, InternalError
from epp.framework.headers import CONTENT_LENGTH, REQUEST_ID

DEFAULT_MAX_BODY_BYTES = 32 * 1024 * 1024

_BUFFERED = (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
_UNSEEN = (BodyMode.STREAMED, BodyMode.NONE)
"""Modes in which the headers leave before any of the body is seen: requests are routed by headers alone."""


_HEADERS_NOT_SHOWN = (
    "the request's headers were not shown, so they left without a destination: set request_header_mode SEND in "
    "processing_mode of the gateway's ext_proc filter"
)


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Settings of the operator."""

    emit_scores: bool = False
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    """A larger request body is refused with 413."""


class RequestHalf:
    """Answers request messages; `routing` is set once the request is routed."""

    __slots__ = (
        "_asked",
        "_body",
        "_director",
        "_mode",
        "_options",
        "_progress",
        "_size",
        "_traits",
        "headers",
        "routing",
        "subset",
    )

    def __init__(
        self, director: Director, mode: BodyMode | None, options: RequestOptions, traits: GatewayTraits
    ) -> None:
        self._director = director
        self._mode = mode
        self._options = options
        self._traits = traits
        self._progress = Progress.EXPECTED
        self._body: list[bytes] = []
        self._size = 0
        self._asked = False
        self.headers = Headers()
        self.subset: Subset | None = None
        self.routing: Routing | None = None

    @property
    def awaiting_body(self) -> bool:
        """Whether the gateway may wait for an answer to its headers before it sends the body: it states no mode."""
        waits = self._mode is None and not self._traits.streams_body_unprompted
        return waits and self._progress is Progress.BODY and not self._body

    def abandon(self) -> None:
        """Record that the client left before its request was complete, if it did."""
        if self._progress is not Progress.EXPECTED and not self._asked:
            self._refuse(ClientGoneError("before its request was complete"))

    def fail(self, error: RequestError) -> None:
        """Record an error of this program, unless the request has been routed."""
        if self.routing is None:
            self._refuse(error)

    def on_silence(self) -> Iterator[Reply]:
        """Route by headers alone: the gateway seems to wait for an answer to them."""
        if self.awaiting_body:
            self._mode = BodyMode.STREAMED
            yield from self._with_headers()

    def on_headers(self, message: HttpHeaders) -> Iterator[Reply]:
        """Route a request without a body, or with one that is not seen in time; otherwise wait for the body."""
        expect("request_headers", self._progress, Progress.EXPECTED)
        self.headers = read_headers(message.headers)
        self._progress = Progress.ENDED if message.end_of_stream else Progress.BODY
        if message.end_of_stream or self._mode in _UNSEEN:
            yield from self._with_headers()
        elif self._mode in _BUFFERED:
            yield replies.request_headers_pass()

    def on_body(self, message: HttpBody) -> Iterator[Reply]:
        """Gather the body, route at its end, and answer as the mode requires."""
        if self._progress is Progress.EXPECTED:
            raise ProtocolError(_HEADERS_NOT_SHOWN)
        expect("request_body", self._progress, Progress.BODY)
        if message.end_of_stream:
            self._progress = Progress.ENDED
        if self._mode is BodyMode.STREAMED:
            yield replies.request_body_pass()
            return
        self._gather(message.body)
        if self._mode is None:
            self._traits.streams_body_unprompted = True
        if self._mode in _BUFFERED:
            yield from self._with_body(end_of_stream=message.end_of_stream)
        elif message.end_of_stream:
            yield from self._with_pieces(end_of_stream=True)

    def on_trailers(self) -> Iterator[Reply]:
        """Let the trailers pass, after a full-duplex body that they end."""
        expect("request_trailers", self._progress, Progress.BODY)
        self._progress = Progress.ENDED
        if self.routing is None:
            if self._mode in _BUFFERED:
                raise self._refuse(InternalError("the gateway sent trailers instead of the buffered body"))
            if self._body:
                yield from self._with_pieces(end_of_stream=False)
            else:  # Envoy takes no piece in return for none
                yield from self._with_headers()
        yield replies.request_trailers_pass()

    def _gather(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._options.max_body_bytes:
            raise self._refuse(BodyTooLargeError(self._options.max_body_bytes))
        self._body.append(piece)

    def _gathered(self) -> bytes:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        return body

    def _refuse(self, error: RequestError) -> RequestError:
        self._asked = True
        return self._director.refuse(self.headers, error)

    def _with_headers(self) -> Iterator[Reply]:
        forwarding = yield from self._route(b"", incomplete=self._progress is not Progress.ENDED)
        yield replies.destination_with_headers(forwarding)

    def _with_body(self, *, end_of_stream: bool) -> Iterator[Reply]:
        body = self._gathered()
        incomplete = self._mode is BodyMode.BUFFERED_PARTIAL and not end_of_stream
        forwarding = yield from self._route(body, incomplete=incomplete)
        sent = self._rewritten(body, incomplete=incomplete)
        forwarding = _with_length(forwarding, body, sent, end_of_stream=end_of_stream)
        yield replies.destination_with_body(forwarding, None if sent is body else sent)

    def _with_pieces(self, *, end_of_stream: bool) -> Iterator[Reply]:
        body = self._gathered()
        forwarding = yield from self._route(body)
        sent = self._rewritten(body)
        yield replies.destination_with_headers(_with_length(forwarding, body, sent, end_of_stream=end_of_stream))
        yield from replies.request_body_pieces(sent, end_of_stream=end_of_stream)

    def _route(self, body: bytes, *, incomplete: bool = False) -> Generator[Held, None, replies.Forwarding]:
        if self.routing is not None:
            raise ProtocolError("unexpected request_body: the body was complete and has been answered")
        self._asked = True
        outcome = self._director.route(self.headers, body, self.subset, incomplete=incomplete)
        if isinstance(outcome, Held):
            yield outcome
            outcome = outcome.routing()
        self.routing = routing = outcome
        extra = dict(routing.result.destination.headers)
        if REQUEST_ID not in self.headers:
            extra[REQUEST_ID] = routing.request.id
        return replies.Forwarding(routing.result, extra, routing.control_names, self._options.emit_scores)

    def _rewritten(self, body: bytes, *, incomplete: bool = False) -> bytes:
        """Return the body with the model the endpoint is asked for; the very same object where nothing changes."""
        if self.routing is None or not body or not self.routing.request.rewrites_model:
            return body
        request = self.routing.request
        if not request.body.model:
            return with_model_added(body, request.model)
        return with_model(body, request.model, partial=incomplete)


def _with_length(
    forwarding: replies.Forwarding, body: bytes, sent: bytes, *, end_of_stream: bool
) -> replies.Forwarding:
    """Set the content-length of a body that is whole; where more follows one that was changed, remove the client's.

    A length other than that of the body sent would let a model server take the rest of one request for another. After
    a body come trailers, or what a partial buffer does not hold; HTTP/1.1 has no trailers beside a content-length.
    """
    if end_of_stream:
        return replace(forwarding, headers={**forwarding.headers, CONTENT_LENGTH: str(len(sent))})
    if sent is not body:
        return replace(forwarding, remove=[*forwarding.remove, CONTENT_LENGTH])
    return forwarding
