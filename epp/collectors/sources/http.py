"""Data sources over HTTP, on persistent connections."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, ClassVar, Literal

from typing_extensions import TypeVar

from epp.collectors.sources.tls import TlsParameters, tls_context
from epp.descriptors import NO_DESCRIPTOR, polling_bound
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
_REFUSALS = frozenset({errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE})


class HttpSourceParameters(TlsParameters, frozen=True):
    """URL of the page, polling interval and TLS."""

    scheme: Literal["http", "https"] = "http"
    """Protocol."""
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
        self._tls = tls_context(self.parameters, self.name) if self.parameters.scheme == "https" else None
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        """By whether connections are persistent."""
        self._turn = asyncio.Lock()

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

        url = self._url(endpoint)
        try:
            async with self._open(keep=keep).get(
                url, allow_redirects=False, server_hostname=endpoint.host or None if self._tls else None
            ) as response:
                return await _read(response, url)
        except TimeoutError:
            raise UnreachableError(f"{url} did not answer within {self._timeout_seconds} s", refused=False) from None
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError) as error:
            raise PageError(f"{url}: no secure connection: {error}") from error
        except aiohttp.ClientConnectionError as error:
            if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
                raise NotAskedError(f"{url}: {error.strerror}") from None
            raise UnreachableError(f"{url}: {error}", refused=_is_refusal(error)) from error
        except (aiohttp.ClientError, ValueError) as error:
            raise PageError(f"{url}: {type(error).__name__}: {error}") from error

    async def _wait_for_descriptor(self) -> None:
        """Wait for a file descriptor in order of the calls, at most for the timeout of a page."""
        async with self._turn:
            for _ in range(math.ceil(self._timeout_seconds / _TURN_SECONDS)):
                await asyncio.sleep(_TURN_SECONDS)
                with contextlib.suppress(OSError), _brief_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("", 0))):
                    return

    def _url(self, endpoint: Endpoint) -> str:
        port = self.parameters.port
        authority = endpoint.hostport if port is None else f"{endpoint.hostport.rpartition(':')[0]}:{port}"
        return f"{self.parameters.scheme}://{authority}{self.parameters.path}"

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
                    ssl=self._tls if self._tls is not None else True,
                    socket_factory=_kept_socket if keep else _brief_socket,
                ),
                timeout=aiohttp.ClientTimeout(total=self._timeout_seconds),
                headers={"Accept": self.accept, "Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(loop=asyncio.get_running_loop()),
                auto_decompress=False,
            )
        return session


async def _read(response: aiohttp.ClientResponse, url: str) -> bytes:
    if response.status != HTTPStatus.OK:
        raise PageError(f"{url} answered {response.status} {response.reason or ''}".rstrip())
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise PageError(f"{url} answered with Content-Encoding {encoding}, although identity was requested")
    page = bytearray()
    async for chunk in response.content.iter_any():
        page += chunk
        if len(page) > _PAGE_LIMIT_BYTES:
            raise PageError(f"{url}: the page is larger than {_PAGE_LIMIT_BYTES} bytes")
    return bytes(page)


def _is_refusal(error: aiohttp.ClientConnectionError) -> bool:
    import aiohttp

    if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionError):
        return True
    return isinstance(error, OSError) and error.errno in _REFUSALS


def _kept_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    return _socket_below(polling_bound(kept=True), address)


def _brief_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    return _socket_below(polling_bound(kept=False), address)


def _socket_below(bound: int | None, address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket; raises OSError if its file descriptor is not below the bound."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    if bound is not None and made.fileno() >= bound:
        made.close()
        raise OSError(errno.EMFILE, "all free file descriptors are reserved for listeners")
    return made
