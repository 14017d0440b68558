# SPDX-License-Identifier: Apache-2.0
"""The servers of a picker (ext_proc with health, metrics, admin) and what `/healthz` and the admin port answer."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client.registry import CollectorRegistry

from epp.admin.allocation import allocation_routes
from epp.admin.answers import PickerView
from epp.admin.configuration import config_routes
from epp.admin.endpoints import endpoint_routes
from epp.admin.idle_nodes import idle_node_routes
from epp.admin.page import page_routes
from epp.admin.placement import placement_routes
from epp.admin.port import AdminPort, ClusterAccess, TokenAccess
from epp.admin.quotas import quota_routes
from epp.admin.simulate import decision_routes, simulation_routes
from epp.app.settings import PickerSettings
from epp.config import Assembly, Builder, assemble, load_text
from epp.config.lint import texts_in
from epp.explain.recorder import Recorder
from epp.explain.storage import DecisionFile
from epp.extproc.budgets import Budgets
from epp.extproc.open_streams import SessionMaker, StreamObserver
from epp.extproc.server import ExtProcServer
from epp.extproc.settings import ServerSettings
from epp.framework.cluster import ObjectReader
from epp.framework.errors import ConfigurationError
from epp.framework.files import only_files
from epp.framework.plugin import Plugin
from epp.framework.plugin_status import HasInputs
from epp.pool.discovery.several import SourceState
from epp.routing.director.waiting import QueueStatus
from epp.runtime.addresses import HostPort, refusal, shown_listening
from epp.runtime.http_connections import ConnectionCounts
from epp.runtime.http_server import HttpLimits
from epp.telemetry.endpoints import MAX_ROWS, EndpointState
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
        """Where each server that is open listens."""
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
        """Stop answering operators."""
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
        access=access if page.token_file is None else TokenAccess(page.token_file),
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


def endpoints_health(states: Sequence[EndpointState]) -> Mapping[str, object]:
    """Return the number of endpoints, how many are reachable, and some that need attention."""
    unreachable = [state for state in states if not state.used]
    return {
        "endpoints": len(states),
        "reachable": len(states) - len(unreachable),
        "unreachable": [state.as_fields() for state in unreachable[:MAX_ROWS]],
        "attention": [state.as_fields() for state in states if state.used and state.needs_attention][:MAX_ROWS],
    }


def sources_health(states: Sequence[SourceState]) -> Mapping[str, object]:
    """Return the sources of endpoints, and which of them is in trouble; nothing if there are not several."""
    return {"sources": [state._asdict() for state in states]} if states else {}


def news(
    *,
    line: QueueStatus | None,
    now: float,
    budgets: Budgets,
    alerts: Sequence[Mapping[str, object]],
    file: DecisionFile | None,
    shadows: Sequence[Mapping[str, str]],
    plugins: Sequence[Plugin[Any]],
) -> Mapping[str, object]:
    """Return the parts that are there only while they have something to tell.

    These are the waiting requests of flow control, budgets that had no room for something, limits of quotas that are
    almost used up, decision records that are not written, shadow profiles that do not run any more, and degraded
    plugins.
    """
    found: dict[str, object] = {}
    if line is not None:
        longest = 0.0 if line.since is None else max(0.0, now - line.since)
        found["queued"] = {"requests": line.requests, "bytes": line.size_bytes, "longest_seconds": round(longest, 1)}
    if spent := [each for each in budgets if each.refusals]:
        found["budgets_used_up"] = {
            each.name: {"used": each.used, "limit": each.limit, "refusals": each.refusals} for each in spent
        }
    if alerts:
        found |= {"quota_alerts": alerts[:MAX_ROWS], "quotas_almost_used_up": len(alerts)}
    if file is not None and file.problem:
        found["decision_file"] = {"problem": file.problem, "lost": file.lost}
    if shadows:
        found["shadow_profiles_disabled"] = shadows
    if degraded := [{"plugin": plugin.name, "problem": each} for plugin in plugins for each in plugin.degraded]:
        found["degraded_plugins"] = degraded[:MAX_ROWS]
    return found


def inputs_health(owners: Sequence[HasInputs]) -> Mapping[str, object]:
    """Return what of files and objects is not in effect."""
    return {
        "not_in_effect": [
            {"plugin": owner.name, **asdict(problem)} for owner in owners for problem in owner.inputs.problems
        ],
        "ignored_values": [
            {"plugin": owner.name, **asdict(value)} for owner in owners for value in owner.inputs.ignored[:MAX_ROWS]
        ],
    }


def admin_routes(picker: PickerView, recorder: Recorder | None) -> Sequence[web.RouteDef]:
    """Return all routes; those of decisions only with a recorder."""
    return (
        *page_routes(),
        *quota_routes(picker.loop, lambda: picker.director.quotas, picker.tenants, picker.tell_quota),
        *(() if recorder is None else decision_routes(picker.loop, recorder)),
        *simulation_routes(picker),
        *placement_routes(picker),
        *endpoint_routes(picker),
        *allocation_routes(picker),
        *idle_node_routes(picker),
        *config_routes(picker),
    )


def on_trial(text: str, builder: Builder, in_effect: Assembly, object_paths: Sequence[str]) -> Assembly:
    """Return a configuration, assembled from its text, that does not observe, follow or collect anything.

    It may only name the files that the configuration in effect names: errors quote the content of files. Raises
    ConfigurationError.
    """
    named = (value for plugin in in_effect.loaded.model.plugins for value in texts_in(plugin.parameters))
    with only_files(tuple(named), below=object_paths):
        assembly = assemble(load_text(text, "config"), builder)
        for plugin in assembly.plugins:
            if isinstance(plugin, ObjectReader) and plugin is not builder.previous.get(plugin.name):
                plugin.read_files(object_paths)
    return assembly
