# SPDX-License-Identifier: Apache-2.0
"""Brief connections that tell whether an address speaks TLS or plaintext HTTP."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator

from epp.pool.collectors.sources.sockets import brief_socket

_HTTP = b"HTTP/"
_ALERT = "ALERT"


async def handshake(address: str, port: int, context: ssl.SSLContext | None, host: str, seconds: float) -> None:
    """Connect, over TLS where there is a context, and close; raises OSError, which TimeoutError is.

    The certificate is checked against `host`, or without one against the address.
    """
    async with asyncio.timeout(seconds), _connection(address, port) as connected:
        if context is not None:
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(
                asyncio.Protocol, sock=connected.dup(), ssl=context, server_hostname=host or address
            )
            transport.abort()


async def speaks_tls(address: str, port: int, seconds: float) -> bool:
    """Return whether TLS is spoken there, whatever the certificate."""
    try:
        await handshake(address, port, _UNVERIFIED, "", seconds)
    except ssl.SSLError as error:  # a server that refuses this client does so in TLS
        return _ALERT in (error.reason or "")
    except OSError:
        return False
    return True


async def speaks_http(address: str, port: int, seconds: float) -> bool:
    """Return whether HTTP is spoken there in plaintext."""
    try:
        async with asyncio.timeout(seconds), _connection(address, port) as connected:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(connected, b"GET / HTTP/1.0\r\n\r\n")
            answer = b""
            while len(answer) < len(_HTTP) and (piece := await loop.sock_recv(connected, len(_HTTP))):
                answer += piece
            return answer.startswith(_HTTP)
    except OSError:
        return False


@contextlib.asynccontextmanager
async def _connection(address: str, port: int) -> AsyncIterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with brief_socket(family) as connecting:
        connecting.settimeout(0)
        await asyncio.get_running_loop().sock_connect(connecting, (address, port))
        yield connecting


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


_UNVERIFIED = _unverified()
