# SPDX-License-Identifier: Apache-2.0
"""Calls on the streams of one connection: messages in, answers out."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from epp.extproc.http2.endings import Endings
from epp.extproc.http2.heads import Head
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.service import Answers, Call, Host, Methods
from epp.extproc.http2.status import ErrorCode, RpcError, Status, not_grpc
from epp.extproc.http2.streams import Stream, StreamTable
from epp.extproc.http2.windows import Receiving, Sending

_REASONS: Final = {
    Status.RESOURCE_EXHAUSTED: "too many bytes of messages wait here: send them later",
    Status.DEADLINE_EXCEEDED: "nothing more of the request came in time",
}


class Calls:
    """Opens and drives the calls; an exception of one ends that one."""

    def __init__(
        self,
        methods: Methods,
        endings: Endings,
        *,
        sending: Sending,
        receiving: Receiving,
        table: StreamTable,
        host: Host,
        peer: str,
        limits: Limits,
    ) -> None:
        self._limits = limits
        self._methods = methods
        self._endings = endings
        self._sending = sending
        self._receiving = receiving
        self._table = table
        self._host = host
        self._peer = peer

    def open(self, stream: Stream, head: Head) -> None:
        """Open the call that the head of a request asks for."""
        if not head.is_grpc:
            stream.refusal = not_grpc(head.method, head.content_type)
            return
        method = self._methods.get(head.path)
        if method is None:
            self._endings.finish(stream, Status.UNIMPLEMENTED, f"unknown method {head.path[:100]}")
            return
        if head.timeout is not None:
            if math.isnan(head.timeout):
                problem = "grpc-timeout is not a number of at most 8 digits and a unit"
                self._endings.finish(stream, Status.INTERNAL, problem)
                return
            self._endings.set_deadline(stream, head.timeout)
        stream.account.on_give_way = partial(self._give_way, stream)
        try:
            stream.call = method(_Outlet(self, stream, self._peer, head.metadata))
            self._wait_for_message(stream, stream.call)
        except Exception as error:  # noqa: BLE001  one call fails, the process stays up
            self._endings.fail(stream, error)
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
        except Exception as error:  # noqa: BLE001  the same
            self._endings.fail(stream, error)

    def has_room(self, stream: Stream, size: int) -> bool:
        """Whether bytes more of a stream may wait; where not, its call has ended."""
        if not stream.account.add(size):
            self._end_early(stream, Status.RESOURCE_EXHAUSTED)
            return False
        stream.counted += size
        return True

    def pump(self, stream: Stream) -> None:
        """Deliver what has come, as far as the stream is not blocked."""
        try:
            while not stream.blocked and (message := stream.inbox.next()) is not None:
                stream.count()
                self.deliver(stream, message)
        except RpcError as error:
            self._unreadable(stream, error)
        if stream.remote_ended and not stream.half_closed and not stream.blocked:
            self._half_close(stream)
        if stream.id in self._table.open:
            stream.count()
            stream.ready = not (
                stream.blocked or stream.inbox.in_message or stream.remote_ended or stream.length_left is not None
            )
            self._receiving.account(stream)

    def request_ended(self, stream: Stream) -> None:
        """Take note that the client sends no more."""
        stream.remote_ended = True
        stream.ready = False
        if stream.refusal is None:
            self.pump(stream)
            return
        block, body = stream.refusal
        self._sending.out.append(self._sending.headers(stream.id, block))
        self._sending.data(stream, body)
        self._endings.end(stream, b"")

    def sweep(self, now: float, most: int) -> bool:
        """End calls of which nothing has moved for too long, so many at `most`; return whether there are more."""
        limits = self._limits
        still_open = self._table.open
        enough = len(still_open) - most
        for stream in list(still_open.values()):
            if len(still_open) <= enough:
                return True
            if stream.outbox:
                if stream.stuck is None or stream.stuck[0] != stream.unsent:
                    stream.stuck = stream.unsent, now
                elif now - stream.stuck[1] > limits.write_stall_seconds:
                    self._endings.reset(stream, ErrorCode.CANCEL)
                continue
            stream.stuck = None
            call = stream.call
            if stream.waiting is not None or now - stream.heard_at <= limits.stall_seconds:
                continue
            if call is None:  # refused, once its request has ended
                self._endings.reset(stream, ErrorCode.CANCEL)
            elif stream.inbox.in_message or call.awaits_more:
                self._end_early(stream, Status.DEADLINE_EXCEEDED)
        return False

    def settled(self, stream_id: int, error: Exception | None) -> None:
        """Go on with a call whose answer is settled, or given up."""
        if self._endings.given_up(stream_id):
            return
        stream = self._table.open.get(stream_id)
        if stream is None or stream.call is None or stream.waiting is None:
            return
        stream.waiting = None
        if error is not None:
            self._endings.fail(stream, error)
        else:
            self._ask(stream, stream.call, stream.call.resume)
            self.proceed(stream)

    def proceed(self, stream: Stream) -> None:
        """Go on with a stream that may have had to wait: end it, or deliver what has come."""
        if stream.id not in self._table.open:
            return
        if stream.outbox:
            stream.ready = False
        elif stream.ending is not None:
            self._endings.end(stream, stream.ending)
        else:
            self.pump(stream)

    def push(self, stream: Stream, message: bytes) -> None:
        """Send a message that the client did not prompt, if its call is open."""
        if stream.call is not None:
            try:
                self._sending.message(stream, message)
            except RpcError as error:
                self._endings.fail(stream, error)
            if stream.outbox:
                stream.ready = False
            self._host.flush()

    def stop(self, stream: Stream) -> None:
        """End a call with OK, if it is open."""
        if stream.call is not None:
            self._endings.finish(stream)
            self._host.flush()

    def _give_way(self, stream: Stream) -> None:
        """End a call in a turn of its own: it is another that needs the room."""
        self._host.after(0, partial(self._end_early, stream, Status.RESOURCE_EXHAUSTED))

    def _end_early(self, stream: Stream, status: Status) -> None:
        call = stream.call
        if call is None:
            return
        if stream.blocked:  # a status could only follow what the client does not take, or what is not known yet
            self._endings.reset(stream, ErrorCode.ENHANCE_YOUR_CALM)
            return
        stream.inbox.clear()
        self._ask(stream, call, partial(call.give_way, status))
        if stream.call is not None:
            self._endings.finish(stream, status, _REASONS[status])

    def _ask(self, stream: Stream, call: Call, callback: Callable[[], Answers]) -> None:
        try:
            self._reply(stream, call, callback())
        except Exception as error:  # noqa: BLE001  the same
            self._endings.fail(stream, error)

    def _reply(self, stream: Stream, call: Call, answers: Answers) -> None:
        sending = self._sending
        for answer in answers:
            if isinstance(answer, bytes):
                sending.message(stream, answer)
            else:
                stream.ready = False
                stream.waiting = self._host.hold(stream.id, answer)
                return
        if call.done:
            self._endings.finish(stream)
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
        self._endings.fail(stream, error)

    def _silent(self, stream: Stream) -> None:
        stream.silence = None
        call = stream.call
        if call is not None and not stream.blocked:
            self._ask(stream, call, call.on_silence)
            self.proceed(stream)


class _Outlet:
    """The way back to the client of one call."""

    __slots__ = ("_calls", "_stream", "account", "metadata", "peer")

    def __init__(self, calls: Calls, stream: Stream, peer: str, metadata: Mapping[str, str]) -> None:
        self.account = stream.account
        self._calls = calls
        self._stream = stream
        self.peer = peer
        self.metadata = metadata

    def send(self, message: bytes) -> None:
        self._calls.push(self._stream, message)

    def finish(self) -> None:
        self._calls.stop(self._stream)
