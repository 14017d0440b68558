# SPDX-License-Identifier: Apache-2.0
"""Status of an endpoint's cluster from a hub: scores, placements, taints, admission checks.

One frozen record for all endpoints of a cluster, an attribute of the snapshot like the accelerator tag.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from math import inf
from operator import is_not
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVarTuple

import msgspec
import numpy as np

from epp.framework.arrays import Floats, Mask, Positions, read_only
from epp.framework.candidates import Candidates
from epp.framework.endpoint import Endpoint
from epp.framework.limits import NonNegative
from epp.framework.plugin import Parameters
from epp.framework.records import Records
from epp.framework.snapshot import ROUND_TRIP, Attribute, Snapshot

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

_MOST_NAMES = 10_000
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
    key: str
    value: str = ""
    effect: TaintEffect
    since: float | None = None
    """When it was added, in seconds since the epoch; None if unknown."""


class PlacementStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Decision of a placement on a cluster."""

    chosen: bool = False
    score: float | None = None
    """Sum of its weighted scores, which has no fixed limits; None if the hub does not say."""
    group: str = ""
    """Name of its decision group, or else the group's index."""
    any_chosen: bool = True
    """Whether the placement chose any cluster at all."""


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Known status of the cluster of an endpoint."""

    cluster: str = ""
    """Its name; empty if nothing is known of it."""
    local: bool = False
    scores: Mapping[str, float] = msgspec.field(default_factory=dict)
    """By `resourceName/scoreName`, -100..100, without missing and expired scores."""
    expired: frozenset[str] = frozenset()
    """`resourceName/scoreName` of scores whose `validUntil` has passed."""
    placements: Mapping[str, PlacementStatus] = msgspec.field(default_factory=dict)
    """All known placements by `namespace/name`, also ones that did not choose the cluster. An imported pool counts as a
    placement, `InferencePoolImport/namespace/name`, that chose the clusters that export it and the local one."""
    taints: tuple[ClusterTaint, ...] = ()
    active: bool | None = None
    """Whether an admission check of multi-cluster queueing that uses it is active; None if there is none."""
    available: bool | None = None
    """Condition ManagedClusterConditionAvailable; None if unknown."""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    claims: Mapping[str, str] = msgspec.field(default_factory=dict)
    latency: float | None = None
    """Declared seconds of a round trip to it; None if none are declared."""
    transfer_cost: float | None = None
    """Declared dollars for a gigabyte to and from it; None if none are declared."""


def cluster_of(endpoint: Endpoint, labels: Iterable[str], local: str) -> str:
    """Return the name of an endpoint's cluster: its own, that of the first of the labels it has, or the local one."""
    return endpoint.cluster or next(filter(None, (endpoint.labels.get(name, "") for name in labels)), local)


NO_STATUS = ClusterStatus()

CLUSTER: Attribute[ClusterStatus] = Attribute("cluster", NO_STATUS, "cluster-data-source")
"""Standing of the cluster of an endpoint with its hub."""


A = TypeVarTuple("A")


def status_numbers(
    candidates: Candidates, number: Callable[[ClusterStatus, *A], float | None], *arguments: *A
) -> Floats:
    """Return `number(status, *arguments)` for each candidate, NaN for None.

    Memoised by function and arguments: `number` is a module-level function or a method, the arguments are hashable.
    """
    return candidates.snapshot.records(CLUSTER).derive_numbers(number, *arguments)[candidates.slots]


def status_mask(candidates: Candidates, test: Callable[[ClusterStatus, *A], bool], *arguments: *A) -> Mask:
    """Return `test(status, *arguments)` for each candidate; memoised like `status_numbers`."""
    return candidates.snapshot.records(CLUSTER).derive_mask(test, *arguments)[candidates.slots]


class Clusters(NamedTuple):
    names: tuple[str, ...]
    """In order of their numbers; empty for endpoints whose cluster is not said: those of the local one."""
    numbers: Positions

    def named(self, name: str) -> int:
        """Return the number of a cluster; -1 for one without endpoints."""
        return self.names.index(name) if name in self.names else -1


class ClusterIndex:
    """The clusters of the pool of one plugin, numbered again only when endpoints or their statuses change."""

    def __init__(self) -> None:
        self._of: tuple[Records[Endpoint | None], object] | None = None
        self._clusters = Clusters((), np.empty(0, dtype=np.intp))

    def of(self, snapshot: Snapshot) -> Clusters:
        """Return the clusters of a snapshot: by the status of an endpoint, or else by its own `cluster`."""
        endpoints, statuses = snapshot.endpoints, snapshot.attributes.get(CLUSTER.name)
        before = self._of
        if before is None or before[0] is not endpoints or before[1] is not statuses:
            self._of = endpoints, statuses
            self._clusters = _numbered(endpoints.values, snapshot.records(CLUSTER).values)
        return self._clusters


def _numbered(endpoints: Sequence[Endpoint | None], statuses: Sequence[Any]) -> Clusters:
    numbers: dict[str, int] = {}
    of_slot = np.empty(len(endpoints), dtype=np.intp)
    for slot, (endpoint, status) in enumerate(zip(endpoints, statuses, strict=True)):
        name = status.cluster or ("" if endpoint is None else endpoint.cluster)
        of_slot[slot] = numbers.setdefault(name, len(numbers))
    return Clusters(tuple(numbers), read_only(of_slot))


class _Numbers:
    """Numbers of clusters by name; 0 for endpoints whose cluster is not said: those of the local one."""

    def __init__(self) -> None:
        self.names = {"": 0}

    def of(self, found: Endpoint | ClusterStatus | None) -> float:
        return self.names.setdefault("" if found is None else found.cluster, len(self.names))


class NetworkSeconds:
    """Round trips to the clusters of a pool, computed again only when endpoints, statuses or measurements change."""

    def __init__(self) -> None:
        self._numbers = _Numbers()
        self._known: tuple[tuple[object, ...], Floats | None] = (), None

    def of(self, snapshot: Snapshot) -> Floats | None:
        """Return the seconds of a round trip to the cluster of each slot, or None if all are in the local one.

        0 for the local cluster; otherwise as declared, or the shortest that was measured to an endpoint of the cluster;
        NaN if unknown.
        """
        sources = snapshot.endpoints, snapshot.attributes.get(CLUSTER.name), snapshot.columns.get(ROUND_TRIP.name)
        if len(self._known[0]) != len(sources) or any(map(is_not, sources, self._known[0])):
            self._known = sources, self._computed(snapshot)
        return self._known[1]

    def _computed(self, snapshot: Snapshot) -> Floats | None:
        if len(self._numbers.names) > _MOST_NAMES:
            self._numbers = _Numbers()
        numbers = snapshot.endpoints.derive_numbers(self._numbers.of)
        declared: Floats | None = None
        if CLUSTER.name in snapshot.attributes:
            statuses = snapshot.records(CLUSTER)
            of_status, declared = statuses.derive_numbers(self._numbers.of), statuses.derive_numbers(_declared)
            numbers = np.where(of_status > 0, of_status, numbers)
        clusters, slots = numbers.astype(np.intp), snapshot.slots
        if not clusters[slots].any():
            return None
        shortest = np.full(len(self._numbers.names), np.nan)
        np.fmin.at(shortest, clusters[slots], snapshot.column(ROUND_TRIP)[slots])
        seconds = shortest[clusters]
        if declared is not None:
            seconds = np.where(np.isnan(declared), seconds, declared)
        seconds[clusters == 0] = 0.0
        return seconds if seconds[slots].any() else None


def _declared(status: ClusterStatus) -> float | None:
    return 0.0 if status.local else status.latency


class ClusterToleration(Parameters, frozen=True):
    """Taints that do not count, as in `tolerations` of a Placement."""

    key: str = ""
    """Key of the taints; empty for all keys, with the operator `Exists`."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """`Equal` compares the value as well, `Exists` takes any value."""
    value: str = ""
    """Value of the taints, with the operator `Equal`."""
    effect: TaintEffect | None = None
    """Effect of the taints: `NoSelect`, `PreferNoSelect` or `NoSelectIfNew`; left out for all effects."""
    toleration_seconds: NonNegative | None = None
    """Time after its addition for which a taint is tolerated; left out for ever. A taint of unknown age is tolerated.
    Without effect on `NoSelectIfNew`."""

    def __post_init__(self) -> None:
        if not self.key and self.operator == "Equal":
            raise ValueError("key is empty: write the key of a taint, or operator: Exists to tolerate all taints")
        if self.value and self.operator == "Exists":
            raise ValueError(f"value is {self.value!r}, and operator Exists takes any value: remove one of them")

    def tolerates(self, taint: ClusterTaint) -> bool:
        return (
            self.key in {"", taint.key}
            and (self.operator == "Exists" or self.value == taint.value)
            and self.effect in {None, taint.effect}
        )


def counts_from(status: ClusterStatus, effect: TaintEffect, tolerations: Iterable[ClusterToleration]) -> float:
    """Return from what time on a taint of that effect counts, in seconds since the epoch: -inf always, inf never."""
    return min((_tolerated_until(taint, tolerations) for taint in status.taints if taint.effect is effect), default=inf)


def _tolerated_until(taint: ClusterTaint, tolerations: Iterable[ClusterToleration]) -> float:
    return max((_end(taint, each) for each in tolerations if each.tolerates(taint)), default=-inf)


def _end(taint: ClusterTaint, toleration: ClusterToleration) -> float:
    seconds = toleration.toleration_seconds
    if seconds is None or taint.since is None or taint.effect is TaintEffect.NO_SELECT_IF_NEW:
        return inf
    return taint.since + seconds
