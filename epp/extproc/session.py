# SPDX-License-Identifier: Apache-2.0
"""One exchange of the external-processing protocol as a state machine: messages in, messages out, no sockets.

The gateway shows an HTTP request and its response message by message; the two halves answer each in the way the
gateway's body modes ask for. In full-duplex mode request headers are held until the whole body is in, because the
model and the prompt are in the body; then the destination, the body's pieces and the trailers go back in that order.
"""

from collections.abc import Iterator, Sequence

import structlog

from epp.director import Cause, Director, Held
from epp.extproc.exchange import Answer, ProtocolError, Reply
from epp.extproc.headers import read_served, read_subset
from epp.extproc.modes import BodyMode, GatewayTraits, UnknownModeError, read_modes
from epp.extproc.refusals import refusal
from epp.extproc.request_half import DEFAULT_MAX_BODY_BYTES, RequestHalf, RequestOptions
from epp.extproc.response_half import ResponseHalf
from epp.extproc.wire import ProcessingRequest
from epp.framework import Headers, RequestError
from epp.framework.errors import InternalError

_log = structlog.get_logger()

SILENCE_TIMEOUT_SECONDS = 0.1
"""Time in which a gateway that states no modes sends the body, unless it waits for an answer to its headers.

Less than Envoy's default message timeout of 0.2 s.
"""


class Session:
    """`receive` each message in turn, then `close` once, however the stream ended."""

    __slots__ = (
        "_decision_headers",
        "_director",
        "_options",
        "_plain_errors",
        "_request",
        "_response",
        "_suspended",
        "_traits",
    )

    def __init__(
        self,
        director: Director,
        *,
        emit_scores: bool = False,
        plain_errors: bool = False,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        traits: GatewayTraits | None = None,
        decision_headers: bool = False,
    ) -> None:
        self._decision_headers = decision_headers
        self._director = director
        self._traits = traits or GatewayTraits()
        self._options = RequestOptions(emit_scores, max_body_bytes)
        self._plain_errors = plain_errors
        self._request: RequestHalf | None = None
        self._response: ResponseHalf | None = None
        self._suspended: Iterator[Reply] = iter(())

    @property
    def done(self) -> bool:
        """Whether the exchange is complete."""
        return self._response is not None and self._response.ended

    @property
    def silence_timeout(self) -> float | None:
        """Time to wait for the next message before calling `on_silence`; None for no limit."""
        return SILENCE_TIMEOUT_SECONDS if self._request is not None and self._request.awaiting_body else None

    def receive(self, message: ProcessingRequest) -> Sequence[Answer]:
        """Return the answers that are due now, perhaps none; raises ProtocolError.

        The last answer may be Held: settle it, then `resume`, before the next message.
        """
        return self._run(self._answer(message))

    def resume(self) -> Sequence[Answer]:
        """Return the answers that waited for a held request."""
        return self._run(self._suspended)

    def on_silence(self) -> Sequence[Answer]:
        """Return the answers that the gateway seems to wait for."""
        if self._request is None or self._response is None:
            return []
        self._response.assume(BodyMode.STREAMED)  # gateways that wait support no other streaming mode
        return self._run(self._request.on_silence())

    def close(self, cause: Cause = Cause.CLIENT_DISCONNECT) -> None:
        """Complete the routed request with `cause` if it is still open; one that is not routed yet was abandoned."""
        if self._request is not None:
            if self._request.routing is not None:
                whole = self._response is not None and self._response.seen_whole
                self._request.routing.complete(Cause.NATURAL if whole else cause)
                if self._response is not None:
                    self._response.check_headers_shown()
            elif cause is Cause.CLIENT_DISCONNECT:
                self._request.abandon()
        if self._response is not None:
            self._response.end()

    def _run(self, answers: Iterator[Reply]) -> list[Answer]:
        """Return all answers up to a held request, or a refusal in their place."""
        found: list[Answer] = []
        try:
            for answer in answers:
                if isinstance(answer, Held):
                    found.append(answer)
                    self._suspended = answers
                    break
                found.append(answer.SerializeToString())
        except RequestError as error:
            return [self._refuse(error)]
        except UnknownModeError as error:
            raise ProtocolError(str(error)) from error
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001  one request fails, the process stays up
            _log.exception("request failed", error=str(error))
            failure = InternalError(f"{type(error).__name__} on this request")
            if self._request is not None:
                self._request.fail(failure)
            return [self._refuse(failure)]
        return found

    def _answer(self, message: ProcessingRequest) -> Iterator[Reply]:
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
                raise ProtocolError(f"unexpected message: {kind} is none of the six parts of an HTTP exchange")
        if response.ended:
            self.close(Cause.NATURAL)

    def _halves(self, message: ProcessingRequest) -> tuple[RequestHalf, ResponseHalf]:
        """Return both halves, made when the first message tells the modes."""
        if self._request is None or self._response is None:
            modes = read_modes(message)
            self._request = RequestHalf(self._director, modes.request, self._options, self._traits)
            self._response = ResponseHalf(
                modes.response, self._director.clock, decision_headers=self._decision_headers, traits=self._traits
            )
        return self._request, self._response

    def _refuse(self, error: RequestError) -> bytes:
        self.close(Cause.ERROR)
        headers = Headers() if self._request is None else self._request.headers
        return refusal(error, headers, plain=self._plain_errors).SerializeToString()
