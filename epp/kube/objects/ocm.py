# SPDX-License-Identifier: Apache-2.0
"""Scores, clusters, cluster sets and placement decisions of Open Cluster Management."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import msgspec

from epp.framework.clusters import MOST_SCORE, ClusterTaint, TaintEffect
from epp.kube.objects.base import ClusterObject, Condition, Metadata, Object, Part, convert, quantity_of
from epp.kube.objects.core import MatchExpression
from epp.kube.objects.field_errors import Faults

OCM = "cluster.open-cluster-management.io"
CLUSTER_SET_LABEL = f"{OCM}/clusterset"
PLACEMENT_LABEL = f"{OCM}/placement"
_GROUP_NAME_LABEL = f"{OCM}/decision-group-name"
_GROUP_INDEX_LABEL = f"{OCM}/decision-group-index"
_MOST_ITEMS = 1000
_EFFECTS = tuple(str(effect) for effect in TaintEffect)


class LabelSelector(Part, frozen=True, kw_only=True):
    """Tests of labels that must all hold; an empty selector holds everywhere."""

    match_labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[MatchExpression, ...] = ()


class AddOnPlacementScore(Object, frozen=True, kw_only=True):
    """Scores of one cluster, which is its namespace."""

    scores: Mapping[str, float] = msgspec.field(default_factory=dict)
    """By name, -100..100."""
    valid_until: float | None = None
    """Seconds since the epoch; None for scores that hold for good."""
    faults: tuple[str, ...] = ()
    """Values left out: field, value and remedy of each."""


class ManagedCluster(ClusterObject, frozen=True, kw_only=True):
    """A cluster of a hub."""

    taints: tuple[ClusterTaint, ...] = ()
    claims: Mapping[str, str] = msgspec.field(default_factory=dict)
    allocatable: Mapping[str, Fraction] = msgspec.field(default_factory=dict)
    capacity: Mapping[str, Fraction] = msgspec.field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    faults: tuple[str, ...] = ()
    """Values left out: field, value and remedy of each."""


class ManagedClusterSet(ClusterObject, frozen=True, kw_only=True):
    """A set of clusters."""

    selector: LabelSelector | None = None
    """Selects its clusters; None for those with the label of the set."""


class ManagedClusterSetBinding(Object, frozen=True, kw_only=True):
    """Lets placements of a namespace choose from a cluster set."""

    cluster_set: str


class Decision(Part, frozen=True, kw_only=True):
    """A cluster that a placement chose."""

    cluster_name: str
    score: float | None = None


class PlacementDecision(Object, frozen=True, kw_only=True):
    """A page of the decisions of a placement."""

    placement: str
    """`namespace/name`."""
    group: str = ""
    """Name of the decision group, or else its index."""
    decisions: tuple[Decision, ...] = ()
    faults: tuple[str, ...] = ()
    """Values left out: field, value and remedy of each."""


class _Item(Part, frozen=True, kw_only=True):
    name: Any = None
    value: Any = None


class _ScoreStatus(Part, frozen=True, kw_only=True):
    scores: tuple[_Item, ...] = ()
    valid_until: Any = None


class _Score(Part, frozen=True, kw_only=True):
    metadata: Metadata
    status: _ScoreStatus = _ScoreStatus()


def read_score(document: object) -> AddOnPlacementScore:
    """Return the scores; of several with one name the last counts. Raises ValueError."""
    found, faults = convert(document, _Score), Faults()
    if not found.metadata.namespace:
        raise ValueError("metadata.namespace is missing: write the name of the cluster")
    scores: dict[str, float] = {}
    for index, item in enumerate(found.status.scores[:_MOST_ITEMS]):
        place = f"status.scores[{index}]"
        if not isinstance(item.name, str) or not item.name:
            faults.add(f"{place}.name", item.name, "write the name of the score, in quotes if it is a number")
            continue
        if item.name in scores:
            faults.add(f"{place}.name", item.name, "write each name once; the last one counts")
        value = faults.number(f"{place}.value", item.value, -MOST_SCORE, MOST_SCORE)
        if value is not None:
            scores[item.name] = value
    if len(found.status.scores) > _MOST_ITEMS:
        faults.add("status.scores", f"{len(found.status.scores)} items", f"write at most {_MOST_ITEMS}")
    until = faults.time("status.validUntil", found.status.valid_until)
    return AddOnPlacementScore(metadata=found.metadata, scores=scores, valid_until=until, faults=faults.found)


class _Taint(Part, frozen=True, kw_only=True):
    key: str
    value: str = ""
    effect: Any = None
    time_added: Any = None


class _ClusterSpec(Part, frozen=True, kw_only=True):
    taints: tuple[_Taint, ...] = ()


class _Claim(Part, frozen=True, kw_only=True):
    name: str
    value: str = ""


class _ClusterStatus(Part, frozen=True, kw_only=True):
    allocatable: Mapping[str, Any] = msgspec.field(default_factory=dict)
    capacity: Mapping[str, Any] = msgspec.field(default_factory=dict)
    cluster_claims: tuple[_Claim, ...] = ()
    conditions: tuple[Condition, ...] = ()


class _Cluster(Part, frozen=True, kw_only=True):
    metadata: Metadata
    spec: _ClusterSpec = _ClusterSpec()
    status: _ClusterStatus = _ClusterStatus()


def read_managed_cluster(document: object) -> ManagedCluster:
    """Return the cluster; raises ValueError."""
    found, faults = convert(document, _Cluster), Faults()
    taints: list[ClusterTaint] = []
    for index, taint in enumerate(found.spec.taints):
        place = f"spec.taints[{index}]"
        effect = faults.choice(f"{place}.effect", taint.effect, _EFFECTS)
        since = faults.time(f"{place}.timeAdded", taint.time_added)
        if effect is not None:
            taints.append(ClusterTaint(key=taint.key, value=taint.value, effect=TaintEffect(effect), since=since))
    status = found.status
    return ManagedCluster(
        metadata=found.metadata,
        taints=tuple(taints),
        claims={claim.name: claim.value for claim in status.cluster_claims},
        allocatable=_amounts("status.allocatable", status.allocatable, faults),
        capacity=_amounts("status.capacity", status.capacity, faults),
        conditions=status.conditions,
        faults=faults.found,
    )


def _amounts(field: str, values: Mapping[str, object], faults: Faults) -> dict[str, Fraction]:
    found: dict[str, Fraction] = {}
    for name, value in values.items():
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            try:
                amount = quantity_of(value)
            except ValueError:
                amount = Fraction(-1)
            if amount >= 0:
                found[name] = amount
                continue
        faults.add(f"{field}[{name}]", value, "write a quantity of at least 0, such as 96 or 512Gi")
    return found


class _SetSelector(Part, frozen=True, kw_only=True):
    selector_type: str = ""
    label_selector: LabelSelector = LabelSelector()


class _SetSpec(Part, frozen=True, kw_only=True):
    cluster_selector: _SetSelector = _SetSelector()


class _Set(Part, frozen=True, kw_only=True):
    metadata: Metadata
    spec: _SetSpec = _SetSpec()


def read_cluster_set(document: object) -> ManagedClusterSet:
    """Return the set; raises ValueError."""
    found = convert(document, _Set)
    selector = found.spec.cluster_selector
    by_labels = selector.selector_type == "LabelSelector"
    return ManagedClusterSet(metadata=found.metadata, selector=selector.label_selector if by_labels else None)


class _BindingSpec(Part, frozen=True, kw_only=True):
    cluster_set: str


class _Binding(Part, frozen=True, kw_only=True):
    metadata: Metadata
    spec: _BindingSpec


def read_cluster_set_binding(document: object) -> ManagedClusterSetBinding:
    """Return the binding; raises ValueError."""
    found = convert(document, _Binding)
    return ManagedClusterSetBinding(metadata=found.metadata, cluster_set=found.spec.cluster_set)


class _Decision(Part, frozen=True, kw_only=True):
    cluster_name: str
    score: Any = None


class _DecisionStatus(Part, frozen=True, kw_only=True):
    decisions: tuple[_Decision, ...] = ()


class _Page(Part, frozen=True, kw_only=True):
    metadata: Metadata
    status: _DecisionStatus = _DecisionStatus()


def read_placement_decision(document: object) -> PlacementDecision:
    """Return the page; raises ValueError, also where its label does not name the placement."""
    found, faults = convert(document, _Page), Faults()
    labels = found.metadata.labels
    name = labels.get(PLACEMENT_LABEL, "")
    if not name:
        raise ValueError(f"metadata.labels[{PLACEMENT_LABEL}] is missing: write the name of the placement")
    decisions: list[Decision] = []
    for index, each in enumerate(found.status.decisions):
        score = each.score
        if score is not None:
            score = faults.number(f"status.decisions[{index}].score", score, -1e12, 1e12)
        if each.cluster_name:  # empty for a place that could not be filled
            decisions.append(Decision(cluster_name=each.cluster_name, score=score))
    return PlacementDecision(
        metadata=found.metadata,
        placement=f"{found.metadata.namespace or 'default'}/{name}",
        group=labels.get(_GROUP_NAME_LABEL) or labels.get(_GROUP_INDEX_LABEL, ""),
        decisions=tuple(decisions),
        faults=faults.found,
    )
