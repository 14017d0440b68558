# SPDX-License-Identifier: Apache-2.0
"""The servers of a picker: ext_proc with health, metrics, admin."""

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

_ANSWER_SECONDS = 2.0
_LOOK_SECONDS = 0.01


class Servers:
    """Opened as one; `extproc` closes first, so that operators can see how it drains."""

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
        """Prepare; with an acceptor, other processes serve the connections.

        `admin_routes` is called on the event loop that owns the state of the routes.
        """
        self.extproc = ExtProcServer(sessions, settings, streams, acceptor)
        self._page = page
        self._page_settings = page_settings
        self._admin = admin
        self._admin_routes = admin_routes

    @property
    def addresses(self) -> Mapping[str, str]:
        """Address of each open server."""
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

    async def answered(self, streams: int) -> None:
        """Wait until so many of the open streams have ended, but not long: they are refused, and the gateway reads."""
        if not streams:
            return
        left = self.extproc.open_streams - streams
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                while self.extproc.open_streams > left:  # noqa: ASYNC110  once, as the process ends
                    await asyncio.sleep(_LOOK_SECONDS)

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
    """Return the metrics port with these settings; without a token file, `access` decides who may read it."""
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
    """Add the metrics of the process; return the lag of its event loop, to be followed.

    `slowest_call` returns the seconds and the plugin of the longest call since it was last asked.
    """
    show_build(families, settings.server.transport.value, settings.lost_log_lines)
    show_process(families.registry)
    if settings.tracing is not None:
        settings.tracing.counts.show(families.registry)
    return LoopLag(families, slowest_call)
