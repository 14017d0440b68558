# SPDX-License-Identifier: Apache-2.0
"""Servers of a picker: ext_proc with health checks, metrics page and admin port."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client.registry import CollectorRegistry

from epp.admin.port import AdminPort, ClusterAccess, TokenFile
from epp.app.settings import PickerSettings
from epp.extproc.open_streams import SessionMaker, StreamObserver
from epp.extproc.server import ExtProcServer
from epp.extproc.settings import ServerSettings
from epp.framework.errors import ConfigurationError
from epp.runtime.addresses import HostPort, refusal, shown_listening
from epp.runtime.http_connections import ConnectionCounts
from epp.runtime.http_server import HttpLimits
from epp.telemetry.families import Families
from epp.telemetry.page import OperatorPage, PageTls
from epp.telemetry.plugin_metrics import LoopLag
from epp.telemetry.process_series import show_build, show_process
from epp.telemetry.settings import PageSettings

if TYPE_CHECKING:  # only one of two carriers is imported
    from epp.extproc.http2_carrier import Acceptor

_REFUSAL_SECONDS = 2.0
_POLL_SECONDS = 0.01


class Servers:
    """All servers of a picker; `extproc` closes first, so that operators can observe the drain."""

    def __init__(
        self,
        sessions: SessionMaker,
        page: OperatorPage,
        settings: ServerSettings,
        page_settings: PageSettings,
        *,
        admin: AdminPort | None = None,
        admin_routes: Callable[[], Sequence[web.RouteDef]] = tuple,
        streams: StreamObserver | None = None,
        acceptor: "Acceptor | None" = None,
    ) -> None:
        """With an `acceptor`, other processes serve the connections; `admin_routes` is called in the event loop."""
        self.extproc = ExtProcServer(sessions, settings, streams, acceptor)
        self._page = page
        self._page_settings = page_settings
        self._admin = admin
        self._admin_routes = admin_routes

    @property
    def addresses(self) -> Mapping[str, str]:
        """Addresses of open servers by name."""
        addresses = {**self.extproc.addresses}
        if self._page.port:
            addresses["metrics"] = shown_listening(self._page_settings.host, self._page.port)
        if self._admin is not None and self._admin.port:
            addresses["admin"] = shown_listening(self._admin.address.host, self._admin.port)
        return addresses

    async def open(self) -> None:
        """Listen, without being ready; raises ConfigurationError."""
        await self.extproc.start()
        host, port = self._page_settings.host, self._page_settings.port
        if port is not None:
            try:
                self._page.open(host, port)
            except OSError as error:
                raise ConfigurationError(f"the metrics page {refusal(HostPort(host, port), error)}") from error
        if self._admin is not None:
            try:
                self._admin.open(self._admin_routes())
            except OSError as error:
                raise ConfigurationError(f"the admin port {refusal(self._admin.address, error)}") from error

    async def streams_ended(self, count: int) -> None:
        """Wait until this number of open streams has ended, at most two seconds."""
        left = self.extproc.open_streams - count
        with suppress(TimeoutError):
            async with asyncio.timeout(_REFUSAL_SECONDS):
                while self.extproc.open_streams > left:  # noqa: ASYNC110  once, at the end of the process
                    await asyncio.sleep(_POLL_SECONDS)

    async def close_pages(self) -> None:
        await asyncio.to_thread(self._page.close)
        if self._admin is not None:
            await asyncio.to_thread(self._admin.close)


def operator_page(
    registry: CollectorRegistry,
    health: Callable[[], Mapping[str, object]],
    page: PageSettings,
    counts: ConnectionCounts,
    access: ClusterAccess | None,
    *,
    scores: Callable[[str], Mapping[str, object]],
    explanations: Callable[[], Mapping[str, object]],
    debug: Callable[[], web.RouteDef] | None = None,
) -> OperatorPage:
    """Return the metrics port with these settings; without a token file, `access` authorizes readers."""
    return OperatorPage(
        registry,
        health,
        HttpLimits(page.max_connections, page.request_seconds),
        scores=scores,
        explanations=explanations,
        access=access if page.token_file is None else TokenFile(page.token_file, "--metrics-token-file").access,
        counts=counts,
        tls=None if page.cert_dir is None else PageTls(page.cert_dir, page.client_ca_file),
        debug=debug,
    )


def show_program(
    families: Families, settings: PickerSettings, slowest_call: Callable[[], tuple[float, str]]
) -> LoopLag:
    """Add the metrics of the process; return the monitor of its event loop, which the caller must run.

    `slowest_call` returns the seconds and the plugin of the longest call since the last call of this function.
    """
    show_build(families, settings.server.transport.value, settings.lost_log_lines)
    show_process(families.registry)
    if settings.tracing is not None:
        settings.tracing.counts.show(families.registry)
    return LoopLag(families, slowest_call)
