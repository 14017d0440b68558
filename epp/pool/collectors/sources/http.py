# SPDX-License-Identifier: Apache-2.0
"""Data sources over HTTP, on persistent connections: any page, GPU utilization of DCGM exporters, lists of models."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cached_property
from typing import ClassVar, Literal
from urllib.parse import quote

import msgspec
import numpy as np
from typing_extensions import TypeVar

from epp.framework.datalayer import DataSource, Extractor, PageError, Report, UnreachableError
from epp.framework.endpoint import Endpoint, PagePlace
from epp.framework.limits import AbsolutePath, PortOrZero
from epp.framework.quantities import duration_setting, parse_duration
from epp.framework.snapshot import GPU_UTILIZATION, MODELS
from epp.pool.collectors.exposition import PROMETHEUS_TEXT, Selector
from epp.pool.collectors.page_limits import REMEDIES, Limit
from epp.pool.collectors.sources.connection import ConnectError, DisconnectedError
from epp.pool.collectors.sources.page_client import Attempt, PageClient, WantsTlsError
from epp.pool.collectors.sources.probes import (
    EndpointTls,
    TlsParameters,
    polling_socket,
    speaks_http,
    speaks_tls,
    tls_context,
)
from epp.pool.collectors.sources.response_parser import PageBuffer, Reading
from epp.runtime.supervisor import NO_DESCRIPTOR

_DEFAULT_PORTS = {"http": 80, "https": 443}
_UNQUOTED = "/?&=%:@!$'()*+,;~-._[]"
_BRIEF_INTERVAL_SECONDS = 0.005
"""Interval between brief connections, which cost more than pages on persistent ones."""
_PROTOCOL_CHECK_SECONDS = 10.0
"""Shortest time between two checks whether a server speaks TLS or plaintext."""
_MAX_CHECKED = 4096


class HttpSourceParameters(TlsParameters, frozen=True):
    """URL of the page, polling interval and TLS."""

    scheme: Literal["http", "https"] = "http"
    """Protocol; endpoints that speak HTTPS are always polled over HTTPS, unless `port` is another port."""
    path: AbsolutePath = "/"
    """Path of the page, with its query if any."""
    port: PortOrZero = None
    """Port to poll; by default, or with 0, that of the endpoint."""
    interval: str = ""
    """Time between two polls of an endpoint, such as `50ms`; by default that of the collector."""
    timeout: str = "1s"
    """Time limit for a page, from connecting to its last byte."""

    def __post_init__(self) -> None:
        super().__post_init__()
        duration_setting("interval", self.interval or "1s")
        duration_setting("timeout", self.timeout)


HP = TypeVar("HP", bound=HttpSourceParameters, default=HttpSourceParameters)


class HttpSource(DataSource[HP]):
    """Source of pages over HTTP, without redirects, cookies and compression, and with a size limit."""

    accept: ClassVar[str]
    """Accepted media types."""
    most_bytes: ClassVar[int | None] = None
    """Largest useful page; None for the common limit."""

    def setup(self) -> None:
        """Prepare TLS; raises ValueError for an invalid certificate file."""
        self.timeout_seconds = parse_duration(self.parameters.timeout)
        self.reading = Reading()
        """State that the connections of all sources share."""
        self.endpoint_tls: EndpointTls | None = None
        """TLS with HTTPS endpoints as in the gateway; None for the parameters of this source."""
        self._tls = self._own_tls if self.parameters.scheme == "https" else None
        self._descriptor_lock = asyncio.Lock()
        self._checked: dict[tuple[str, bool], tuple[float, bool]] = {}
        """Time and result of the last protocol check, by URL and protocol."""

    def remedy(self, limit: Limit) -> str:
        """Return the remedy for a page that exceeds a limit."""
        if limit is Limit.PAGE_BYTES and self.limit_bytes < self.reading.limits.page_bytes:
            return "check the path of the source: pages of its kind are not so large"
        return REMEDIES[limit]

    @property
    def port(self) -> int | None:
        return self.parameters.port

    @property
    def interval_seconds(self) -> float | None:
        return parse_duration(self.parameters.interval) if self.parameters.interval else None

    def place(self, endpoint: Endpoint) -> PagePlace:
        return PagePlace(endpoint.address, self.port or endpoint.port, endpoint.host)

    @cached_property
    def _own_tls(self) -> ssl.SSLContext:
        return tls_context(self.parameters, self.name)

    def client_for(self, endpoint: Endpoint, page_buffer: PageBuffer | None = None) -> PageClient:
        """Return a client for an endpoint, which the caller closes; `page_buffer` collects its pages, if given."""
        own, place = self.asks(endpoint), self.place(endpoint)
        tls = self._tls
        if own and endpoint.tls:
            tls = self._own_tls if self.endpoint_tls is None else self.endpoint_tls.context
        scheme = "http" if tls is None else "https"
        literal = place._replace(host="")
        host = str(literal).removesuffix(f":{_DEFAULT_PORTS[scheme]}")
        if tls is not None and place.host:
            host = str(place)
        request = (
            f"GET {quote(self.parameters.path, _UNQUOTED)} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: epp\r\n"
            f"Accept: {self.accept}\r\nAccept-Encoding: identity\r\n\r\n"
        )
        attempt = Attempt(
            endpoint,
            f"{scheme}://{literal}{self.parameters.path}",
            place,
            self.name,
            own_tls=own and (endpoint.tls or tls is None),
            as_gateway=own and endpoint.tls and self.endpoint_tls is not None,
            request=request.encode(),
            tls=tls,
        )
        return PageClient(self, attempt, page_buffer)

    async def fetch(self, endpoint: Endpoint) -> bytes:
        """Return the page, on a new connection; raises UnreachableError, PageError or NotAskedError.

        If file descriptors are scarce, endpoints without a persistent connection are polled one after the other.
        """
        with contextlib.closing(self.client_for(endpoint)) as client:
            return await client.page()

    async def close(self) -> None:
        """Do nothing: callers of `client_for` close the connections."""

    async def socket_for(self, address: str) -> tuple[socket.socket, bool]:
        """Return a socket, and whether its connection may be kept; raises OSError.

        If file descriptors are scarce, waits for one in order of the calls, at most for the timeout of a page.
        """
        try:
            return polling_socket(address, kept=True), True
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                raise
        async with self._descriptor_lock:
            for _ in range(math.ceil(self.timeout_seconds / _BRIEF_INTERVAL_SECONDS)):
                await asyncio.sleep(_BRIEF_INTERVAL_SECONDS)
                with contextlib.suppress(OSError):
                    return polling_socket(address, kept=False), False
            return polling_socket(address, kept=False), False

    @property
    def limit_bytes(self) -> int:
        """Most bytes of a page."""
        common = self.reading.limits.page_bytes
        return min(common, self.most_bytes or common)

    async def classify(self, error: Exception, attempt: Attempt) -> UnreachableError | PageError:
        """Return the error with the reason that a request failed; checks the protocol of the server if necessary."""
        if await self._speaks_other(error, attempt):
            return attempt.wrong_protocol(speaks_tls=attempt.url.startswith("http:"))
        if isinstance(error, ssl.SSLCertVerificationError):
            return attempt.not_trusted(error)
        if isinstance(error, TimeoutError):
            return attempt.timed_out(self.timeout_seconds)
        if isinstance(error, ssl.SSLError):
            return attempt.no_handshake(error)
        if isinstance(error, ConnectError | DisconnectedError):
            return attempt.lost(error.error or error)
        return error if isinstance(error, PageError) else PageError(f"{attempt.url}: {type(error).__name__}: {error}")

    async def _speaks_other(self, error: Exception, attempt: Attempt) -> bool:
        """Return whether a request failed because the server requires TLS, or plaintext instead of TLS."""
        if attempt.url.startswith("http:"):
            certain = isinstance(error, ConnectError | TimeoutError | PageError) and not isinstance(
                error, WantsTlsError
            )
            return not certain and await self._speaks(speaks_tls, attempt)
        refused = isinstance(error, ConnectError) and error.error.errno == errno.ECONNREFUSED
        if refused or isinstance(error, ssl.SSLCertVerificationError):
            return False
        lost = isinstance(error, ConnectError | DisconnectedError | TimeoutError | ssl.SSLError)
        return lost and await self._speaks(speaks_http, attempt)

    async def _speaks(self, check: Callable[[str, int, float], Awaitable[bool]], attempt: Attempt) -> bool:
        """Return whether the server speaks a protocol; the result is remembered for ten seconds."""
        key, now = (attempt.url, check is speaks_tls), asyncio.get_running_loop().time()
        checked_at, found = self._checked.get(key, (-math.inf, False))
        if now - checked_at > _PROTOCOL_CHECK_SECONDS:
            found = await check(attempt.place.address, attempt.place.port, self.timeout_seconds)
            if len(self._checked) >= _MAX_CHECKED:  # of former endpoints
                self._checked.clear()
            self._checked[key] = (now, found)
        return found


# With MIG, the exporter omits the first series; the second is optional in its configuration.
_SERIES = ((Selector("DCGM_FI_DEV_GPU_UTIL"), 100.0), (Selector("DCGM_FI_PROF_GR_ENGINE_ACTIVE"), 1.0))
_RANK = re.compile(r"-rank-\d+$")


class DcgmSourceParameters(HttpSourceParameters, frozen=True):
    """URL of the exporter, polling interval and TLS."""

    path: AbsolutePath = "/metrics"
    """Path of the page."""
    port: PortOrZero = 9400
    """Port of the exporter; 0 for the port of the endpoint."""
    interval: str = "1s"
    """Time between two polls of an endpoint; GPUs do not measure their utilization more often."""
    use_node_address: bool = False
    """Poll the address of the endpoint's node, on which a DaemonSet runs the exporter, instead of the address of the
    endpoint. If the address of the node is unknown, as in a list of endpoints, the address of the endpoint is used."""


class DcgmDataSource(HttpSource[DcgmSourceParameters]):
    """Fetches the page of a DCGM exporter with the endpoint; its failures do not affect the endpoint."""

    plugin_type = "dcgm-data-source"
    accept = PROMETHEUS_TEXT

    def place(self, endpoint: Endpoint) -> PagePlace:
        place = super().place(endpoint)
        return PagePlace(endpoint.node_address, place.port) if self._is_at_node(endpoint) else place

    def asks(self, endpoint: Endpoint) -> bool:
        """Whether the exporter has the address and port of the endpoint."""
        return super().asks(endpoint) and not self._is_at_node(endpoint)

    def _is_at_node(self, endpoint: Endpoint) -> bool:
        return self.parameters.use_node_address and bool(endpoint.node_address)


class DcgmExtractor(Extractor):
    """Reads the utilization of the busiest GPU of an endpoint: DCGM_FI_DEV_GPU_UTIL, 0..1.

    A GPU with a pod label counts for the endpoint with this name and namespace, a GPU without it for every endpoint;
    without GPUs, the utilization is unknown. Endpoints named `<pod>-rank-<number>` belong to one pod. With MIG, which
    has no such series, DCGM_FI_PROF_GR_ENGINE_ACTIVE counts if the exporter has it.
    """

    plugin_type = "dcgm-extractor"
    writes = (GPU_UTILIZATION,)

    @property
    def series(self) -> Collection[str]:
        return [selector.name for selector, _ in _SERIES]

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        silent = True
        for selector, full in _SERIES:
            series = selector.read(page)
            silent = silent and not series
            shares = [one.value / full for one in series if _is_of(endpoint, one.labels)]
            possible = [share for share in shares if 0.0 <= share <= 1.0]  # an unmeasured value is 2 ** 63
            if possible:
                return Report({GPU_UTILIZATION: max(possible)})
        if silent:
            names = " nor ".join(selector.name for selector, _ in _SERIES)
            raise PageError(
                f"the page for endpoint {endpoint.id} has neither {names}: check that it is that of a DCGM exporter, "
                f"and that these counters are enabled"
            )
        return Report({GPU_UTILIZATION: math.nan})


def _is_of(endpoint: Endpoint, labels: Mapping[str, str]) -> bool:
    """Return whether a series belongs to the endpoint; a series without pod labels belongs to all endpoints.

    In the page of a Prometheus server, the exporter's own labels have the prefix `exported_`; `pod` is the exporter.
    """
    pod = labels.get("exported_pod") or labels.get("pod", "")
    namespace = labels.get("exported_namespace") or labels.get("namespace", "")
    return pod in {"", endpoint.name, _RANK.sub("", endpoint.name)} and namespace in {"", endpoint.namespace}


MOST_BYTES = 2 * 1024 * 1024
_LONGEST_NAME = 256
MOST_OBJECTS = 10_000
"""Most objects in a list: reading them blocks the event loop for 2 ms."""


class ModelsSourceParameters(HttpSourceParameters, frozen=True):
    """URL of the list, polling interval and TLS."""

    path: AbsolutePath = "/v1/models"
    """Path of the list."""
    interval: str = "10s"
    """Time between two polls of an endpoint, and so the longest delay until a loaded adapter is known."""


class ModelsDataSource(HttpSource[ModelsSourceParameters]):
    """Fetches an endpoint's list of models: at most 2 MiB, no redirects, no cookies, no compression."""

    plugin_type = "models-data-source"
    accept = "application/json"
    most_bytes = MOST_BYTES


class _Model(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_Model]


class ModelsDataExtractor(Extractor):
    """Reads the names of models and adapters from a list in the OpenAI format: of at most 2 MiB and 10,000 objects.

    Names of more than 256 characters are left out.
    """

    plugin_type = "models-data-extractor"
    writes = (MODELS,)

    _decoder = msgspec.json.Decoder(_ModelList)

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        if len(page) > MOST_BYTES or np.count_nonzero(np.frombuffer(page, np.uint8) == ord("{")) > MOST_OBJECTS:
            raise PageError(
                f"endpoint {endpoint.id}: the list of models has more than {MOST_BYTES} bytes, or more than "
                f"{MOST_OBJECTS} objects; check the path of the source"
            )
        try:
            models = self._decoder.decode(page)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PageError(
                f"endpoint {endpoint.id}: the page is not a list of models such as "
                f'{{"data": [{{"id": "a-model"}}]}}: {error}; check the path of the source'
            ) from error
        return Report(attributes={MODELS: frozenset(one.id for one in models.data if len(one.id) <= _LONGEST_NAME)})
