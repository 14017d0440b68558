# SPDX-License-Identifier: Apache-2.0
"""Placement of Open Cluster Management: rules for the selection of clusters."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from epp.framework.clusters import MOST_WEIGHT, USAGE_ALIASES, USAGE_SCORE, ClusterToleration
from epp.framework.input_errors import shown
from epp.framework.limits import Count, Name, Natural
from epp.framework.quantities import parse_duration
from epp.kube.objects.base import Object, Part, convert, valid, valid_entries
from epp.kube.objects.core import LabelSelector, MatchExpression
from epp.kube.objects.ocm import OCM

BALANCE, STEADY = "Balance", "Steady"
ALLOCATABLE = {"ResourceAllocatableCPU": "cpu", "ResourceAllocatableMemory": "memory"}
"""Resource by name of the built-in prioritizer that compares it."""
DEFAULT_RATE_LIMIT = 60.0
_DISABLED = f"{OCM}/experimental-scheduling-disable"
_MOST_CONSTRAINTS = 8
_PERCENT = 100
_MOST_DIGITS = 9
_ALIASES = {f"{USAGE_SCORE}/{alias}": f"{USAGE_SCORE}/{score}" for alias, score in USAGE_ALIASES.items()}
_BuiltIn: TypeAlias = Literal["Balance", "Steady", "ResourceAllocatableCPU", "ResourceAllocatableMemory"]


class _Test(MatchExpression, frozen=True, kw_only=True):
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]

    def __post_init__(self) -> None:
        if self.operator in {"In", "NotIn"} and not self.values:
            raise ValueError(f"operator {self.operator} needs values: write at least one")
        if self.operator in {"Exists", "DoesNotExist"} and self.values:
            raise ValueError(f"operator {self.operator} has no values: remove them")


class _LabelSelector(LabelSelector, frozen=True, kw_only=True):
    match_expressions: tuple[_Test, ...] = ()


class _ClaimSelector(Part, frozen=True, kw_only=True):
    match_expressions: tuple[_Test, ...] = ()


class _CelSelector(Part, frozen=True, kw_only=True):
    cel_expressions: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self.cel_expressions:
            raise ValueError("CEL is not evaluated here and selects no cluster: use labelSelector or claimSelector")


class ClusterSelector(Part, frozen=True, kw_only=True):
    """Selector of clusters; both labels and claims must match."""

    label_selector: _LabelSelector = _LabelSelector()
    claim_selector: _ClaimSelector = _ClaimSelector()
    cel_selector: _CelSelector = _CelSelector()

    def selects(self, labels: Mapping[str, str], claims: Mapping[str, str]) -> bool:
        """Return whether the labels and the claims of a cluster match."""
        return self.label_selector.matches(labels) and all(
            test.holds(claims) for test in self.claim_selector.match_expressions
        )


class _Predicate(Part, frozen=True, kw_only=True):
    required_cluster_selector: ClusterSelector = ClusterSelector()


class Toleration(ClusterToleration, frozen=True, forbid_unknown_fields=False):
    """A toleration of taints; one for a limited time does not apply to a taint of unknown age."""


class SpreadConstraint(Part, frozen=True, kw_only=True):
    """Distribution of the chosen clusters over the values of a label or claim."""

    topology_key: str
    topology_key_type: Literal["Label", "Claim"] = "Label"
    max_skew: Count = 1
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = "ScheduleAnyway"

    @property
    def is_required(self) -> bool:
        """Whether clusters that violate it are excluded; otherwise they are chosen last."""
        return self.when_unsatisfiable == "DoNotSchedule"


class DecisionGroup(Part, frozen=True, kw_only=True):
    group_name: str = ""
    group_cluster_selector: ClusterSelector = ClusterSelector()


class Placement(Object, frozen=True, kw_only=True):
    cluster_sets: tuple[str, ...] = ()
    number_of_clusters: int | None = None
    """Maximum number of selected clusters; None for no limit."""
    predicates: tuple[ClusterSelector, ...] | None = None
    """Alternative selectors: one must select a cluster. None if the object has none, so that all are selected."""
    tolerations: tuple[Toleration, ...] = ()
    weights: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Weights by prioritizer: a built-in one, or `resourceName/scoreName` of an add-on. Weight 0 has no effect."""
    spread: tuple[SpreadConstraint, ...] = ()
    groups: tuple[DecisionGroup, ...] = ()
    clusters_per_group: float | None = None
    """Number of clusters, or a share if below 1; None for no limit."""
    sort_by_score: bool = False
    score_rate_limit: float = DEFAULT_RATE_LIMIT
    """Minimum seconds between updates of scores that do not change the chosen clusters."""
    disabled: bool = False
    spec: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The spec as written."""
    faults: tuple[str, ...] = ()

    @property
    def written(self) -> Mapping[str, object]:
        """The object with its names and its spec."""
        names = {"name": self.metadata.name, "namespace": self.metadata.namespace}
        return {"apiVersion": f"{OCM}/v1beta1", "kind": "Placement", "metadata": names, "spec": self.spec}


class _AddOn(Part, frozen=True, kw_only=True):
    resource_name: Name
    score_name: Name


class _Coordinate(Part, frozen=True, kw_only=True):
    type: Literal["BuiltIn", "AddOn"] = "BuiltIn"
    built_in: _BuiltIn | None = None
    add_on: _AddOn | None = None

    def __post_init__(self) -> None:
        if self.type == "BuiltIn" and self.built_in is None:
            raise ValueError("builtIn is missing: write it, or type: AddOn")
        if self.type == "AddOn" and self.add_on is None:
            raise ValueError("addOn is missing: write it, or type: BuiltIn")

    @property
    def prioritizer(self) -> str:
        if self.type == "AddOn" and self.add_on is not None:
            return f"{self.add_on.resource_name}/{self.add_on.score_name}"
        return str(self.built_in)


class _Configuration(Part, frozen=True, kw_only=True):
    score_coordinate: _Coordinate | None = None
    name: _BuiltIn | None = None
    """Built-in prioritizer in v1alpha1."""
    weight: Annotated[float, Meta(ge=-MOST_WEIGHT, le=MOST_WEIGHT)] = 1.0

    def __post_init__(self) -> None:
        if self.score_coordinate is None and self.name is None:
            raise ValueError("scoreCoordinate is missing: write one with builtIn or addOn")

    @property
    def prioritizer(self) -> str:
        return str(self.name) if self.score_coordinate is None else self.score_coordinate.prioritizer


class _RawPlacement(Object, frozen=True, kw_only=True):
    cluster_sets: tuple[str, ...] = msgspec.field(default=(), name="spec.clusterSets")
    number_of_clusters: Any = msgspec.field(default=None, name="spec.numberOfClusters")
    predicates: tuple[Any, ...] = msgspec.field(default=(), name="spec.predicates")
    mode: Any = msgspec.field(default="Additive", name="spec.prioritizerPolicy.mode")
    configurations: tuple[Any, ...] = msgspec.field(default=(), name="spec.prioritizerPolicy.configurations")
    tolerations: tuple[Any, ...] = msgspec.field(default=(), name="spec.tolerations")
    spread: tuple[Any, ...] = msgspec.field(default=(), name="spec.spreadPolicy.spreadConstraints")
    groups: tuple[Any, ...] = msgspec.field(default=(), name="spec.decisionStrategy.groupStrategy.decisionGroups")
    clusters_per_group: Any = msgspec.field(
        default="100%", name="spec.decisionStrategy.groupStrategy.clustersPerDecisionGroup"
    )
    sort_by: Any = msgspec.field(default="ClusterName", name="spec.sortBy")
    score_rate_limit: Any = msgspec.field(default=None, name="spec.scoreRateLimit")
    spec: Mapping[str, Any] = msgspec.field(default_factory=dict)


def read_placement(document: object) -> Placement:
    """Return the placement without entries and values that do not fit, which are its faults. Raises ValueError."""
    raw, faults = convert(document, _RawPlacement), list[str]()
    predicates = valid_entries(_Predicate, raw.predicates, "spec.predicates", faults)
    number = valid(Natural | None, raw.number_of_clusters, "spec.numberOfClusters", faults)
    groups = "spec.decisionStrategy.groupStrategy.decisionGroups"
    sort_by = valid(Literal["ClusterName", "Score"], raw.sort_by, "spec.sortBy", faults)
    return Placement(
        metadata=raw.metadata,
        cluster_sets=raw.cluster_sets,
        number_of_clusters=number,
        predicates=tuple(each.required_cluster_selector for each in predicates) if raw.predicates else None,
        tolerations=valid_entries(Toleration, raw.tolerations, "spec.tolerations", faults),
        weights=_weights(raw.mode, raw.configurations, faults),
        spread=_spread(raw.spread, faults),
        groups=valid_entries(DecisionGroup, raw.groups, groups, faults),
        clusters_per_group=_per_group(raw.clusters_per_group, faults),
        sort_by_score=sort_by == "Score",
        score_rate_limit=_rate_limit(raw.score_rate_limit, faults),
        disabled=raw.metadata.annotations.get(_DISABLED) == "true",
        spec=raw.spec,
        faults=tuple(faults),
    )


def _weights(mode: object, configurations: tuple[object, ...], faults: list[str]) -> dict[str, float]:
    known = valid(Literal["Additive", "Exact"], mode, "spec.prioritizerPolicy.mode", faults)
    weights = {} if known == "Exact" else {BALANCE: 1.0, STEADY: 1.0}
    place = "spec.prioritizerPolicy.configurations"
    for each in valid_entries(_Configuration, configurations, place, faults):
        name = each.prioritizer
        if name in _ALIASES:
            faults.append(f"{place} has the score {name}: write {_ALIASES[name]}, which is used")
        weights[_ALIASES.get(name, name)] = each.weight
    return weights


def _spread(constraints: tuple[object, ...], faults: list[str]) -> tuple[SpreadConstraint, ...]:
    place = "spec.spreadPolicy.spreadConstraints"
    if len(constraints) > _MOST_CONSTRAINTS:
        faults.append(f"{place} has {len(constraints)} entries: write at most 8; the first ones count")
    return valid_entries(SpreadConstraint, constraints[:_MOST_CONSTRAINTS], place, faults)


def _per_group(value: object, faults: list[str]) -> float | None:
    text = str(value).strip()
    is_share, digits = text.endswith("%"), text.removesuffix("%")
    number = int(digits) if digits.isdecimal() and len(digits) <= _MOST_DIGITS else 0
    if number < 1 or (is_share and number > _PERCENT):
        place = "spec.decisionStrategy.groupStrategy.clustersPerDecisionGroup"
        faults.append(f"{place} is {shown(value)}: write a number of at least 1, or a share from 1% to 100%")
        return None
    if is_share:
        return None if number == _PERCENT else number / _PERCENT
    return number


def _rate_limit(value: object, faults: list[str]) -> float:
    if value is None:
        return DEFAULT_RATE_LIMIT
    try:
        return parse_duration(str(value))
    except ValueError:
        faults.append(f"spec.scoreRateLimit is {shown(value)}: write a duration such as 1m")
        return DEFAULT_RATE_LIMIT
