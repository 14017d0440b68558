# SPDX-License-Identifier: Apache-2.0
"""Metrics of inference engines and of the routers of clusters: the source of their pages, and the extractors."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from epp.framework.datalayer import Extractor, PageError, Report
from epp.framework.endpoint import Endpoint, Identity, PagePlace
from epp.framework.limits import AbsolutePath, NameOrDefault
from epp.framework.plugin import Parameters, Stability
from epp.framework.snapshot import CLUSTER_KV_USAGE, CLUSTER_QUEUE, Column
from epp.pool.collectors.engine import BUILT_IN, HOST, SERIES_PREFIXES, Engine, EngineConfig, Signal, compile_engine
from epp.pool.collectors.exposition import PROMETHEUS_TEXT, PageLayout, Selector
from epp.pool.collectors.sources.http import HttpSource, HttpSourceParameters

_MEMO_LIMIT = 4096
_LAST_LIMIT = 16384


class MetricsSourceParameters(HttpSourceParameters, frozen=True):
    """URL of the page, polling interval and TLS."""

    path: AbsolutePath = "/metrics"
    """Path of the page; /prometheus/metrics for TensorRT-LLM."""


class MetricsDataSource(HttpSource[MetricsSourceParameters]):
    """Fetches an endpoint's metrics page: no redirects, no cookies, no compression.

    `--max-page-size`, `--max-page-series` and `--max-series-size` limit its size.
    """

    plugin_type = "metrics-data-source"
    accept = PROMETHEUS_TEXT


class CoreMetricsParameters(Parameters, frozen=True):
    """Engines of endpoints, and the names of their series."""

    engine_label_key: NameOrDefault = "llm-d.ai/engine-type"
    """The endpoint label with the name of the engine."""
    default_engine: NameOrDefault = "vllm"
    """The engine of endpoints without that label. If a page has no series of this engine, the built-in engine is
    recognised by its series."""
    engine_configs: tuple[EngineConfig, ...] = ()
    """Further engines, and other names of series for built-in ones."""

    def __post_init__(self) -> None:
        names = [config.name for config in self.engine_configs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"engineConfigs has engine {twice[0]!r} more than once: merge the entries")
        known = sorted({*BUILT_IN, *names})
        if self.default_engine not in known:
            raise ValueError(
                f"defaultEngine {self.default_engine!r} is not known: use one of {', '.join(known)}, "
                f"or describe it in engineConfigs"
            )


@dataclass(slots=True)
class _Last:
    """Engine, layout and report of the last page of an endpoint."""

    engine: Engine
    layout: PageLayout = field(default_factory=PageLayout)
    report: Report | None = None


class CoreMetricsExtractor(Extractor[CoreMetricsParameters]):
    """Reads queue, batch, KV cache, prefix cache and adapters from an engine's metrics page.

    Queues and counters of data-parallel ranks are added up; their highest KV usage counts. A value whose series is
    missing from the page becomes unknown, never 0. Built-in engines are vllm, sglang, trtllm-serve (with its page at
    /prometheus/metrics), triton-tensorrt-llm, triton, tgi, lmdeploy and llamacpp (which has a page if started with
    --metrics).
    """

    plugin_type = "core-metrics-extractor"

    def setup(self) -> None:
        configs = {**BUILT_IN, **{config.name: config for config in self.parameters.engine_configs}}
        self._engines = {engine: compile_engine(config) for engine, config in configs.items()}
        self._default = self._engines[self.parameters.default_engine]
        self._recognised: dict[Identity, Engine] = {}
        self._last: dict[Identity, _Last] = {}
        self.writes = tuple(dict.fromkeys(datum for engine in self._engines.values() for datum in engine.fills))

    @property
    def series(self) -> Collection[str]:
        return {name for engine in self._engines.values() for name in engine.series_names}

    @property
    def newest(self) -> Collection[str]:
        """Names of the series of adapters: only the newest sample counts, as old ones stay on the page."""
        engines = self._engines.values()
        ordinary = {name for engine in engines for name in {*engine.series_names} - engine.newest_series}
        return {name for engine in engines for name in engine.newest_series} - ordinary

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        name = endpoint.labels.get(self.parameters.engine_label_key)
        if name is None:
            engine = self._recognised.get(endpoint.identity, self._default)
        elif (labelled := self._engines.get(name)) is not None:
            engine = labelled
        else:
            raise PageError(
                f"endpoint {endpoint.id} has label {self.parameters.engine_label_key}={name}, an unknown engine: "
                f"use one of {', '.join(sorted(self._engines))}, or describe {name!r} in engineConfigs of "
                f"plugin {self.name!r}"
            )
        last = self._last.get(endpoint.identity)
        if last is None or last.engine is not engine:
            if len(self._last) >= _LAST_LIMIT:  # of former endpoints
                self._last.clear()
            last = self._last[endpoint.identity] = _Last(engine)
        report = last.report
        if report is None or not last.layout.matches(page):
            report = engine.read(page, last.layout, report)
        last.report = report
        if report is None and name is None:
            report = self._recognise(page, endpoint, engine)
        if report is None:
            raise PageError(self._hint(page, self._default if name is None else engine))
        return report

    def _recognise(self, page: bytes, endpoint: Endpoint, tried: Engine) -> Report | None:
        """Recognise the engine by the series of the page and read it; remember the engine for the next pages."""
        self._recognised.pop(endpoint.identity, None)
        found = (self._engines[name] for prefix, _, name in SERIES_PREFIXES if _has_series(page, prefix))
        for engine in chain((self._default,), found):
            report = None if engine is tried else engine.read(page, PageLayout())
            if report is not None:
                if engine is not self._default and engine.name != HOST:
                    if len(self._recognised) >= _MEMO_LIMIT:  # of former endpoints
                        self._recognised.clear()
                    self._recognised[endpoint.identity] = engine
                return report
        return None

    def _hint(self, page: bytes, engine: Engine) -> str:
        start = page.lstrip()[:1]
        nothing = f"the page has no series of engine {engine.name!r}"
        if not start:
            return f"{nothing}: it is empty"
        if start in (b"{", b"["):
            return f"{nothing}: it is JSON, not Prometheus text (TensorRT-LLM has the text at /prometheus/metrics)"
        if start == b"<":
            return f"{nothing}: it is HTML or XML, not Prometheus text; check the source's path and port"
        for prefix, product, name in SERIES_PREFIXES:
            if name != engine.name and _has_series(page, prefix):
                label = self.parameters.engine_label_key
                return f"{nothing}, but series of {product}: set the endpoint's label {label} to {name}"
        return f"{nothing} ({', '.join(engine.series_names)}): check the path, and that metrics are enabled"


def _has_series(page: bytes, prefix: bytes) -> bool:
    return page.startswith(prefix) or b"\n" + prefix in page


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
    """Fetches the metrics page of a cluster's router, at most 8 MiB, at its address in `multicluster-file-discovery`.

    If the file has no labels with this address, the page is at the endpoint itself.
    """

    plugin_type = "multicluster-metrics-data-source"
    stability = Stability.ALPHA
    accept = PROMETHEUS_TEXT
    most_bytes = 8 * 1024 * 1024

    def place(self, endpoint: Endpoint) -> PagePlace:
        return endpoint.metrics or super().place(endpoint)

    def asks(self, endpoint: Endpoint) -> bool:
        return endpoint.metrics is None and super().asks(endpoint)


class MultiClusterExtractorParameters(Parameters, frozen=True):
    """Names of the series, with labels if needed: `name` or `name{label=value}`."""

    kv_cache_utilization_metric: NameOrDefault = "llm_d_epp_average_kv_cache_utilization"
    """Mean KV cache utilization of the endpoints of a cluster, 0..1."""
    queue_size_metric: NameOrDefault = "llm_d_epp_average_queue_size"
    """Mean number of requests that wait at an endpoint of the cluster."""

    def __post_init__(self) -> None:
        Selector.check(self.kv_cache_utilization_metric, "kvCacheUtilizationMetric")
        Selector.check(self.queue_size_metric, "queueSizeMetric")


class MultiClusterMetricsExtractor(Extractor[MultiClusterExtractorParameters]):
    """Reads the mean KV cache utilization and the mean queue of a cluster from the metrics page of its router.

    If the page has several pools, the highest value counts.
    """

    plugin_type = "multicluster-metrics-extractor"
    stability = Stability.ALPHA
    writes = (CLUSTER_KV_USAGE, CLUSTER_QUEUE)

    def setup(self) -> None:
        given = self.parameters
        specs = {CLUSTER_KV_USAGE: given.kv_cache_utilization_metric, CLUSTER_QUEUE: given.queue_size_metric}
        self._signals = [Signal(column, (Selector.parse(spec),), max) for column, spec in specs.items()]

    @property
    def series(self) -> Collection[str]:
        return [selector.name for signal in self._signals for selector in signal.selectors]

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        problems: list[str] = []
        found: dict[Column, float] = {}
        for signal in self._signals:
            number = signal.read(page, PageLayout(), problems)
            if number is None:
                problems.append(f"{signal.selectors[0].name} is missing")
            else:
                found[signal.column] = number
        if not found:
            raise PageError(
                f"the page for endpoint {endpoint.id} has neither {' nor '.join(self.series)}",
                remedy="check metricsAddress and metricsPort of the endpoint, which must lead to a router's metrics",
            )
        unknown = {signal.column: math.nan for signal in self._signals}
        return Report(unknown | found, problems=tuple(problems))
