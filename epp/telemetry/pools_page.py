# SPDX-License-Identifier: Apache-2.0
"""The metrics of several pools of one process as one page."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import TypeAlias, cast

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry, RestrictedRegistry
from prometheus_client.samples import Sample

from epp.telemetry.families import Samples

LABEL = "inference_pool"
"""The label that llm-d-router's metrics of flow control have."""

Choose: TypeAlias = Callable[[CollectorRegistry], Collector]


class MetricsOfPools(CollectorRegistry):
    """The metrics of the process, and those of each pool with the label `inference_pool`."""

    def __init__(self, own: CollectorRegistry, pools: Callable[[], Mapping[str, CollectorRegistry]]) -> None:
        """Prepare; `pools` returns the metrics of the pools by name, in any thread."""
        super().__init__()
        self._own = own
        self._pools = pools

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, each once."""
        return self._collect(lambda registry: registry)

    def restricted_registry(self, names: Iterable[str]) -> RestrictedRegistry:
        """Return a collector of the samples with these names."""
        chosen = frozenset(names)
        choose: Choose = lambda registry: registry.restricted_registry(chosen)  # noqa: E731  its type is written here
        return cast("RestrictedRegistry", SimpleNamespace(collect=partial(self._collect, choose)))

    def _collect(self, choose: Choose) -> Iterator[Metric]:
        yield from choose(self._own).collect()
        found: dict[str, dict[str, Metric]] = {}
        for pool, registry in self._pools().items():
            for metric in choose(registry).collect():
                found.setdefault(metric.name, {})[pool] = metric
        for name, of_pools in found.items():
            first = next(iter(of_pools.values()))
            together = Metric(name, first.documentation, first.type)
            together.samples = Samples(partial(_labelled, of_pools))
            yield together


def _labelled(metrics: Mapping[str, Metric]) -> Iterator[Sample]:
    for pool, metric in metrics.items():
        for sample in metric.samples:
            yield sample._replace(labels={**sample.labels, LABEL: pool})
