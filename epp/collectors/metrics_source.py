"""Fetches an endpoint's metrics page over HTTP, on connections that are kept."""

import asyncio
import errno
import ssl
from http import HTTPStatus
from pathlib import Path

import aiohttp
import structlog

from epp.framework.clock import Clock
from epp.framework.datalayer import DataSource, PageError, UnreachableError
from epp.framework.durations import parse_duration
from epp.framework.endpoint import Endpoint
from epp.framework.plugins import Parameters

_PAGE_LIMIT_BYTES = 8 * 1024 * 1024
_CONNECTIONS_PER_HOST = 2
_KEEPALIVE_SECONDS = 30.0
_PORT_LIMIT = 65535
_REFUSALS = frozenset({errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE})
_HEADERS = {"Accept": "text/plain;version=0.0.4,text/plain;q=0.5", "Accept-Encoding": "identity"}

_log = structlog.get_logger()


class MetricsSourceParameters(Parameters, frozen=True):
    """Where the page is, and how to get it."""

    scheme: str = "http"
    path: str = "/metrics"
    port: int | None = None
    """The endpoint's own when left out."""
    insecure_skip_verify: bool = True
    """Take any server certificate: model servers in a cluster rarely have one that can be verified."""
    ca_cert_path: str = ""
    client_cert_path: str = ""
    client_key_path: str = ""
    interval: str = ""
    """Time between two pages of one endpoint, such as `50ms`; the collector's own when left out."""
    timeout: str = "1s"
    """Time for one page, from connecting to its last byte."""

    def __post_init__(self) -> None:
        """Check every value; raises ValueError."""
        if self.scheme not in {"http", "https"}:
            raise ValueError(f"scheme {self.scheme!r} is not http or https")
        if not self.path.startswith("/"):
            raise ValueError(f"path {self.path!r} does not start with a slash: write /{self.path}")
        if self.port is not None and not 0 < self.port <= _PORT_LIMIT:
            raise ValueError(f"port {self.port} is not between 1 and {_PORT_LIMIT}")
        if bool(self.client_cert_path) != bool(self.client_key_path):
            raise ValueError("clientCertPath and clientKeyPath go together: give both or neither")
        for key, duration in (("interval", self.interval or "1s"), ("timeout", self.timeout)):
            try:
                seconds = parse_duration(duration)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None
            if seconds <= 0:
                raise ValueError(f"{key} {duration!r} is not longer than nothing")


class MetricsDataSource(DataSource[MetricsSourceParameters]):
    """Pages as they are sent: at most 8 MiB, no redirects, no cookies, no compression."""

    plugin_type = "metrics-data-source"

    def __init__(
        self, parameters: MetricsSourceParameters | None = None, *, name: str = "", clock: Clock | None = None
    ) -> None:
        super().__init__(parameters, name=name, clock=clock)
        self._timeout_seconds = parse_duration(self.parameters.timeout)
        self._tls = _tls_context(self.parameters, self.name) if self.parameters.scheme == "https" else None
        self._session: aiohttp.ClientSession | None = None

    @property
    def port(self) -> int | None:
        """The port asked; None for the endpoint's own."""
        return self.parameters.port

    @property
    def interval_seconds(self) -> float | None:
        """The time between two pages that was asked for; None for the collector's own."""
        return parse_duration(self.parameters.interval) if self.parameters.interval else None

    async def fetch(self, endpoint: Endpoint) -> bytes:
        """Return the page; raises UnreachableError or PageError."""
        url = self._url(endpoint)
        try:
            async with self._open().get(
                url, allow_redirects=False, server_hostname=endpoint.host or None if self._tls else None
            ) as response:
                return await _read(response, url)
        except TimeoutError:
            raise UnreachableError(f"{url} did not answer within {self._timeout_seconds} s", refused=False) from None
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError) as error:
            raise PageError(f"{url}: no secure connection: {error}") from error
        except aiohttp.ClientConnectionError as error:
            raise UnreachableError(f"{url}: {error}", refused=_is_refusal(error)) from error
        except (aiohttp.ClientError, ValueError) as error:
            raise PageError(f"{url}: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Close all connections; a later fetch opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _url(self, endpoint: Endpoint) -> str:
        port = self.parameters.port
        authority = endpoint.hostport if port is None else f"{endpoint.hostport.rpartition(':')[0]}:{port}"
        return f"{self.parameters.scheme}://{authority}{self.parameters.path}"

    def _open(self) -> aiohttp.ClientSession:
        """Open the session when first asked: it belongs to the event loop that runs then."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,  # one waiting for another endpoint's connection would look dead
                    limit_per_host=_CONNECTIONS_PER_HOST,
                    keepalive_timeout=_KEEPALIVE_SECONDS,
                    ssl=self._tls if self._tls is not None else True,
                ),
                timeout=aiohttp.ClientTimeout(total=self._timeout_seconds),
                headers=_HEADERS,
                cookie_jar=aiohttp.DummyCookieJar(loop=asyncio.get_running_loop()),
                auto_decompress=False,
            )
        return self._session


async def _read(response: aiohttp.ClientResponse, url: str) -> bytes:
    if response.status != HTTPStatus.OK:
        raise PageError(f"{url} answered {response.status} {response.reason or ''}".rstrip())
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise PageError(f"{url} answered with Content-Encoding {encoding}, which was not asked for")
    page = bytearray()
    async for chunk in response.content.iter_any():
        page += chunk
        if len(page) > _PAGE_LIMIT_BYTES:
            raise PageError(f"{url}: the page is larger than {_PAGE_LIMIT_BYTES} bytes")
    return bytes(page)


def _is_refusal(error: aiohttp.ClientConnectionError) -> bool:
    if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionError):
        return True
    return isinstance(error, OSError) and error.errno in _REFUSALS


def _tls_context(parameters: MetricsSourceParameters, name: str) -> ssl.SSLContext:
    """Raise ValueError for a certificate file that cannot be used."""
    for key, path in (
        ("caCertPath", parameters.ca_cert_path),
        ("clientCertPath", parameters.client_cert_path),
        ("clientKeyPath", parameters.client_key_path),
    ):
        if path and not Path(path).is_file():
            raise ValueError(f"{key}: there is no file {path!r}")
    try:
        context = ssl.create_default_context(cafile=parameters.ca_cert_path or None)
        if parameters.client_cert_path:
            context.load_cert_chain(parameters.client_cert_path, parameters.client_key_path)
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(filter(None, (parameters.ca_cert_path, parameters.client_cert_path)))
        raise ValueError(f"certificate files ({files}) cannot be used: {error}") from error
    if parameters.insecure_skip_verify:
        if parameters.ca_cert_path:
            _log.warning("caCertPath has no effect unless insecureSkipVerify is false", plugin=name)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
