# SPDX-License-Identifier: Apache-2.0
"""Status of an endpoint's cluster from a hub: scores, placements, taints, admission checks.

One frozen record for all endpoints of a cluster, an attribute of the snapshot like the accelerator tag.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import Attribute

MOST_SCORE = 100.0
"""Scores of a hub reach from -100 to 100."""
MOST_WEIGHT = 10.0
"""Weights of scores in a placement reach from -10 to 10."""

USAGE_SCORE = "resource-usage-score"
"""Name of the AddOnPlacementScore with the scores of free resources."""
USAGE_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "cpuAvailable": "cpuClusterAvailable",
        "memAvailable": "memClusterAvailable",
        "gpuAvailable": "gpuClusterAvailable",
        "tpuAvailable": "tpuClusterAvailable",
    }
)
"""Names in published examples that no such score has, and the real ones."""

POOL_IMPORT = "InferencePoolImport"
"""Begins the names of imported pools among placements: `InferencePoolImport/namespace/name`."""


CLUSTER_LABELS = ("multicluster.kubernetes.io/source-cluster", "topology.istio.io/cluster")
"""Labels that name the cluster of an endpoint."""


class TaintEffect(StrEnum):
    """Effect of a taint of a cluster."""

    NO_SELECT = "NoSelect"
    PREFER_NO_SELECT = "PreferNoSelect"
    NO_SELECT_IF_NEW = "NoSelectIfNew"


class ClusterTaint(msgspec.Struct, frozen=True, kw_only=True):
    """A taint of a cluster."""

    key: str
    value: str = ""
    effect: TaintEffect
    since: float | None = None
    """When it was added, in seconds since the epoch; None if unknown."""


class PlacementStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a placement decided on a cluster."""

    chosen: bool = False
    score: float | None = None
    """Sum of its weighted scores, which has no fixed limits; None if the hub does not say."""
    group: str = ""
    """Name of its decision group, or else the group's index."""
    any_chosen: bool = True
    """Whether the placement chose any cluster at all."""


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the cluster of an endpoint."""

    cluster: str = ""
    """Its name; empty if nothing is known of it."""
    local: bool = False
    """Whether it is the local one."""
    scores: Mapping[str, float] = msgspec.field(default_factory=dict)
    """By `resourceName/scoreName`, -100..100, without missing and expired scores."""
    expired: frozenset[str] = frozenset()
    """`resourceName/scoreName` of scores whose `validUntil` has passed."""
    placements: Mapping[str, PlacementStatus] = msgspec.field(default_factory=dict)
    """By `namespace/name`: every placement that is known, those that did not choose the cluster included. An
    imported pool is one too, under `InferencePoolImport/namespace/name`: of the clusters that export it, and the local
    one."""
    taints: tuple[ClusterTaint, ...] = ()
    active: bool | None = None
    """Whether an admission check of multi-cluster queueing that uses it is active; None if there is none."""
    available: bool | None = None
    """Condition ManagedClusterConditionAvailable; None if unknown."""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    claims: Mapping[str, str] = msgspec.field(default_factory=dict)


def cluster_of(endpoint: Endpoint, labels: Iterable[str], local: str) -> str:
    """Return the name of an endpoint's cluster: its own, that of the first of the labels it has, or the local one."""
    return endpoint.cluster or next(filter(None, (endpoint.labels.get(name, "") for name in labels)), local)


NO_STATUS = ClusterStatus()

CLUSTER: Attribute[ClusterStatus] = Attribute("cluster", NO_STATUS, "cluster-data-source")
"""Standing of the cluster of an endpoint with its hub."""
