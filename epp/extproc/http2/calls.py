# SPDX-License-Identifier: Apache-2.0
"""The streams of one connection and their calls: from the first message to the status."""

from array import array
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from epp.extproc.http2.fair_scheduler import MOST_ENDINGS
from epp.extproc.http2.frames import DATA, END_STREAM, frame, rst_stream_frame
from epp.extproc.http2.limits import Budget, Limits
from epp.extproc.http2.service import (
    HEADERS_BLOCK,
    HEALTH,
    Answers,
    Call,
    ErrorCode,
    Host,
    Methods,
    Outlet,
    RpcError,
    Status,
    not_grpc,
    trailers_block,
)
from epp.extproc.http2.streams import Head, Stream
from epp.extproc.http2.windows import Windows

_log = structlog.get_logger()

_REASONS: Final = {
    Status.RESOURCE_EXHAUSTED: "too many bytes of messages are buffered: send them later",
    Status.DEADLINE_EXCEEDED: "the rest of the request did not arrive in time",
}
_HEALTH_CHECKS: Final = f"/{HEALTH}/"
_LEAST_REMEMBERED: Final = 4096
_UNDER_WAY: Final = 8
"""Frames that a client may send before it learns that we ended a stream."""


class Calls:
    """Opens, drives and ends the calls of a connection; an exception ends only its own call.

    Each call is closed once. A call that waits for an answer is closed after that answer is settled or cancelled.
    """

    def __init__(self, methods: Methods, windows: Windows, host: Host, peer: str, limits: Limits) -> None:
        self._limits = limits
        self._methods = methods
        self._windows = windows
        self._host = host
        self._peer = peer
        self._leaving: dict[int, Call] = {}  # closed streams whose call still waits for an answer
        self._remembered = max(_LEAST_REMEMBERED, limits.max_streams)  # all streams may end at once
        self._closed = array("Q")  # a ring that grows up to that size: number, doubled, plus 1 if we ended it
        self.open: dict[int, Stream] = {}
        """Streams that are not closed in both directions."""
        self.last_id = 0
        """The highest number that the peer has used."""
        self.begun = 0
        """Calls so far, except health checks."""
        self.strays = Budget(limits.strays, "frames on closed streams")

    def begin(self, stream: Stream, head: Head) -> None:
        """Open a stream and the call that the head of its request names."""
        self.open[stream.id] = stream
        if not head.is_grpc:
            stream.refusal = not_grpc(head.method, head.content_type)
            return
        method = self._methods.get(head.path)
        if method is None:
            self.finish(stream, Status.UNIMPLEMENTED, f"unknown method {head.path[:100]}")
            return
        self.begun += not head.path.startswith(_HEALTH_CHECKS)
        stream.account.on_evict = partial(self._evict, stream)
        try:
            stream.call = method(Outlet(self, stream, self._peer, head.metadata))
            self._wait_for_message(stream, stream.call)
        except Exception as error:  # noqa: BLE001  one call fails, the process stays up
            self._fail(stream, error)
        else:
            stream.ready = stream.length_left is None

    def deliver(self, stream: Stream, message: bytes) -> None:
        """Give a message to the call of a stream that is not blocked."""
        if stream.silence is not None:
            stream.silence.cancel()
            stream.silence = None
        call = stream.call
        if call is None:
            return
        try:
            self._reply(stream, call, call.receive(message))
        except Exception as error:  # noqa: BLE001  one call fails, the process stays up
            self._fail(stream, error)

    def has_room(self, stream: Stream, size: int) -> bool:
        """Reserve memory for more bytes of a stream; without room, end its call and return False."""
        if not stream.account.add(size):
            self._end_early(stream, Status.RESOURCE_EXHAUSTED)
            return False
        stream.counted += size
        return True

    def pump(self, stream: Stream) -> None:
        """Deliver complete messages until the stream is blocked."""
        try:
            while not stream.blocked and (message := stream.inbox.next()) is not None:
                stream.count()
                self.deliver(stream, message)
        except RpcError as error:
            self._unreadable(stream, error)
        if stream.remote_ended and not stream.half_closed and not stream.blocked:
            self._half_close(stream)
        if stream.id in self.open:
            stream.count()
            stream.ready = not (
                stream.blocked or stream.inbox.in_message or stream.remote_ended or stream.length_left is not None
            )
            self._windows.consumed(stream)

    def request_ended(self, stream: Stream) -> None:
        stream.remote_ended = True
        stream.ready = False
        if stream.refusal is None:
            self.pump(stream)
            return
        block, body = stream.refusal
        self._windows.send_headers(stream.id, block)
        stream.unsent += len(body)
        stream.outbox.append(memoryview(body))
        self._windows.push(stream)
        self._end(stream, b"")

    def sweep(self, now: float) -> bool:
        """End stalled calls, at most `MOST_ENDINGS` of them; return whether there are more."""
        limits = self._limits
        enough = len(self.open) - MOST_ENDINGS
        for stream in list(self.open.values()):
            if len(self.open) <= enough:
                return True
            if stream.outbox:
                if stream.stuck is None or stream.stuck[0] != stream.unsent:
                    stream.stuck = stream.unsent, now
                elif now - stream.stuck[1] > limits.write_stall_seconds:
                    self.reset(stream, ErrorCode.CANCEL)
                continue
            stream.stuck = None
            call = stream.call
            if stream.waiting is not None or now - stream.received_at <= limits.stall_seconds:
                continue
            if call is None:  # not gRPC: refused at the end of its request
                self.reset(stream, ErrorCode.CANCEL)
            elif stream.inbox.in_message or call.awaits_more:
                self._end_early(stream, Status.DEADLINE_EXCEEDED)
        return False

    def settled(self, stream_id: int, error: Exception | None) -> None:
        """Resume a call after its answer is settled or cancelled."""
        left = self._leaving.pop(stream_id, None)
        if left is not None:
            _close(left)
            return
        stream = self.open.get(stream_id)
        if stream is None or stream.call is None or stream.waiting is None:
            return
        stream.waiting = None
        if error is not None:
            self._fail(stream, error)
        else:
            self._ask(stream, stream.call, stream.call.resume)
            self.proceed(stream)

    def proceed(self, stream: Stream) -> None:
        """Resume a stream that may have been blocked: end it, or deliver waiting messages."""
        if stream.id not in self.open:
            return
        if stream.outbox:
            stream.ready = False
        elif stream.ending is not None:
            self._end(stream, stream.ending)
        else:
            self.pump(stream)

    def send(self, stream: Stream, message: bytes) -> None:
        """Send an unprompted message if the call is open."""
        if stream.call is not None:
            try:
                self._windows.send_message(stream, message)
            except RpcError as error:
                self._fail(stream, error)
            if stream.outbox:
                stream.ready = False
            self._host.flush()

    def stop(self, stream: Stream) -> None:
        """End a call with OK, if it is open."""
        if stream.call is not None:
            self.finish(stream)
            self._host.flush()

    def finish(self, stream: Stream, status: Status = Status.OK, message: str = "") -> None:
        """End a call with a status, after its unsent answers."""
        self._leave(stream)
        block = trailers_block(status, message)
        self._end(stream, block if stream.headers_sent else HEADERS_BLOCK + block)

    def drop(self, stream: Stream, *, by_us: bool = False) -> None:
        """Close a stream and its call without another frame."""
        self._leave(stream)
        self._windows.forget(stream)
        self._remove(stream, by_us=by_us)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Close a stream and its call with RST_STREAM."""
        self._windows.out.append(rst_stream_frame(stream.id, code))
        self.drop(stream, by_us=True)

    def record_closed(self, stream_id: int, *, by_us: bool) -> None:
        """Remember a closed stream; if we ended it, the peer may send more frames on it."""
        if by_us:
            self.strays.expect(_UNDER_WAY, most=_UNDER_WAY * self._remembered)
        place = (stream_id >> 1) % self._remembered
        if place >= len(self._closed):
            self._closed.frombytes(bytes(self._closed.itemsize * (place + 1 - len(self._closed))))
        self._closed[place] = stream_id << 1 | by_us

    def closed_by_us(self, stream_id: int) -> bool | None:
        """Return whether we ended a closed stream; None for one that was skipped or closed long ago."""
        place = (stream_id >> 1) % self._remembered
        entry = self._closed[place] if place < len(self._closed) else 0
        return bool(entry & 1) if entry >> 1 == stream_id else None

    def _fail(self, stream: Stream, error: Exception) -> None:
        if isinstance(error, RpcError):
            self.finish(stream, error.status, str(error))
            return
        _log.error("call failed", error=f"{type(error).__name__}: {error}", peer=self._peer, exc_info=error)
        self.finish(stream, Status.INTERNAL, f"{type(error).__name__} in the server")

    def _end(self, stream: Stream, trailers: bytes) -> None:
        """End our side once the outbox is sent; empty `trailers` for none."""
        if stream.outbox:
            stream.ending = trailers
            return
        out = self._windows.out
        if trailers:
            self._windows.send_headers(stream.id, trailers, END_STREAM)
        else:
            out.append(frame(DATA, END_STREAM, stream.id))
        if not stream.remote_ended:  # stops the client from sending the rest
            out.append(rst_stream_frame(stream.id, ErrorCode.NO_ERROR))
        self._remove(stream, by_us=not stream.remote_ended)

    def _evict(self, stream: Stream) -> None:
        """End a call in a later iteration of the loop: another call needs the room and is active now."""
        self._host.after(0, partial(self._end_early, stream, Status.RESOURCE_EXHAUSTED))

    def _end_early(self, stream: Stream, status: Status) -> None:
        call = stream.call
        if call is None:
            return
        if stream.blocked:  # a status cannot overtake unread or unknown answers
            self.reset(stream, ErrorCode.ENHANCE_YOUR_CALM)
            return
        stream.inbox.clear()
        self._ask(stream, call, partial(call.end_early, status))
        if stream.call is not None:
            self.finish(stream, status, _REASONS[status])

    def _ask(self, stream: Stream, call: Call, callback: Callable[[], Answers]) -> None:
        try:
            self._reply(stream, call, callback())
        except Exception as error:  # noqa: BLE001  one call fails, the process stays up
            self._fail(stream, error)

    def _reply(self, stream: Stream, call: Call, answers: Answers) -> None:
        windows = self._windows
        for answer in answers:
            if isinstance(answer, bytes):
                windows.send_message(stream, answer)
            else:
                stream.ready = False
                stream.waiting = self._host.hold(stream.id, answer)
                return
        if call.done:
            self.finish(stream)
        else:
            if stream.outbox:
                stream.ready = False
            self._wait_for_message(stream, call)

    def _wait_for_message(self, stream: Stream, call: Call) -> None:
        timeout = call.silence_timeout
        if timeout is not None:
            stream.silence = self._host.after(timeout, partial(self._silent, stream))

    def _half_close(self, stream: Stream) -> None:
        stream.half_closed = True
        if stream.call is None:
            return
        if stream.inbox.in_message:
            self._unreadable(stream, RpcError(Status.INTERNAL, "the request ended within a message"))
        else:
            self._ask(stream, stream.call, stream.call.half_close)

    def _unreadable(self, stream: Stream, error: RpcError) -> None:
        if stream.call is not None:
            stream.call.unreadable(error)
        self._fail(stream, error)

    def _silent(self, stream: Stream) -> None:
        stream.silence = None
        call = stream.call
        if call is not None and not stream.blocked:
            self._ask(stream, call, call.on_silence)
            self.proceed(stream)

    def _leave(self, stream: Stream) -> None:
        """Close the call of a stream, now or once it no longer waits."""
        stream.ready = False
        if stream.silence is not None:
            stream.silence.cancel()
            stream.silence = None
        if stream.inbox.size:
            stream.inbox.clear()
        call, stream.call = stream.call, None
        if call is None:
            return
        if stream.waiting is not None:
            self._leaving[stream.id] = call
            stream.waiting()
            stream.waiting = None
        else:
            _close(call)

    def _remove(self, stream: Stream, *, by_us: bool) -> None:
        stream.account.close()
        del self.open[stream.id]
        self.record_closed(stream.id, by_us=by_us)
        self._windows.release(stream)


def _close(call: Call) -> None:
    try:
        call.close()
    except Exception as error:  # noqa: BLE001  the stream is closed anyway
        _log.error("call failed to close", error=f"{type(error).__name__}: {error}", exc_info=error)
