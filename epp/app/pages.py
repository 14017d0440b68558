# SPDX-License-Identifier: Apache-2.0
"""The ports for operators of a picker, for one pool or several, and the metrics of its process."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from aiohttp import web
from prometheus_client.registry import CollectorRegistry

from epp.admin.answers import LoopCalls
from epp.admin.configuration import plugin_state_route
from epp.admin.port import AdminPort, ClusterAccess, TokenFile
from epp.app.settings import PickerSettings
from epp.framework import SystemClock
from epp.framework.errors import ConfigurationError
from epp.kube.access import KubeApi
from epp.kube.reviews import TokenReviews
from epp.runtime.addresses import HostPort, refusal, shown_listening
from epp.runtime.http_server import HttpLimits
from epp.telemetry.families import Families
from epp.telemetry.page import OperatorPage, PageTls
from epp.telemetry.plugin_metrics import LoopLag
from epp.telemetry.process_series import ConnectionSeries, show_build, show_process


class Answers(Protocol):
    """What the ports for operators show."""

    def health(self) -> Mapping[str, object]:
        """Return the content of `/healthz`; called in any thread."""

    def cluster_scores(self, local: str) -> Mapping[str, object]:
        """Return the free capacity of each cluster, given the name of the local one; called in any thread."""

    def explanations(self) -> Mapping[str, object]:
        """Return explanations of the decisions of placements, by name; called in any thread."""

    async def plugin_states(self, request: web.Request) -> Mapping[str, object]:
        """Return the plugin states that the request asks for; raises AdminError."""

    def admin_routes(self) -> Sequence[web.RouteDef]:
        """Return the routes of the admin port; called when it opens, on the event loop that owns the plugins."""


class Pages:
    """The metrics port and the admin port of a picker, each if the settings give it a port."""

    def __init__(
        self,
        settings: PickerSettings,
        registry: CollectorRegistry,
        shown: CollectorRegistry,
        answers: Answers,
        api: Callable[[], KubeApi],
    ) -> None:
        """Prepare; raises ConfigurationError.

        The metrics of connections are added to `registry`; `/metrics` shows `shown`. `api` returns the API server that
        reviews the tokens of clients; it is called only if the settings ask for such reviews.
        """
        page, admin = settings.page, settings.admin
        connections = ConnectionSeries(registry)
        self._settings = settings
        self._answers = answers
        self._access = ClusterAccess(TokenReviews(api(), SystemClock())) if page.endpoint_auth else None
        self._page = OperatorPage(
            shown,
            answers.health,
            HttpLimits(page.max_connections, page.request_seconds),
            scores=answers.cluster_scores,
            explanations=answers.explanations,
            access=self._access
            if page.token_file is None
            else TokenFile(page.token_file, "--metrics-token-file").access,
            counts=connections.of("metrics"),
            tls=None if page.cert_dir is None else PageTls(page.cert_dir, page.client_ca_file),
            debug=self._debug_route,
        )
        self._admin = None if admin.port is None else AdminPort(admin, connections.of("admin"))

    @property
    def addresses(self) -> Mapping[str, str]:
        """Addresses of open ports by name."""
        addresses = {}
        if self._page.port:
            addresses["metrics"] = shown_listening(self._settings.page.host, self._page.port)
        if self._admin is not None and self._admin.port:
            addresses["admin"] = shown_listening(self._admin.address.host, self._admin.port)
        return addresses

    def open(self) -> None:
        """Listen; send reviews of tokens on the running event loop. Raises ConfigurationError."""
        if self._access is not None:
            self._access.start()
        host, port = self._settings.page.host, self._settings.page.port
        if port is not None:
            try:
                self._page.open(host, port)
            except OSError as error:
                raise ConfigurationError(f"the metrics page {refusal(HostPort(host, port), error)}") from error
        if self._admin is not None:
            try:
                self._admin.open(self._answers.admin_routes())
            except OSError as error:
                raise ConfigurationError(f"the admin port {refusal(self._admin.address, error)}") from error

    async def close(self) -> None:
        await asyncio.to_thread(self._page.close)
        if self._admin is not None:
            await asyncio.to_thread(self._admin.close)

    def _debug_route(self) -> web.RouteDef:
        """Return the route of the page with plugin states, for the running event loop."""
        is_open = self._access is None and self._settings.page.token_file is None
        loop = LoopCalls(asyncio.get_running_loop())
        return plugin_state_route(loop, self._answers.plugin_states, needs_loopback=is_open)


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
