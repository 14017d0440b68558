# SPDX-License-Identifier: Apache-2.0
"""Durations of plugin calls, as a histogram that costs a request little, and the log of slow plugins."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

import structlog
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from epp.framework.plugin import Plugin, Role
from epp.telemetry.families import PREFIX, edges_of

SLOW_SECONDS = 0.01
"""A hundred times the usual cost of a whole decision; all requests wait for it."""
_SLOW_CALLS, _SLOW_SHARE = 5, 0.1
"""Slow calls, and their share of all, from which it is the plugin rather than a pause of the process."""

_log = structlog.get_logger()


class _Calls:
    """Calls of one plugin in one role."""

    __slots__ = ("counts", "logged", "seconds", "slow")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        self.seconds = 0.0
        self.slow = 0
        self.logged = False


class PluginTimes(Collector):
    """Written by the event loop only; read by any thread, to within a call."""

    def __init__(self, bounds: Iterable[float], *, legacy: bool = True) -> None:
        """Prepare; with `legacy`, the durations are shown under their older name too."""
        self._bounds = tuple(bounds)
        self._legacy = legacy
        self._usual = self._bounds[0]
        self._calls: dict[tuple[str, str, str], _Calls] = {}
        self._slowest = (0.0, "")

    def add(self, role: Role, plugin: Plugin[Any], seconds: float) -> None:
        """Record a call; there are many for each request."""
        try:
            calls = self._calls[role.name, plugin.plugin_type, plugin.name]
        except KeyError:
            calls = self._calls[role.name, plugin.plugin_type, plugin.name] = _Calls(len(self._bounds))
        calls.seconds += seconds
        if seconds <= self._usual:
            calls.counts[0] += 1
            return
        calls.counts[bisect_left(self._bounds, seconds)] += 1
        if seconds >= SLOW_SECONDS:
            self._slow(plugin.name, seconds, calls)

    def collect(self) -> Iterator[Metric]:
        """Yield the histogram and the number of slow calls."""
        labels = ("extension_point", "plugin_type", "plugin_name")
        durations = [
            HistogramMetricFamily(f"{PREFIX}plugin_duration_seconds", "Duration of plugin calls.", labels=labels)
        ]
        if self._legacy:
            text = f"Deprecated: use {PREFIX}plugin_duration_seconds."
            durations.append(HistogramMetricFamily("inference_extension_plugin_duration_seconds", text, labels=labels))
        slow = CounterMetricFamily(
            f"{PREFIX}plugin_slow_calls", f"Plugin calls of {SLOW_SECONDS:g} s and more.", labels=labels
        )
        edges = edges_of(self._bounds)
        for key, calls in list(self._calls.items()):
            buckets = list(zip(edges, map(float, accumulate(calls.counts)), strict=True))
            for family in durations:
                family.add_metric(key, buckets, calls.seconds)
            slow.add_metric(key, calls.slow)
        yield from durations
        yield slow

    def take_slowest(self) -> tuple[float, str]:
        """Return the seconds and the plugin of the longest slow call since this was last called; 0 for none."""
        slowest, self._slowest = self._slowest, (0.0, "")
        return slowest

    def _slow(self, plugin: str, seconds: float, calls: _Calls) -> None:
        calls.slow += 1
        self._slowest = max(self._slowest, (seconds, plugin))
        total = sum(calls.counts)
        if not calls.logged and calls.slow >= _SLOW_CALLS and calls.slow >= _SLOW_SHARE * total:
            calls.logged = True
            _log.warning(
                "plugin is slow: all requests wait for it",
                plugin=plugin,
                slow_calls=calls.slow,
                calls=total,
                mean_ms=round(calls.seconds / total * 1e3, 3),
            )
