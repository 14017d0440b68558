# SPDX-License-Identifier: Apache-2.0
"""TLS with HTTP/2: the context of a server, and a listener that shakes hands."""

import asyncio
import errno
import os
import socket
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import structlog

from epp.extproc.http2.fair_scheduler import FairScheduler
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.rate_limited_log import RateLimitedLog
from epp.extproc.http2.tls_session import TlsSession

_log = structlog.get_logger()

ALPN = "h2"
_TLS_1_2_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Forward secrecy and authenticated encryption, as RFC 9113 demands; those of TLS 1.3 are all so."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_SECONDS = 1.0
_BREATH_SECONDS = 0.01


def server_context(
    key: bytes, certificates: bytes, min_version: ssl.TLSVersion, ciphers: str = "", *, alpn: str = ALPN
) -> ssl.SSLContext:
    """Return a context for a key and its certificate chain, both PEM; `ciphers` are OpenSSL's names for TLS 1.2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = min_version
    context.set_alpn_protocols([alpn])
    context.set_ciphers(ciphers or _TLS_1_2_CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    with _file(certificates + b"\n" + key) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _file(content: bytes) -> Iterator[str]:
    """Yield the path of a file with this content: in memory where the system can, else private and short-lived."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("epp-tls")
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name


def speaks_http2(session: ssl.SSLObject | None) -> bool:
    """Whether a connection is plaintext, or the client has chosen HTTP/2 in the handshake."""
    return session is None or session.selected_alpn_protocol() == ALPN


class TlsListener:
    """Accepts connections and shakes hands, each with the context that it is given by then."""

    def __init__(
        self,
        sock: socket.socket,
        contexts: Callable[[], Awaitable[ssl.SSLContext]],
        protocol: Callable[[], asyncio.Protocol],
        limits: Limits,
        *,
        complaints: RateLimitedLog,
        turns: FairScheduler,
    ) -> None:
        """Begin; `turns` are shared by all connections."""
        self._sock = sock
        self._contexts = contexts
        self._protocol = protocol
        self._limits = limits
        self._turns = turns
        self._complaints = complaints
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[asyncio.Task[None], None] = {}
        sock.setblocking(False)  # noqa: FBT003  its own way
        self._accepting = self._loop.create_task(self._accept())

    async def close(self) -> None:
        """Accept no more, and give up unfinished handshakes."""
        tasks = [self._accepting, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sock.close()

    async def _accept(self) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._sock)
            except OSError as error:
                exhausted = error.errno in _EXHAUSTED
                if exhausted:
                    _log.warning("no connection accepted", problem=error.strerror)
                await asyncio.sleep(_PAUSE_SECONDS if exhausted else _BREATH_SECONDS)
                continue
            self._make_room()
            task = self._loop.create_task(self._shake_hands(connection))
            self._handshakes[task] = None
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    def _make_room(self) -> None:
        """Give up the oldest handshake if there are too many: an honest client has long finished its own."""
        most = self._limits.max_handshakes
        if len(self._handshakes) >= most:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]  # now: its end may take some turns of the loop
            oldest.cancel()
            problem = f"{most} are open: the oldest is dropped"
            self._complaints.warn("too many unfinished TLS handshakes", self._loop.time(), problem=problem)

    async def _shake_hands(self, connection: socket.socket) -> None:
        try:
            async with asyncio.timeout(self._limits.handshake_seconds):
                context = await self._contexts()
            session = TlsSession(context, self._protocol, self._limits, complaints=self._complaints, turns=self._turns)
            await self._loop.connect_accepted_socket(lambda: session, connection)
        except (OSError, TimeoutError):  # of the client's making
            connection.close()
            return
        except BaseException:
            connection.close()
            raise
        try:
            await session.settled
        except asyncio.CancelledError:
            session.abort()
            raise
