# SPDX-License-Identifier: Apache-2.0
"""Messages between the main process of a picker and one of its workers, over a pair of sockets."""

import asyncio
import copyreg
import pickle
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any, TypeAlias

import structlog

Handler: TypeAlias = Callable[[Any], object | Awaitable[object]]
"""Takes the content of a message, and returns the answer to a call, or an awaitable of it."""

_LENGTH = struct.Struct("!I")
_MOST_BYTES = 1 << 30
_MOST_UNREAD_BYTES = 64 * 1024 * 1024
"""Most unread bytes. If there are more, the other process hangs, and the channel is closed."""
_CALL, _ANSWER, _FAILURE = "?call", "?answer", "?failure"

_log = structlog.get_logger()


def _read_only(content: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(content)


copyreg.pickle(MappingProxyType, lambda proxy: (_read_only, (dict(proxy),)))


def packed(kind: str, content: object = None) -> bytes:
    return pickle.dumps((kind, content), protocol=pickle.HIGHEST_PROTOCOL)


class ChannelClosedError(Exception):
    """The other process has ended, hangs, or did not answer in time."""


class Channel:
    """Sends messages and calls to the other process, and handles the messages and calls that it sends.

    Contents are pickled: both processes run the same program as the same user, and no other process has the sockets.
    """

    def __init__(self, sock: socket.socket, handlers: Mapping[str, Handler]) -> None:
        """Prepare; `handlers` are the handlers of messages and calls of the other process, by kind."""
        self._sock = sock
        self._handlers = handlers
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.has_received = False
        """Whether a message arrived since this was last set to False."""

    @property
    def is_open(self) -> bool:
        return self._writer is not None and not self._writer.is_closing()

    async def open(self) -> None:
        """Connect to the event loop; call this before sending messages."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._sock)

    def send(self, kind: str, content: object = None) -> None:
        """Send a message without waiting; it is dropped if the channel is closed."""
        if self.is_open:
            self.send_packed(packed(kind, content))

    def send_packed(self, data: bytes) -> None:
        """Send a message that `packed` returned, perhaps for several processes."""
        if self._writer is None or self._writer.is_closing():
            return
        self._writer.write(_LENGTH.pack(len(data)) + data)
        if self._writer.transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            self._writer.transport.abort()

    async def call(self, kind: str, content: object = None, *, most_seconds: float) -> Any:
        """Return the answer of the other process; raises ChannelClosedError, also if its handler fails."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            if not self.is_open:
                raise ChannelClosedError("the process has ended")
            self.send(_CALL, (number, kind, content))
            async with asyncio.timeout(most_seconds):
                return await answer
        except TimeoutError:
            raise ChannelClosedError(f"no answer within {most_seconds:g} s") from None
        finally:
            del self._waiting[number]

    async def run(self) -> None:
        """Handle messages until the other process closes the channel."""
        assert self._reader is not None  # noqa: S101  opened before
        try:
            while True:
                (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                if length > _MOST_BYTES:
                    break
                kind, content = pickle.loads(await self._reader.readexactly(length))  # noqa: S301  of this program
                self.has_received = True
                self._handle(kind, content)
                await asyncio.sleep(0)  # requests may wait, even if the next message has arrived
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Close the channel; pending calls fail."""
        if self._writer is not None:
            self._writer.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ChannelClosedError("the process has ended"))
        for task in self._answering:
            task.cancel()

    def _handle(self, kind: str, content: Any) -> None:
        if kind == _CALL:
            number, asked, argument = content
            task = asyncio.create_task(self._answer(number, asked, argument))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif kind in {_ANSWER, _FAILURE}:
            number, answer = content
            waiting = self._waiting.get(number)
            if waiting is None or waiting.done():  # the caller no longer waits
                return
            if kind == _ANSWER:
                waiting.set_result(answer)
            else:
                waiting.set_exception(ChannelClosedError(answer))
        else:
            try:
                self._handlers[kind](content)
            except Exception:  # noqa: BLE001  later messages are still handled
                _log.exception("cannot handle a message of another process of this picker", kind=kind)

    async def _answer(self, number: int, kind: str, argument: Any) -> None:
        try:
            answer = self._handlers[kind](argument)
            if isinstance(answer, Awaitable):
                answer = await answer
        except Exception as error:  # noqa: BLE001  reported to the caller
            _log.exception("cannot answer a call of another process of this picker", kind=kind)
            self.send(_FAILURE, (number, f"{type(error).__name__}: {error}"))
        else:
            self.send(_ANSWER, (number, answer))
