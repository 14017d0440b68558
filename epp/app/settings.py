# SPDX-License-Identifier: Apache-2.0
"""Settings of a picker: the command line, beside the configuration file."""

import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epp.app.kubernetes import KubernetesSettings
from epp.config import LoadedConfig
from epp.extproc.headers import IgnoredHeaders
from epp.extproc.settings import ResponseSettings, ServerSettings
from epp.framework.datalayer import Discovery
from epp.framework.endpoint import EndpointTrust
from epp.kube.cluster import Cluster
from epp.kube.readers import Hubs
from epp.pool.collectors.polling.poller import SharedPages
from epp.pool.settings import PageLimits
from epp.routing.director import DirectorObserver
from epp.routing.director.open_requests import RESERVATION_SECONDS
from epp.routing.policies import PolicyFiles
from epp.routing.settings import OutlierSettings
from epp.sharing.link import Link
from epp.sharing.settings import SharingSettings
from epp.telemetry.settings import AdminSettings, DecisionSettings, PageSettings

if TYPE_CHECKING:  # the SDK is imported where requests are traced
    from epp.telemetry.tracing.exporting import Tracing

DEFAULT_POOL_NAME = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Settings of polls of a pool's endpoints, and of the endpoints that count."""

    endpoint_trust: EndpointTrust | None = None
    """How the gateway beside this picker verifies the certificates of HTTPS endpoints, and so how they are polled.

    None for a gateway that runs elsewhere: the parameters of each data source apply.
    """
    terminal: io.TextIOBase | None = None
    """Terminal with a table of the endpoints; None for log lines."""
    refresh_metrics_seconds: float = 0.05
    """Time between two polls of an endpoint."""
    page_limits: PageLimits = field(default_factory=PageLimits)
    """Limits on the size of an endpoint's page."""
    refresh_prometheus_seconds: float = 5.0
    """Time between two updates of the pool's gauges."""
    stale_metrics_seconds: float = 2.0
    """Age from which the load of an endpoint does not count in the averages of the pool."""
    reservation_seconds: float = RESERVATION_SECONDS
    """Time for an answer, after which a request counts for its endpoint no more; infinite for no limit."""
    outliers: OutlierSettings = field(default_factory=OutlierSettings)
    """Conditions under which endpoints at which requests fail are ejected."""
    pages: SharedPages | None = None
    """Pages that the pools of this process share; None for a process with one pool."""
    use_subset: bool = True
    """Whether a gateway may name the endpoints among which to pick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerSettings(PoolSettings):
    server: ServerSettings
    config: LoadedConfig | None = None
    """None for the sample that runs without a configuration."""
    watch_config: Path | None = None
    """The file that `config` was read from, to apply new versions of it; None to ignore them."""
    default_config: Path | None = None
    """The file in effect while `watch_config` does not exist."""
    watches_config: bool = True
    """Whether new versions are applied as they appear, or only at SIGHUP."""
    experimental: bool = False
    """Whether plugins of stability Alpha may be used."""
    plugin_modules: tuple[str, ...] = ()
    """Python modules whose classes a configuration may name as `module:Class`."""
    discovery: Discovery[Any] | None = None
    """Source of endpoints; takes precedence over that of the configuration."""
    object_paths: tuple[str, ...] = ()
    """Files of cluster objects that plugins read in place of those of a cluster."""
    any_pool_object_paths: tuple[str, ...] = ()
    """Paths for plugins whose objects concern no endpoint, if the pool is not in files."""
    kubernetes: KubernetesSettings | None = None
    """The pool in a Kubernetes cluster; None if the endpoints come from elsewhere."""
    policies: PolicyFiles | None = None
    """Source of objectives and model rewrites; None for none."""
    pool_name: str = DEFAULT_POOL_NAME
    """Label of the pool's metrics."""
    page: PageSettings = field(default_factory=PageSettings)
    """The metrics page, and metrics under other names."""
    admin: AdminSettings = field(default_factory=AdminSettings)
    """The admin port."""
    decisions: DecisionSettings | None = None
    """Decisions to record; None for none."""
    sharing: SharingSettings = field(default_factory=SharingSettings)
    """Store through which pickers of the pool share their state, if any."""
    workers: int = 1
    """Processes that answer requests; with more than one, this process only finds and polls endpoints."""
    cluster: Cluster | None = None
    """Watches that the pools of this process share; None for a process with one pool."""
    hubs: Hubs | None = None
    """Watches of hubs, likewise."""
    link: Link | None = None
    """The connection to the main process, in one of its workers."""
    inherited_seconds: float = 600.0
    """Time in which requests that endpoints have under way at the start count as in flight; 0 for none."""
    emit_endpoint_scores: bool = False
    responses: ResponseSettings = field(default_factory=ResponseSettings)
    drain_seconds: float = 30.0
    """Longest time for which the picker still serves after a request to stop."""
    drain_quiet_seconds: float = 2.0
    """Idle period required before shutdown: the time in which a gateway sees that the picker is not ready."""
    stall_seconds: float = 0.1
    """Delay of the event loop from which it is logged; 0 for never."""
    observers: tuple[DirectorObserver, ...] = ()
    """Told of every request, beside the metrics: log lines, say."""
    tracing: "Tracing | None" = None
    """Traces requests, and is closed with the picker; None if no exporter is set."""
    ignored_headers: IgnoredHeaders | None = None
    """Headers of clients that do not count; None if all do."""
    lost_log_lines: Callable[[], int] = lambda: 0
    """Number of log lines that could not be written."""
    before_ready: Callable[[], None] = lambda: None
    """Called once, when the pool is filled and before the picker is ready: what would hold requests up later."""


def of_worker(settings: PickerSettings) -> PickerSettings:
    """Return the settings of a worker: the main process has the ports, the lease and the shared state."""
    cluster = settings.kubernetes
    return replace(
        _without_pages(settings),
        workers=1,
        server=replace(settings.server, address="", health_address=None),
        kubernetes=None if cluster is None else replace(cluster, lease=None),
    )


def of_pool(settings: PickerSettings, cluster: Cluster, hubs: Hubs, pages: SharedPages) -> PickerSettings:
    """Return the settings of one pool of several: the process has the pages, the health service and the watches."""
    return replace(
        _without_pages(settings),
        cluster=cluster,
        hubs=hubs,
        pages=pages,
        server=replace(settings.server, health_address=None),
        before_ready=lambda: None,
    )


def _without_pages(settings: PickerSettings) -> PickerSettings:
    page = PageSettings(legacy_metrics=settings.page.legacy_metrics, stream_metrics=settings.page.stream_metrics)
    return replace(settings, page=page, admin=AdminSettings(), terminal=None)
