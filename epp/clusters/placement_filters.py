# SPDX-License-Identifier: Apache-2.0
"""Clusters that a placement may choose: cluster sets, selectors, taints and tolerations."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from epp.framework.clusters import ClusterTaint, TaintEffect
from epp.kube.objects.ocm import CLUSTER_SET_LABEL, ManagedCluster, ManagedClusterSet
from epp.kube.objects.placement import ClusterSelector, Placement, Toleration

_GLOBAL = "global"
"""Set of all clusters, which exists on every hub."""


def in_cluster_sets(
    placement: Placement,
    clusters: Iterable[ManagedCluster],
    sets: Mapping[str, ManagedClusterSet],
    bound: Collection[str] | None,
) -> tuple[ManagedCluster, ...]:
    """Return the clusters in the sets of the placement, without terminating clusters.

    `bound` are the sets bound to its namespace; None means that there are no bindings and all sets are allowed.
    """
    names = placement.cluster_sets
    if bound is not None:
        names = tuple(name for name in names if name in bound) if names else tuple(sorted(bound))
        if not names:
            return ()
    alive = [cluster for cluster in clusters if not cluster.metadata.is_terminating]
    return tuple(cluster for cluster in alive if not names or any(_in_set(cluster, name, sets) for name in names))


def _in_set(cluster: ManagedCluster, name: str, sets: Mapping[str, ManagedClusterSet]) -> bool:
    found = sets.get(name)
    if found is not None and found.selector is not None:
        return found.selector.matches(cluster.metadata.labels)
    return name == _GLOBAL or cluster.metadata.labels.get(CLUSTER_SET_LABEL) == name


def selects(selector: ClusterSelector, cluster: ManagedCluster) -> bool:
    """Return whether labels and claims of the cluster match."""
    return (
        not selector.never
        and selector.labels.matches(cluster.metadata.labels)
        and all(test.holds(cluster.claims) for test in selector.claims)
    )


class Tolerance(NamedTuple):
    """Effect of the taints of a cluster on a placement."""

    selectable: bool
    """Whether the cluster may be chosen."""
    preferred: bool
    """Whether there is no untolerated PreferNoSelect taint."""
    until: float | None
    """Time of the next change, in seconds since the epoch; None for never."""


def tolerance(
    taints: Iterable[ClusterTaint], tolerations: Iterable[Toleration], now: float, *, chosen: bool
) -> Tolerance:
    """Return the effect of taints; `chosen` is whether the placement chose the cluster before.

    NoSelectIfNew only excludes clusters that were not chosen before. The duration of a toleration starts when the taint
    was added; a limited toleration does not apply to a taint of unknown age.
    """
    tolerations = tuple(tolerations)
    selectable = preferred = True
    ends: list[float] = []
    for taint in taints:
        if taint.effect is TaintEffect.NO_SELECT_IF_NEW and chosen:
            continue
        tolerated, until = _tolerated(taint, tolerations, now)
        if until is not None:
            ends.append(until)
        if not tolerated and taint.effect is TaintEffect.PREFER_NO_SELECT:
            preferred = False
        elif not tolerated:
            selectable = False
    return Tolerance(selectable, preferred, min(ends, default=None))


def _tolerated(taint: ClusterTaint, tolerations: Iterable[Toleration], now: float) -> tuple[bool, float | None]:
    """Return whether a toleration applies, and the end of the last one."""
    ends: list[float] = []
    for each in tolerations:
        if not _fits(taint, each):
            continue
        if each.seconds is None:
            return True, None
        if taint.since is not None and now < taint.since + each.seconds:
            ends.append(taint.since + each.seconds)
    return bool(ends), max(ends, default=None)


def _fits(taint: ClusterTaint, toleration: Toleration) -> bool:
    return (
        toleration.effect in {None, taint.effect}
        and toleration.key in {"", taint.key}
        and (toleration.exists or toleration.value == taint.value)
    )
