# SPDX-License-Identifier: Apache-2.0
"""Status of an endpoint's cluster from a hub: scores, placements, taints, admission checks.

The status is an attribute of the snapshot, with one frozen record for all endpoints of a cluster.
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
from epp.framework.snapshot import ROUND_TRIP, Attribute, Snapshot

MOST_SCORE = 100.0
"""Scores of a hub are between -100 and 100."""
MOST_WEIGHT = 10.0
"""Weights of scores in a placement are between -10 and 10."""

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
"""Wrong names of these scores in published examples, and the right ones."""

_MOST_NAMES = 10_000
POOL_IMPORT = "InferencePoolImport"
"""Prefix of imported pools among placements: `InferencePoolImport/namespace/name`."""


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
    """Time at which it was added, in seconds since the epoch; None if unknown."""


class PlacementStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Decision of a placement on a cluster."""

    chosen: bool = False
    score: float | None = None
    """Sum of weighted scores, without fixed limits; None if the hub does not report it."""
    group: str = ""
    """Name of the decision group, or else its index."""
    any_chosen: bool = True
    """Whether the placement chose any cluster."""


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Known status of the cluster of an endpoint."""

    cluster: str = ""
    """Name of the cluster; empty if it is unknown."""
    local: bool = False
    scores: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Scores by `resourceName/scoreName`, -100..100, without missing and expired ones."""
    expired: frozenset[str] = frozenset()
    """`resourceName/scoreName` of scores whose `validUntil` has passed."""
    placements: Mapping[str, PlacementStatus] = msgspec.field(default_factory=dict)
    """All known placements by `namespace/name`, including those that did not choose the cluster. An imported pool is a
    placement `InferencePoolImport/namespace/name` that chose the local cluster and those that export the pool."""
    taints: tuple[ClusterTaint, ...] = ()
    active: bool | None = None
    """Whether an admission check of multi-cluster queueing for the cluster is active; None without such a check."""
    available: bool | None = None
    """Condition ManagedClusterConditionAvailable; None if unknown."""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    claims: Mapping[str, str] = msgspec.field(default_factory=dict)
    latency: float | None = None
    """Declared round-trip time to the cluster in seconds; None if not declared."""
    transfer_cost: float | None = None
    """Declared price of a gigabyte to or from the cluster in dollars; None if not declared."""


def cluster_of(endpoint: Endpoint, labels: Iterable[str], local: str) -> str:
    """Return the cluster of an endpoint: from its field `cluster`, else from the first label it has, else `local`."""
    return endpoint.cluster or next(filter(None, (endpoint.labels.get(name, "") for name in labels)), local)


NO_STATUS = ClusterStatus()

CLUSTER: Attribute[ClusterStatus] = Attribute("cluster", NO_STATUS, "cluster-data-source")
"""Status of the cluster of an endpoint, from its hub."""


A = TypeVarTuple("A")


def status_numbers(
    candidates: Candidates, number: Callable[[ClusterStatus, *A], float | None], *arguments: *A
) -> Floats:
    """Return `number(status, *arguments)` for each candidate, NaN for None.

    The result is memoised: `number` must be a module-level function or a method, and the arguments hashable.
    """
    return candidates.snapshot.records(CLUSTER).derive_numbers(number, *arguments)[candidates.slots]


def status_mask(candidates: Candidates, test: Callable[[ClusterStatus, *A], bool], *arguments: *A) -> Mask:
    """Return `test(status, *arguments)` for each candidate; memoised like `status_numbers`."""
    return candidates.snapshot.records(CLUSTER).derive_mask(test, *arguments)[candidates.slots]


class Clusters(NamedTuple):
    names: tuple[str, ...]
    """Names of clusters by number; empty for the local cluster, whose endpoints have no `cluster`."""
    numbers: Positions
    """Number of the cluster of each slot."""

    def named(self, name: str) -> int:
        """Return the number of a cluster; -1 for a cluster without endpoints."""
        return self.names.index(name) if name in self.names else -1


class ClusterIndex:
    """Cached clusters of the endpoints, which are numbered again when endpoints or statuses change."""

    def __init__(self) -> None:
        self._sources: tuple[object, object] = None, None
        self._clusters = Clusters((), np.empty(0, dtype=np.intp))

    def of(self, snapshot: Snapshot) -> Clusters:
        """Return the clusters of a snapshot: by the status of each endpoint, or else by its field `cluster`."""
        sources = snapshot.endpoints, snapshot.attributes.get(CLUSTER.name)
        if any(map(is_not, sources, self._sources)):
            self._sources = sources
            self._clusters = _numbered(snapshot.endpoints.values, snapshot.records(CLUSTER).values)
        return self._clusters


def _numbered(endpoints: Sequence[Endpoint | None], statuses: Sequence[Any]) -> Clusters:
    numbers: dict[str, int] = {}
    of_slot = np.empty(len(endpoints), dtype=np.intp)
    for slot, (endpoint, status) in enumerate(zip(endpoints, statuses, strict=True)):
        name = status.cluster or ("" if endpoint is None else endpoint.cluster)
        of_slot[slot] = numbers.setdefault(name, len(numbers))
    return Clusters(tuple(numbers), read_only(of_slot))


class _Numbers:
    """Numbers of clusters by name; 0 for the local cluster, whose endpoints have no `cluster`."""

    def __init__(self) -> None:
        self.names = {"": 0}

    def of(self, found: Endpoint | ClusterStatus | None) -> float:
        return self.names.setdefault("" if found is None else found.cluster, len(self.names))


class NetworkSeconds:
    """Cached round-trip times to clusters, computed again when endpoints, statuses or measurements change."""

    def __init__(self) -> None:
        self._numbers = _Numbers()
        self._sources: tuple[object, object, object] = None, None, None
        self._seconds: Floats | None = None

    def of(self, snapshot: Snapshot) -> Floats | None:
        """Return the round-trip time in seconds to the cluster of each slot; None if all are in the local cluster.

        The time is 0 for the local cluster, otherwise the declared time, or else the shortest measured time to an
        endpoint of the cluster; NaN if unknown.
        """
        sources = snapshot.endpoints, snapshot.attributes.get(CLUSTER.name), snapshot.columns.get(ROUND_TRIP.name)
        if any(map(is_not, sources, self._sources)):
            self._sources, self._seconds = sources, self._computed(snapshot)
        return self._seconds

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
    """Tolerated taints, as in `tolerations` of a Placement."""

    key: str = ""
    """Key of the taints; empty for all keys, with the operator `Exists`."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """`Equal` compares the value too; `Exists` accepts any value."""
    value: str = ""
    """Value of the taints, with the operator `Equal`."""
    effect: TaintEffect | None = None
    """Effect of the taints: `NoSelect`, `PreferNoSelect` or `NoSelectIfNew`; left out for all effects."""
    toleration_seconds: NonNegative | None = None
    """Time for which a taint is tolerated after it was added; by default forever. A taint of unknown age is tolerated.
    It has no effect on `NoSelectIfNew`."""

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
    """Return the time from which a taint with this effect counts, in seconds since the epoch; inf for never."""
    taints = [taint for taint in status.taints if taint.effect is effect]
    ends = ([_end(taint, each) for each in tolerations if each.tolerates(taint)] for taint in taints)
    return min((max(each, default=-inf) for each in ends), default=inf)


def _end(taint: ClusterTaint, toleration: ClusterToleration) -> float:
    seconds = toleration.toleration_seconds
    if seconds is None or taint.since is None or taint.effect is TaintEffect.NO_SELECT_IF_NEW:
        return inf
    return taint.since + seconds
