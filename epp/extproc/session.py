"""One exchange of the external-processing protocol as a state machine: messages in, messages out, no sockets.

The gateway shows an HTTP request and its response message by message; the two halves answer each in the way the
gateway's body modes ask for. In full-duplex mode request headers are held until the whole body is in, because the
model and the prompt are in the body; then the destination, the body's pieces and the trailers go back in that order.
"""

from collections.abc import Iterator

import structlog

from epp.director import Cause, Director, Held
from epp.extproc.habits import Habits
from epp.extproc.half import ProtocolError
from epp.extproc.headers import read_served, read_subset
from epp.extproc.modes import BodyMode, UnknownModeError, read_modes
from epp.extproc.refusals import refusal
from epp.extproc.request_half import DEFAULT_MAX_BODY_BYTES, Answer, RequestHalf, RequestOptions
from epp.extproc.response_half import ResponseHalf
from epp.extproc.wire import ProcessingRequest, ProcessingResponse
from epp.framework import RequestError
from epp.framework.errors import InternalError

_log = structlog.get_logger()

PATIENCE_SECONDS = 0.1
"""How long a gateway that does not say its modes may take to send a body before it seems to wait for an answer.

Less than the 0.2 s after which Envoy, unless told otherwise, gives up on an answer.
"""


class Session:
    """`receive` each message in turn, then `close` once, however the stream ended."""

    __slots__ = ("_director", "_habits", "_options", "_plain_errors", "_request", "_response", "_suspended")

    def __init__(
        self,
        director: Director,
        *,
        emit_scores: bool = False,
        plain_errors: bool = False,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        habits: Habits | None = None,
    ) -> None:
        self._director = director
        self._habits = habits or Habits()
        self._options = RequestOptions(emit_scores, max_body_bytes)
        self._plain_errors = plain_errors
        self._request: RequestHalf | None = None
        self._response: ResponseHalf | None = None
        self._suspended: Iterator[Answer] = iter(())

    @property
    def done(self) -> bool:
        """Whether nothing more is to be said on this stream."""
        return self._response is not None and self._response.ended

    @property
    def patience_seconds(self) -> float | None:
        """How long to wait for the next message before calling `on_silence`; None for as long as it takes."""
        return PATIENCE_SECONDS if self._request is not None and self._request.undecided else None

    def receive(self, message: ProcessingRequest) -> list[Answer]:
        """Return the answers that are due now, perhaps none; raises ProtocolError.

        The last answer may be Held: settle it, then `resume`, before the next message.
        """
        return self._run(self._answer(message))

    def resume(self) -> list[Answer]:
        """Return the answers that waited for a held request."""
        return self._run(self._suspended)

    def on_silence(self) -> list[Answer]:
        """Return the answers that a gateway seems to be waiting for."""
        if self._request is None or self._response is None:
            return []
        self._response.assume(BodyMode.STREAMED)  # the older gateways that wait know no other way to stream
        return self._run(self._request.on_silence())

    def close(self, cause: Cause = Cause.CLIENT_DISCONNECT) -> None:
        """Settle what is open: a routed request that has not ended by itself ended for this cause."""
        if self._request is not None and self._request.routing is not None:
            whole = self._response is not None and self._response.seen_whole
            self._request.routing.complete(Cause.NATURAL if whole else cause)
        if self._response is not None:
            self._response.end()

    def _run(self, answers: Iterator[Answer]) -> list[Answer]:
        """Return all answers up to a held request, or a refusal in their place."""
        found: list[Answer] = []
        try:
            for answer in answers:
                found.append(answer)
                if isinstance(answer, Held):
                    self._suspended = answers
                    break
        except RequestError as error:
            return [self._refuse(error)]
        except UnknownModeError as error:
            raise ProtocolError(str(error)) from error
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001  one request fails, the process stays up
            _log.exception("request failed", error=str(error))
            return [self._refuse(InternalError("the endpoint picker failed on this request"))]
        return found

    def _answer(self, message: ProcessingRequest) -> Iterator[Answer]:
        request, response = self._halves(message)
        if message.HasField("metadata_context"):
            request.subset = read_subset(message.metadata_context) or request.subset
            served = read_served(message.metadata_context)
            if served is not None and request.routing is not None:
                request.routing.served_by(served)
        match kind := message.WhichOneof("request"):
            case "response_body":
                yield from response.on_body(message.response_body, request.routing)
            case "request_headers":
                yield from request.on_headers(message.request_headers)
            case "request_body":
                yield from request.on_body(message.request_body)
            case "request_trailers":
                yield from request.on_trailers()
            case "response_headers":
                yield from response.on_headers(message.response_headers, request.routing)
            case "response_trailers":
                yield from response.on_trailers(request.routing)
            case _:
                raise ProtocolError(f"a message with none of the six parts of an HTTP exchange, but {kind}")
        if response.ended:
            self.close(Cause.NATURAL)

    def _halves(self, message: ProcessingRequest) -> tuple[RequestHalf, ResponseHalf]:
        """Return both halves, made when the first message tells the modes."""
        if self._request is None or self._response is None:
            modes = read_modes(message)
            self._request = RequestHalf(self._director, modes.request, self._options, self._habits)
            self._response = ResponseHalf(modes.response, self._director.clock)
        return self._request, self._response

    def _refuse(self, error: RequestError) -> ProcessingResponse:
        self.close(Cause.ERROR)
        path = "" if self._request is None else self._request.headers.get(":path", "").partition("?")[0]
        return refusal(error, path, plain=self._plain_errors)
