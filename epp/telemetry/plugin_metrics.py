# SPDX-License-Identifier: Apache-2.0
"""Metrics of scheduling: cycles, plugins and their durations."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import structlog
from prometheus_client import Metric
from prometheus_client.registry import Collector

from epp.framework import ACCELERATOR_SELECTION, Endpoint, Request
from epp.framework.messages import described
from epp.framework.plugin import Plugin, Role
from epp.framework.plugin_status import Distribution, Legacy, PluginMetric, Sample
from epp.framework.result import SchedulingResult
from epp.framework.snapshot import ACCELERATOR
from epp.telemetry.families import EXTENSION, PREFIX, SCHEDULING_SECONDS, Count, Counters, Families, Gauges, Histograms
from epp.telemetry.pool_series import hardware_name
from epp.telemetry.request_series import MAX_COMBINATIONS, OTHER, Bounded, Series, shortened

_LABELS = ("plugin_type", "plugin_name")

_log = structlog.get_logger()

SLOW_SECONDS = 0.01
"""Duration of a slow call: a hundred times the usual cost of a whole decision, and all requests wait for it."""
_SLOW_CALLS, _SLOW_SHARE = 5, 0.1
"""Number of slow calls, and their share of all calls, above which the plugin is reported as slow."""
_SUCCESS, _FAILURE = "success", "failure"
_MOST_PICKED, _MOST_UNKNOWN = 4096, 256
"""Combinations of model and endpoint with their own series: above the second limit for unknown models, above the first
for all models, endpoints count under the model `other`."""
_MOST_FAILED = 64
"""Models with their own series of failed runs."""
_INTERVAL_SECONDS = 0.1
_SECONDS_BETWEEN_LINES = 10.0
_MOST_OF_IT = 0.5
"""Share of a delay that a plugin must have taken to be named."""
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class PluginMetrics(Collector):
    def __init__(self, plugins: Callable[[], Iterable[Plugin[Any]]], *, legacy: bool = True) -> None:
        """Prepare; with `legacy`, metrics are also shown under older names."""
        self._plugins = plugins
        self._legacy = legacy
        self._failed: set[str] = set()

    def describe(self) -> Iterator[Metric]:
        for metric in dict.fromkeys(metric for plugin in self._plugins() for metric in plugin.metrics):
            yield from family_of(metric, legacy=self._legacy).describe()

    def collect(self) -> Iterator[Metric]:
        plugins = tuple(self._plugins())
        families = {metric: family_of(metric, legacy=self._legacy) for plugin in plugins for metric in plugin.metrics}
        for plugin in plugins:
            for sample in self._samples(plugin):
                series = families[sample.metric].labels(plugin.plugin_type, plugin.name, *sample.labels)
                if isinstance(series, Distribution) and isinstance(sample.value, Distribution):
                    series.add(sample.value)
                elif not isinstance(series, Distribution) and not isinstance(sample.value, Distribution):
                    series.value = sample.value
        for family in families.values():
            yield from family.collect()

    def _samples(self, plugin: Plugin[Any]) -> Sequence[Sample]:
        """Return the samples of a plugin, none if it fails: the other plugins are still shown."""
        try:
            return [sample for sample in plugin.samples if sample.metric in plugin.metrics]
        except Exception as error:  # noqa: BLE001  a plugin may raise anything
            if plugin.name not in self._failed:
                self._failed.add(plugin.name)
                reason = described(error, type(plugin))
                _log.warning("metrics of a plugin cannot be shown", plugin=plugin.name, reason=reason)
            return ()


def family_of(metric: PluginMetric, *, legacy: bool = True) -> Counters | Gauges | Histograms:
    """Return the metric without series; it is for a single page."""
    name, labels = f"{PREFIX}{metric.name}", (*_LABELS, *metric.labels)
    older = metric.legacy if legacy else None
    if metric.bounds:
        return Histograms(name, metric.text, labels, metric.bounds, None, legacy=older)
    if metric.is_counter:
        return Counters(f"{name}_total", metric.text, labels, None, legacy=older)
    return Gauges(name, metric.text, labels, None, legacy=older)


class SchedulingMetrics:
    """Counts runs of the scheduler and plugin calls; logs plugins that fail or are often slow."""

    def __init__(self, families: Families) -> None:
        self._logged: set[tuple[object, ...]] = set()
        """Plugins and problems that are logged already."""
        self._times = families.histograms(
            "scheduler_e2e_duration_seconds",
            "Duration of one run of the scheduler: all profiles, with their filters, scorers and pickers.",
            SCHEDULING_SECONDS,
            legacy=EXTENSION,
        ).labels()
        self._attempts = families.counters(
            "scheduler_attempts_total",
            "Runs of the scheduler by status (success, failure), with the endpoint picked.",
            ("status", "target_model_name", "endpoint_name", "namespace", "port"),
            Legacy(
                "inference_extension_scheduler_attempts_total",
                ("status", "target_model_name", "pod_name", "namespace", "port"),
            ),
        )
        self._picked: dict[tuple[str, str, str], Count] = {}
        """Series by model and endpoint (`namespace/name`, `ip:port`)."""
        self._failed = Bounded[str](_MOST_FAILED)
        self._rejected_scores = families.counters(
            "scheduler_scores_rejected_total", "Scores that were NaN or infinite, and replaced by 0.", ("plugin_name",)
        )
        self._clamped_scores = families.counters(
            "scheduler_scores_clamped_total", "Scores below 0 or above 1 that were clamped.", ("plugin_name",)
        )
        labels = ("extension_point", "plugin_type", "plugin_name")
        self._durations = families.histograms(
            "plugin_duration_seconds", "Duration of plugin calls.", SCHEDULING_SECONDS, labels, EXTENSION
        )
        self._slow_calls = families.counters(
            "plugin_slow_calls_total", f"Plugin calls of {SLOW_SECONDS:g} s and more.", labels
        )
        self._calls: dict[tuple[str, str, str], Distribution] = {}
        self._slowest = (0.0, "")
        self._plugin_failures = families.counters(
            "plugin_failures_total", "Errors raised by plugins.", ("plugin_name",)
        )
        self._selections = families.counters(
            "accelerator_selections_total",
            "Picks by accelerator class (or model, without a class), profile and policy of the selection.",
            ("accelerator", "profile", "policy"),
        )
        self._selected = Bounded[tuple[str, ...]](MAX_COMBINATIONS)

    def scheduled(self, request: Request, seconds: float, result: SchedulingResult | None) -> None:
        """Record a run of the scheduler; for a successful run, `routed` counts the endpoint."""
        self._times.observe(seconds)
        if result is None:
            self._attempts.count(_FAILURE, self._failed.shown(shortened(request.model), OTHER), "", "", "")

    def routed(self, request: Request, result: SchedulingResult, series: Series) -> None:
        """Count the picks of a run of the scheduler; accelerators beyond 256 combinations count as `other`."""
        endpoint = result.targets[0]
        model = series.labels[1]
        picked = self._picked.get((model, endpoint.id, endpoint.hostport))
        if picked is None:
            most = _MOST_PICKED if series.is_known else _MOST_UNKNOWN
            picked = self._picks_of(OTHER if len(self._picked) >= most else model, endpoint)
        picked.value += 1
        asked = request.get(ACCELERATOR_SELECTION)
        for profile, leg in result.profiles.items():
            if leg is not None:
                tag = leg.candidates.snapshot.records(ACCELERATOR).values[leg.slot]
                labels = hardware_name(tag), profile, "" if asked is None else asked.of(profile).policy
                self._selections.count(*self._selected.shown(labels, (OTHER, *labels[1:])))

    @property
    def picks(self) -> Mapping[str, int]:
        """Number of picks of each endpoint of the pool, by `namespace/name`; for the event loop."""
        found: Counter[str] = Counter()
        for (_, endpoint, _), count in self._picked.items():
            found[endpoint] += int(count.value)
        return found

    def keep(self, endpoints: Collection[str]) -> None:
        """Remove the series of endpoints that left the pool; `endpoints` are the ids of the remaining ones."""
        for key in [key for key in self._picked if key[1] not in endpoints]:
            del self._picked[key]
            namespace, _, name = key[1].partition("/")
            self._attempts.remove(_SUCCESS, key[0], name, namespace, key[2].rpartition(":")[2])

    def plugin_called(self, role: Role, plugin: Plugin[Any], seconds: float) -> None:
        """Record a call; each request has many."""
        key = role.name, plugin.plugin_type, plugin.name
        calls = self._calls.get(key)
        if calls is None:
            calls = self._calls[key] = self._durations.labels(*key)
            self._slow_calls.labels(*key)
        if seconds <= SCHEDULING_SECONDS[0]:  # true for most; avoids the cost of `observe`
            calls.counts[0] += 1
            calls.total += seconds
            return
        calls.observe(seconds)
        if seconds >= SLOW_SECONDS:
            self._slow(key, seconds, calls)

    def slowest_call(self) -> tuple[float, str]:
        """Return the seconds and the plugin of the longest slow call since the last such call; 0 if none."""
        slowest, self._slowest = self._slowest, (0.0, "")
        return slowest

    def plugin_failed(self, plugin: str, error: Exception, problem: str) -> None:
        """Count an error of a plugin, and log the first of each type with its traceback."""
        self._plugin_failures.count(plugin)
        if self._is_first(plugin, type(error)):
            _log.error("plugin failed", plugin=plugin, error=problem, exc_info=error)

    def scores_rejected(self, plugin: str, count: int) -> None:
        """Count scores that are NaN or infinite, and log the first."""
        self._rejected_scores.labels(plugin).inc(count)
        if self._is_first(plugin, "rejected"):
            _log.warning("scorer returned NaN or infinity, which count as 0", plugin=plugin, count=count)

    def scores_clamped(self, plugin: str, count: int) -> None:
        """Count scores below 0 and above 1, and log the first."""
        self._clamped_scores.labels(plugin).inc(count)
        if self._is_first(plugin, "clamped"):
            _log.warning("scorer returned scores below 0 or above 1, which are clamped", plugin=plugin, count=count)

    def _slow(self, key: tuple[str, str, str], seconds: float, calls: Distribution) -> None:
        slow = self._slow_calls.labels(*key)
        slow.inc()
        self._slowest = max(self._slowest, (seconds, key[2]))
        total = sum(calls.counts)
        if slow.value >= _SLOW_CALLS and slow.value >= _SLOW_SHARE * total and self._is_first(*key):
            _log.warning(
                "plugin is slow: all requests wait for it",
                plugin=key[2],
                slow_calls=slow.value,
                calls=total,
                mean_ms=round(calls.total / total * 1e3, 3),
            )

    def _is_first(self, *problem: object) -> bool:
        is_first = problem not in self._logged
        self._logged.add(problem)
        return is_first

    def _picks_of(self, model: str, endpoint: Endpoint) -> Count:
        key = model, endpoint.id, endpoint.hostport
        if key not in self._picked:
            labels = _SUCCESS, model, endpoint.name, endpoint.namespace, str(endpoint.port)
            self._picked[key] = self._attempts.labels(*labels)
        return self._picked[key]


class LoopLag:
    """Measures how late a timer of the event loop is, ten times a second."""

    def __init__(self, families: Families, slowest_call: Callable[[], tuple[float, str]]) -> None:
        """`slowest_call` returns the seconds and the plugin of the longest call since it was last called."""
        self._histogram = families.histograms(
            "event_loop_lag_seconds",
            "Delay of a timer of the event loop, measured ten times a second; requests wait as long.",
            _BUCKETS,
        ).labels()
        self._slowest_call = slowest_call

    async def follow(self, log_seconds: float) -> None:
        """Measure until cancelled; log delays of at least `log_seconds` (0 for none), at most one every ten seconds."""
        loop = asyncio.get_running_loop()
        next_line_at, unlogged = 0.0, 0
        while True:
            due = loop.time() + _INTERVAL_SECONDS
            await asyncio.sleep(_INTERVAL_SECONDS)
            lag = max(loop.time() - due, 0.0)
            self._histogram.observe(lag)
            in_plugin, plugin = self._slowest_call()
            if not log_seconds or lag < log_seconds:
                continue
            if loop.time() < next_line_at:
                unlogged += 1
                continue
            named = {"plugin": plugin, "plugin_seconds": round(in_plugin, 4)} if in_plugin > lag * _MOST_OF_IT else {}
            more = {"more_since_last_line": unlogged} if unlogged else {}
            _log.warning("event loop delayed", seconds=round(lag, 4), **named, **more)
            next_line_at, unlogged = loop.time() + _SECONDS_BETWEEN_LINES, 0
