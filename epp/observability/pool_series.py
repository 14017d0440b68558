# SPDX-License-Identifier: Apache-2.0
"""The pool as metrics: endpoints that can be reached, by accelerator too, and means over all."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from prometheus_client.registry import CollectorRegistry

from epp.framework import LoraState
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.arrays import Floats
from epp.framework.records import Derivation
from epp.framework.snapshot import (
    ACCELERATOR,
    ANSWERS,
    INHERITED,
    KV_USAGE,
    LORA,
    MODELS,
    REACHABLE,
    RUNNING,
    WAITING,
    Snapshot,
)
from epp.observability.endpoint_series import EndpointSeries
from epp.observability.families import Gauges
from epp.observability.prices import PRICE_DERIVATIONS, count_unpriced

_T = TypeVar("_T")


class PoolSeries:
    """Gauges of a pool and of its endpoints, as of the snapshot shown last."""

    def __init__(self, pool_name: str, registry: CollectorRegistry) -> None:
        self._name = pool_name
        self._accelerators = Gauges(
            "llm_d_epp_accelerator_ready_endpoints",
            "Reachable endpoints by accelerator.",
            ("name", "accelerator"),
            registry,
        )

        def of_pool(name: str, text: str) -> Gauges:
            return Gauges(f"llm_d_epp_{name}", text, ("name",), registry)

        self._ready = of_pool("ready_endpoints", "Endpoints that can be reached.")
        self._unpriced = of_pool(
            "endpoints_without_price", "Endpoints with accelerators, or of unknown hardware, whose price is unknown."
        )
        self._inherited = of_pool(
            "inherited_requests", "Requests in flight that were there when this picker took over, or started."
        )
        self._averages = {
            WAITING: of_pool("average_queue_size", "Mean number of requests waiting at an endpoint."),
            RUNNING: of_pool("average_running_requests", "Mean number of requests running at an endpoint."),
            KV_USAGE: of_pool("average_kv_cache_utilization", "Mean KV cache usage of an endpoint, 0..1."),
        }
        self._endpoints = EndpointSeries(pool_name)
        registry.register(self._endpoints)

    @property
    def names(self) -> Collection[str]:
        """The names of the endpoints shown."""
        return self._endpoints.names

    def show(self, snapshot: Snapshot) -> None:
        """Set all gauges to what the snapshot has."""
        up = snapshot.column(REACHABLE) == ANSWERS
        self._ready.labels(self._name).set(int(up[snapshot.slots].sum()))
        self._unpriced.labels(self._name).set(count_unpriced(snapshot))
        self._inherited.labels(self._name).set(snapshot.column(INHERITED).sum())
        self._accelerators.clear()
        hardware = snapshot.records(ACCELERATOR).derive_objects(hardware_name)
        for name, count in Counter(hardware[snapshot.available].tolist()).items():
            self._accelerators.labels(self._name, name).set(count)
        for column, gauge in self._averages.items():
            gauge.labels(self._name).set(_mean(snapshot.column(column)[snapshot.slots]))
        self._endpoints.show(snapshot)


def hardware_name(tag: AcceleratorTag) -> str:
    """Return the class of an accelerator; its model, or at least its kind, where it has none."""
    return tag.primary_class or tag.model or tag.kind.value


GAUGE_DERIVATIONS: Mapping[str, Sequence[Derivation]] = {
    ACCELERATOR.name: (*PRICE_DERIVATIONS, (np.object_, hardware_name)),
}
"""What gauges show that is derived of each endpoint, by name of the attribute."""


def served_models(snapshot: Snapshot) -> frozenset[str]:
    """Return the models and adapters that any endpoint reports."""
    return snapshot.records(MODELS).derive(_union) | snapshot.records(LORA).derive(_adapters)


def _union(models: tuple[frozenset[str], ...]) -> frozenset[str]:
    return frozenset().union(*_distinct(models))


def _adapters(states: tuple[LoraState, ...]) -> frozenset[str]:
    return frozenset().union(*(one.running | one.waiting for one in _distinct(states)))


def _distinct(records: Iterable[_T]) -> Iterable[_T]:
    """Return each object once: most endpoints have the same few, and equal ones cost more to find."""
    return {id(record): record for record in records}.values()


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0
