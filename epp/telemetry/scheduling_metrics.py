# SPDX-License-Identifier: Apache-2.0
"""Metrics of the scheduler and of plugins: runs, where they lead, times, errors, scores that cannot be used."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping

import structlog

from epp.framework import Endpoint, Request
from epp.framework.plugin_status import Legacy
from epp.framework.result import SchedulingResult
from epp.telemetry.families import EXTENSION, SCHEDULING_SECONDS, Count, Families
from epp.telemetry.hardware_series import SelectionSeries
from epp.telemetry.logs import FailureLog
from epp.telemetry.plugin_metrics import PluginTimes
from epp.telemetry.request_series import OTHER, Bounded, Series, shortened

_SUCCESS, _FAILURE = "success", "failure"
_MOST_PICKED, _MOST_UNKNOWN = 4096, 256
"""Combinations of model and endpoint with series of their own, and those up to which models that no endpoint is known
to serve have any; beyond them, endpoints count for all models."""
_MOST_FAILED = 64
"""Models with series of their own for runs that failed."""


class SchedulingMetrics:
    """Counts runs of the scheduler, and calls of plugins."""

    def __init__(self, families: Families) -> None:
        self._failure_log = FailureLog()
        self._times = families.histograms(
            "scheduler_e2e_duration_seconds",
            "Time for one run of the scheduler: all profiles, with their filters, scorers and pickers.",
            SCHEDULING_SECONDS,
            (),
            EXTENSION,
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
            "scheduler_scores_clamped_total", "Scores below 0 or above 1, and limited to these.", ("plugin_name",)
        )
        plugin_times = PluginTimes(families)
        self.plugin_called = plugin_times.add
        """Record a call; there are many for each request."""
        self.slowest_call = plugin_times.take_slowest
        self._plugin_failures = families.counters(
            "plugin_failures_total", "Errors raised by plugins.", ("plugin_name",)
        )
        self._selections = SelectionSeries(
            families.counters(
                "accelerator_selections_total",
                "Picks by accelerator class (or model, without a class), profile and policy of the selection.",
                ("accelerator", "profile", "policy"),
            )
        )

    def scheduled(self, request: Request, seconds: float, result: SchedulingResult | None) -> None:
        """Record a run of the scheduler; where it has a result, `routed` counts the endpoint."""
        self._times.observe(seconds)
        if result is None:
            self._attempts.count(_FAILURE, self._failed.shown(shortened(request.model), OTHER), "", "", "")

    def routed(self, request: Request, result: SchedulingResult, series: Series) -> None:
        """Count the picks of a run of the scheduler."""
        endpoint = result.targets[0]
        model = series.labels[1]
        picked = self._picked.get((model, endpoint.id, endpoint.hostport))
        if picked is None:
            picked = self._attempt(model, endpoint, most=_MOST_PICKED if series.is_known else _MOST_UNKNOWN)
        picked.value += 1
        self._selections.count(request, result)

    @property
    def picks(self) -> Mapping[str, int]:
        """Return how often each endpoint of the pool was picked, by `namespace/name`."""
        found: Counter[str] = Counter()
        for (_, endpoint, _), count in self._picked.items():
            found[endpoint] += int(count.value)
        return found

    def keep(self, endpoints: Collection[str]) -> None:
        """Drop the series of endpoints that have left the pool; `endpoints` are those in it, by `namespace/name`."""
        for key in [key for key in self._picked if key[1] not in endpoints]:
            del self._picked[key]
            namespace, _, name = key[1].partition("/")
            self._attempts.remove(_SUCCESS, key[0], name, namespace, key[2].rpartition(":")[2])

    def plugin_failed(self, plugin: str, error: Exception, problem: str) -> None:
        """Count an error of a plugin, and log the first of each type."""
        self._plugin_failures.labels(plugin).inc()
        self._failure_log.log(plugin, error, problem)

    def scores_rejected(self, plugin: str, count: int) -> None:
        """Count scores that are NaN or infinite, and log the first."""
        self._rejected_scores.labels(plugin).inc(count)
        self._failure_log.warn(plugin, "scorer returned NaN or infinity, which count as 0", count)

    def scores_clamped(self, plugin: str, count: int) -> None:
        """Count scores below 0 and above 1, and log the first."""
        self._clamped_scores.labels(plugin).inc(count)
        self._failure_log.warn(plugin, "scorer returned scores below 0 or above 1, which count as these", count)

    def _attempt(self, model: str, endpoint: Endpoint, *, most: int) -> Count:
        key = model, endpoint.id, endpoint.hostport
        if len(self._picked) >= most:
            key = OTHER, *key[1:]
        if key not in self._picked:
            labels = _SUCCESS, key[0], endpoint.name, endpoint.namespace, str(endpoint.port)
            self._picked[key] = self._attempts.labels(*labels)
        return self._picked[key]


_INTERVAL_SECONDS = 0.1
_SECONDS_BETWEEN_LINES = 10.0
_MOST_OF_IT = 0.5
"""Share of a delay that a plugin must have taken to be named."""
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

_log = structlog.get_logger()


class LoopLag:
    """Measures how late a timer of the event loop is, ten times a second."""

    def __init__(self, families: Families, slowest_call: Callable[[], tuple[float, str]]) -> None:
        """`slowest_call` returns the seconds and the plugin of the longest call since it was last asked."""
        self._histogram = families.histograms(
            "event_loop_lag_seconds",
            "Delay of a timer of the event loop, ten times a second: requests that arrive meanwhile wait as long.",
            _BUCKETS,
        ).labels()
        self._slowest_call = slowest_call

    async def follow(self, log_seconds: float) -> None:
        """Measure until cancelled; log delays of `log_seconds` and more, none for 0, one in ten seconds at most."""
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
