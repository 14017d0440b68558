# SPDX-License-Identifier: Apache-2.0
"""The response half of an exchange: passes pieces on, reads usage, restores the model name."""

from collections.abc import Iterator

import structlog

from epp.bodies import ModelRestorer
from epp.director import Cause, Routing
from epp.extproc import replies
from epp.extproc.exchange import Progress, expect
from epp.extproc.headers import read_headers
from epp.extproc.modes import BodyMode, GatewayTraits, Modes
from epp.extproc.overrides import IN_PLACE, ResponseUsage, response_mode
from epp.extproc.wire import HttpBody, HttpHeaders, ProcessingResponse
from epp.framework.clock import Clock
from epp.framework.headers import CONTENT_LENGTH, DECISION_REASON, ONLY_OURS, SERVED_ENDPOINT
from epp.framework.printable import printable
from epp.framework.roles import Metadata

_log = structlog.get_logger()

_MOST_ENDPOINT = 128


class ResponseHalf:
    """Answers response messages, and reports them to the routing, if there is one."""

    __slots__ = (
        "_asked",
        "_bytes_left",
        "_clock",
        "_decision_headers",
        "_headers_shown",
        "_mode",
        "_modes",
        "_progress",
        "_response_usage",
        "_restorer",
        "_traits",
        "_whole",
    )

    def __init__(
        self,
        modes: Modes,
        clock: Clock,
        *,
        decision_headers: bool = False,
        response_usage: ResponseUsage = ResponseUsage.AUTO,
        traits: GatewayTraits,
    ) -> None:
        self._modes = modes
        self._mode = modes.response
        self._asked: BodyMode | None = None
        self._response_usage = response_usage
        self._clock = clock
        self._decision_headers = decision_headers
        self._traits = traits
        self._headers_shown = False
        self._progress = Progress.EXPECTED
        self._restorer: ModelRestorer | None = None
        self._bytes_left: int | None = None  # by content-length; None without one
        self._whole = False

    @property
    def ended(self) -> bool:
        """Whether the response is complete."""
        return self._progress is Progress.ENDED

    @property
    def unseen(self) -> bool:
        """Whether headers are all that the gateway shows of this response, for all that is known."""
        hidden = self._mode is BodyMode.NONE or self._asked is BodyMode.STREAMED
        return hidden and self._progress is Progress.BODY

    def on_headers(self, message: HttpHeaders, routing: Routing | None) -> Iterator[ProcessingResponse]:
        """Read the status and the kind of body."""
        expect("response_headers", self._progress, Progress.EXPECTED)
        self._progress = Progress.ENDED if message.end_of_stream else Progress.BODY
        self._headers_shown = True
        headers = read_headers(message.headers)
        status = headers.first_of(":status", "status") or ""
        length = headers.get(CONTENT_LENGTH, "")
        self._bytes_left = int(length) if length.isdecimal() else None
        event_stream = "text/event-stream" in headers.get("content-type", "")
        remove = [name for name in ONLY_OURS if name in headers]
        added: dict[str, str] = {}
        if routing is not None:
            code = int(status) if status.isdecimal() else 0
            restored = routing.request.body.model if routing.request.rewrites_model else ""
            read = self._ask(routing, restored=bool(restored), event_stream=event_stream)
            added = routing.response_started(code, headers, event_stream=event_stream, count_tokens=read)
            if self._mode is BodyMode.NONE:
                routing.response_unseen(self._clock.now(), event_stream=event_stream)
            elif restored:
                self._restorer = ModelRestorer(restored, event_stream=event_stream)
                remove.append(CONTENT_LENGTH)  # another name is of another length
            if self._decision_headers:
                added |= _decision(routing)
        reply = replies.response_headers_pass(added, [name for name in remove if name not in added])
        if self._asked is not None and self._modes.request is not None:
            replies.with_modes(reply, self._modes.request, self._asked)
        yield reply

    def on_body(self, message: HttpBody, routing: Routing | None) -> Iterator[ProcessingResponse]:
        """Let one piece pass."""
        if self._progress is Progress.EXPECTED:  # the gateway does not send response headers
            self._progress = Progress.BODY
        expect("response_body", self._progress, Progress.BODY)
        if self._asked is BodyMode.NONE:  # not granted
            self._mode = self._modes.response
        self._asked = None
        piece, last = message.body, message.end_of_stream
        if last:
            self._progress = Progress.ENDED
        if self._bytes_left is not None:
            self._bytes_left -= len(piece)
        report: Metadata = {}
        if routing is not None and not self._whole:
            self._whole = last or self._bytes_left == 0
            routing.response_piece(piece, last=self._whole, now=self._clock.now())
            if self._whole:  # a client that has it all may cut the stream before its end is shown
                report = routing.report()
                routing.complete(Cause.NATURAL)
        if self._mode in IN_PLACE:
            yield replies.with_metadata(replies.response_body_pass(self._restored_in_place(piece, last=last)), report)
        else:
            restored = piece if self._restorer is None else self._restorer.feed(piece, last=last)
            *pieces, final = replies.response_body_pieces(restored, end_of_stream=last)
            yield from pieces
            yield replies.with_metadata(final, report)

    def on_trailers(self, routing: Routing | None) -> Iterator[ProcessingResponse]:
        """Let the trailers pass, after whatever of the body was held back."""
        expect("response_trailers", self._progress, Progress.EXPECTED, Progress.BODY)
        self._progress = Progress.ENDED
        if self._mode is not BodyMode.NONE and routing is not None and not self._whole:
            routing.response_piece(b"", last=True, now=self._clock.now())
        if self._restorer is not None and self._mode not in IN_PLACE:
            rest = self._restorer.feed(b"", last=True)
            if rest:
                yield from replies.response_body_pieces(rest, end_of_stream=False)
        report = {} if routing is None or self._whole else routing.report()
        yield replies.with_metadata(replies.response_trailers_pass(), report)

    def _ask(self, routing: Routing, *, restored: bool, event_stream: bool) -> bool:
        """Ask for another body mode where one is better; return whether tokens are to be counted."""
        counts = self._response_usage is not ResponseUsage.NEVER and not routing.request.body.skip_response
        needed = restored or routing.needs_response(event_stream=event_stream)
        if counts and self._response_usage is ResponseUsage.ALWAYS:
            needed = True
        if self._progress is Progress.BODY:
            self._asked = response_mode(self._modes, needed=needed, read=needed or counts)
            self._mode = self._mode if self._asked is None else self._asked
        return needed or counts

    def assume(self, mode: BodyMode) -> None:
        """Use this mode if the gateway states none."""
        if self._mode is None:
            self._mode = mode

    def end(self) -> None:
        """Accept no more messages."""
        self._progress = Progress.ENDED

    def check_headers_shown(self) -> None:
        """Log once for each gateway that decision headers have no effect, since it shows no response headers."""
        asked, self._decision_headers = self._decision_headers, False  # one exchange counts once
        if asked and self._traits.end_of_exchange(headers_shown=self._headers_shown):
            _log.warning(
                "--decision-headers has no effect: the gateway does not show response headers; set "
                "response_header_mode SEND in processing_mode of its ext_proc filter"
            )

    def _restored_in_place(self, piece: bytes, *, last: bool) -> bytes | None:
        """Return what goes in the piece's place; None for the piece itself."""
        if self._restorer is None:
            return None
        whole = last or self._mode is not BodyMode.STREAMED  # what follows a buffered piece is not shown
        restored = self._restorer.feed(piece, last=whole)
        return None if restored == piece else restored


def _decision(routing: Routing) -> dict[str, str]:
    """Return the headers that tell the endpoint that serves, and why."""
    served = routing.served
    address = served.hostport
    name = served.name if served.name == address else f"{served.name}={address}"
    text = printable(name.encode("ascii", "backslashreplace").decode(), _MOST_ENDPOINT)
    return {SERVED_ENDPOINT: text, DECISION_REASON: routing.decision.why(served)}
