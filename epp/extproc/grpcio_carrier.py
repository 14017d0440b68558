# SPDX-License-Identifier: Apache-2.0
"""The ext_proc and health services over grpcio: binding, TLS, and the same calls as on our own HTTP/2 server."""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import grpc

from epp.extproc.budgets import Budgets
from epp.extproc.health import Health, health_methods
from epp.extproc.http2.service import Answers, Call, Methods, Outlet, RpcError, Status
from epp.extproc.open_streams import SessionSource
from epp.extproc.settings import ServerSettings, TlsVersion
from epp.extproc.tls import CertificateFiles, self_signed
from epp.framework import ConfigurationError
from epp.runtime.addresses import listener, parse_host_port, refusal

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
_LATE = object()
_GRPC_MOST_BYTES = 2**31 - 1
_PENDING_STREAMS = 100_000
"""Largest burst of new streams; by default gRPC refuses some above 1,000."""


def _bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    """Listen on `ip:port` or `unix:/path`, in plaintext without credentials; return the port, 0 for a unix socket.

    Raises ConfigurationError when the address is taken, even in part.
    """
    place = None if address.startswith("unix:") else parse_host_port(address, min_port=0)
    try:
        if place is not None:  # gRPC reports no reason, and falls back to IPv4 if the port is taken on IPv6
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


class _CallHandlers(grpc.GenericRpcHandler):
    """Carries the calls of these methods."""

    def __init__(self, methods: Methods, settings: ServerSettings, budgets: Budgets) -> None:
        self._methods = methods
        self._settings = settings
        self._budgets = budgets

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        """Return the handler of a method, None for an unknown one; a single message is a stream of one."""
        open_call = self._methods.get(details.method)
        if open_call is None:
            return None

        async def carry(_: object, context: _Context) -> None:
            await _CarriedCall(context, self._settings, self._budgets).run(open_call)

        return grpc.stream_stream_rpc_method_handler(carry)


class GrpcioCarrier:
    """The ext_proc service and its health service, on grpc.aio; used like `Http2Carrier`."""

    def __init__(self, sessions: SessionSource, health: Health, settings: ServerSettings) -> None:
        self._sessions = sessions
        self._health = health_methods(health)
        self._settings = settings
        self._server: grpc.aio.Server | None = None
        self._health_server: grpc.aio.Server | None = None
        self.port = 0
        self.health_port = 0
        self.server = None

    async def start(self) -> None:
        settings, budgets = self._settings, self._sessions.budgets
        self._server = server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", min(settings.receive_bytes, _GRPC_MOST_BYTES)),
                ("grpc.max_send_message_length", min(settings.send_bytes, _GRPC_MOST_BYTES)),
                ("grpc.so_reuseport", 0),  # a second picker on the port is a mistake, not a worker
                ("grpc.max_concurrent_streams", settings.budgets.max_streams_per_connection),
                ("grpc.server.max_pending_requests", _PENDING_STREAMS),
                ("grpc.server.max_pending_requests_hard_limit", _PENDING_STREAMS),
            ]
        )
        methods = {**self._sessions.methods, **(self._health if settings.health_on_main else {})}
        server.add_generic_rpc_handlers((_CallHandlers(methods, settings, budgets),))
        self.port = _bind(server, settings.address, _credentials(settings) if settings.secure else None)
        await server.start()
        if settings.health_address is not None:
            self._health_server = server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
            server.add_generic_rpc_handlers((_CallHandlers(self._health, settings, budgets),))
            self.health_port = _bind(server, settings.health_address, None)
            await server.start()

    async def stop(self, grace_seconds: float, health_grace_seconds: float) -> None:
        if self._server is not None:
            await self._server.stop(grace_seconds)
        if self._health_server is not None:
            await self._health_server.stop(health_grace_seconds)


def _credentials(settings: ServerSettings) -> grpc.ServerCredentials:
    """Return credentials; raises ConfigurationError.

    With reloads, every new connection gets the current pair of the files; open connections are not changed.
    """
    if settings.tls_min_version is not TlsVersion.TLS_1_2 or settings.tls_ciphers:
        raise ConfigurationError(
            "--transport grpcio only supports TLS 1.2 as minimum version, and no choice of cipher suites: leave "
            "--tls-min-version and --tls-cipher-suites out, or use --transport asyncio"
        )
    if settings.cert_path is None:
        return grpc.ssl_server_credentials([self_signed()])
    files = CertificateFiles(settings.cert_path)
    if not settings.cert_reload:
        return grpc.ssl_server_credentials([files.pair])

    def current() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([files.pair])

    return grpc.dynamic_ssl_server_credentials(
        current(),
        lambda: current() if files.renew() else None,  # type: ignore[arg-type,return-value]  # None is "no change"
    )


class _CarriedCall(Outlet):
    """One call: reads its messages, and sends its answers."""

    def __init__(self, context: _Context, settings: ServerSettings, budgets: Budgets) -> None:
        names = settings.metadata_names
        given = (context.invocation_metadata() or ()) if names else ()
        self.peer = context.peer()
        self.account = budgets.gathered.account()
        self.metadata = {name: value for name, value in given if name in names and isinstance(value, str)}
        self._context = context
        self._body_timeout = settings.budgets.pause_seconds
        self._task = asyncio.current_task()
        self._reading: asyncio.Task[object] | None = None
        self._unsent: deque[bytes] = deque()
        self._is_finished = False
        self._flushing: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    def send(self, message: bytes) -> None:
        self._unsent.append(message)
        self._flush_soon()

    def finish(self) -> None:
        self._is_finished = True
        self._flush_soon()

    async def run(self, open_call: Callable[[Outlet], Call]) -> None:
        call: Call | None = None
        try:
            call = open_call(self)
            self.account.on_evict = partial(self._evict_soon, call)
            while not call.done:
                await self._step(call)
        except RpcError as error:
            await self._context.abort(grpc.StatusCode[error.status.name], str(error))
        except asyncio.CancelledError:
            if not self._is_finished:
                raise
        finally:
            for task in (self._reading, self._flushing):
                if task is not None:
                    task.cancel()
            if call is not None:
                call.close()
            self.account.close()

    async def _step(self, call: Call) -> None:
        silence = call.silence_timeout
        message = await self._next(silence or (self._body_timeout if call.awaits_more else math.inf))
        if isinstance(message, bytes):
            await self._answer(call, call.receive(message))
        elif message is not _LATE:  # the end of the stream
            await self._answer(call, call.half_close())
            if not call.done:
                await asyncio.get_running_loop().create_future()  # until `finish`, or until the client leaves
        elif silence is not None:
            await self._answer(call, call.on_silence())
        else:
            await self._answer(call, call.end_early(Status.DEADLINE_EXCEEDED))
            if not call.done:
                raise RpcError(Status.DEADLINE_EXCEEDED, "the rest of the request did not arrive in time")

    async def _next(self, seconds: float) -> object:
        """Return the next message, EOF, or `_LATE` after a timeout, which loses no message."""
        if self._reading is None:
            if seconds == math.inf:
                return await self._context.read()
            self._reading = asyncio.ensure_future(self._context.read())
        await asyncio.wait({self._reading}, timeout=None if seconds == math.inf else seconds)
        if not self._reading.done():
            return _LATE
        reading, self._reading = self._reading, None
        return reading.result()

    async def _answer(self, call: Call, answers: Answers) -> None:
        for answer in answers:
            if not isinstance(answer, bytes):
                await answer.settle()
                await self._answer(call, call.resume())
                return
            async with self._writing:
                await self._context.write(answer)

    def _evict_soon(self, call: Call) -> None:
        asyncio.get_running_loop().call_soon(self._evict, call)  # a call of another request is active now

    def _evict(self, call: Call) -> None:
        """End an incomplete call early: another one needs its room."""
        answers = call.end_early(Status.RESOURCE_EXHAUSTED)
        for answer in answers:
            if isinstance(answer, bytes):
                self.send(answer)
        if answers:
            self.finish()

    def _flush_soon(self) -> None:
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        with suppress(grpc.aio.BaseError):  # the client has left
            async with self._writing:
                while self._unsent:
                    await self._context.write(self._unsent.popleft())
        if self._is_finished and self._task is not None:
            self._task.cancel()  # `run` returns
