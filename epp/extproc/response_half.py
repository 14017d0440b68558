# SPDX-License-Identifier: Apache-2.0
"""The response half of an exchange: forwards pieces, reads usage, restores the model name."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import structlog

from epp.extproc import replies
from epp.extproc.exchange import (
    IN_PLACE,
    Answer,
    BodyMode,
    ExchangeSettings,
    GatewayTraits,
    Modes,
    Progress,
    expect,
    response_mode,
)
from epp.extproc.headers import MOST_BYTES, MOST_FIELDS, are_too_large, read_headers, read_some
from epp.extproc.replies import GRPC_STATUS, HTTP_BY_GRPC, is_grpc
from epp.extproc.settings import ResponseUsage
from epp.extproc.wire import HeaderMap, HttpBody, HttpHeaders
from epp.framework.clock import Clock
from epp.framework.errors import BadResponseError
from epp.framework.headers import (
    CONTENT_LENGTH,
    DECISION_REASON,
    ONLY_OURS,
    RETRY_AFTER,
    SERVED_ENDPOINT,
    UPSTREAM_SERVICE_TIME,
)
from epp.framework.messages import printable
from epp.routing.bodies.model_member import ModelRestorer
from epp.routing.director import Cause, PendingRequest, Routing
from epp.routing.outliers.record import Failure, failure_of

SHORT_BYTES = 8 * 1024
"""Largest piece that is always read in one step."""
_LONG_BYTES = 64 * 1024
_SLICE_BYTES = 32 * 1024
_DENSE_BYTES = 8
"""Average distance of lines and brackets below which JSON is unusually dense."""
_MARKS = b"\n\r{["

_log = structlog.get_logger()

_MOST_ENDPOINT = 128
_READ = frozenset({":status", "status", "content-encoding", "content-type", CONTENT_LENGTH, GRPC_STATUS, *ONLY_OURS})
_EXPECTED, _BODY, _ENDED = Progress
_CLIENT_ERROR = 400
_OF_SERVERS = frozenset({UPSTREAM_SERVICE_TIME, "date", "server"})
"""Headers of responses from servers; a gateway's own responses have none of them when the picker reads them."""
_EVENT_STREAM = "text/event-stream"
_NO_PIECE: tuple[bytes, bytes, bytes, bool] = (b"", b"", b"", False)
"""A piece, its unread part, the replacement of its read part, and whether it is the last one."""


class ResponseHalf:
    """Answers response messages, and reports them to the routing."""

    def __init__(self, clock: Clock, settings: ExchangeSettings, traits: GatewayTraits) -> None:
        self._modes = Modes()
        self._mode: BodyMode | None = None
        self._in_place = False
        self._requested_mode: BodyMode | None = None
        self._response_usage = settings.response_usage
        self._now = clock.now
        self._decision_headers = settings.decision_headers
        self._traits = traits
        self._headers_shown = False
        self.progress = _EXPECTED
        self._restorer: ModelRestorer | None = None
        self._started_at: float | None = None  # of a response that is not a stream
        self._bytes_left: int | None = None  # remaining, by content-length; None without one
        self._whole = False
        self._held: PendingRequest | None = None
        self._sliced = _NO_PIECE

    def begin(self, modes: Modes) -> None:
        """Set the modes that the first message states."""
        self._modes = modes
        self._use(modes.response)

    @property
    def unseen(self) -> bool:
        """Whether the gateway shows only the headers of this response, as far as known."""
        hidden = self._mode is BodyMode.NONE or self._requested_mode is BodyMode.STREAMED
        return hidden and self.progress is _BODY

    def on_headers(self, message: HttpHeaders, routing: Routing | None) -> Sequence[bytes]:
        """Read the status and the kind of body."""
        if self.progress is not _EXPECTED:
            expect("response_headers", self.progress, _EXPECTED)
        self.progress = _ENDED if message.end_of_stream else _BODY
        self._headers_shown = self._traits.shows_response_headers = True
        if are_too_large(message.headers):
            error = BadResponseError(MOST_FIELDS, MOST_BYTES)
            endpoint = None if routing is None or routing.served is None else routing.served.id
            _log.warning("response refused: its headers are too large", limit=error.detail, endpoint=endpoint)
            raise error
        headers = read_some(message.headers, _READ)
        length = headers.get(CONTENT_LENGTH)
        if length is not None and length.isdecimal():
            self._bytes_left = int(length)
        remove = [] if ONLY_OURS.isdisjoint(headers) else [name for name in ONLY_OURS if name in headers]
        added: Mapping[str, str] = {}
        if routing is not None:
            self._started_at = self._now()
            added = self._started(routing, headers, message)
            if self._restorer is not None:
                remove.append(CONTENT_LENGTH)  # the model's name changes the length
        answer = replies.response_headers_pass(added, remove)
        if self._requested_mode is not None and self._modes.request is not None:
            answer += replies.modes_field(self._modes.request, self._requested_mode)
        return (answer,)

    @property
    def is_held(self) -> bool:
        """Whether a piece is being read in slices."""
        return self._held is not None

    def on_body(self, message: HttpBody, routing: Routing | None) -> Sequence[Answer]:
        """Forward one piece; a long piece is read in slices first."""
        if self.progress is not _BODY:  # the gateway does not send response headers
            expect("response_body", self.progress, _EXPECTED)
            self.progress = _BODY
        if self._requested_mode is not None:
            if self._requested_mode is BodyMode.NONE:  # not granted
                self._use(self._modes.response)
            self._requested_mode = None
        piece, last = message.body, message.end_of_stream
        if len(piece) > SHORT_BYTES and routing is not None and self._needs_slices(piece, routing):
            self._held = held = PendingRequest(partial(self._read_slices, piece, routing, last=last))
            return (held,)
        return self._pass(piece, routing, piece, last=last)

    def resume(self) -> Sequence[bytes]:
        """Return the answers to the piece that was read in slices."""
        if self._held is None:
            return ()
        held, self._held = self._held, None
        routing = held.routing()
        piece, unread, restored, last = self._sliced
        self._sliced = _NO_PIECE
        return self._pass(piece, routing, unread, restored, last=last)

    def _needs_slices(self, piece: bytes, routing: Routing) -> bool:
        reads = self._restorer is not None or (routing.counts_tokens and not self._whole)
        return reads and bool(_slice_bytes(piece, routing))

    async def _read_slices(self, piece: bytes, routing: Routing, *, last: bool) -> Routing:
        """Read all slices of a long piece except the last, and yield to the event loop after each."""
        restored: list[bytes] = []
        *before, unread = slices(piece, _slice_bytes(piece, routing))
        for part in before:
            if not self._whole:
                routing.response_piece(part, last=False, now=self._now)
            if self._restorer is not None:
                restored.append(self._restorer.feed(part, last=False))
            await asyncio.sleep(0)
        self._sliced = piece, unread, b"".join(restored), last
        return routing

    def _pass(
        self, piece: bytes, routing: Routing | None, unread: bytes, restored: bytes = b"", *, last: bool
    ) -> list[bytes]:
        """Forward a piece; `unread` is the part after the slices that were read, `restored` replaces these slices."""
        whole = last
        if last:
            self.progress = _ENDED
        if self._bytes_left is not None:
            self._bytes_left -= len(piece)
            whole = last or self._bytes_left == 0
        report = b""
        began: float | None = None
        if routing is not None and not self._whole:
            began = self._now() if routing.is_stream else self._started_at
            routing.response_piece(unread, last=whole, now=self._now)
            if whole:  # the client may close the stream before the gateway shows its end
                self._whole = True
                report = replies.metadata_field(routing.report())
                if began is not None:
                    routing.processing_seconds += self._now() - began
                routing.complete(Cause.NATURAL)
        if self._restorer is not None:
            answers = self._restored(self._restorer, piece, unread, restored, last=last)
        elif self._in_place:
            answers = [replies.RESPONSE_BODY_PASS]
        else:
            answers = replies.response_body_pieces(piece, end_of_stream=last)
        if report:
            answers[-1] += report
        if began is not None and not whole and routing is not None and routing.is_stream:
            routing.processing_seconds += self._now() - began
        return answers

    def on_trailers(self, routing: Routing | None) -> Sequence[bytes]:
        """Forward the trailers after the buffered rest of the body."""
        expect("response_trailers", self.progress, _EXPECTED, _BODY)
        self.progress = _ENDED
        if self._mode is not BodyMode.NONE and routing is not None and not self._whole:
            routing.response_piece(b"", last=True, now=self._now)
        answers: list[bytes] = []
        if self._restorer is not None and not self._in_place:
            rest = self._restorer.feed(b"", last=True)
            if rest:
                answers += replies.response_body_pieces(rest, end_of_stream=False)
        report = b"" if routing is None or self._whole else replies.metadata_field(routing.report())
        return [*answers, replies.RESPONSE_TRAILERS_PASS + report]

    def _restored(
        self, restorer: ModelRestorer, piece: bytes, unread: bytes, restored: bytes, *, last: bool
    ) -> list[bytes]:
        if not self._in_place:
            return replies.response_body_pieces(restored + restorer.feed(unread, last=last), end_of_stream=last)
        whole = last or self._mode is not BodyMode.STREAMED  # a buffered piece is the last one shown
        changed = restored + restorer.feed(unread, last=whole)
        return [replies.RESPONSE_BODY_PASS if changed == piece else replies.response_body_replaced(changed)]

    def _request_mode(self, routing: Routing, *, restored: bool, event_stream: bool) -> bool:
        """Request a better body mode if there is one; return whether to count tokens."""
        counts = self._response_usage is not ResponseUsage.NEVER and not routing.request.body.skip_response
        needed = restored or routing.needs_response(event_stream=event_stream)
        if counts and self._response_usage is ResponseUsage.ALWAYS:
            needed = True
        if self.progress is _BODY:
            self._requested_mode = response_mode(self._modes, needed=needed, read=needed or counts)
            if self._requested_mode is not None:
                self._use(self._requested_mode)
        return needed or counts

    def assume(self, mode: BodyMode) -> None:
        """Set the mode of a gateway that states none."""
        if self._mode is None:
            self._use(mode)

    def check_headers_shown(self) -> None:
        """Log once for each gateway without response headers that decision headers have no effect."""
        wanted, self._decision_headers = self._decision_headers, False  # each exchange counts once
        if wanted and self._traits.end_of_exchange(headers_shown=self._headers_shown):
            _log.warning(
                "--decision-headers has no effect: the gateway does not show response headers; set "
                "response_header_mode SEND in processing_mode of its ext_proc filter"
            )

    def _started(self, routing: Routing, headers: Mapping[str, str], message: HttpHeaders) -> dict[str, str]:
        status = headers.get(":status") or headers.get("status", "")
        event_stream = _EVENT_STREAM in headers.get("content-type", "")
        if routing.request.body.grpc_response is not None:
            event_stream = routing.request.body.streaming
        client_model = routing.request.body.model if routing.request.rewrites_model else ""
        read = self._request_mode(routing, restored=bool(client_model), event_stream=event_stream)
        code = int(status) if status.isdecimal() else 0
        if GRPC_STATUS in headers and is_grpc(routing.request.headers):  # a response without a message
            code = HTTP_BY_GRPC.get(headers[GRPC_STATUS], code)
        added = routing.response_started(
            code,
            partial(read_headers, message.headers),
            event_stream=event_stream,
            count_tokens=read and "content-encoding" not in headers,
            failure=None if code < _CLIENT_ERROR else _failure(code, message.headers),
        )
        if self._mode is BodyMode.NONE:
            routing.response_unseen(self._now(), event_stream=event_stream)
        elif client_model:
            self._restorer = ModelRestorer(client_model, event_stream=event_stream)
        if self._decision_headers:
            added |= _decision(routing)
        return added

    def _use(self, mode: BodyMode | None) -> None:
        self._mode = mode
        self._in_place = mode in IN_PLACE


def _failure(status: int, fields: HeaderMap) -> Failure | None:
    signs = read_some(fields, _OF_SERVERS | {RETRY_AFTER})
    return failure_of(status, by_gateway=_OF_SERVERS.isdisjoint(signs), overloaded=RETRY_AFTER in signs)


def _decision(routing: Routing) -> dict[str, str]:
    served = routing.served
    address = served.hostport
    name = served.name if served.name == address else f"{served.name}={address}"
    text = printable(name.encode("ascii", "backslashreplace").decode(), _MOST_ENDPOINT)
    return {SERVED_ENDPOINT: text, DECISION_REASON: routing.decision.why(served)}


def _slice_bytes(piece: bytes, routing: Routing) -> int:
    return SHORT_BYTES if routing.request.body.grpc_response is not None else slice_bytes(piece)


def slice_bytes(piece: bytes) -> int:
    """Return the size of the slices for a piece; 0 to read it in one step."""
    size = len(piece)
    if size <= SHORT_BYTES:
        return 0
    codes = np.frombuffer(piece, np.uint8)
    if sum(np.count_nonzero(codes == mark) for mark in _MARKS) * _DENSE_BYTES > size:
        return SHORT_BYTES
    return _SLICE_BYTES if size > _LONG_BYTES else 0


def slices(piece: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(piece), size):
        yield piece[start : start + size]
