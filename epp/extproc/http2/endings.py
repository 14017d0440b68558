# SPDX-License-Identifier: Apache-2.0
"""The end of a call: status, end of stream, release of its resources."""

from functools import partial

import structlog

from epp.extproc.http2.frames import DATA, END_STREAM, frame, rst_stream_frame
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.service import Call, Host
from epp.extproc.http2.status import HEADERS_BLOCK, ErrorCode, RpcError, Status, trailers_block
from epp.extproc.http2.streams import Fate, Stream, StreamTable
from epp.extproc.http2.windows import Receiving, Sending

_log = structlog.get_logger()


class Endings:
    """Every call is closed once, however its stream ends; one that waits for an answer, after that is given up."""

    def __init__(
        self,
        limits: Limits,
        *,
        sending: Sending,
        receiving: Receiving,
        table: StreamTable,
        host: Host,
        peer: str,
    ) -> None:
        self._limits = limits
        self._sending = sending
        self._receiving = receiving
        self._table = table
        self._host = host
        self._peer = peer
        self._leaving: dict[int, Call] = {}  # those that still wait

    def set_deadline(self, stream: Stream, seconds: float) -> None:
        """End a stream after this time, in place of any other."""
        stream.deadline = self._host.after(seconds, partial(self._expired, stream))

    def finish(self, stream: Stream, status: Status = Status.OK, message: str = "") -> None:
        """End a call with a status, after what is still to be sent."""
        self._leave(stream)
        block = trailers_block(status, message)
        self.end(stream, block if stream.headers_sent else HEADERS_BLOCK + block)

    def fail(self, stream: Stream, error: Exception) -> None:
        """End a call that has raised."""
        if isinstance(error, RpcError):
            self.finish(stream, error.status, str(error))
            return
        _log.error("call failed", error=f"{type(error).__name__}: {error}", peer=self._peer, exc_info=error)
        self.finish(stream, Status.INTERNAL, f"{type(error).__name__} in the server")

    def drop(self, stream: Stream, fate: Fate) -> None:
        """Close a stream and its call without another frame."""
        self._leave(stream)
        self._sending.forget(stream)
        self._remove(stream, fate)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Close a stream and its call with RST_STREAM."""
        self._sending.out.append(rst_stream_frame(stream.id, code))
        self.drop(stream, Fate.ABANDONED)

    def end(self, stream: Stream, trailers: bytes) -> None:
        """End our side with trailers, or without, once everything before is sent."""
        if stream.outbox:
            stream.ending = trailers
            self.set_deadline(stream, self._limits.write_stall_seconds)
            return
        if stream.deadline is not None:
            stream.deadline.cancel()
        out = self._sending.out
        if trailers:
            out.append(self._sending.headers(stream.id, trailers, END_STREAM))
        else:
            out.append(frame(DATA, END_STREAM, stream.id))
        if stream.remote_ended:
            self._remove(stream, Fate.ENDED)
        else:  # the client need not send the rest
            out.append(rst_stream_frame(stream.id, ErrorCode.NO_ERROR))
            self._remove(stream, Fate.ABANDONED)

    def given_up(self, stream_id: int) -> bool:
        """Close the call of a stream that had ended while it waited; return whether there was one."""
        call = self._leaving.pop(stream_id, None)
        if call is None:
            return False
        _close(call)
        return True

    def _leave(self, stream: Stream) -> None:
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

    def _remove(self, stream: Stream, fate: Fate) -> None:
        stream.account.close()
        self._table.remove(stream, fate)
        self._receiving.release(stream)

    def _expired(self, stream: Stream) -> None:
        stream.deadline = None
        if stream.id not in self._table.open:
            return
        if stream.outbox:  # a status could only follow what the client does not take
            self.reset(stream, ErrorCode.CANCEL)
        else:
            self.finish(stream, Status.DEADLINE_EXCEEDED, "the deadline of the client has passed")


def _close(call: Call) -> None:
    try:
        call.close()
    except Exception as error:  # noqa: BLE001  the stream is closed all the same
        _log.error("call failed to close", error=f"{type(error).__name__}: {error}", exc_info=error)
