# SPDX-License-Identifier: Apache-2.0
"""Carries sessions on the HTTP/2 server of our own: one stream, one session."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

from epp.extproc.codec import decode
from epp.extproc.exchange import Fault, NotReadyError, ProtocolError
from epp.extproc.health import Health, health_methods
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.server import Contexts, GrpcServer
from epp.extproc.http2.service import Answers, Call, Outlet
from epp.extproc.http2.status import RpcError, Status
from epp.extproc.open_streams import INVALID_ARGUMENT, OK, UNAVAILABLE, SessionSource
from epp.extproc.server import ServerSettings
from epp.extproc.wire import METHOD, SERVICE
from epp.framework import ConfigurationError
from epp.framework.errors import BodyTimeoutError, TooManyBytesError
from epp.routing.director import Cause
from epp.runtime.addresses import listener, parse_host_port, refusal

_UNIX = "unix:"


def bound_socket(address: str) -> socket.socket:
    """Return a socket that listens on `ip:port` or `unix:/path`; raises ConfigurationError when it is taken."""
    if address.startswith(_UNIX):
        return _unix(address)
    place = parse_host_port(address, min_port=0)
    try:
        return listener(place.host, place.port)
    except OSError as error:
        raise ConfigurationError(refusal(place, error)) from error


def unlink(address: str) -> None:
    """Remove the file of a unix socket that was listened on."""
    if address.startswith(_UNIX):
        Path(address.removeprefix(_UNIX)).unlink(missing_ok=True)


def _unix(address: str) -> socket.socket:
    path = Path(address.removeprefix(_UNIX))
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()  # left behind by a process that has ended
        sock.bind(str(path))
        sock.listen()
    except OSError as error:
        sock.close()
        raise ConfigurationError(
            f"cannot listen on {address}: another process has it, or its directory cannot be written"
        ) from error
    return sock


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


class Http2Carrier:
    """The ext_proc service and its health service, on the event loop."""

    def __init__(self, sessions: SessionSource, health: Health, settings: ServerSettings) -> None:
        self._sessions = sessions
        self._health = health
        self._settings = settings
        self._server: GrpcServer | None = None
        self._health_server: GrpcServer | None = None
        self.port = 0
        self.health_port = 0

    async def start(self) -> None:
        """Listen; raises ConfigurationError when an address is taken or a certificate is bad."""
        settings = self._settings
        health = health_methods(self._health)
        methods = {f"/{SERVICE}/{METHOD}": self._open, **(health if settings.health_on_main else {})}
        tls = _contexts(settings) if settings.secure else None
        sock = bound_socket(settings.address)
        limits = Limits(
            max_message_bytes=settings.max_receive_bytes,
            max_sent_message_bytes=min(settings.max_send_bytes, 2**31 - 1),
            max_streams=settings.budgets.max_streams_per_connection,
            metadata_names=settings.metadata_names,
            stall_seconds=settings.budgets.pause_seconds,
        )
        budgets = self._sessions.budgets
        self._server = GrpcServer(methods, limits, tls, connections=budgets.connections, held=budgets.gathered)
        self.port = _port(sock)
        await self._server.start(sock)
        if settings.health_address is not None:
            sock = bound_socket(settings.health_address)
            self._health_server = GrpcServer(health, Limits())
            self.health_port = _port(sock)
            await self._health_server.start(sock)

    async def stop(self, grace_seconds: float, health_grace_seconds: float) -> None:
        """Stop listening; end the streams that are open after the grace period."""
        if self._server is not None:
            await self._server.stop(grace_seconds)
            unlink(self._settings.address)
        if self._health_server is not None:
            await self._health_server.stop(health_grace_seconds)

    def _open(self, outlet: Outlet) -> "SessionCall":
        return SessionCall(self._sessions, outlet)


class SessionCall(Call):
    """A session as a call."""

    __slots__ = ("_cause", "_code", "_ended", "_outlet", "_peer", "_session", "_sessions")

    def __init__(self, sessions: SessionSource, outlet: Outlet) -> None:
        self._sessions = sessions
        self._outlet = outlet
        self._peer = outlet.peer
        session = sessions.open(outlet.peer, outlet.account, outlet.metadata)
        if session is None:
            raise RpcError(Status.RESOURCE_EXHAUSTED, "too many streams are open")
        self._session = session
        self._session.on_eviction = self._evict
        self._cause = Cause.CLIENT_DISCONNECT
        self._code = ""
        self._ended = False

    @property
    def done(self) -> bool:
        """Whether the exchange is complete, or the gateway ended the stream."""
        return self._session.done or self._ended

    @property
    def silence_timeout(self) -> float | None:
        """That of the session."""
        return self._session.silence_timeout

    def receive(self, message: bytes) -> Answers:
        """Decode a message for the session."""
        return self._answered(lambda: self._session.receive(decode(message)))

    def resume(self) -> Answers:
        """Resume after a pending request."""
        return self._answered(self._session.resume)

    def on_silence(self) -> Answers:
        """Return the answers after a silence of the gateway."""
        return self._answered(self._session.on_silence)

    def half_close(self) -> Answers:
        """End the exchange: there are no more messages to answer."""
        self._ended = True
        self._code = OK
        return ()

    @property
    def awaits_more(self) -> bool:
        """Whether the request is incomplete."""
        return self._session.is_incomplete

    def end_early(self, status: Status) -> Answers:
        """Refuse an incomplete request."""
        self._cause = Cause.ERROR
        return self._session.give_up(TooManyBytesError() if status is Status.RESOURCE_EXHAUSTED else BodyTimeoutError())

    def unreadable(self, error: RpcError) -> None:
        """Count and log an unreadable message."""
        self._cause = Cause.ERROR
        self._code = error.status.name.title().replace("_", "")
        fault = Fault.TOO_LARGE if error.status is Status.RESOURCE_EXHAUSTED else Fault.UNREADABLE
        self._sessions.warn_of(ProtocolError(str(error), fault), self._peer)

    def close(self) -> None:
        """Close the session."""
        self._sessions.close(self._session, self._cause, self._code)

    def _evict(self) -> None:
        """Evict in a later iteration of the loop: a call of another request is active now."""
        asyncio.get_running_loop().call_soon(self._send_eviction)

    def _send_eviction(self) -> None:
        answers = self._session.evict()
        for answer in answers:
            self._outlet.send(answer)
        if answers:
            self._outlet.finish()

    def _answered(self, callback: Callable[[], Answers]) -> Answers:
        try:
            return callback()
        except NotReadyError as error:
            self._cause, self._code = Cause.ERROR, UNAVAILABLE
            raise RpcError(Status.UNAVAILABLE, str(error)) from error
        except ProtocolError as error:
            self._cause, self._code = Cause.ERROR, INVALID_ARGUMENT
            self._sessions.warn_of(error, self._peer)
            raise RpcError(Status.INVALID_ARGUMENT, str(error)) from error


def _contexts(settings: ServerSettings) -> Contexts:
    from epp.extproc.tls import TlsContexts  # noqa: PLC0415  not for plaintext

    return TlsContexts(settings.cert_path, settings.tls_min_version, settings.tls_ciphers, reload=settings.cert_reload)


def _port(sock: socket.socket) -> int:
    return 0 if sock.family == socket.AF_UNIX else int(sock.getsockname()[1])
