# SPDX-License-Identifier: Apache-2.0
"""Scores of clusters, -100..100, by the prioritizers of a placement."""

import math
from collections.abc import Collection, Mapping, Sequence

from epp.framework.clusters import MOST_SCORE
from epp.kube.objects.ocm import ManagedCluster
from epp.kube.objects.placement import ALLOCATABLE, BALANCE, STEADY, Coordinate


def prioritized(
    coordinate: Coordinate,
    clusters: Sequence[ManagedCluster],
    *,
    chosen: Collection[str],
    counts: Mapping[str, int],
    scores: Mapping[str, Mapping[str, float]],
) -> dict[str, float]:
    """Return the score of each cluster by its name; one without a score is left out and counts 0.

    `chosen` are the clusters that the placement chose before, `counts` the decisions of other placements by cluster,
    and `scores` those of add-ons by cluster and `resource/score`.
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
    """Return 100 for a cluster without decisions, -100 for one with the most of all clusters."""
    most = max(counts.values(), default=0)
    if not most:
        return dict.fromkeys(names, MOST_SCORE)
    return {name: float(2 * math.trunc(100 * (0.5 - counts.get(name, 0) / most))) for name in names}


def allocatable(clusters: Sequence[ManagedCluster], resource: str) -> dict[str, float]:
    """Return 100 for the cluster with the most of a resource, -100 for the least; 100 for all where all are alike."""
    amounts = {cluster.name: cluster.allocatable[resource] for cluster in clusters if resource in cluster.allocatable}
    if not amounts:
        return {}
    least, most = min(amounts.values()), max(amounts.values())
    if least == most:
        return dict.fromkeys(amounts, MOST_SCORE)
    return {name: float(((amount - least) / (most - least) * 2 - 1) * 100) for name, amount in amounts.items()}
