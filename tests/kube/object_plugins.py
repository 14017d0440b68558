# SPDX-License-Identifier: Apache-2.0
"""Plugins of an outside package that read ConfigMaps, or what a hub says of clusters."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from epp.framework import Candidates, Column, Endpoint, Filter, Mask, Request
from epp.framework.cluster_objects import ObjectReader, ObjectsOfKind
from epp.framework.clusters import CLUSTER, ClusterStatus
from epp.framework.datalayer import AffectedEndpoints, Report, Tagger, every_endpoint

GPUS = "resource-usage-score/gpuClusterAvailable"
PAUSED = Column("paused", "0 or 1", unknown=0.0)


class PausedTagger(Tagger, ObjectReader):
    """Writes 1 for the endpoints that the ConfigMap `paused` has a key for; it has no kinds of its own."""

    plugin_type = "paused-tagger"
    writes = (PAUSED,)

    def setup(self) -> None:
        self._paused = frozenset[str]()

    @staticmethod
    def decode(document: Mapping[str, Any]) -> object | None:
        return frozenset(document.get("data", {})) if document["metadata"]["name"] == "paused" else None

    async def objects_changed(self, kinds: Sequence[ObjectsOfKind]) -> AffectedEndpoints:
        (maps,) = kinds
        self._paused = frozenset().union(*maps.objects.values())
        return every_endpoint

    def tag(self, endpoint: Endpoint) -> Report:
        return Report(columns={PAUSED: float(endpoint.name in self._paused)})


class PausedFilter(Filter):
    """Drops paused endpoints."""

    plugin_type = "paused-filter"
    reads = (PAUSED,)

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        return candidates.values(PAUSED) == 0


class BusyClusterFilter(Filter):
    """Drops endpoints of clusters that are full, and of those that a placement of their namespace did not choose."""

    plugin_type = "busy-cluster-filter"
    reads = (CLUSTER,)

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        statuses, endpoints = candidates.snapshot.records(CLUSTER).values, candidates.snapshot.endpoints.values
        free = [_is_free(statuses[slot], endpoints[slot].namespace) for slot in candidates.slots]
        return np.array(free, dtype=np.bool_)


def _is_free(status: ClusterStatus, namespace: str) -> bool:
    own = (each for name, each in status.placements.items() if name.startswith(f"{namespace}/"))
    return all(each.chosen for each in own) and status.scores.get(GPUS, 0.0) >= 0
