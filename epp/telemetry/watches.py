# SPDX-License-Identifier: Apache-2.0
"""Metrics of watches in a cluster, read at each scrape."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.kube.watched import Watched, WatchState

_LABELS = ("resource", "namespace")


class WatchMetrics(Collector):
    """Shows the watches of the cluster that are in use."""

    def __init__(self, watches: Callable[[], Iterable[Watched[Any]]]) -> None:
        self._watches = watches

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples."""
        return _families()

    def collect(self) -> Iterator[Metric]:
        """Yield a sample of each metric for each watch."""
        current, stale, objects, problems, lists, rejected = families = _families()
        seen: set[tuple[str, str]] = set()
        for watch in self._watches():
            labels = (watch.resource.title, watch.namespace)
            if labels in seen:
                continue  # another selector of the same objects, for the moment in which a pool changes its own
            seen.add(labels)
            current.add_metric(labels, float(watch.state is WatchState.CURRENT))
            stale.add_metric(labels, watch.stale_seconds)
            objects.add_metric(labels, len(watch.objects))
            problems.add_metric(labels, len(watch.problems))
            lists.add_metric(labels, watch.lists)
            rejected.add_metric(labels, watch.rejected)
        yield from families


def _families() -> tuple[
    GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily, CounterMetricFamily, CounterMetricFamily
]:
    return (
        GaugeMetricFamily(
            "llm_d_epp_kubernetes_watch_current",
            "1 while the objects of a resource are kept up to date, 0 while they cannot be read.",
            labels=_LABELS,
        ),
        GaugeMetricFamily(
            "llm_d_epp_kubernetes_watch_stale_seconds",
            "Time since the objects of a resource could last be read; 0 while they are kept up to date.",
            labels=_LABELS,
        ),
        GaugeMetricFamily("llm_d_epp_kubernetes_objects", "Objects of a resource that are in effect.", labels=_LABELS),
        GaugeMetricFamily(
            "llm_d_epp_kubernetes_object_problems",
            "Objects whose newest version cannot be used; at most 100 are counted.",
            labels=_LABELS,
        ),
        CounterMetricFamily(
            "llm_d_epp_kubernetes_lists", "How often all objects of a resource were listed.", labels=_LABELS
        ),
        CounterMetricFamily(
            "llm_d_epp_kubernetes_object_versions_rejected",
            "Versions of objects that cannot be used.",
            labels=_LABELS,
        ),
    )
