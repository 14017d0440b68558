"""One exchange of the external-processing protocol as a state machine: messages in, messages out, no sockets.

Request headers are held until the whole body is in, because the model and the prompt are in the body; then the
destination, the body's pieces and the trailers go back in that order. Response messages are let through one by one.
"""

from collections.abc import Iterator
from enum import Enum, auto

import structlog

from epp.director import Cause, Director, Routing, Subset
from epp.extproc import replies
from epp.extproc.headers import read_headers, read_subset
from epp.extproc.wire import FULL_DUPLEX_STREAMED, HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse
from epp.framework import Headers, RequestError
from epp.framework.errors import InternalError

_log = structlog.get_logger()


class ProtocolError(Exception):
    """The gateway sent what the protocol does not allow, or what this picker does not speak."""


class _Half(Enum):
    """How far the request, or the response, has come. A response may start while its request still arrives."""

    EXPECTED = auto()
    BODY = auto()
    ENDED = auto()


class Session:
    """`receive` each message in turn, then `close` once, however the stream ended."""

    __slots__ = ("_body", "_director", "_emit_scores", "_headers", "_request", "_response", "_routing", "_subset")

    def __init__(self, director: Director, *, emit_scores: bool = False) -> None:
        self._director = director
        self._emit_scores = emit_scores
        self._request = _Half.EXPECTED
        self._response = _Half.EXPECTED
        self._headers = Headers()
        self._body: list[bytes] = []
        self._subset: Subset | None = None
        self._routing: Routing | None = None

    @property
    def done(self) -> bool:
        """Whether nothing more is to be said on this stream."""
        return self._response is _Half.ENDED

    def receive(self, message: ProcessingRequest) -> list[ProcessingResponse]:
        """Return the answers that are due now, perhaps none; raises ProtocolError."""
        try:
            return list(self._answer(message))
        except RequestError as error:
            return self._refuse(error)
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001  one request fails, the process stays up
            _log.exception("request failed", error=str(error))
            return self._refuse(InternalError("the endpoint picker failed on this request"))

    def close(self, cause: Cause = Cause.CLIENT_DISCONNECT) -> None:
        """Settle what is open: a routed request that has not ended by itself ended for this cause."""
        if self._routing is not None:
            self._routing.complete(cause)
        self._request = self._response = _Half.ENDED

    def _answer(self, message: ProcessingRequest) -> Iterator[ProcessingResponse]:
        kind = message.WhichOneof("request")
        if message.HasField("metadata_context"):
            self._subset = read_subset(message.metadata_context) or self._subset
        match kind:
            case "response_body":
                yield from self._response_body(message.response_body)
            case "request_headers":
                _check_mode(message)
                yield from self._request_headers(message.request_headers)
            case "request_body":
                yield from self._request_body(message.request_body)
            case "request_trailers":
                yield from self._request_trailers()
            case "response_headers":
                yield from self._response_headers(message.response_headers)
            case "response_trailers":
                _expect(kind, self._response, _Half.BODY)
                yield replies.response_trailers()
                self.close(Cause.NATURAL)
            case _:
                raise ProtocolError("a message with none of the six parts of an HTTP exchange")

    def _request_headers(self, headers: HttpHeaders) -> Iterator[ProcessingResponse]:
        _expect("request_headers", self._request, _Half.EXPECTED)
        self._headers = read_headers(headers.headers)
        self._request = _Half.BODY
        if headers.end_of_stream:
            self._request = _Half.ENDED
            yield self._route(b"")

    def _request_body(self, body: HttpBody) -> Iterator[ProcessingResponse]:
        _expect("request_body", self._request, _Half.BODY)
        self._body.append(body.body)
        if body.end_of_stream:
            yield from self._release_request(end_of_stream=True)

    def _request_trailers(self) -> Iterator[ProcessingResponse]:
        _expect("request_trailers", self._request, _Half.BODY)
        yield from self._release_request(end_of_stream=False)
        yield replies.request_trailers()

    def _release_request(self, *, end_of_stream: bool) -> Iterator[ProcessingResponse]:
        self._request = _Half.ENDED
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        yield self._route(body)
        yield from replies.request_body(body, end_of_stream=end_of_stream)

    def _route(self, body: bytes) -> ProcessingResponse:
        self._routing = self._director.route(self._headers, body, self._subset)
        return replies.destination(self._routing.destination, self._routing.result, emit_scores=self._emit_scores)

    def _response_headers(self, headers: HttpHeaders) -> Iterator[ProcessingResponse]:
        _expect("response_headers", self._response, _Half.EXPECTED)
        self._response = _Half.BODY
        status = read_headers(headers.headers).first_of(":status", "status") or ""
        if self._routing is not None:
            self._routing.response_started(int(status) if status.isdecimal() else 0)
        yield replies.response_headers({})
        if headers.end_of_stream:
            self.close(Cause.NATURAL)

    def _response_body(self, body: HttpBody) -> Iterator[ProcessingResponse]:
        _expect("response_body", self._response, _Half.BODY)
        piece = body.body
        if self._routing is not None:
            self._routing.response_piece(len(piece), self._director.clock.now())
        yield from replies.response_body(piece, end_of_stream=body.end_of_stream)
        if body.end_of_stream:
            self.close(Cause.NATURAL)

    def _refuse(self, error: RequestError) -> list[ProcessingResponse]:
        self.close(Cause.ERROR)
        return [replies.refusal(error)]


def _check_mode(message: ProcessingRequest) -> None:
    if not message.HasField("protocol_config"):
        return
    mode = message.protocol_config.request_body_mode
    if mode != FULL_DUPLEX_STREAMED:
        raise ProtocolError(
            f"request_body_mode {mode} is not supported: set FULL_DUPLEX_STREAMED ({FULL_DUPLEX_STREAMED}) in "
            "processing_mode of the gateway's ext_proc filter"
        )


def _expect(kind: str, half: _Half, wanted: _Half) -> None:
    if half is not wanted:
        raise ProtocolError(f"{kind} where {half.name} is")
