# SPDX-License-Identifier: Apache-2.0
"""Carries sessions over gRPC: one stream, one session."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import grpc
import structlog

from epp.director import Cause, Held
from epp.extproc.binding import bind
from epp.extproc.exchange import DEFAULT_MAX_BODY_BYTES, Answer, ProtocolError
from epp.extproc.health import Health
from epp.extproc.modes import GatewayTraits
from epp.extproc.open_streams import OpenStreams
from epp.extproc.session import Session
from epp.extproc.wire import METHOD, SERVICE, ProcessingRequest
from epp.host_port import parse_host_port, shown_listening

_log = structlog.get_logger()

if TYPE_CHECKING:
    _Context: TypeAlias = grpc.aio.ServicerContext[ProcessingRequest, bytes]

_HEADROOM_BYTES = 1024 * 1024
_GRPC_MOST_BYTES = 2**31 - 1
_FLUSH_SECONDS = 1.0
_MOST_GATEWAYS = 1024
_PENDING_STREAMS = 100_000
"""New streams that may wait in a burst; by default gRPC refuses some above 1,000."""


def message_bytes_for(body_bytes: int) -> int:
    """Return the size of a message that holds such a body in one piece, and what goes with it."""
    return body_bytes + _HEADROOM_BYTES


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where and how the ext_proc service listens."""

    address: str
    """`ip:port`, `[::]` for all addresses, port 0 for any free one; or `unix:/path`."""
    health_address: str | None = None
    """Where the health service listens in plaintext; None for nowhere."""
    health_on_main: bool = True
    """Whether the health service answers on `address` too."""
    secure: bool = True
    cert_path: Path | None = None
    """Directory with tls.crt and tls.key; None for a self-signed certificate."""
    cert_reload: bool = True
    """Whether new connections get the certificate that is in `cert_path` by then."""
    max_receive_bytes: int = message_bytes_for(DEFAULT_MAX_BODY_BYTES)
    max_send_bytes: int = message_bytes_for(DEFAULT_MAX_BODY_BYTES)


class ExtProcServer:
    """The ext_proc service and its health service, on grpc.aio."""

    def __init__(self, sessions: Callable[[GatewayTraits], Session], settings: ServerSettings) -> None:
        self._sessions = sessions
        self._settings = settings
        self._health = Health()
        self._streams = OpenStreams()
        self._traits: dict[str, GatewayTraits] = {}
        self._server: grpc.aio.Server | None = None
        self._health_server: grpc.aio.Server | None = None
        self.port = 0
        """The port in use; 0 for a unix socket."""
        self.health_port = 0

    async def start(self) -> None:
        """Listen, alive but not ready; raises ConfigurationError when an address is taken or a certificate is bad."""
        settings = self._settings
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", min(settings.max_receive_bytes, _GRPC_MOST_BYTES)),
                ("grpc.max_send_message_length", min(settings.max_send_bytes, _GRPC_MOST_BYTES)),
                ("grpc.so_reuseport", 0),  # a second picker on the port is a mistake, not a worker
                ("grpc.server.max_pending_requests", _PENDING_STREAMS),
                ("grpc.server.max_pending_requests_hard_limit", _PENDING_STREAMS),
            ]
        )
        server.add_generic_rpc_handlers((_handler(self._carry),))
        if settings.health_on_main:
            self._health.register(server)
        self.port = bind(server, settings.address, _credentials(settings) if settings.secure else None)
        await server.start()
        self._server = server
        if settings.health_address is not None:
            health_server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
            self._health.register(health_server)
            self.health_port = bind(health_server, settings.health_address, None)
            await health_server.start()
            self._health_server = health_server

    @property
    def addresses(self) -> Mapping[str, str]:
        """Where the servers that have started listen."""
        bound = {"ext_proc": (self._settings.address, self.port)}
        if self._settings.health_address is not None:
            bound["health"] = self._settings.health_address, self.health_port
        return {
            name: shown_listening(parse_host_port(address, min_port=0).host, port) if port else address
            for name, (address, port) in bound.items()
        }

    @property
    def open_streams(self) -> int:
        """Streams that are open now."""
        return self._streams.count

    def set_ready(self, *, ready: bool) -> None:
        """Set the answer to health checks: whether new requests are served."""
        self._health.set_ready(ready=ready)

    def stand_by(self) -> None:
        """Answer health checks as one that could serve while another replica does."""
        self._health.stand_by()

    async def drain(self, most_seconds: float, quiet_seconds: float, enough: asyncio.Event) -> None:
        """Report not ready, and serve until streams have ceased for a while, the time is up, or `enough` is set.

        New streams are served too: a gateway opens them until its next health check.
        """
        self._health.set_ready(ready=False)
        ends = {asyncio.ensure_future(self._streams.quiet(quiet_seconds)), asyncio.ensure_future(enough.wait())}
        try:
            await asyncio.wait(ends, timeout=most_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    async def stop(self) -> None:
        """Stop listening and cut open streams."""
        self._health.set_ready(ready=False)
        self._health.close()
        if self._server is not None:
            cut = self._streams.count
            await self._server.stop(0 if cut else _FLUSH_SECONDS)  # without any, only last replies are on their way
            if cut:
                _log.info("streams cut", streams=cut)
        if self._health_server is not None:
            await self._health_server.stop(_FLUSH_SECONDS)

    def _traits_of(self, peer: str) -> GatewayTraits:
        """Return the traits of the gateway on the host of `peer`, which ends in the port of one connection."""
        host = peer.rpartition(":")[0]
        if len(self._traits) >= _MOST_GATEWAYS and host not in self._traits:
            self._traits.clear()
        return self._traits.setdefault(host, GatewayTraits())

    async def _carry(self, _: object, context: "_Context") -> None:
        session = self._sessions(self._traits_of(context.peer()))
        cause = Cause.CLIENT_DISCONNECT
        with self._streams.one():
            try:
                while not session.done:
                    message = await _next_message(context, session)
                    if not isinstance(message, ProcessingRequest):  # the end of the stream
                        break
                    await _send(context, session, session.receive(message))
            except ProtocolError as error:
                cause = Cause.ERROR
                _log.warning("stream closed: protocol error", problem=str(error), peer=context.peer())
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            finally:
                session.close(cause)


def _credentials(settings: ServerSettings) -> grpc.ServerCredentials:
    from epp.extproc.tls import server_credentials  # noqa: PLC0415  loads cryptography, which plaintext does not need

    return server_credentials(settings.cert_path, reload=settings.cert_reload)


async def _next_message(context: "_Context", session: Session) -> object:
    """Wait for a message; after a silence, send what the gateway seems to wait for."""
    timeout = session.silence_timeout
    if timeout is None:
        return await context.read()
    reading = asyncio.ensure_future(context.read())
    try:
        arrived, _ = await asyncio.wait({reading}, timeout=timeout)
        if not arrived:
            await _send(context, session, session.on_silence())
        return await reading
    finally:
        reading.cancel()


async def _send(context: "_Context", session: Session, answers: Iterable[Answer]) -> None:
    for answer in answers:
        if isinstance(answer, Held):
            await answer.settle()
            await _send(context, session, session.resume())
        else:
            await context.write(answer)


def _handler(carry: Callable[..., object]) -> grpc.GenericRpcHandler:
    method: grpc.RpcMethodHandler[ProcessingRequest, bytes] = grpc.stream_stream_rpc_method_handler(
        carry,
        request_deserializer=ProcessingRequest.FromString,
        response_serializer=None,  # replies are bytes already
    )
    return grpc.method_handlers_generic_handler(SERVICE, {METHOD: method})
