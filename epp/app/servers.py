# SPDX-License-Identifier: Apache-2.0
"""The servers of a picker: ext_proc with health, the metrics port, and the admin port."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from aiohttp import web

from epp.admin import AdminPort
from epp.extproc.open_streams import SessionMaker, StreamObserver
from epp.extproc.server import ExtProcServer, ServerSettings
from epp.framework.errors import ConfigurationError
from epp.runtime.addresses import HostPort, refusal, shown_listening
from epp.telemetry.page import OperatorPage

_ANSWER_SECONDS = 2.0
_LOOK_SECONDS = 0.01


class Servers:
    """Opened as one; `extproc` closes first, so that operators can see how it drains."""

    def __init__(
        self,
        sessions: SessionMaker,
        page: OperatorPage,
        settings: ServerSettings,
        *,
        metrics_address: tuple[str, int] | None,
        admin: AdminPort | None = None,
        admin_routes: Callable[[], Sequence[web.RouteDef]] = tuple,
        streams: StreamObserver | None = None,
    ) -> None:
        """Prepare; `admin_routes` is called on the event loop that owns the state of the routes."""
        self.extproc = ExtProcServer(sessions, settings, streams)
        self._page = page
        self._metrics_address = metrics_address
        self._admin = admin
        self._admin_routes = admin_routes

    @property
    def addresses(self) -> Mapping[str, str]:
        """Where each server that is open listens."""
        addresses = {**self.extproc.addresses}
        if self._metrics_address is not None and self._page.port:
            addresses["metrics"] = shown_listening(self._metrics_address[0], self._page.port)
        if self._admin is not None and self._admin.port:
            addresses["admin"] = shown_listening(self._admin.settings.host, self._admin.port)
        return addresses

    async def open(self) -> None:
        """Listen, without being ready; raises ConfigurationError."""
        await self.extproc.start()
        if self._metrics_address is not None:
            host, port = self._metrics_address
            try:
                self._page.open(host, port)
            except OSError as error:
                raise ConfigurationError(f"the metrics page {refusal(HostPort(host, port), error)}") from error
        if self._admin is not None:
            address = HostPort(self._admin.settings.host, self._admin.settings.port)
            try:
                self._admin.open(self._admin_routes())
            except OSError as error:
                raise ConfigurationError(f"the admin port {refusal(address, error)}") from error

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
        """Stop answering operators."""
        await asyncio.to_thread(self._page.close)
        if self._admin is not None:
            await asyncio.to_thread(self._admin.close)
