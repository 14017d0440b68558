# SPDX-License-Identifier: Apache-2.0
"""Data sources over HTTP, on persistent connections."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import socket
import ssl
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, ClassVar, Literal

from typing_extensions import TypeVar

from epp.collectors.sources.failures import Attempt
from epp.collectors.sources.protocols import speaks_http, speaks_tls
from epp.collectors.sources.sockets import brief_socket, kept_socket
from epp.collectors.sources.tls import EndpointTls, TlsParameters, tls_context
from epp.descriptors import NO_DESCRIPTOR
from epp.framework.datalayer import DataSource, NotAskedError, PageError, UnreachableError
from epp.framework.durations import parse_duration
from epp.framework.endpoint import Endpoint
from epp.framework.limits import AbsolutePath, PortOrZero

if TYPE_CHECKING:  # imported by the first request: a configuration is checked without it
    import aiohttp

_PAGE_LIMIT_BYTES = 8 * 1024 * 1024
_CONNECTIONS_PER_HOST = 2
_KEEPALIVE_SECONDS = 30.0
_TURN_SECONDS = 0.005
"""Interval between brief connections, which cost more than pages on persistent ones."""
_PROTOCOL_CHECK_SECONDS = 10.0
"""Shortest time between two checks whether a server speaks the other of TLS and plaintext."""
_MAX_CHECKED = 4096
_EXCERPT_BYTES = 4096


class HttpSourceParameters(TlsParameters, frozen=True):
    """URL of the page, polling interval and TLS."""

    scheme: Literal["http", "https"] = "http"
    """Protocol; an endpoint that speaks HTTPS is asked over that in any case, unless `port` is another."""
    path: AbsolutePath = "/"
    """Path of the page, with its query if any."""
    port: PortOrZero = None
    """Port to poll; left out, or 0, that of the endpoint."""
    interval: str = ""
    """Time between two polls of an endpoint, such as `50ms`; by default that of the collector."""
    timeout: str = "1s"
    """Time limit for a page, from connecting to its last byte."""

    def __post_init__(self) -> None:
        """Check durations; raises ValueError."""
        super().__post_init__()
        for key, duration in (("interval", self.interval or "1s"), ("timeout", self.timeout)):
            try:
                seconds = parse_duration(duration)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None
            if seconds <= 0:
                raise ValueError(f"{key} is {duration!r}: write a duration above 0")


HP = TypeVar("HP", bound=HttpSourceParameters, default=HttpSourceParameters)


class HttpSource(DataSource[HP]):
    """Pages without redirects, cookies and compression, of at most 8 MiB."""

    accept: ClassVar[str]
    """Accepted media types."""

    def setup(self) -> None:
        """Prepare TLS and sessions; raises ValueError for an invalid certificate file."""
        self._timeout_seconds = parse_duration(self.parameters.timeout)
        self.endpoint_tls: EndpointTls | None = None
        """TLS with HTTPS endpoints, as the gateway has it; None for the parameters of this source."""
        self._tls = tls_context(self.parameters, self.name) if self.parameters.scheme == "https" else None
        self._default_tls: ssl.SSLContext | None = self._tls
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        """By whether connections are persistent."""
        self._turn = asyncio.Lock()
        self._checked: dict[tuple[str, bool], tuple[float, bool]] = {}
        """When a server was asked in the other protocol, and whether it answered, by URL and protocol."""

    @property
    def port(self) -> int | None:
        """Port to poll; None for that of the endpoint."""
        return self.parameters.port

    @property
    def interval_seconds(self) -> float | None:
        """Time between two polls of an endpoint; None for that of the collector."""
        return parse_duration(self.parameters.interval) if self.parameters.interval else None

    async def fetch(self, endpoint: Endpoint) -> bytes:
        """Return the page; raises UnreachableError, PageError or NotAskedError.

        If file descriptors are scarce, endpoints without a persistent connection take turns.
        """
        try:
            return await self._fetch(endpoint, keep=True)
        except NotAskedError:
            await self._wait_for_descriptor()
            return await self._fetch(endpoint, keep=False)

    async def close(self) -> None:
        """Close all connections; later calls of `fetch` open new ones."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    async def _fetch(self, endpoint: Endpoint, *, keep: bool) -> bytes:
        import aiohttp

        own = self.port in {None, endpoint.port}
        tls = self._tls_with_endpoints() if own and endpoint.tls else self._tls
        port = self.port or endpoint.port
        url = self._url(endpoint, port, "http" if tls is None else "https")
        attempt = Attempt(
            endpoint,
            url,
            port,
            self.name,
            own_tls=own and (endpoint.tls or tls is None),
            as_gateway=own and endpoint.tls and self.endpoint_tls is not None,
        )
        try:
            async with self._open(keep=keep).get(
                url,
                allow_redirects=False,
                ssl=True if tls is None else tls,
                server_hostname=None if tls is None else endpoint.host.rstrip(".") or None,
                headers=None if tls is None or not endpoint.host else {"Host": attempt.place},
            ) as response:
                return await _read(response, url)
        except (aiohttp.ClientError, TimeoutError, ValueError, _WantsTlsError) as error:
            if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
                raise NotAskedError(f"{url}: {error.strerror}") from None
            judged = self._judged if tls is None else self._judged_secure
            verdict = await judged(error, attempt)
            raise verdict from (None if verdict is error else error)

    async def _judged(self, error: Exception, attempt: Attempt) -> UnreachableError | PageError:
        """Return what it means that a request in plaintext failed."""
        import aiohttp

        if isinstance(error, TimeoutError):
            return attempt.timed_out(self._timeout_seconds)
        if isinstance(error, aiohttp.ClientConnectorError):
            return attempt.lost(error)
        if await self._speaks(speaks_tls, attempt):
            return attempt.speaks_tls()
        return _failed_after_connection(error, attempt)

    async def _judged_secure(self, error: Exception, attempt: Attempt) -> UnreachableError | PageError:
        """Return what it means that a request over TLS failed."""
        import aiohttp

        if isinstance(error, aiohttp.ClientConnectorCertificateError) and isinstance(
            error.certificate_error, ssl.SSLCertVerificationError
        ):
            return attempt.not_trusted(error.certificate_error)
        refused = isinstance(error, OSError) and error.errno == errno.ECONNREFUSED
        lost = isinstance(error, aiohttp.ClientConnectionError | TimeoutError) and not refused
        if lost and await self._speaks(speaks_http, attempt):
            return attempt.speaks_plaintext()
        if isinstance(error, TimeoutError):
            return attempt.timed_out(self._timeout_seconds)
        if isinstance(error, aiohttp.ClientSSLError):
            return attempt.no_handshake(error)
        return _failed_after_connection(error, attempt)

    def _tls_with_endpoints(self) -> ssl.SSLContext:
        """Return the context for endpoints that speak HTTPS."""
        if self.endpoint_tls is not None:
            return self.endpoint_tls.context
        if self._default_tls is None:
            self._default_tls = tls_context(self.parameters, self.name)
        return self._default_tls

    async def _speaks(self, check: Callable[[str, int, float], Awaitable[bool]], attempt: Attempt) -> bool:
        """Return whether the server speaks that protocol; it is not asked again at each failure."""
        key, now = (attempt.url, check is speaks_tls), asyncio.get_running_loop().time()
        checked_at, found = self._checked.get(key, (-math.inf, False))
        if now - checked_at > _PROTOCOL_CHECK_SECONDS:
            found = await check(attempt.endpoint.address, attempt.port, self._timeout_seconds)
            if len(self._checked) >= _MAX_CHECKED:  # of former endpoints
                self._checked.clear()
            self._checked[key] = (now, found)
        return found

    async def _wait_for_descriptor(self) -> None:
        """Wait for a file descriptor in order of the calls, at most for the timeout of a page."""
        async with self._turn:
            for _ in range(math.ceil(self._timeout_seconds / _TURN_SECONDS)):
                await asyncio.sleep(_TURN_SECONDS)
                with contextlib.suppress(OSError), brief_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("", 0))):
                    return

    def _url(self, endpoint: Endpoint, port: int, scheme: str) -> str:
        return f"{scheme}://{endpoint.hostport.rpartition(':')[0]}:{port}{self.parameters.path}"

    def _open(self, *, keep: bool) -> aiohttp.ClientSession:
        """Return the session, opened on first use: it belongs to the running event loop."""
        import aiohttp

        session = self._sessions.get(keep)
        if session is None:
            session = self._sessions[keep] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,  # an endpoint that waits for connections of others would seem unreachable
                    limit_per_host=_CONNECTIONS_PER_HOST,
                    keepalive_timeout=_KEEPALIVE_SECONDS if keep else None,
                    force_close=not keep,
                    socket_factory=kept_socket if keep else brief_socket,
                ),
                timeout=aiohttp.ClientTimeout(total=self._timeout_seconds),
                headers={"Accept": self.accept, "Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(loop=asyncio.get_running_loop()),
                auto_decompress=False,
            )
        return session


class _WantsTlsError(PageError):
    """The answer says that it should have been asked over TLS."""


async def _read(response: aiohttp.ClientResponse, url: str) -> bytes:
    if response.status != HTTPStatus.OK:
        problem = f"{url} answered {response.status} {response.reason or ''}".rstrip()
        if (
            response.status == HTTPStatus.BAD_REQUEST
            and b"https" in (await response.content.read(_EXCERPT_BYTES)).lower()
        ):
            raise _WantsTlsError(problem)
        raise PageError(problem)
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise PageError(f"{url} answered with Content-Encoding {encoding}, although identity was requested")
    page = bytearray()
    async for chunk in response.content.iter_any():
        page += chunk
        if len(page) > _PAGE_LIMIT_BYTES:
            raise PageError(f"{url}: the page is larger than {_PAGE_LIMIT_BYTES} bytes")
    return bytes(page)


def _failed_after_connection(error: Exception, attempt: Attempt) -> UnreachableError | PageError:
    import aiohttp

    if isinstance(error, PageError):
        return error
    if isinstance(error, aiohttp.ClientConnectionError):
        return attempt.lost(error)
    return PageError(f"{attempt.url}: {type(error).__name__}: {error}")
