# SPDX-License-Identifier: Apache-2.0
"""Settings of a picker from the command line, in addition to its configuration file."""

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
from epp.routing.policies import Policies
from epp.routing.settings import OutlierSettings
from epp.sharing.link import Link
from epp.sharing.settings import SharingSettings
from epp.telemetry.settings import AdminSettings, DecisionSettings, PageSettings

if TYPE_CHECKING:  # the SDK is imported where requests are traced
    from epp.telemetry.tracing.exporting import Tracing

DEFAULT_POOL_NAME = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Settings of the endpoints of a pool and of their polls."""

    endpoint_trust: EndpointTrust | None = None
    """Verification of the certificates of HTTPS endpoints by the local gateway, which polls apply too.

    None without a local gateway: the parameters of each data source apply.
    """
    terminal: io.TextIOBase | None = None
    """Terminal for a table of endpoints; None for log lines."""
    refresh_metrics_seconds: float = 0.05
    """Time between two polls of an endpoint."""
    page_limits: PageLimits = field(default_factory=PageLimits)
    """Limits on the size of an endpoint's page."""
    refresh_prometheus_seconds: float = 5.0
    """Time between two updates of the pool's gauges."""
    stale_metrics_seconds: float = 2.0
    """Age at which averages of the pool ignore the load of an endpoint."""
    reservation_seconds: float = RESERVATION_SECONDS
    """Time without a response after which a request no longer counts as load; infinite for no limit."""
    outliers: OutlierSettings = field(default_factory=OutlierSettings)
    """Conditions under which endpoints with failing requests are ejected."""
    pages: SharedPages | None = None
    """Pages that all pools of the process share; None for a single pool."""
    use_subset: bool = True
    """Whether a gateway may restrict the candidates of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerSettings(PoolSettings):
    server: ServerSettings
    config: LoadedConfig | None = None
    """None for the default configuration."""
    watch_config: Path | None = None
    """File of `config`, whose new versions are applied; None to ignore them."""
    default_config: Path | None = None
    """File in effect while `watch_config` does not exist."""
    watches_config: bool = True
    """Whether new versions are applied within a second; otherwise at SIGHUP."""
    experimental: bool = False
    """Whether plugins of stability Alpha may be used."""
    plugin_modules: tuple[str, ...] = ()
    """Python modules with plugin classes that a configuration may use, as `module:Class`."""
    discovery: Discovery[Any] | None = None
    """Source of endpoints; takes precedence over the configuration."""
    object_paths: tuple[str, ...] = ()
    """Files with cluster objects for plugins."""
    any_pool_object_paths: tuple[str, ...] = ()
    """Files with objects for plugins that do not depend on the pool; used if `object_paths` is empty."""
    kubernetes: KubernetesSettings | None = None
    """Kubernetes cluster of the pool; None for endpoints from another source."""
    policies: Policies | None = None
    """Source of objectives and model rewrites; None for none."""
    pool_name: str = DEFAULT_POOL_NAME
    """Label of the pool's metrics."""
    page: PageSettings = field(default_factory=PageSettings)
    """Settings of the metrics page and of metric names."""
    admin: AdminSettings = field(default_factory=AdminSettings)
    decisions: DecisionSettings | None = None
    """Settings of recorded decisions; None to record none."""
    sharing: SharingSettings = field(default_factory=SharingSettings)
    """Settings of the state that pickers of the pool share."""
    workers: int = 1
    """Number of processes for requests; with more than one, the main process only discovers and polls endpoints."""
    cluster: Cluster | None = None
    """Watches that all pools of the process share; None for a single pool."""
    hubs: Hubs | None = None
    """Watches of hubs that all pools of the process share; None for a single pool."""
    link: Link | None = None
    """Connection of a worker to the main process; None in the main process."""
    inherited_seconds: float = 600.0
    """Longest time for which inherited requests count as in flight; 0 to ignore them."""
    emit_endpoint_scores: bool = False
    responses: ResponseSettings = field(default_factory=ResponseSettings)
    drain_seconds: float = 30.0
    """Longest duration of the drain."""
    drain_quiet_seconds: float = 2.0
    """Idle period required before shutdown, in which gateways notice that the picker is not ready."""
    stall_seconds: float = 0.1
    """Minimum delay of the event loop that is logged; 0 to log none."""
    observers: tuple[DirectorObserver, ...] = ()
    """Further observers of requests, such as the request log."""
    tracing: "Tracing | None" = None
    """Tracing of requests, which the picker closes; None without an exporter."""
    ignored_headers: IgnoredHeaders | None = None
    """Client headers that are ignored; None to use all."""
    lost_log_lines: Callable[[], int] = lambda: 0
    """Returns the number of log lines that could not be written."""
    before_ready: Callable[[], None] = lambda: None
    """Called once before the picker becomes ready, for work that would delay requests later."""


def of_worker(settings: PickerSettings) -> PickerSettings:
    """Return the settings of a worker, without ports and lease, which belong to the main process."""
    cluster = settings.kubernetes
    return replace(
        _without_pages(settings),
        workers=1,
        server=replace(settings.server, address="", health_address=None),
        kubernetes=None if cluster is None else replace(cluster, lease=None),
    )


def of_pool(settings: PickerSettings, cluster: Cluster, hubs: Hubs, pages: SharedPages) -> PickerSettings:
    """Return the settings of one of several pools, which share the pages, the health service and the watches."""
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
