# SPDX-License-Identifier: Apache-2.0
"""Choice among ranked clusters under the spread constraints of a placement."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import TypeAlias

from epp.kube.objects.ocm import ManagedCluster
from epp.kube.objects.placement import Placement, SpreadConstraint

_Values: TypeAlias = tuple[str | None, ...]
"""Value of a cluster for each constraint; None for a missing one."""


def choose(placement: Placement, ranked: Sequence[ManagedCluster]) -> tuple[ManagedCluster, ...]:
    """Return at most `numberOfClusters` clusters in the order of the choice."""
    number = len(ranked) if placement.number_of_clusters is None else placement.number_of_clusters
    if not placement.spread:
        return tuple(ranked[:number])
    left = _Left([_Topology(each, ranked) for each in placement.spread], ranked)
    chosen: list[ManagedCluster] = []
    while len(chosen) < number and (best := left.take()) is not None:
        chosen.append(best)
    return tuple(chosen)


class _Left:
    """Clusters that are not chosen yet, grouped by their values; the best cluster of a group is next."""

    def __init__(self, topologies: Sequence["_Topology"], ranked: Sequence[ManagedCluster]) -> None:
        self._topologies = topologies
        self._alike: defaultdict[_Values, deque[tuple[int, ManagedCluster]]] = defaultdict(deque)
        for rank, cluster in enumerate(ranked):
            self._alike[tuple(each.value(cluster) for each in topologies)].append((rank, cluster))
        self._with: defaultdict[tuple[int, str | None], list[_Values]] = defaultdict(list)
        for values in self._alike:
            for index, value in enumerate(values):
                self._with[index, value].append(values)
        self._offered: dict[_Values, tuple[tuple[bool, ...], int]] = {}
        """Current violations of each group, and the rank of its best cluster."""
        self._offers: list[tuple[tuple[bool, ...], int, _Values]] = []
        """A heap; outdated offers are skipped."""
        self._renew(self._alike)

    def take(self) -> ManagedCluster | None:
        """Take the cluster with fewest violations, then the best rank; None if all violate a requirement."""
        while self._offers:
            breaks, rank, values = heappop(self._offers)
            if self._offered.get(values) != (breaks, rank):
                continue
            found = self._alike[values].popleft()[1]
            if not self._alike[values]:
                del self._alike[values], self._offered[values]
            changed = {values: None}
            for index, (topology, value) in enumerate(zip(self._topologies, values, strict=True)):
                concerned = self._alike if topology.add(value) else self._with[index, value]
                changed.update(dict.fromkeys(concerned))
            self._renew(changed)
            return found
        return None

    def _renew(self, concerned: Iterable[_Values]) -> None:
        for values in concerned:
            if (members := self._alike.get(values)) is None:
                continue
            breaks = tuple([each.breaks(value) for each, value in zip(self._topologies, values, strict=True)])
            offer = breaks, members[0][0]
            if self._offered.get(values) != offer:
                self._offered[values] = offer
                if not any(broken and each.required for each, broken in zip(self._topologies, breaks, strict=True)):
                    heappush(self._offers, (*offer, values))


class _Topology:
    """Number of chosen clusters by the value of one label or claim."""

    def __init__(self, constraint: SpreadConstraint, clusters: Sequence[ManagedCluster]) -> None:
        self._constraint = constraint
        self.required = constraint.required
        found = {value for cluster in clusters if (value := self.value(cluster)) is not None}
        self._counts = Counter(dict.fromkeys(found, 0))
        self._values_at = Counter({0: len(found)})
        """Number of values with each count."""
        self._least = 0

    def value(self, cluster: ManagedCluster) -> str | None:
        """Return the label or claim of a cluster."""
        values = cluster.claims if self._constraint.is_claim else cluster.metadata.labels
        return values.get(self._constraint.key)

    def breaks(self, value: str | None) -> bool:
        """Return whether one more cluster with that value exceeds the skew; a missing value always violates it."""
        return value is None or self._counts[value] + 1 - self._least > self._constraint.max_skew

    def add(self, value: str | None) -> bool:
        """Count a chosen cluster; return whether this affects other values."""
        if value is None:
            return False
        least = self._least
        self._values_at[self._counts[value]] -= 1
        self._counts[value] += 1
        self._values_at[self._counts[value]] += 1
        while not self._values_at[self._least]:
            self._least += 1
        return self._least > least
