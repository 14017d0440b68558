# SPDX-License-Identifier: Apache-2.0
"""ext_proc and health over grpcio: binding, TLS, and one session for each stream."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from epp.extproc.codec import RequestPiece, decode
from epp.extproc.exchange import Answer, NotReadyError, ProtocolError
from epp.extproc.health import Health
from epp.extproc.http2.capacity import Account
from epp.extproc.open_streams import INVALID_ARGUMENT, OK, UNAVAILABLE, SessionSource
from epp.extproc.server import ServerSettings
from epp.extproc.session import Session
from epp.extproc.tls import CertificateFiles, TlsVersion, self_signed
from epp.extproc.wire import METHOD, SERVICE, ProcessingRequest
from epp.framework import ConfigurationError
from epp.framework.errors import BodyTimeoutError, TooManyBytesError
from epp.routing.director import Cause, PendingRequest
from epp.runtime.addresses import listener, parse_host_port, refusal

if TYPE_CHECKING:
    _Message: TypeAlias = ProcessingRequest | RequestPiece
    _Context: TypeAlias = grpc.aio.ServicerContext[_Message, bytes]

_INTERRUPTED = object()
_LATE = object()
_GRPC_MOST_BYTES = 2**31 - 1
_PENDING_STREAMS = 100_000
"""Largest burst of new streams; by default gRPC refuses some above 1,000."""


def server_credentials(cert_path: Path | None, *, reload: bool = True) -> grpc.ServerCredentials:
    """Return credentials from `tls.crt` and `tls.key` in a directory, self-signed ones without a directory.

    With `reload`, every new connection gets the current pair of the files; open connections are not changed.
    Raises ConfigurationError when the files cannot be read or do not belong together.
    """
    if cert_path is None:
        return grpc.ssl_server_credentials([self_signed()])
    files = CertificateFiles(cert_path)
    if not reload:
        return grpc.ssl_server_credentials([files.pair])
    return grpc.dynamic_ssl_server_credentials(
        _configuration(files.pair),
        lambda: _renewed(files),  # type: ignore[arg-type,return-value]  # None is "no change"
    )


def _renewed(files: CertificateFiles) -> grpc.ServerCertificateConfiguration | None:
    return _configuration(files.pair) if files.renew() else None


def _configuration(pair: tuple[bytes, bytes]) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([pair])


def bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    """Listen on `ip:port` or `unix:/path`, in plaintext without credentials; return the port, 0 for a unix socket.

    Raises ConfigurationError when the address is taken, even in part.
    """
    place = None if address.startswith("unix:") else parse_host_port(address, min_port=0)
    try:
        if place is not None:  # gRPC gives no reason, and listens on IPv4 only if another program has the port on IPv6
            listener(place.host, place.port).close()
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except (OSError, RuntimeError) as error:
        if place is not None and isinstance(error, OSError):
            raise ConfigurationError(refusal(place, error)) from error
        problem = f"cannot listen on {address}: another process has it, or its directory cannot be written"
        raise ConfigurationError(problem) from error
    return 0 if place is None else port


class HealthServicer(health_pb2_grpc.HealthServicer):
    """The gRPC health service; an unknown name is NOT_FOUND for `Check` and SERVICE_UNKNOWN for `Watch`."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def register(self, server: grpc.aio.Server) -> None:
        """Answer health checks on this server."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    async def Check(  # noqa: N802  the protocol's name
        self, request: HealthCheckRequest, context: grpc.aio.ServicerContext[HealthCheckRequest, HealthCheckResponse]
    ) -> HealthCheckResponse:
        """Answer for one name."""
        status = self._health.statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, self._health.unknown(request.service))
        return HealthCheckResponse(status=status)

    async def List(self, _request: object, _context: object) -> object:  # noqa: N802  the protocol's name
        """Answer for all names at once."""
        statuses = {name: HealthCheckResponse(status=status) for name, status in self._health.statuses.items()}
        return health_pb2.HealthListResponse(statuses=statuses)  # type: ignore[attr-defined]  # younger than the stubs

    async def Watch(  # noqa: N802  the protocol's name
        self, request: HealthCheckRequest, _context: object
    ) -> AsyncIterator[HealthCheckResponse]:
        """Send the status now and after each change."""
        changed = asyncio.Event()
        unwatch = self._health.watch(changed.set)
        told = None
        try:
            while self._health.open:
                changed.clear()
                status = self._health.statuses.get(request.service, HealthCheckResponse.SERVICE_UNKNOWN)
                if status != told:
                    yield HealthCheckResponse(status=status)
                    told = status
                await changed.wait()
        finally:
            unwatch()


class GrpcioCarrier:
    """The ext_proc service and its health service, on grpc.aio."""

    def __init__(self, sessions: SessionSource, health: Health, settings: ServerSettings) -> None:
        self._sessions = sessions
        self._health = HealthServicer(health)
        self._settings = settings
        self._server: grpc.aio.Server | None = None
        self._health_server: grpc.aio.Server | None = None
        self.port = 0
        self.health_port = 0

    async def start(self) -> None:
        """Listen; raises ConfigurationError when an address is taken or a certificate is bad."""
        settings = self._settings
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", min(settings.max_receive_bytes, _GRPC_MOST_BYTES)),
                ("grpc.max_send_message_length", min(settings.max_send_bytes, _GRPC_MOST_BYTES)),
                ("grpc.so_reuseport", 0),  # a second picker on the port is a mistake, not a worker
                ("grpc.max_concurrent_streams", settings.budgets.max_streams_per_connection),
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

    async def stop(self, grace_seconds: float, health_grace_seconds: float) -> None:
        """Stop listening, and cut the streams that are open after this time."""
        if self._server is not None:
            await self._server.stop(grace_seconds)
        if self._health_server is not None:
            await self._health_server.stop(health_grace_seconds)

    async def _carry(self, _: object, context: "_Context") -> None:
        account = self._sessions.budgets.gathered.account()
        session = self._sessions.open(context.peer(), account, self._metadata(context))
        if session is None:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams are open")
        cause, code = Cause.CLIENT_DISCONNECT, ""
        inbox = _Inbox(context)
        session.on_eviction = account.on_evict = inbox.interrupt
        try:
            while not session.done:
                message = await self._next(context, session, inbox)
                if message is _INTERRUPTED or message is _LATE:
                    for answer in _last_answers(message, session, account):
                        await context.write(answer)
                    if message is _LATE:
                        cause = Cause.ERROR
                        break
                    continue
                if not isinstance(message, (ProcessingRequest, RequestPiece)):  # the end of the stream
                    code = OK
                    break
                await _send(context, session, session.receive(message))
        except ProtocolError as error:
            cause, code = Cause.ERROR, INVALID_ARGUMENT
            self._sessions.warn_of(error, context.peer())
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except NotReadyError as error:
            code = UNAVAILABLE
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        finally:
            inbox.close()
            self._sessions.close(session, cause, code)
            account.close()

    def _metadata(self, context: "_Context") -> Mapping[str, str]:
        names = self._settings.metadata_names
        if not names:
            return {}
        given = context.invocation_metadata() or ()
        return {name: value for name, value in given if name in names and isinstance(value, str)}

    async def _next(self, context: "_Context", session: Session, inbox: "_Inbox") -> object:
        """Return the next message, `_INTERRUPTED` or `_LATE`."""
        timeout = session.silence_timeout
        if timeout is not None:
            message = await inbox.next(timeout)
            if message is not _LATE:
                return message
            await _send(context, session, session.on_silence())
        if session.is_evictable or inbox.is_reading:
            return await inbox.next()
        if session.is_incomplete:
            return await inbox.next(self._settings.budgets.pause_seconds)
        return await context.read()


def _credentials(settings: ServerSettings) -> grpc.ServerCredentials:
    if settings.tls_min_version is not TlsVersion.TLS_1_2 or settings.tls_ciphers:
        raise ConfigurationError(
            "--transport grpcio has no minimum version of TLS but 1.2, and no choice of cipher suites: leave "
            "--tls-min-version and --tls-cipher-suites out, or use --transport asyncio"
        )
    return server_credentials(settings.cert_path, reload=settings.cert_reload)


class _Inbox:
    """Messages of a stream; an interrupted wait loses no message."""

    def __init__(self, context: "_Context") -> None:
        self._context = context
        self._reading: asyncio.Task[object] | None = None
        self._interrupted = asyncio.Event()

    @property
    def is_reading(self) -> bool:
        return self._reading is not None

    def interrupt(self) -> None:
        """Interrupt the current wait, or the next one."""
        self._interrupted.set()

    async def next(self, seconds: float = math.inf) -> object:
        """Return the next message, `_INTERRUPTED`, or `_LATE` after a timeout."""
        reading = self._reading
        if reading is None:
            reading = self._reading = asyncio.create_task(self._read())
        interruption: asyncio.Task[object] = asyncio.create_task(self._interrupted.wait())
        try:
            await asyncio.wait(
                {reading, interruption},
                timeout=None if seconds == math.inf else seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            interruption.cancel()
        if self._interrupted.is_set():
            self._interrupted.clear()
            return _INTERRUPTED
        if not reading.done():
            return _LATE
        self._reading = None
        return reading.result()

    async def _read(self) -> object:
        return await self._context.read()

    def close(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()


def _last_answers(why: object, session: Session, account: Account) -> Sequence[bytes]:
    """Return the answers to a request that ends early: by eviction, for room, or by timeout."""
    if why is _LATE:
        return session.give_up(BodyTimeoutError())
    return session.give_up(TooManyBytesError()) if account.closed else session.evict()


async def _send(context: "_Context", session: Session, answers: Iterable[Answer]) -> None:
    for answer in answers:
        if isinstance(answer, PendingRequest):
            await answer.settle()
            await _send(context, session, session.resume())
        else:
            await context.write(answer)


def _handler(carry: Callable[..., object]) -> grpc.GenericRpcHandler:
    method: grpc.RpcMethodHandler[_Message, bytes] = grpc.stream_stream_rpc_method_handler(
        carry,
        request_deserializer=decode,
        response_serializer=None,  # replies are bytes already
    )
    return grpc.method_handlers_generic_handler(SERVICE, {METHOD: method})
