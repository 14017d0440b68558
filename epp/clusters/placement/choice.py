# SPDX-License-Identifier: Apache-2.0
"""Choice among clusters in order of preference, spread as the placement asks."""

from collections import Counter
from collections.abc import Sequence

from epp.objects.ocm import ManagedCluster
from epp.objects.placement import Placement, SpreadConstraint


def choose(placement: Placement, ranked: Sequence[ManagedCluster]) -> tuple[ManagedCluster, ...]:
    """Return the chosen clusters, at most `numberOfClusters`, in the order in which they were chosen."""
    number = len(ranked) if placement.number_of_clusters is None else placement.number_of_clusters
    if not placement.spread:
        return tuple(ranked[:number])
    topologies = [_Topology(each, ranked) for each in placement.spread]
    left, chosen = list(ranked), list[ManagedCluster]()
    while len(chosen) < number:
        open_to = [cluster for cluster in left if all(each.admits(cluster) for each in topologies)]
        if not open_to:
            break
        found = min(open_to, key=lambda cluster: tuple(each.breaks(cluster) for each in topologies))
        left.remove(found)
        chosen.append(found)
        for each in topologies:
            each.add(found)
    return tuple(chosen)


class _Topology:
    """Chosen clusters by the value of one label or claim."""

    def __init__(self, constraint: SpreadConstraint, clusters: Sequence[ManagedCluster]) -> None:
        self._constraint = constraint
        found = {value for cluster in clusters if (value := self._value(cluster)) is not None}
        self._counts = Counter(dict.fromkeys(found, 0))
        self._least = 0

    def admits(self, cluster: ManagedCluster) -> bool:
        return not (self._constraint.required and self.breaks(cluster))

    def breaks(self, cluster: ManagedCluster) -> bool:
        """Return whether the skew would be too large with the cluster, or the cluster has no value."""
        value = self._value(cluster)
        if value is None:
            return True
        return self._counts[value] + 1 - self._least > self._constraint.max_skew

    def add(self, cluster: ManagedCluster) -> None:
        value = self._value(cluster)
        if value is not None:
            self._counts[value] += 1
            self._least = min(self._counts.values())

    def _value(self, cluster: ManagedCluster) -> str | None:
        values = cluster.claims if self._constraint.is_claim else cluster.metadata.labels
        return values.get(self._constraint.key)
