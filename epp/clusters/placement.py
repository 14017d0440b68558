# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a placement: filters, prioritizers, choice and decision groups, explained as by the hub's debugger."""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

import msgspec

from epp.clusters.placement_filters import selects, tolerance
from epp.framework.clusters import MOST_SCORE
from epp.kube.objects.ocm import ManagedCluster
from epp.kube.objects.placement import ALLOCATABLE, BALANCE, STEADY, Coordinate, Placement, SpreadConstraint


def prioritized(
    coordinate: Coordinate,
    clusters: Sequence[ManagedCluster],
    *,
    chosen: Collection[str],
    counts: Mapping[str, int],
    scores: Mapping[str, Mapping[str, float]],
) -> dict[str, float]:
    """Return scores by cluster name; a missing score counts as 0.

    `chosen` are the previously chosen clusters, `counts` the number of decisions of other placements by cluster, and
    `scores` those of add-ons by cluster and `resource/score`.
    """
    names = [cluster.name for cluster in clusters]
    if coordinate.built_in == STEADY:
        return {name: MOST_SCORE if name in chosen else 0.0 for name in names}
    if coordinate.built_in == BALANCE:
        return balanced(names, counts)
    if coordinate.built_in:
        return allocatable(clusters, ALLOCATABLE[coordinate.built_in])
    key = f"{coordinate.resource}/{coordinate.score}"
    return {name: found for name in names if (found := scores.get(name, {}).get(key)) is not None}


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

    @property
    def title(self) -> str:
        """Name, or number for an unnamed group."""
        return self.name or str(self.number)


def grouped(
    placement: Placement, chosen: Sequence[ManagedCluster], order: Callable[[ManagedCluster], tuple[float, str]]
) -> tuple[Group, ...]:
    """Return the groups: a cluster is in the first group that selects it; `order` sorts clusters within a group.

    A group larger than `clustersPerDecisionGroup` is divided.
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
    """Return the maximum size of a group; a share is rounded up."""
    if setting is None:
        return total
    size = math.ceil(round(setting * total, 9)) if setting < 1 else int(setting)
    return size if 0 < size <= total else total


def _divided(members: Sequence[ManagedCluster], size: int) -> Iterator[Sequence[ManagedCluster]]:
    for start in range(0, len(members), max(size, 1)):
        yield members[start : start + size]


def group_of(groups: Iterable[Group]) -> dict[str, str]:
    """Return the title of the group by cluster."""
    return {name: group.title for group in groups for name in group.clusters}


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Input of an evaluation in addition to the placement."""

    clusters: Sequence[ManagedCluster]
    """Clusters of the cluster sets."""
    chosen: Collection[str] = ()
    """Previously chosen clusters."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of decisions of other placements by cluster."""
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Valid scores of add-ons, by cluster and `resource/score`."""
    now: float = 0.0
    """Seconds since the epoch."""


class FilterResult(msgspec.Struct, frozen=True, rename="camel"):
    """Clusters that pass a filter."""

    name: str
    """The filter after the previous ones: `Predicate,TaintToleration`."""
    filtered_clusters: tuple[str, ...]


class PrioritizeResult(msgspec.Struct, frozen=True, rename="camel"):
    """Scores by one prioritizer."""

    name: str
    weight: float
    scores: Mapping[str, float]


class ClusterTotal(msgspec.Struct, frozen=True, rename="camel"):
    """Sum of the weighted scores of a cluster."""

    cluster_name: str
    score: float


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """Explanation of a choice, in the format of the hub's debugger."""

    filtered_pipeline_results: tuple[FilterResult, ...] = ()
    prioritize_results: tuple[PrioritizeResult, ...] = ()
    aggregated_scores: tuple[ClusterTotal, ...] = ()


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an evaluation."""

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
        """The chosen clusters."""
        return frozenset(name for group in self.groups for name in group.clusters)


def evaluate(placement: Placement, situation: Situation) -> Evaluation:
    """Choose clusters by descending total, then by name; clusters with a PreferNoSelect taint come last."""
    eligible = sorted(situation.clusters, key=lambda cluster: cluster.name)
    matched = [
        each for each in eligible if not placement.predicates or any(selects(one, each) for one in placement.predicates)
    ]
    tolerances = {
        each.name: tolerance(each.taints, placement.tolerations, situation.now, chosen=each.name in situation.chosen)
        for each in matched
    }
    feasible = [each for each in matched if tolerances[each.name].selectable]
    results = [
        PrioritizeResult(
            coordinate.name,
            weight,
            prioritized(
                coordinate,
                feasible,
                chosen=situation.chosen,
                counts=situation.counts,
                scores=situation.scores,
            ),
        )
        for coordinate, weight in placement.weights.items()
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
            (
                FilterResult("Predicate", tuple(each.name for each in matched)),
                FilterResult("Predicate,TaintToleration", tuple(each.name for each in feasible)),
            ),
            tuple(results),
            tuple(ClusterTotal(name, totals[name]) for name in sorted(totals, key=lambda name: (-totals[name], name))),
        ),
        missing=frozenset(
            (each.name, f"{coordinate.resource}/{coordinate.score}")
            for (coordinate, weight) in placement.weights.items()
            if weight and not coordinate.built_in
            for each in feasible
            if f"{coordinate.resource}/{coordinate.score}" not in situation.scores.get(each.name, {})
        ),
        until=min((each.until for each in tolerances.values() if each.until is not None), default=None),
    )


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
