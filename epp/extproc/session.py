# SPDX-License-Identifier: Apache-2.0
"""One exchange of the external-processing protocol as a state machine: messages in, messages out, no sockets.

The gateway shows an HTTP request and its response message by message; the two halves answer as the gateway's body modes
require. In full-duplex mode, the request headers are held until the body is complete, because it has the model and the
prompt; then the destination, the pieces of the body and the trailers are sent back in that order.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import structlog

from epp.extproc.budgets import Claim
from epp.extproc.codec import RequestPiece
from epp.extproc.exchange import (
    Answer,
    BodyMode,
    ExchangeSettings,
    Fault,
    GatewayTraits,
    NotReadyError,
    Progress,
    ProtocolError,
    read_modes,
)
from epp.extproc.headers import read_served, read_subset
from epp.extproc.http2.limits import nothing
from epp.extproc.replies import refusal
from epp.extproc.request_half import RequestHalf
from epp.extproc.response_half import ResponseHalf
from epp.extproc.wire import ProcessingRequest
from epp.framework import RequestError
from epp.framework.errors import InternalError
from epp.framework.refusals import (
    BodyTimeoutError,
    StartingError,
    SupersededError,
    TooManyBytesError,
    TooManyPendingError,
)
from epp.routing.director import Cause, Director

_log = structlog.get_logger()

_BODY, _ENDED = Progress.BODY, Progress.ENDED
_NO_METADATA: Mapping[str, str] = MappingProxyType({})

SILENCE_TIMEOUT_SECONDS = 0.1
"""Wait for the body of a gateway that states no modes; less than Envoy's message timeout of 0.2 s."""


class Session:
    """`receive` each message, then `close` once after the end of the stream."""

    __slots__ = (
        "_has_begun",
        "_is_mode_unknown",
        "_request",
        "_response",
        "_settings",
        "claim",
        "done",
        "on_eviction",
        "silence_timeout",
    )

    def __init__(
        self,
        director: Director,
        settings: ExchangeSettings,
        traits: GatewayTraits,
        claim: Claim,
        metadata: Mapping[str, str] = _NO_METADATA,
    ) -> None:
        """`metadata` is the initial metadata of the stream."""
        self.claim = claim
        """The share of the exchange in the budgets; close it with the stream."""
        self._settings = settings
        self._request = RequestHalf(director, settings, traits, self._evicted, claim=claim, metadata=metadata)
        self._response = ResponseHalf(director.clock, settings, traits)
        self._has_begun = False
        self._is_mode_unknown = False
        self.done = False
        """Whether the exchange has ended."""
        self.silence_timeout: float | None = None
        """Time to wait for the next message before calling `on_silence`; None for no limit."""
        self.on_eviction: Callable[[], None] = nothing
        """Called when the request must end before its response; the callee must call `evict` soon, after this call."""

    @property
    def is_incomplete(self) -> bool:
        """Whether the gateway must send more of the request soon."""
        return self._request.is_incomplete

    def receive(self, message: ProcessingRequest | RequestPiece) -> Sequence[Answer]:
        """Return the answers to a message; raises ProtocolError.

        The last answer may be a PendingRequest: settle it, then `resume`, before the next message.
        """
        try:
            request, response = self._request, self._response
            if not self._has_begun:
                self._begin(message)
            if isinstance(message, RequestPiece):
                self.silence_timeout = None
                _read_metadata(message.beside, request)
                return request.on_body(message)
            kind = message.WhichOneof("request")
            if kind == "response_body" and response.progress is _BODY:  # the most frequent kind; its metadata is known
                answers: Sequence[Answer] = response.on_body(message.response_body, request.routing)
            else:
                answers = self._answer(message, kind)
                if self._is_mode_unknown:
                    self.silence_timeout = SILENCE_TIMEOUT_SECONDS if request.awaiting_body else None
            if response.progress is _ENDED:
                self.close(Cause.NATURAL)
        except Exception as error:  # noqa: BLE001  one request fails, the process stays up
            return self._failed(error)
        return answers

    def resume(self) -> Sequence[Answer]:
        response = self._response
        try:
            if not response.is_held:
                return self._request.resume()
            answers = response.resume()
            if response.progress is _ENDED:
                self.close(Cause.NATURAL)
        except Exception as error:  # noqa: BLE001  one request fails, the process stays up
            return self._failed(error)
        return answers

    def on_silence(self) -> Sequence[Answer]:
        """Return the answers after a silence of the gateway."""
        self.silence_timeout = None
        self._response.assume(BodyMode.STREAMED)  # the only streaming mode of gateways that wait
        try:
            return self._request.on_silence()
        except Exception as error:  # noqa: BLE001  one request fails, the process stays up
            return self._failed(error)

    def give_up(self, error: BodyTimeoutError | TooManyBytesError) -> Sequence[bytes]:
        """End the exchange of an incomplete request; return the answer for its client.

        Empty if the request is complete or has not started.
        """
        reason = TooManyPendingError() if self.claim.evicted else error
        given_up = self._request.give_up(reason) if self._has_begun else None
        if given_up is None:
            return ()
        if isinstance(reason, BodyTimeoutError):
            self.claim.timed_out()
        return self._failed(given_up)

    def evict(self) -> Sequence[bytes]:
        """End the exchange of a request that is evicted or superseded by a retry; return the answer for its client.

        A gateway that already sent response headers ends the response instead. Empty if the request has ended, or is
        answered in part and exempt from eviction.
        """
        routing = self._request.routing
        error = None if routing is None else routing.eviction
        if error is None:
            return ()
        if self._request.trace is not None:
            self._request.trace.refused(error)
        self.close(Cause.SUPERSEDED if isinstance(error, SupersededError) else Cause.EVICTED)
        return (refusal(error, self._request.headers, plain=self._settings.plain_errors),)

    def close(self, cause: Cause = Cause.CLIENT_DISCONNECT) -> None:
        """Complete the routed request with `cause` if it is still open; record an unrouted one as abandoned."""
        request, response = self._request, self._response
        if request.routing is not None:
            if cause is Cause.CLIENT_DISCONNECT and response.unseen:
                cause = Cause.UNSEEN
            request.routing.complete(cause)
            response.check_headers_shown()
        elif cause is Cause.CLIENT_DISCONNECT:
            request.abandon()
        response.progress = _ENDED
        self.done = True
        if request.trace is not None:
            request.trace.ended(request.routing, cause)
        request.release()
        self.on_eviction = nothing  # breaks the reference cycle with the carrier

    def _begin(self, message: ProcessingRequest | RequestPiece) -> None:
        modes = read_modes(message.beside if isinstance(message, RequestPiece) else message)
        self._has_begun = True
        self._is_mode_unknown = modes.request is None
        self._request.begin(modes.request)
        self._response.begin(modes)

    def _evicted(self) -> None:
        self.on_eviction()

    def _answer(self, message: ProcessingRequest, kind: str | None) -> Sequence[Answer]:
        request, response = self._request, self._response
        _read_metadata(message, request)
        match kind:
            case "request_headers":
                return request.on_headers(message.request_headers)
            case "request_body":
                return request.on_body(message.request_body)
            case "request_trailers":
                return request.on_trailers()
            case "response_headers":
                request.answered_by_gateway(message.response_headers)
                return response.on_headers(message.response_headers, request.routing)
            case "response_body":
                return response.on_body(message.response_body, request.routing)
            case "response_trailers":
                return response.on_trailers(request.routing)
            case _:
                problem = f"unexpected message: {kind} is not one of the six parts of an HTTP exchange"
                raise ProtocolError(problem, Fault.UNKNOWN_PART)

    def _failed(self, error: Exception) -> Sequence[bytes]:
        """Return the refusal for an error.

        Raises ProtocolError for an error of the gateway, and NotReadyError while the picker starts.
        """
        if isinstance(error, ProtocolError):
            raise error
        request, trace = self._request, self._request.trace
        if trace is not None and isinstance(error, RequestError):
            trace.refused(error)
        if isinstance(error, StartingError):
            self.close(Cause.ERROR)
            raise NotReadyError(error.message) from error
        if not isinstance(error, RequestError):
            _log.exception("request failed", error=str(error))
            error = InternalError(f"{type(error).__name__} on this request")
            request.fail(error)
            if trace is not None:
                trace.refused(error)
        request.processed()
        self.close(Cause.ERROR)
        return (refusal(error, request.headers, plain=self._settings.plain_errors),)


def _read_metadata(message: ProcessingRequest, request: RequestHalf) -> None:
    """Read the subset hint before the request is routed, and the endpoint that serves it afterwards."""
    if not message.HasField("metadata_context"):
        return
    metadata = message.metadata_context
    if request.routing is None:
        request.subset = read_subset(metadata) or request.subset
    else:
        served = read_served(metadata)
        if served is not None:
            request.routing.served_by(served)
