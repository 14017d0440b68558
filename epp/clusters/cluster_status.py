# SPDX-License-Identifier: Apache-2.0
"""Status of every cluster at one moment, and which of them differ from those before."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from epp.clusters.decisions import Decided, Evaluate, decided
from epp.clusters.hub import Hub
from epp.clusters.imports import imported
from epp.clusters.queueing import active_clusters
from epp.framework.clusters import NO_STATUS, USAGE_SCORE, ClusterStatus
from epp.kube.objects.base import condition_of

_AVAILABLE = "ManagedClusterConditionAvailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatuses:
    """Statuses of all clusters; `of` returns the status of one."""

    known: Mapping[str, ClusterStatus] = field(default_factory=dict)
    """Clusters that objects name."""
    others: ClusterStatus = NO_STATUS
    """Status of any other cluster: no placement chose it."""
    decided: Mapping[str, Decided] = field(default_factory=dict)
    """Decisions of all placements, by `namespace/name`."""
    missing: frozenset[tuple[str, str]] = frozenset()
    """Cluster and `resource/score` of scores that placements ask for and that are not there."""
    until: float | None = None
    """When time alone changes something, in seconds since the epoch; None for never."""

    def of(self, cluster: str) -> ClusterStatus:
        """Return the status of a cluster."""
        found = self.known.get(cluster)
        return msgspec.structs.replace(self.others, cluster=cluster) if found is None else found

    def differ_from(self, before: "ClusterStatuses") -> Callable[[str], bool] | None:
        """Return a test for clusters whose status is another than before; None where all are as before."""
        changed = frozenset(name for name in {*self.known, *before.known} if self.of(name) != before.of(name))
        if self.others == before.others:
            return changed.__contains__ if changed else None
        same = frozenset({*self.known, *before.known}) - changed
        return lambda cluster: cluster not in same


def cluster_statuses(
    hub: Hub,
    before: ClusterStatuses,
    now: float,
    *,
    local: str = "",
    usage: Mapping[str, float] | None = None,
    evaluate: Evaluate = "auto",
) -> ClusterStatuses:
    """Return the statuses; an unchanged status is the same object as before.

    `usage` are the scores of the local cluster that are computed here; an AddOnPlacementScore of the hub with their
    name goes before them.
    """
    scores: defaultdict[str, dict[str, float]] = defaultdict(dict)
    expired: defaultdict[str, set[str]] = defaultdict(set)
    ends: list[float] = []
    for each in hub.scores.values():
        of = each.metadata.namespace
        keys = {f"{each.name}/{name}": value for name, value in each.scores.items()}
        if each.valid_until is not None and each.valid_until <= now:
            expired[of].update(keys)
            continue
        scores[of].update(keys)
        if each.valid_until is not None:
            ends.append(each.valid_until)
    if usage and f"{local}/{USAGE_SCORE}" not in hub.scores:
        scores[local].update({f"{USAGE_SCORE}/{name}": value for name, value in usage.items()})
    decisions = decided(hub, scores, before.decided, now, evaluate) | imported(hub, local)
    active = active_clusters(hub, decisions)
    ends += [each.until for each in decisions.values() if each.until is not None]
    chosen = {cluster for each in decisions.values() for cluster in each.clusters}
    known: dict[str, ClusterStatus] = {}
    for name in sorted({*hub.clusters, *scores, *expired, *active, *chosen}):
        cluster = hub.clusters.get(name)
        condition = None if cluster is None else condition_of(cluster.conditions, _AVAILABLE)
        status = ClusterStatus(
            cluster=name,
            scores=scores.get(name, {}),
            expired=frozenset(expired.get(name, ())),
            placements={placement: each.status(name) for placement, each in decisions.items()},
            taints=() if cluster is None else cluster.taints,
            active=active.get(name),
            available=None if condition is None else {"True": True, "False": False}.get(condition.status),
            labels={} if cluster is None else cluster.metadata.labels,
            claims={} if cluster is None else cluster.claims,
        )
        earlier = before.known.get(name)
        known[name] = earlier if earlier == status else status
    others = ClusterStatus(placements={placement: each.status("") for placement, each in decisions.items()})
    missing = frozenset(
        (cluster, score)
        for each in decisions.values()
        if each.evaluation is not None
        for cluster, score in each.evaluation.missing
        if score not in expired.get(cluster, ())
    )
    return ClusterStatuses(
        known=known, others=others, decided=decisions, missing=missing, until=min(ends, default=None)
    )
