# SPDX-License-Identifier: Apache-2.0
"""Metrics of requests in flight by endpoint and flow, read from the ledger at each scrape."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from epp.framework.plugin import Plugin
from epp.framework.request import IN_FLIGHT_COST
from epp.routing.datastore import Datastore
from epp.telemetry.families import PREFIX, Samples
from epp.telemetry.request_series import OTHER, shortened

_LABELS = ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")
_MOST_FLOWS = 256
"""Fairness ids with series of their own, those with the most requests: clients can name any number."""

_Counts: TypeAlias = dict[tuple[str, str, str, str], tuple[int, int]]
"""Requests and tokens by endpoint, namespace, fairness id and priority."""


class InflightSeries(Collector):
    """Shown for each configured producer of the load in flight; all of them have one ledger."""

    def __init__(self, store: Datastore, plugins: Callable[[], Iterable[Plugin[Any]]]) -> None:
        self._store = store
        self._plugins = plugins

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples."""
        return _families()

    def collect(self) -> Iterator[Metric]:
        """Yield requests and tokens by endpoint, fairness id and priority."""
        producers = [plugin.name for plugin in self._plugins() if IN_FLIGHT_COST in plugin.writes]
        counts = self._counts() if producers else {}
        for position, family in enumerate(_families()):
            family.samples = Samples(partial(_samples, family.name, producers, counts, position))
            yield family

    def _counts(self) -> _Counts:
        by_flow = self._store.ledger.by_flow
        endpoints = self._store.latest.endpoints.values
        sizes: Counter[str] = Counter()
        for place, work in by_flow.items():
            sizes[place.flow.fairness_id] += work.requests
        shown = {fairness_id for fairness_id, _ in sizes.most_common(_MOST_FLOWS)}
        counts: _Counts = {}
        for place, work in by_flow.items():
            endpoint = endpoints[place.slot] if place.slot < len(endpoints) else None
            if endpoint is None:
                continue
            fairness_id = shortened(place.flow.fairness_id) if place.flow.fairness_id in shown else OTHER
            labels = endpoint.name, endpoint.namespace, fairness_id, str(place.flow.priority)
            requests, tokens = counts.get(labels, (0, 0))
            counts[labels] = requests + work.requests, tokens + work.tokens
        return counts


def _samples(name: str, producers: Sequence[str], counts: _Counts, position: int) -> Iterator[Sample]:
    for producer in producers:
        for (endpoint, namespace, fairness_id, priority), values in counts.items():
            labels = endpoint, namespace, producer, fairness_id, priority
            yield Sample(name, dict(zip(_LABELS, labels, strict=True)), values[position])


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily(f"{PREFIX}inflight_requests", "Requests in flight at an endpoint.", labels=_LABELS),
        GaugeMetricFamily(
            f"{PREFIX}inflight_tokens",
            "Uncached prompt tokens in flight at an endpoint, and the output expected if that is to count.",
            labels=_LABELS,
        ),
    )
