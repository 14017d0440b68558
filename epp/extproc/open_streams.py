# SPDX-License-Identifier: Apache-2.0
"""Open streams: the session of each one as a call, their count, and how each one ended."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import TypeAlias

from epp.extproc.budgets import Budgets, Claim
from epp.extproc.codec import decode
from epp.extproc.exchange import Fault, Faults, GatewayTraits, NotReadyError, ProtocolError
from epp.extproc.headers import MOST_GATEWAYS
from epp.extproc.http2.service import Answers, Call, Methods, Outlet, RpcError, Status
from epp.extproc.session import Session
from epp.extproc.wire import METHOD, SERVICE
from epp.framework.refusals import BodyTimeoutError, TooManyBytesError
from epp.routing.director import Cause

_OK, _CANCELED, _INVALID_ARGUMENT, _UNAVAILABLE = "OK", "Canceled", "InvalidArgument", "Unavailable"
"""Statuses of streams in the spelling of Go's gRPC library."""
SessionMaker: TypeAlias = Callable[[GatewayTraits, Claim, Mapping[str, str]], Session]
"""Makes a session from the traits of its gateway, its claim, and the initial metadata of its stream."""


class StreamObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def opened(self) -> None:
        """Record a new stream."""

    def ended(self, code: str, seconds: float) -> None:
        """Record the end of a stream: the name of its gRPC status in Go's spelling, and its duration."""


class OpenStreams:
    """Call `opened` and `closed` for each stream; await `quiet` for an idle period."""

    def __init__(self) -> None:
        self.count = 0
        """Streams that are open now."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._arrival = asyncio.Event()

    def opened(self) -> None:
        self.count += 1
        if self.count == 1:
            self._idle.clear()
        self._arrival.set()

    def closed(self) -> None:
        self.count -= 1
        if self.count == 0:
            self._idle.set()

    def replace(self, count: int, *, arrived: bool) -> None:
        """Set the count of other processes; `arrived` if a stream has opened since the last call, even if it closed."""
        self.count = count
        if count:
            self._idle.clear()
        else:
            self._idle.set()
        if arrived:
            self._arrival.set()

    async def quiet(self, seconds: float) -> None:
        """Wait until no stream has been open for this time."""
        while True:
            while self.count:  # a stream may have opened after the event
                await self._idle.wait()
            self._arrival.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._arrival.wait()
            if not self._arrival.is_set():
                return


class SessionSource:
    """Makes the session of each stream, and has what all of them share."""

    def __init__(self, new_session: SessionMaker, budgets: Budgets, observer: StreamObserver | None = None) -> None:
        self.new_session = new_session
        self.budgets = budgets
        self.observer = observer or StreamObserver()
        self.traits_of = lru_cache(MOST_GATEWAYS)(GatewayTraits)
        """Returns the traits of a gateway by its host."""
        self.faults = Faults()
        self.streams = OpenStreams()

    @property
    def methods(self) -> Methods:
        """The method of ext_proc; each call has its own session."""
        return {f"/{SERVICE}/{METHOD}": partial(SessionCall, self)}


class SessionCall(Call):
    """A session as a call."""

    __slots__ = ("_cause", "_claim", "_code", "_ended", "_opened_at", "_outlet", "_session", "_sessions")

    def __init__(self, sessions: SessionSource, outlet: Outlet) -> None:
        """Open a session; raises RpcError if there are too many streams even for a refusal by a session."""
        budgets = sessions.budgets
        if budgets.streams.used >= budgets.most_streams:
            budgets.streams.refuse()
            raise RpcError(Status.RESOURCE_EXHAUSTED, "too many streams are open")
        host = outlet.peer.rpartition(":")[0]
        self._claim = Claim(budgets, outlet.account, host)
        try:
            self._session = sessions.new_session(sessions.traits_of(host), self._claim, outlet.metadata)
        except BaseException:
            self._claim.close()
            raise
        self._session.on_eviction = self._evict
        self._sessions = sessions
        self._outlet = outlet
        self._opened_at = time.monotonic()
        self._cause = Cause.CLIENT_DISCONNECT
        self._code = ""  # of the status, if it is known before `close`
        self._ended = False
        sessions.streams.opened()
        sessions.observer.opened()

    @property
    def done(self) -> bool:
        return self._ended or self._session.done

    @property
    def silence_timeout(self) -> float | None:
        return self._session.silence_timeout

    def receive(self, message: bytes) -> Answers:
        try:
            return self._session.receive(decode(message))
        except (NotReadyError, ProtocolError) as error:
            raise self._status(error) from error

    def resume(self) -> Answers:
        try:
            return self._session.resume()
        except (NotReadyError, ProtocolError) as error:
            raise self._status(error) from error

    def on_silence(self) -> Answers:
        try:
            return self._session.on_silence()
        except (NotReadyError, ProtocolError) as error:
            raise self._status(error) from error

    def half_close(self) -> Answers:
        self._ended = True
        self._code = _OK
        return ()

    @property
    def awaits_more(self) -> bool:
        return self._session.is_incomplete

    def end_early(self, status: Status) -> Answers:
        self._cause = Cause.ERROR
        return self._session.give_up(TooManyBytesError() if status is Status.RESOURCE_EXHAUSTED else BodyTimeoutError())

    def unreadable(self, error: RpcError) -> None:
        self._cause = Cause.ERROR
        self._code = error.status.name.title().replace("_", "")
        fault = Fault.TOO_LARGE if error.status is Status.RESOURCE_EXHAUSTED else Fault.UNREADABLE
        self._sessions.faults.record(ProtocolError(str(error), fault), self._outlet.peer)

    def close(self) -> None:
        self._sessions.streams.closed()
        code = self._code or (_OK if self._session.done else _CANCELED)
        self._sessions.observer.ended(code, time.monotonic() - self._opened_at)
        self._session.close(self._cause)
        self._claim.close()

    def _evict(self) -> None:
        """Evict in a later iteration of the loop: a call of another request is active now."""
        asyncio.get_running_loop().call_soon(self._send_eviction)

    def _send_eviction(self) -> None:
        answers = self._session.evict()
        for answer in answers:
            self._outlet.send(answer)
        if answers:
            self._outlet.finish()

    def _status(self, error: NotReadyError | ProtocolError) -> RpcError:
        """Return the status that ends the call after an error."""
        self._cause = Cause.ERROR
        if isinstance(error, NotReadyError):
            self._code = _UNAVAILABLE
            return RpcError(Status.UNAVAILABLE, str(error))
        self._code = _INVALID_ARGUMENT
        self._sessions.faults.record(error, self._outlet.peer)
        return RpcError(Status.INVALID_ARGUMENT, str(error))
