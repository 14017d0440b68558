# SPDX-License-Identifier: Apache-2.0
"""Metrics of single endpoints: whether they can be reached, and their queues."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from math import isnan

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from epp.framework.endpoint import Endpoint
from epp.framework.records import Derivation
from epp.framework.snapshot import ANSWERS, REACHABLE, WAITING, Snapshot
from epp.telemetry.families import PREFIX, Samples

_LABELS = ("name", "model_server_endpoint")
_OLDER, _OLDER_LABELS = "inference_pool_per_pod_queue_size", ("name", "model_server_pod")


class EndpointSeries(Collector):
    """Costs the event loop nothing, however large the pool is: pages are made in a thread."""

    def __init__(self, pool_name: str, *, legacy: bool = True) -> None:
        """Prepare; with `legacy`, queues are shown under their older name too."""
        self._pool_name = pool_name
        self._legacy = legacy
        self._snapshot = Snapshot()

    @property
    def names(self) -> Collection[str]:
        """Names of the endpoints that are shown."""
        return self._snapshot.endpoints.derive(_slots_by_name).keys()

    @property
    def ids(self) -> Collection[str]:
        """The same as `namespace/name`."""
        return self._snapshot.endpoints.derive(_ids)

    def show(self, snapshot: Snapshot) -> None:
        """Show this snapshot from now on."""
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield whether each endpoint can be reached, and its queue where that is known."""
        snapshot = self._snapshot
        up = GaugeMetricFamily(
            f"{PREFIX}endpoint_up", "1 for an endpoint that can be reached, 0 otherwise.", labels=_LABELS
        )
        up.samples = Samples(partial(self._up, snapshot, up.name))
        yield up
        name = f"{PREFIX}per_endpoint_queue_size"
        queues = [(GaugeMetricFamily(name, "Requests waiting at an endpoint.", labels=_LABELS), _LABELS)]
        if self._legacy:
            queues.append((GaugeMetricFamily(_OLDER, f"Deprecated: use {name}.", labels=_OLDER_LABELS), _OLDER_LABELS))
        for family, labels in queues:
            family.samples = Samples(partial(self._queues, snapshot, family.name, labels))
            yield family

    def _up(self, snapshot: Snapshot, name: str) -> Iterator[Sample]:
        answers = (snapshot.column(REACHABLE) == ANSWERS).tolist()
        for endpoint, slot in snapshot.endpoints.derive(_slots_by_name).items():
            yield Sample(name, dict(zip(_LABELS, (self._pool_name, endpoint), strict=True)), float(answers[slot]))

    def _queues(self, snapshot: Snapshot, name: str, labels: Sequence[str]) -> Iterator[Sample]:
        waiting = snapshot.column(WAITING).tolist()
        for endpoint, slot in snapshot.endpoints.derive(_slots_by_name).items():
            if not isnan(waiting[slot]):
                yield Sample(name, dict(zip(labels, (self._pool_name, endpoint), strict=True)), waiting[slot])


def _slots_by_name(endpoints: tuple[Endpoint | None, ...]) -> Mapping[str, int]:
    """Return one slot for each name: in several namespaces there may be several."""
    return {endpoint.name: slot for slot, endpoint in enumerate(endpoints) if endpoint is not None}


def _ids(endpoints: tuple[Endpoint | None, ...]) -> frozenset[str]:
    return frozenset(endpoint.id for endpoint in endpoints if endpoint is not None)


ENDPOINT_DERIVATIONS: Sequence[Derivation] = ((_slots_by_name,), (_ids,))
"""Values computed from all endpoints."""
