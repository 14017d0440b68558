# SPDX-License-Identifier: Apache-2.0
"""Calls on the streams of one connection: messages in, answers and status out."""

import math
from functools import partial

import structlog

from epp.grpc_http2.codes import ErrorCode
from epp.grpc_http2.frames import DATA, END_STREAM, frame, rst_stream_frame
from epp.grpc_http2.heads import Head
from epp.grpc_http2.limits import Limits
from epp.grpc_http2.receiving import Receiving
from epp.grpc_http2.sending import Sending
from epp.grpc_http2.service import Answers, Call, Host, Methods
from epp.grpc_http2.status import HEADERS_BLOCK, RpcError, Status, not_grpc, trailers_block
from epp.grpc_http2.streams import Fate, Stream, StreamTable

_log = structlog.get_logger()


class Calls:
    """Opens, drives and closes the calls; an exception of one ends that one."""

    def __init__(
        self,
        methods: Methods,
        limits: Limits,
        *,
        sending: Sending,
        receiving: Receiving,
        table: StreamTable,
        host: Host,
        peer: str,
    ) -> None:
        self._methods = methods
        self._limits = limits
        self._sending = sending
        self._receiving = receiving
        self._table = table
        self._host = host
        self._peer = peer
        self._leaving: dict[int, Call] = {}  # closed once the answer that they wait for is given up

    def open(self, stream: Stream, head: Head) -> None:
        """Open the call that the head of a request asks for."""
        if not head.is_grpc:
            stream.refusal = not_grpc(head.method, head.content_type)
            return
        method = self._methods.get(head.path)
        if method is None:
            self.finish(stream, Status.UNIMPLEMENTED, f"unknown method {head.path[:100]}")
            return
        if head.timeout is not None:
            if math.isnan(head.timeout):
                self.finish(stream, Status.INTERNAL, "grpc-timeout is not a number of at most 8 digits and a unit")
                return
            stream.deadline = self._host.after(head.timeout, partial(self._expired, stream))
        try:
            stream.call = method(_CallOutlet(self._sending, self._host, self, stream, self._peer))
        except Exception as error:  # noqa: BLE001  one call fails, the process stays up
            self._fail(stream, error)
            return
        stream.ready = stream.length_left is None
        self._wait_for_message(stream, stream.call)

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
            self._fail(stream, error)

    def pump(self, stream: Stream) -> None:
        """Deliver what has come, as far as the stream is not blocked."""
        try:
            while not stream.blocked and (message := stream.inbox.next()) is not None:
                self.deliver(stream, message)
        except RpcError as error:
            self.finish(stream, error.status, str(error))
        if stream.remote_ended and not stream.half_closed and not stream.blocked:
            self._half_close(stream)
        if stream.id in self._table.open:
            stream.ready = not (
                stream.blocked or stream.inbox.in_message or stream.remote_ended or stream.length_left is not None
            )
            self._receiving.account(stream)

    def request_ended(self, stream: Stream) -> None:
        """Take note that the client sends no more."""
        stream.remote_ended = True
        stream.ready = False
        if stream.refusal is not None:
            block, body = stream.refusal
            self._sending.out.append(self._sending.headers(stream.id, block))
            self._sending.data(stream, body)
            stream.ending = b""
            self._end_when_sent(stream)
        else:
            self.pump(stream)

    def settled(self, stream_id: int, error: Exception | None) -> None:
        """Go on with a call whose answer is settled, or given up."""
        leaving = self._leaving.pop(stream_id, None)
        if leaving is not None:
            _close(leaving)
            return
        stream = self._table.open.get(stream_id)
        if stream is None or stream.call is None or stream.waiting is None:
            return
        stream.waiting = None
        if error is not None:
            self._fail(stream, error)
            return
        call = stream.call
        try:
            self._reply(stream, call, call.resume())
        except Exception as problem:  # noqa: BLE001  the same
            self._fail(stream, problem)
        self.proceed(stream)

    def proceed(self, stream: Stream) -> None:
        """Go on with a stream that may have had to wait: end it, or deliver what has come."""
        if stream.id not in self._table.open:
            return
        if stream.outbox:
            stream.ready = False
        elif stream.ending is not None:
            self._end(stream, stream.ending)
        else:
            self.pump(stream)

    def finish(self, stream: Stream, status: Status = Status.OK, message: str = "") -> None:
        """End a call with a status, after what is still to be sent."""
        self.leave(stream)
        block = trailers_block(status, message)
        stream.ending = block if stream.headers_sent else HEADERS_BLOCK + block
        self._end_when_sent(stream)

    def leave(self, stream: Stream) -> None:
        """Close the call of a stream, now or once it no longer waits."""
        stream.ready = False
        if stream.deadline is not None:
            stream.deadline.cancel()
            stream.deadline = None
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
            stream.waiting.cancel()
            stream.waiting = None
        else:
            _close(call)

    def drop(self, stream: Stream, fate: Fate) -> None:
        """Close a stream and its call without another frame."""
        self.leave(stream)
        self._sending.forget(stream)
        self._table.remove(stream, fate)
        self._receiving.release(stream)

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
        call = stream.call
        if call is None:
            return
        if stream.inbox.in_message:
            self.finish(stream, Status.INTERNAL, "the request ended within a message")
            return
        try:
            self._reply(stream, call, call.half_close())
        except Exception as error:  # noqa: BLE001  the same
            self._fail(stream, error)

    def _silent(self, stream: Stream) -> None:
        stream.silence = None
        call = stream.call
        if call is None or stream.blocked:
            return
        try:
            for answer in call.on_silence():
                if not isinstance(answer, bytes):
                    stream.ready = False
                    stream.waiting = self._host.hold(stream.id, answer)
                    break
                self._sending.message(stream, answer)
        except Exception as error:  # noqa: BLE001  the same
            self._fail(stream, error)
        self.proceed(stream)

    def _expired(self, stream: Stream) -> None:
        stream.deadline = None
        if stream.id not in self._table.open:
            return
        if stream.outbox:  # a status could only follow what the client does not take
            self._sending.out.append(rst_stream_frame(stream.id, ErrorCode.CANCEL))
            self.drop(stream, Fate.ABANDONED)
        else:
            self.finish(stream, Status.DEADLINE_EXCEEDED, "the deadline of the client has passed")

    def _fail(self, stream: Stream, error: Exception) -> None:
        if isinstance(error, RpcError):
            self.finish(stream, error.status, str(error))
            return
        _log.error("call failed", error=f"{type(error).__name__}: {error}", peer=self._peer, exc_info=error)
        self.finish(stream, Status.INTERNAL, f"{type(error).__name__} in the server")

    def _end_when_sent(self, stream: Stream) -> None:
        if not stream.outbox:
            self._end(stream, stream.ending or b"")
        else:
            stream.deadline = self._host.after(self._limits.write_stall_seconds, partial(self._expired, stream))

    def _end(self, stream: Stream, block: bytes) -> None:
        if stream.deadline is not None:
            stream.deadline.cancel()
        out = self._sending.out
        if block:
            out.append(self._sending.headers(stream.id, block, END_STREAM))
        else:
            out.append(frame(DATA, END_STREAM, stream.id))
        fate = Fate.ENDED
        if not stream.remote_ended:  # the client need not send the rest
            out.append(rst_stream_frame(stream.id, ErrorCode.NO_ERROR))
            fate = Fate.ABANDONED
        self._table.remove(stream, fate)
        self._receiving.release(stream)


class _CallOutlet:
    """The way back to the client of one call."""

    __slots__ = ("_calls", "_host", "_sending", "_stream", "peer")

    def __init__(self, sending: Sending, host: Host, calls: Calls, stream: Stream, peer: str) -> None:
        self._sending = sending
        self._host = host
        self._calls = calls
        self._stream = stream
        self.peer = peer

    def send(self, message: bytes) -> None:
        if self._stream.call is not None:
            self._sending.message(self._stream, message)
            self._host.flush()

    def finish(self) -> None:
        if self._stream.call is not None:
            self._calls.finish(self._stream)
            self._host.flush()


def _close(call: Call) -> None:
    try:
        call.close()
    except Exception as error:  # noqa: BLE001  the stream is closed all the same
        _log.error("call failed to close", error=f"{type(error).__name__}: {error}", exc_info=error)
