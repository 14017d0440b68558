# SPDX-License-Identifier: Apache-2.0
"""Gauges of single endpoints, made from a snapshot when the metrics page is asked for."""

from collections.abc import Collection, Iterator, Mapping
from math import isnan

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import ANSWERS, REACHABLE, WAITING, Snapshot
from epp.observability.families import PREFIX

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
        name_now = f"{PREFIX}per_endpoint_queue_size"
        queues = [GaugeMetricFamily(name_now, "Requests waiting at an endpoint.", labels=_LABELS)]
        if self._legacy:
            queues.append(GaugeMetricFamily(_OLDER, f"Deprecated: use {name_now}.", labels=_OLDER_LABELS))
        answers = (snapshot.column(REACHABLE) == ANSWERS).tolist()
        waiting = snapshot.column(WAITING).tolist()
        for name, slot in snapshot.endpoints.derive(_slots_by_name).items():
            labels = (self._pool_name, name)
            up.add_metric(labels, float(answers[slot]))
            if not isnan(waiting[slot]):
                for family in queues:
                    family.add_metric(labels, waiting[slot])
        yield up
        yield from queues


def _slots_by_name(endpoints: tuple[Endpoint | None, ...]) -> Mapping[str, int]:
    """Return one slot for each name: in several namespaces there may be several."""
    return {endpoint.name: slot for slot, endpoint in enumerate(endpoints) if endpoint is not None}


def _ids(endpoints: tuple[Endpoint | None, ...]) -> frozenset[str]:
    return frozenset(endpoint.id for endpoint in endpoints if endpoint is not None)
