# SPDX-License-Identifier: Apache-2.0
"""Metrics of the routers of clusters, for a picker whose endpoints are clusters."""

import math
from collections.abc import Collection
from typing import Literal

from epp.framework.datalayer import Extractor, PageError, Report
from epp.framework.endpoint import Endpoint, PagePlace
from epp.framework.limits import NameOrDefault
from epp.framework.plugin import Parameters, Stability
from epp.framework.snapshot import CLUSTER_KV_USAGE, CLUSTER_QUEUE, Column
from epp.pool.collectors.engines.engine import Signal
from epp.pool.collectors.engines.metrics import MetricsSourceParameters
from epp.pool.collectors.exposition import PROMETHEUS_TEXT, PageLayout, Selector
from epp.pool.collectors.sources.http import HttpSource

_MOST_BYTES = 8 * 1024 * 1024


class MultiClusterSourceParameters(MetricsSourceParameters, frozen=True):
    """URL of the page, polling interval and TLS."""

    scheme: Literal["http", "https"] = "https"
    """Protocol."""
    insecure_skip_verify: bool = False
    """Accept any server certificate. Pages come from other clusters, so certificates are verified by default."""
    interval: str = "1s"
    """Time between two polls of a cluster. A router updates its means every few seconds."""
    timeout: str = "5s"
    """Time limit for a page, from connecting to its last byte: pages of routers are large."""


class MultiClusterMetricsDataSource(HttpSource[MultiClusterSourceParameters]):
    """Fetches the metrics page of a cluster's router, at most 8 MiB, where `multicluster-file-discovery` says it is.

    Without labels for it in the file, the page is at the endpoint itself.
    """

    plugin_type = "multicluster-metrics-data-source"
    stability = Stability.ALPHA
    accept = PROMETHEUS_TEXT
    most_bytes = _MOST_BYTES

    def place(self, endpoint: Endpoint) -> PagePlace:
        """Return where the router's page is."""
        return endpoint.metrics or super().place(endpoint)

    def asks(self, endpoint: Endpoint) -> bool:
        """Whether the page is at the endpoint itself."""
        return endpoint.metrics is None and super().asks(endpoint)


class MultiClusterExtractorParameters(Parameters, frozen=True):
    """Names of the series, with labels if needed: `name` or `name{label=value}`."""

    kv_cache_utilization_metric: NameOrDefault = "llm_d_epp_average_kv_cache_utilization"
    """Mean KV cache utilization of the endpoints of a cluster, 0..1."""
    queue_size_metric: NameOrDefault = "llm_d_epp_average_queue_size"
    """Mean number of requests that wait at an endpoint of the cluster."""

    def __post_init__(self) -> None:
        """Check the names; raises ValueError."""
        for key, spec in (
            ("kvCacheUtilizationMetric", self.kv_cache_utilization_metric),
            ("queueSizeMetric", self.queue_size_metric),
        ):
            try:
                Selector.parse(spec)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None


class MultiClusterMetricsExtractor(Extractor[MultiClusterExtractorParameters]):
    """Reads the mean KV cache utilization and the mean queue of a cluster from the metrics page of its router.

    If the page has several pools, the highest value counts.
    """

    plugin_type = "multicluster-metrics-extractor"
    stability = Stability.ALPHA
    writes = (CLUSTER_KV_USAGE, CLUSTER_QUEUE)

    def setup(self) -> None:
        """Compile the selectors."""
        given = self.parameters
        specs = {CLUSTER_KV_USAGE: given.kv_cache_utilization_metric, CLUSTER_QUEUE: given.queue_size_metric}
        self._signals = [Signal(column, (Selector.parse(spec),), max) for column, spec in specs.items()]

    @property
    def series(self) -> Collection[str]:
        """Names of the two series."""
        return [selector.name for signal in self._signals for selector in signal.selectors]

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        """Return the two numbers; raises PageError for a page without them."""
        problems: list[str] = []
        found: dict[Column, float] = {}
        missing = 0
        for signal in self._signals:
            number = signal.read(page, PageLayout(), problems)
            if number is None:
                missing += 1
                problems.append(f"{signal.selectors[0].name} is missing")
            found[signal.column] = math.nan if number is None else number
        if missing == len(found):
            raise PageError(
                f"the page for endpoint {endpoint.id} has neither {' nor '.join(self.series)}",
                remedy="check metricsAddress and metricsPort of the endpoint, which must lead to a router's metrics",
            )
        return Report(found, problems=tuple(problems))
