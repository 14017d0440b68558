# SPDX-License-Identifier: Apache-2.0
"""Status of all clusters at one moment: decisions of placements, imported pools, scores, queueing and networks."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from epp.framework.clusters import NO_STATUS, POOL_IMPORT, USAGE_SCORE, ClusterStatus, PlacementStatus
from epp.framework.quantities import parse_duration
from epp.kube.objects.base import Object, condition_of
from epp.kube.objects.core import Node, Pod
from epp.kube.objects.dra import ResourceClaim, ResourceSlice
from epp.kube.objects.inference import InferencePoolImport
from epp.kube.objects.last_good import FileObjects, ObjectsByKind
from epp.kube.objects.ocm import (
    OCM,
    AddOnPlacementScore,
    AdmissionCheck,
    ManagedCluster,
    ManagedClusterSet,
    ManagedClusterSetBinding,
    MultiKueueCluster,
    MultiKueueConfig,
    PlacementDecision,
)
from epp.kube.objects.placement import Placement
from epp.pool.clusters.placement import Evaluation, Situation, evaluate, in_cluster_sets

Evaluate: TypeAlias = Literal["auto", "always", "never"]
O = TypeVar("O", bound=Object)  # noqa: E741  an object
_LEFT_OUT = PlacementStatus()
_NONE_CHOSEN = PlacementStatus(any_chosen=False)
_AVAILABLE = "ManagedClusterConditionAvailable"


class Hub:
    """All objects in effect; immutable."""

    def __init__(self, files: Iterable[FileObjects] = ()) -> None:
        """Index the objects of the files; a later object replaces one with the same name."""
        files = tuple(files)
        found = ObjectsByKind(files)
        self.scores = found.of(AddOnPlacementScore)
        """Keyed by `namespace/name`; the namespace is the name of the cluster."""
        self.clusters = found.of(ManagedCluster)
        self.sets = found.of(ManagedClusterSet)
        self.bindings = found.of(ManagedClusterSetBinding)
        self.placements = _without_terminating(found.of(Placement))
        """Keyed by `namespace/name`, without terminating objects."""
        pages: defaultdict[str, list[PlacementDecision]] = defaultdict(list)
        for _, page in sorted(_without_terminating(found.of(PlacementDecision)).items()):
            pages[page.placement].append(page)
        self.pages = {name: tuple(each) for name, each in pages.items()}
        """Pages of decisions, by `namespace/name` of the placement."""
        self.checks = found.of(AdmissionCheck)
        self.kueue_configs = found.of(MultiKueueConfig)
        self.kueue_clusters = found.of(MultiKueueCluster)
        self.nodes = found.of(Node)
        self.pods = found.of(Pod)
        self.slices = found.of(ResourceSlice)
        self.claims = found.of(ResourceClaim)
        self.imports = _without_terminating(found.of(InferencePoolImport))
        """Imported pools, without terminating ones."""
        self.ignored = found.ignored
        self.remarks = (*found.problems, *(note for file in files for note in file.notes), *found.unused({OCM}))
        """Further messages about objects in effect."""


def _without_terminating(objects: Mapping[str, O]) -> dict[str, O]:
    return {name: each for name, each in objects.items() if not each.metadata.is_terminating}


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    clusters: Mapping[str, PlacementStatus] = {}
    evaluation: Evaluation | None = None
    """Evaluation by the picker; None for decisions of the hub."""
    scored_at: float = 0.0
    """Time of the last change of scores in the evaluation, in seconds since the epoch."""
    until: float | None = None
    """Time at which the decisions may change without a change of objects; None for never."""

    def status(self, cluster: str) -> PlacementStatus:
        return self.clusters.get(cluster) or (_LEFT_OUT if self.clusters else _NONE_CHOSEN)


def decided(
    hub: Hub,
    scores: Mapping[str, Mapping[str, float]],
    before: Mapping[str, Decided],
    now: float,
    mode: Evaluate = "auto",
) -> dict[str, Decided]:
    """Return the decisions of every placement by `namespace/name`; `before` are the previous ones.

    Placements are evaluated in the order of their names; each evaluation uses the newest decisions of the others. If
    only scores changed, but not the choice, the previous evaluation is kept for `scoreRateLimit`.
    """
    found: dict[str, Decided] = {}
    for name in sorted({*hub.placements, *hub.pages}):
        pages, placement = hub.pages.get(name, ()), hub.placements.get(name)
        may_evaluate = mode == "always" or (mode == "auto" and not pages)
        if placement is None or placement.disabled or not hub.clusters or not may_evaluate:
            found[name] = _of_pages(pages)
    for name in sorted(hub.placements.keys() - found.keys()):
        others = {other: one for other, one in {**before, **found}.items() if other != name}
        earlier = before.get(name, Decided())
        if earlier.evaluation is None and name in hub.pages:
            earlier = _of_pages(hub.pages[name])
        found[name] = _evaluated(hub.placements[name], hub, scores, others=others, before=earlier, now=now)
    return found


def _of_pages(pages: Iterable[PlacementDecision]) -> Decided:
    return Decided(
        clusters={
            each.cluster_name: PlacementStatus(chosen=True, score=each.score, group=page.group)
            for page in pages
            for each in page.decisions
            if each.cluster_name
        }
    )


def _evaluated(
    placement: Placement,
    hub: Hub,
    scores: Mapping[str, Mapping[str, float]],
    *,
    others: Mapping[str, Decided],
    before: Decided,
    now: float,
) -> Decided:
    here = placement.metadata.namespace
    bound = {each.cluster_set for each in hub.bindings.values() if each.metadata.namespace == here}
    situation = Situation(
        clusters=in_cluster_sets(placement, hub.clusters.values(), hub.sets, bound if hub.bindings else None),
        chosen=before.clusters.keys(),
        counts=Counter(
            cluster
            for name, each in others.items()
            if name in hub.placements or name in hub.pages
            for cluster in each.clusters
        ),
        scores=scores,
        now=now,
    )
    result = evaluate(placement, situation)
    groups = {name: group.name or str(group.number) for group in result.groups for name in group.clusters}
    clusters = {
        name: PlacementStatus(chosen=True, score=result.totals[name], group=group) for name, group in groups.items()
    }
    last = before.evaluation
    alike = last is not None and {name: one.group for name, one in before.clusters.items()} == groups
    if alike and before.clusters != clusters and now < before.scored_at + placement.score_rate_limit:
        due = before.scored_at + placement.score_rate_limit
        return msgspec.structs.replace(before, until=min(due, due if result.until is None else result.until))
    at = before.scored_at if alike and before.clusters == clusters else now
    return Decided(clusters=clusters, evaluation=result, scored_at=at, until=result.until)


def imported(hub: Hub, local: str) -> dict[str, Decided]:
    """Return the clusters of each InferencePoolImport, by `InferencePoolImport/namespace/name`."""
    chosen = PlacementStatus(chosen=True)
    return {
        f"{POOL_IMPORT}/{name}": Decided(clusters=dict.fromkeys((local, *each.clusters), chosen))
        for name, each in hub.imports.items()
    }


def active_clusters(hub: Hub, decided: Mapping[str, Decided]) -> dict[str, bool]:
    """Return whether an active admission check uses the cluster, for the clusters of checks and MultiKueueClusters.

    A check names a MultiKueueConfig or a Placement. A cluster with condition Active=False is not active, independent of
    checks.
    """
    own = {each.cluster: each.active for each in hub.kueue_clusters.values()}
    checks: defaultdict[str, list[bool]] = defaultdict(list)
    for check in hub.checks.values():
        for cluster in _clusters_of(check, hub, decided):
            checks[cluster].append(check.active is True)
    found = {cluster: any(states) for cluster, states in checks.items()}
    found.update({cluster: False for cluster, state in own.items() if state is False})
    return found


def _clusters_of(check: AdmissionCheck, hub: Hub, decided: Mapping[str, Decided]) -> frozenset[str]:
    if check.parameters_kind == "Placement":  # in the namespace of Kueue, which the check does not contain
        placements = {*hub.placements, *hub.pages}
        named = [decided[name] for name in placements if name.rpartition("/")[2] == check.parameters_name]
        return frozenset(cluster for each in named for cluster in each.clusters)
    config = hub.kueue_configs.get(check.parameters_name) if check.parameters_kind == "MultiKueueConfig" else None
    names = () if config is None else config.clusters
    found = (hub.kueue_clusters.get(name) for name in names)
    return frozenset(name if each is None else each.cluster for name, each in zip(names, found, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatuses:
    known: Mapping[str, ClusterStatus] = field(default_factory=dict)
    """Statuses of clusters in objects."""
    others: ClusterStatus = NO_STATUS
    """Status of any other cluster, which no placement chose."""
    decided: Mapping[str, Decided] = field(default_factory=dict)
    """Decisions of all placements, by `namespace/name`."""
    missing: frozenset[tuple[str, str]] = frozenset()
    """Cluster and `resource/score` of missing scores of placements."""
    until: float | None = None
    """Time of the next change without a change of objects, in seconds since the epoch; None for never."""

    def of(self, cluster: str) -> ClusterStatus:
        found = self.known.get(cluster)
        return msgspec.structs.replace(self.others, cluster=cluster) if found is None else found

    def differ_from(self, before: "ClusterStatuses") -> Callable[[str], bool] | None:
        """Return a predicate for clusters whose status changed; None without a change."""
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

    `usage` are computed scores of the local cluster. An AddOnPlacementScore of the hub with the same name takes
    precedence.
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


_MOST_COST = 1e6


class DeclaredNetwork(NamedTuple):
    """Network between the local cluster and another cluster; None for undeclared numbers."""

    latency: float | None = None
    """Seconds of a round trip."""
    cost: float | None = None
    """Dollars for a gigabyte."""


def declared_networks(
    hub: Hub, configured: Mapping[str, DeclaredNetwork], claims: tuple[str, str]
) -> tuple[Mapping[str, DeclaredNetwork], tuple[str, ...]]:
    """Return the networks by cluster, and a message for each claim that is not a number.

    `claims` are the names of the claims, or labels, with latency and cost; empty for none. Configured numbers replace
    those of claims.
    """
    found, faults = dict(configured), []
    for name, cluster in hub.clusters.items() if any(claims) else ():
        numbers = []
        for claim, read, form in zip(claims, (parse_duration, _cost), ("35ms", "0.02"), strict=True):
            text = cluster.claims.get(claim) or cluster.metadata.labels.get(claim, "")
            try:
                numbers.append(read(text) if claim and text else None)
            except ValueError:
                faults.append(f"ManagedCluster {name}: {claim} is {text!r:.60}: write a number such as {form}")
                numbers.append(None)
        own = found.get(name, DeclaredNetwork())
        merged = DeclaredNetwork(
            *(given if given is not None else each for given, each in zip(own, numbers, strict=True))
        )
        if merged != DeclaredNetwork():
            found[name] = merged
    return found, tuple(faults)


def _cost(text: str) -> float:
    cost = float(text)
    if not 0 <= cost < _MOST_COST:
        raise ValueError("the cost is out of range")
    return cost
