# SPDX-License-Identifier: Apache-2.0
"""One evaluation of a placement: filters, prioritizers and choice, explained as by the hub's debugger."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from epp.clusters.placement.choice import choose
from epp.clusters.placement.groups import Group, grouped
from epp.clusters.placement.prioritizers import prioritized
from epp.clusters.placement.selectors import selects
from epp.clusters.placement.taints import tolerance
from epp.kube.objects.ocm import ManagedCluster
from epp.kube.objects.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What an evaluation goes by, beside the placement."""

    clusters: Sequence[ManagedCluster]
    """Clusters of its cluster sets."""
    chosen: Collection[str] = ()
    """Clusters that it chose before."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Decisions of other placements by cluster."""
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Scores of add-ons that hold now, by cluster and `resource/score`."""
    now: float = 0.0
    """Seconds since the epoch."""


class FilterResult(msgspec.Struct, frozen=True, rename="camel"):
    """Clusters that are left after a filter."""

    name: str
    """The filter, after those before it: `Predicate,TaintToleration`."""
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
    """How a placement chose, in the words of the hub's debugger."""

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
    """Cluster, and `resource/score`, of the scores that it would have used and that count 0."""
    until: float | None = None
    """When time alone may change it, in seconds since the epoch; None for never."""

    @property
    def chosen(self) -> frozenset[str]:
        """The chosen clusters."""
        return frozenset(name for group in self.groups for name in group.clusters)


def evaluate(placement: Placement, situation: Situation) -> Evaluation:
    """Choose clusters: higher totals first, then by name; clusters with a PreferNoSelect taint last."""
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
