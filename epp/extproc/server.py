"""Carries sessions over gRPC: one stream, one session."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from epp.director import Cause
from epp.extproc.health import Health
from epp.extproc.session import ProtocolError, Session
from epp.extproc.tls import server_credentials
from epp.extproc.wire import METHOD, SERVICE, ProcessingRequest, ProcessingResponse
from epp.framework import ConfigurationError

_log = structlog.get_logger()

DEFAULT_MESSAGE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where and how the ext_proc service listens."""

    address: str
    """`host:port`, port 0 for any free one, or `unix:/path`."""
    health_address: str | None = None
    """Where the health service listens in plaintext; None for nowhere."""
    health_on_main: bool = False
    """Whether the health service answers on `address` too."""
    secure: bool = True
    cert_path: Path | None = None
    """Directory with tls.crt and tls.key; None for a self-signed certificate."""
    max_receive_bytes: int = DEFAULT_MESSAGE_BYTES
    max_send_bytes: int = DEFAULT_MESSAGE_BYTES


class ExtProcServer:
    """The ext_proc service and its health service, on grpc.aio."""

    def __init__(self, sessions: Callable[[], Session], settings: ServerSettings) -> None:
        self._sessions = sessions
        self._settings = settings
        self._health = Health()
        self._server: grpc.aio.Server | None = None
        self._health_server: grpc.aio.Server | None = None
        self.port = 0
        """The port in use; 0 for a unix socket."""
        self.health_port = 0

    async def start(self) -> None:
        """Listen; raises ConfigurationError when an address is taken."""
        settings = self._settings
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", settings.max_receive_bytes),
                ("grpc.max_send_message_length", settings.max_send_bytes),
                ("grpc.so_reuseport", 0),  # a second picker on the port is a mistake, not a worker
            ]
        )
        server.add_generic_rpc_handlers((_handler(self._carry),))
        if settings.health_on_main:
            self._health.register(server)
        await self._health.start()
        credentials = server_credentials(settings.cert_path) if settings.secure else None
        self.port = _bind(server, settings.address, credentials)
        await server.start()
        self._server = server
        if settings.health_address is not None:
            health_server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
            self._health.register(health_server)
            self.health_port = _bind(health_server, settings.health_address, None)
            await health_server.start()
            self._health_server = health_server

    async def set_ready(self, *, ready: bool) -> None:
        """Tell health checks whether new requests are welcome."""
        await self._health.set_ready(ready=ready)

    async def stop(self, grace_seconds: float) -> None:
        """Refuse new streams, let open ones finish within the grace, then cut them."""
        await self._health.set_ready(ready=False)
        if self._server is not None:
            await self._server.stop(grace_seconds)
        if self._health_server is not None:
            await self._health_server.stop(0)

    async def _carry(self, _: object, context: grpc.aio.ServicerContext[ProcessingRequest, ProcessingResponse]) -> None:
        session = self._sessions()
        cause = Cause.CLIENT_DISCONNECT
        try:
            while not session.done:
                message: ProcessingRequest | object = await context.read()
                if not isinstance(message, ProcessingRequest):  # the end of the stream
                    break
                for reply in session.receive(message):
                    await context.write(reply)
        except ProtocolError as error:
            cause = Cause.ERROR
            _log.warning("stream ended: the gateway broke the protocol", problem=str(error), peer=context.peer())
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            session.close(cause)


def _handler(carry: Callable[..., object]) -> grpc.GenericRpcHandler:
    method = grpc.stream_stream_rpc_method_handler(
        carry,
        request_deserializer=ProcessingRequest.FromString,
        response_serializer=ProcessingResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(SERVICE, {METHOD: method})


def _bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise ConfigurationError(
            f"cannot listen on {address}: the address is taken or not this machine's; choose another port"
        ) from error
