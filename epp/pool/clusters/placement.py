# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a placement: filters, prioritizers, choice and decision groups, with the hub's form of explanation."""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from epp.framework.clusters import MOST_SCORE, ClusterTaint, TaintEffect
from epp.kube.objects.ocm import CLUSTER_SET_LABEL, ManagedCluster, ManagedClusterSet
from epp.kube.objects.placement import ALLOCATABLE, BALANCE, STEADY, ClusterSelector, Placement, Toleration

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


def _selects(selector: ClusterSelector, cluster: ManagedCluster) -> bool:
    return selector.selects(cluster.metadata.labels, cluster.claims)


class Tolerance(NamedTuple):
    """Effect of the taints of a cluster on a placement."""

    selectable: bool
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
        if not each.tolerates(taint):
            continue
        if each.toleration_seconds is None:
            return True, None
        if taint.since is not None and now < taint.since + each.toleration_seconds:
            ends.append(taint.since + each.toleration_seconds)
    return bool(ends), max(ends, default=None)


def prioritized(prioritizer: str, clusters: Sequence[ManagedCluster], situation: "Situation") -> dict[str, float]:
    """Return scores by cluster name; a missing score counts as 0."""
    names = [cluster.name for cluster in clusters]
    if prioritizer == STEADY:
        return {name: MOST_SCORE if name in situation.chosen else 0.0 for name in names}
    if prioritizer == BALANCE:
        return balanced(names, situation.counts)
    if prioritizer in ALLOCATABLE:
        return allocatable(clusters, ALLOCATABLE[prioritizer])
    return {name: found for name in names if (found := situation.scores.get(name, {}).get(prioritizer)) is not None}


def balanced(names: Collection[str], counts: Mapping[str, int]) -> dict[str, float]:
    """Return 100 for a cluster without decisions, -100 for the cluster with most decisions."""
    most = max(counts.values(), default=0)
    if not most:
        return dict.fromkeys(names, MOST_SCORE)
    return {name: float(2 * math.trunc(100 * (0.5 - counts.get(name, 0) / most))) for name in names}


def allocatable(clusters: Sequence[ManagedCluster], resource: str) -> dict[str, float]:
    """Return 100 for the largest amount of a resource, -100 for the smallest; 100 for all if they are equal."""
    amounts = {cluster.name: cluster.allocatable[resource] for cluster in clusters if resource in cluster.allocatable}
    if not amounts:
        return {}
    least, most = min(amounts.values()), max(amounts.values())
    if least == most:
        return dict.fromkeys(amounts, MOST_SCORE)
    return {name: float(((amount - least) / (most - least) * 2 - 1) * 100) for name, amount in amounts.items()}


class Group(NamedTuple):
    """A decision group: chosen clusters that belong together."""

    number: int
    """Index from 0."""
    name: str
    """Empty for an unnamed group."""
    clusters: tuple[str, ...]


def grouped(
    placement: Placement, chosen: Sequence[ManagedCluster], order: Callable[[ManagedCluster], tuple[float, str]]
) -> tuple[Group, ...]:
    """Return the groups: a cluster is in the first group that selects it; `order` sorts clusters within a group.

    A group larger than `clustersPerDecisionGroup`, a number or a share that is rounded up, is divided.
    """
    total, setting = len(chosen), placement.clusters_per_group
    size = 0 if setting is None else math.ceil(round(setting * total, 9)) if setting < 1 else int(setting)
    if not 0 < size <= total:
        size = max(total, 1)
    left = sorted(chosen, key=order)
    parts: list[tuple[str, list[ManagedCluster]]] = []
    for group in placement.groups:
        parts.append((group.group_name, [each for each in left if _selects(group.group_cluster_selector, each)]))
        left = [each for each in left if not _selects(group.group_cluster_selector, each)]
    parts.append(("", left))
    divided = (
        (name, members[start : start + size]) for name, members in parts for start in range(0, len(members), size)
    )
    return tuple(
        Group(index, name, tuple(cluster.name for cluster in part)) for index, (name, part) in enumerate(divided)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Input of an evaluation in addition to the placement."""

    clusters: Sequence[ManagedCluster]
    """Clusters of the cluster sets."""
    chosen: Collection[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of decisions of other placements by cluster."""
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Valid scores of add-ons, by cluster and `resource/score`."""
    now: float = 0.0
    """Seconds since the epoch."""


class FilterResult(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    """The filter after the previous ones: `Predicate,TaintToleration`."""
    filtered_clusters: tuple[str, ...]


class PrioritizeResult(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    weight: float
    scores: Mapping[str, float]


class ClusterTotal(msgspec.Struct, frozen=True, rename="camel"):
    cluster_name: str
    score: float


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """Explanation of a choice, in the format of the hub's debugger."""

    placement: Mapping[str, object] = {}
    """The written placement, without its status."""
    filtered_pipeline_results: tuple[FilterResult, ...] = ()
    prioritize_results: tuple[PrioritizeResult, ...] = ()
    aggregated_scores: tuple[ClusterTotal, ...] = ()


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    groups: tuple[Group, ...] = ()
    totals: Mapping[str, float] = {}
    """Sum of weighted scores of each cluster that passed the filters."""
    explanation: Explanation = Explanation()
    missing: frozenset[tuple[str, str]] = frozenset()
    """Cluster and `resource/score` of missing scores, which count as 0."""
    until: float | None = None
    """Time of the next change without a change of objects, in seconds since the epoch; None for never."""

    @property
    def chosen(self) -> frozenset[str]:
        return frozenset(name for group in self.groups for name in group.clusters)


def evaluate(placement: Placement, situation: Situation) -> Evaluation:
    """Choose clusters by descending total, then by name; clusters with a PreferNoSelect taint come last."""
    eligible = sorted(situation.clusters, key=lambda cluster: cluster.name)
    matched = [
        each
        for each in eligible
        if placement.predicates is None or any(_selects(one, each) for one in placement.predicates)
    ]
    tolerances = {
        each.name: tolerance(each.taints, placement.tolerations, situation.now, chosen=each.name in situation.chosen)
        for each in matched
    }
    feasible = [each for each in matched if tolerances[each.name].selectable]
    results = [
        PrioritizeResult(f"AddOn/{name}" if "/" in name else name, weight, prioritized(name, feasible, situation))
        for name, weight in placement.weights.items()
        if weight
    ]
    totals = {each.name: sum(one.weight * one.scores.get(each.name, 0.0) for one in results) for each in feasible}
    ranked = sorted(feasible, key=lambda each: (not tolerances[each.name].preferred, -totals[each.name], each.name))

    def order(cluster: ManagedCluster) -> tuple[float, str]:
        return (-totals[cluster.name] if placement.sort_by_score else 0.0), cluster.name

    return Evaluation(
        groups=grouped(placement, choose(placement, ranked), order),
        totals=totals,
        explanation=Explanation(
            placement.written,
            (
                FilterResult("Predicate", tuple(each.name for each in matched)),
                FilterResult("Predicate,TaintToleration", tuple(each.name for each in feasible)),
            ),
            tuple(results),
            tuple(ClusterTotal(name, totals[name]) for name in sorted(totals, key=lambda name: (-totals[name], name))),
        ),
        missing=frozenset(
            (each.name, name)
            for name, weight in placement.weights.items()
            if weight and "/" in name
            for each in feasible
            if name not in situation.scores.get(each.name, {})
        ),
        until=min((each.until for each in tolerances.values() if each.until is not None), default=None),
    )


def choose(placement: Placement, ranked: Sequence[ManagedCluster]) -> tuple[ManagedCluster, ...]:
    """Return at most `numberOfClusters` clusters in the order of the choice.

    With spread constraints, the next cluster is the one with fewest violations, then the best rank, without one that
    violates a requirement. Clusters with the same values are alike, so only the best of them is compared.
    """
    number = len(ranked) if placement.number_of_clusters is None else placement.number_of_clusters
    if not placement.spread:
        return tuple(ranked[:number])
    alike: defaultdict[tuple[str | None, ...], deque[int]] = defaultdict(deque)
    """Ranks by the value for each constraint; None for a missing value."""
    for rank, cluster in enumerate(ranked):
        properties = {"Claim": cluster.claims, "Label": cluster.metadata.labels}
        alike[tuple(properties[each.topology_key_type].get(each.topology_key) for each in placement.spread)].append(
            rank
        )
    counts = [
        Counter(dict.fromkeys({values[index] for values in alike} - {None}, 0))
        for index in range(len(placement.spread))
    ]
    """Number of chosen clusters by value, for each constraint."""
    chosen: list[ManagedCluster] = []
    while len(chosen) < number:
        most = [min(of.values(), default=0) + each.max_skew for of, each in zip(counts, placement.spread, strict=True)]
        offers = []
        for values, ranks in alike.items():
            breaks = tuple(
                value is None or of[value] >= limit for value, of, limit in zip(values, counts, most, strict=True)
            )
            if not any(broken and each.is_required for broken, each in zip(breaks, placement.spread, strict=True)):
                offers.append((breaks, ranks[0], values))
        if not offers:
            break
        _, rank, values = min(offers)
        chosen.append(ranked[rank])
        alike[values].popleft()
        if not alike[values]:
            del alike[values]
        for value, of in zip(values, counts, strict=True):
            if value is not None:
                of[value] += 1
    return tuple(chosen)
