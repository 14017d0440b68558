# SPDX-License-Identifier: Apache-2.0
"""Decision groups: named ones by selector, and the rest in groups of a limited size."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from epp.clusters.placement.selectors import selects
from epp.kube.objects.ocm import ManagedCluster
from epp.kube.objects.placement import Placement


class Group(NamedTuple):
    """Chosen clusters that belong together."""

    number: int
    """From 0."""
    name: str
    """Empty for one without a name."""
    clusters: tuple[str, ...]

    @property
    def title(self) -> str:
        """Its name, or else its number."""
        return self.name or str(self.number)


def grouped(
    placement: Placement, chosen: Sequence[ManagedCluster], order: Callable[[ManagedCluster], tuple[float, str]]
) -> tuple[Group, ...]:
    """Return the groups in order: a cluster is in the first one that selects it, in order within its group.

    A group that is larger than `clustersPerDecisionGroup` is divided.
    """
    size = group_size(placement.clusters_per_group, len(chosen))
    left = sorted(chosen, key=order)
    parts: list[tuple[str, Sequence[ManagedCluster]]] = []
    for group in placement.groups:
        members = [cluster for cluster in left if selects(group.selector, cluster)]
        left = [cluster for cluster in left if not selects(group.selector, cluster)]
        parts += [(group.name, part) for part in _divided(members, size)]
    parts += [("", part) for part in _divided(left, size)]
    return tuple(
        Group(index, name, tuple(cluster.name for cluster in part)) for index, (name, part) in enumerate(parts)
    )


def group_size(setting: float | None, total: int) -> int:
    """Return the most clusters of a group: a share is rounded up."""
    if setting is None:
        return total
    size = math.ceil(round(setting * total, 9)) if setting < 1 else int(setting)
    return size if 0 < size <= total else total


def _divided(members: Sequence[ManagedCluster], size: int) -> Iterator[Sequence[ManagedCluster]]:
    for start in range(0, len(members), max(size, 1)):
        yield members[start : start + size]


def group_of(groups: Iterable[Group]) -> dict[str, str]:
    """Return the title of the group of each cluster."""
    return {name: group.title for group in groups for name in group.clusters}
