# SPDX-License-Identifier: Apache-2.0
"""Metrics that plugins keep, read from them whenever the page is asked for."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import structlog
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.framework.faults import described
from epp.framework.plugin import Plugin
from epp.framework.plugin_metrics import PluginMetric, Sample

_LABELS = ("plugin_type", "plugin_name")

_log = structlog.get_logger()


class PluginMetrics(Collector):
    """Shows the metrics of the plugins that are in use."""

    def __init__(self, plugins: Callable[[], Iterable[Plugin[Any]]]) -> None:
        self._plugins = plugins
        self._failed: set[str] = set()

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples."""
        return [family_of(metric) for metric in dict.fromkeys(_declared(self._plugins()))]

    def collect(self) -> Iterator[Metric]:
        """Yield the samples of all plugins, by metric."""
        plugins = tuple(self._plugins())
        families = {metric: family_of(metric) for metric in _declared(plugins)}
        for plugin in plugins:
            for sample in self._samples(plugin):
                families[sample.metric].add_metric((plugin.plugin_type, plugin.name, *sample.labels), sample.value)
        yield from families.values()

    def _samples(self, plugin: Plugin[Any]) -> Sequence[Sample]:
        """Return the samples of a plugin; none of one that fails, so that the others are shown."""
        try:
            return [sample for sample in plugin.samples if sample.metric in plugin.metrics]
        except Exception as error:  # noqa: BLE001  a plugin may raise anything
            if plugin.name not in self._failed:
                self._failed.add(plugin.name)
                reason = described(error, type(plugin))
                _log.warning("metrics of a plugin cannot be shown", plugin=plugin.name, reason=reason)
            return ()


def family_of(metric: PluginMetric) -> GaugeMetricFamily | CounterMetricFamily:
    """Return the metric of the page, without samples."""
    family = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
    return family(f"llm_d_epp_{metric.name}", metric.text, labels=(*_LABELS, *metric.labels))


def _declared(plugins: Iterable[Plugin[Any]]) -> Iterator[PluginMetric]:
    for plugin in plugins:
        yield from plugin.metrics
