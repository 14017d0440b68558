# SPDX-License-Identifier: Apache-2.0
"""TLS with HTTP/2: the context of a server, and the handshake of one connection."""

import asyncio
import os
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import cast

import structlog

_log = structlog.get_logger()

ALPN = "h2"
_TLS_1_2_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Forward secrecy and authenticated encryption, as RFC 9113 demands; those of TLS 1.3 are all so."""


def server_context(key: bytes, certificates: bytes, min_version: ssl.TLSVersion) -> ssl.SSLContext:
    """Return a context for a key and its certificate chain, both PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = min_version
    context.set_alpn_protocols([ALPN])
    context.set_ciphers(_TLS_1_2_CIPHERS)
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


class TlsGate(asyncio.Protocol):
    """Shakes hands, then hands the connection over to the protocol within, unless the client speaks no HTTP/2."""

    def __init__(
        self,
        context: Callable[[], Awaitable[ssl.SSLContext]],
        within: Callable[[], asyncio.Protocol],
        handshake_seconds: float,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._context = context
        self._within = within
        self._handshake_seconds = handshake_seconds
        self._tasks = tasks
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Shake hands in a task, which may read the certificate first."""
        plain = cast("asyncio.Transport", transport)
        plain.pause_reading()
        task = asyncio.get_running_loop().create_task(self._shake_hands(plain))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def data_received(self, data: bytes) -> None:
        """Keep what comes with the last message of the handshake."""
        self._early.append(data)

    async def _shake_hands(self, plain: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._handshake_seconds):
                context = await self._context()
                secured = await loop.start_tls(
                    plain, self, context, server_side=True, ssl_handshake_timeout=self._handshake_seconds
                )
        except (OSError, TimeoutError):  # of the client's making; ssl.SSLError is an OSError
            plain.abort()
            return
        except BaseException:
            plain.abort()
            raise
        if secured is None:  # the connection was lost
            return
        session = secured.get_extra_info("ssl_object")
        if session.selected_alpn_protocol() != ALPN:
            _log.warning("TLS connection refused: the client does not offer the protocol h2 (ALPN)")
            secured.close()
            return
        protocol = self._within()
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        early, self._early = self._early, []
        for data in early:
            protocol.data_received(data)
