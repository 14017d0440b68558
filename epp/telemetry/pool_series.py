# SPDX-License-Identifier: Apache-2.0
"""The pool as metrics: endpoints that can be reached, by accelerator too, and means over all."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from epp.framework import LoraState
from epp.framework.plugin_status import Legacy
from epp.framework.records import ENDPOINTS, Derivation
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
    Column,
    Snapshot,
)
from epp.telemetry.endpoint_series import ENDPOINT_DERIVATIONS, EndpointSeries
from epp.telemetry.families import Families, Gauges
from epp.telemetry.hardware_series import HARDWARE_DERIVATIONS, HardwareSeries

_T = TypeVar("_T")


class PoolSeries:
    """Gauges of a pool and of its endpoints, as of the snapshot shown last."""

    def __init__(self, pool_name: str, families: Families) -> None:
        self._name = pool_name
        self._hardware = HardwareSeries(pool_name, families)

        def of_pool(name: str, text: str, legacy: str = "") -> Gauges:
            older = Legacy(f"inference_pool_{legacy}", ("name",)) if legacy else None
            return families.gauges(name, text, ("name",), older)

        self._ready = of_pool("ready_endpoints", "Endpoints that can be reached.", "ready_pods")
        self._inherited = of_pool(
            "inherited_requests", "Requests in flight that were there when this picker took over, or started."
        )
        self._age = of_pool(
            "snapshot_age_seconds",
            "Age of the oldest report among endpoints that can be reached: requests are routed by nothing older.",
        )
        self._spreads: dict[Column, tuple[Gauges, Gauges]] = {}
        for column, name, what in (
            (WAITING, "queue_size", "number of requests waiting at an endpoint"),
            (RUNNING, "running_requests", "number of requests running at an endpoint"),
            (KV_USAGE, "kv_cache_utilization", "KV cache usage of an endpoint, 0..1"),
        ):
            self._spreads[column] = (
                of_pool(f"average_{name}", f"Mean {what}.", f"average_{name}"),
                of_pool(f"std_dev_{name}", f"Standard deviation of the {what}; 0 for a single endpoint."),
            )
        self._endpoints = EndpointSeries(pool_name, legacy=families.legacy)
        families.registry.register(self._endpoints)

    @property
    def names(self) -> Collection[str]:
        """The names of the endpoints shown."""
        return self._endpoints.names

    @property
    def ids(self) -> Collection[str]:
        """The same as `namespace/name`."""
        return self._endpoints.ids

    def show(self, snapshot: Snapshot, now: float) -> None:
        """Set all gauges to what the snapshot has."""
        up = snapshot.column(REACHABLE) == ANSWERS
        self._ready.labels(self._name).set(int(up[snapshot.slots].sum()))
        self._hardware.show(snapshot)
        ages = snapshot.age_seconds(now)[snapshot.available]
        self._age.labels(self._name).set(float(np.nanmax(ages, initial=0.0)))
        self._inherited.labels(self._name).set(snapshot.column(INHERITED).sum())
        for column, (average, deviation) in self._spreads.items():
            values = snapshot.column(column)[snapshot.slots]
            known = values[~np.isnan(values)]
            average.labels(self._name).set(float(known.mean()) if len(known) else 0.0)
            deviation.labels(self._name).set(float(known.std(ddof=1)) if len(known) > 1 else 0.0)
        self._endpoints.show(snapshot)


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


GAUGE_DERIVATIONS: Mapping[str, Sequence[Derivation]] = {
    ENDPOINTS: ENDPOINT_DERIVATIONS,
    ACCELERATOR.name: HARDWARE_DERIVATIONS,
    MODELS.name: ((_union,),),
    LORA.name: ((_adapters,),),
}
"""What gauges show that is derived of a pool, by name of the attribute: to be derived ahead where it is large."""
