# SPDX-License-Identifier: Apache-2.0
"""Carries sessions on our own HTTP/2 server, one session for each stream."""

import socket
from pathlib import Path
from typing import Protocol

from epp.extproc.health import Health, health_methods
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.server import GrpcServer
from epp.extproc.open_streams import OpenStreams, SessionSource
from epp.extproc.settings import ServerSettings
from epp.framework import ConfigurationError
from epp.runtime.addresses import listener, parse_host_port, refusal
from epp.runtime.http_connections import Contexts

_UNIX = "unix:"


def _bound(address: str) -> socket.socket:
    """Return a socket that listens on `ip:port` or `unix:/path`; raises ConfigurationError when it is taken."""
    if address.startswith(_UNIX):
        return _unix(address)
    place = parse_host_port(address, min_port=0)
    try:
        return listener(place.host, place.port)
    except OSError as error:
        raise ConfigurationError(refusal(place, error)) from error


def _unlink(address: str) -> None:
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


class Acceptor(Protocol):
    """Accepts connections for other processes, which adopt them."""

    streams: OpenStreams
    """Streams of all these processes."""

    async def start(self, sock: socket.socket) -> None:
        """Accept connections on a bound socket."""

    async def stop(self, grace_seconds: float) -> None:
        """Stop accepting, and close the socket."""


class Http2Carrier:
    """The ext_proc service and its health service, on the event loop.

    With an acceptor, it only listens and serves the separate health service. Without an address, its server adopts
    connections.
    """

    def __init__(
        self, sessions: SessionSource, health: Health, settings: ServerSettings, acceptor: Acceptor | None = None
    ) -> None:
        self._sessions = sessions
        self._health = health
        self._settings = settings
        self._acceptor = acceptor
        self._listening: Acceptor | GrpcServer | None = None
        self.server: GrpcServer | None = None
        """The server of ext_proc, once started; None with an acceptor."""
        self._health_server: GrpcServer | None = None
        self.port = 0
        """The port in use; 0 for a unix socket."""
        self.health_port = 0

    async def start(self) -> None:
        """Listen; raises ConfigurationError when an address is taken or a certificate is bad."""
        settings = self._settings
        health = health_methods(self._health)
        methods = {**self._sessions.methods, **(health if settings.health_on_main else {})}
        tls = _contexts(settings) if settings.secure else None
        sock = _bound(settings.address) if settings.address else None
        self.port = 0 if sock is None else _port(sock)
        limits = Limits(
            max_message_bytes=settings.receive_bytes,
            max_sent_message_bytes=min(settings.send_bytes, 2**31 - 1),
            max_streams=settings.budgets.max_streams_per_connection,
            metadata_names=settings.metadata_names,
            stall_seconds=settings.budgets.pause_seconds,
        )
        budgets = self._sessions.budgets
        if self._acceptor is not None and sock is not None:
            self._listening = self._acceptor
            await self._acceptor.start(sock)
        else:
            self._listening = self.server = GrpcServer(
                methods, limits, tls, connections=budgets.connections, held=budgets.gathered
            )
            await self.server.start(sock)
        if settings.health_address is not None:
            sock = _bound(settings.health_address)
            self._health_server = GrpcServer(health, Limits())
            self.health_port = _port(sock)
            await self._health_server.start(sock)

    async def stop(self, grace_seconds: float, health_grace_seconds: float) -> None:
        """Stop listening; end the streams that are open after the grace period."""
        if self._listening is not None:
            await self._listening.stop(grace_seconds)
            _unlink(self._settings.address)
        if self._health_server is not None:
            await self._health_server.stop(health_grace_seconds)


def _contexts(settings: ServerSettings) -> Contexts:
    from epp.extproc.tls import TlsContexts  # noqa: PLC0415  not for plaintext

    return TlsContexts(settings.cert_path, settings.tls_min_version, settings.tls_ciphers, reload=settings.cert_reload)


def _port(sock: socket.socket) -> int:
    return 0 if sock.family == socket.AF_UNIX else int(sock.getsockname()[1])
