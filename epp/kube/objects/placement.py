# SPDX-License-Identifier: Apache-2.0
"""Placement of Open Cluster Management: rules for the selection of clusters."""

from collections.abc import Mapping
from typing import Any

import msgspec

from epp.framework.clusters import MOST_WEIGHT, USAGE_ALIASES, USAGE_SCORE, TaintEffect
from epp.framework.quantities import parse_duration
from epp.kube.objects.base import Faults, Object, Part, convert
from epp.kube.objects.core import LabelSelector, MatchExpression
from epp.kube.objects.ocm import OCM

BALANCE, STEADY = "Balance", "Steady"
ALLOCATABLE = {"ResourceAllocatableCPU": "cpu", "ResourceAllocatableMemory": "memory"}
"""Resource by name of the built-in prioritizer that compares it."""
DEFAULT_RATE_LIMIT = 60.0
_DISABLED = f"{OCM}/experimental-scheduling-disable"
_SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_BUILT_INS = (BALANCE, STEADY, *ALLOCATABLE)
_EFFECTS = tuple(str(effect) for effect in TaintEffect)
_ACTIONS = ("DoNotSchedule", "ScheduleAnyway")
_MOST_CONSTRAINTS = 8
_LONGEST_SECONDS = 2**62
_GROUPS = "spec.decisionStrategy.groupStrategy.decisionGroups"


class ClusterSelector(Part, frozen=True, kw_only=True):
    """Selector of clusters; both labels and claims must match."""

    labels: LabelSelector = LabelSelector()
    claims: tuple[MatchExpression, ...] = ()
    never: bool = False
    """Whether the selector has an unsupported part, so that it selects no cluster."""


class Toleration(Part, frozen=True, kw_only=True):
    """A toleration of taints, perhaps for a limited time."""

    key: str = ""
    """Empty for all keys."""
    exists: bool = False
    value: str = ""
    effect: TaintEffect | None = None
    """None for all effects."""
    seconds: float | None = None
    """Duration since the taint was added; None for no limit."""


class Coordinate(Part, frozen=True, kw_only=True):
    """A built-in prioritizer, or a score of an add-on."""

    built_in: str = ""
    resource: str = ""
    """Name of the AddOnPlacementScore for a score of an add-on."""
    score: str = ""

    @property
    def name(self) -> str:
        return self.built_in or f"AddOn/{self.resource}/{self.score}"


class SpreadConstraint(Part, frozen=True, kw_only=True):
    """Distribution of the chosen clusters over the values of a label or claim."""

    key: str
    is_claim: bool = False
    max_skew: int = 1
    required: bool = False
    """Whether clusters that violate it are excluded; otherwise they are chosen last."""


class DecisionGroup(Part, frozen=True, kw_only=True):
    name: str
    selector: ClusterSelector


class Placement(Object, frozen=True, kw_only=True):
    cluster_sets: tuple[str, ...] = ()
    number_of_clusters: int | None = None
    """Maximum number of selected clusters; None for no limit."""
    predicates: tuple[ClusterSelector, ...] = ()
    """Alternative selectors; an empty list selects all clusters."""
    tolerations: tuple[Toleration, ...] = ()
    weights: Mapping[Coordinate, float] = msgspec.field(default_factory=dict)
    """Weights by prioritizer; a prioritizer with weight 0 has no effect."""
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


class _ClaimSelector(Part, frozen=True, kw_only=True):
    match_expressions: tuple[MatchExpression, ...] = ()


class _CelSelector(Part, frozen=True, kw_only=True):
    cel_expressions: tuple[Any, ...] = ()


class _Selector(Part, frozen=True, kw_only=True):
    label_selector: LabelSelector = LabelSelector()
    claim_selector: _ClaimSelector = _ClaimSelector()
    cel_selector: _CelSelector = _CelSelector()


class _Predicate(Part, frozen=True, kw_only=True):
    required_cluster_selector: _Selector = _Selector()


class _AddOn(Part, frozen=True, kw_only=True):
    resource_name: str = ""
    score_name: str = ""


class _Coordinate(Part, frozen=True, kw_only=True):
    type: str = ""
    built_in: str = ""
    add_on: _AddOn = _AddOn()


class _Configuration(Part, frozen=True, kw_only=True):
    score_coordinate: _Coordinate | None = None
    name: str = ""
    """Built-in prioritizer in v1alpha1."""
    weight: Any = 1


class _Toleration(Part, frozen=True, kw_only=True):
    key: str = ""
    operator: Any = ""
    value: str = ""
    effect: Any = ""
    toleration_seconds: Any = None


class _Constraint(Part, frozen=True, kw_only=True):
    topology_key: str
    topology_key_type: Any = "Label"
    max_skew: Any = 1
    when_unsatisfiable: Any = "ScheduleAnyway"


class _Group(Part, frozen=True, kw_only=True):
    group_name: str = ""
    group_cluster_selector: _Selector = _Selector()


class _RawPlacement(Object, frozen=True, kw_only=True):
    cluster_sets: tuple[str, ...] = msgspec.field(default=(), name="spec.clusterSets")
    number_of_clusters: Any = msgspec.field(default=None, name="spec.numberOfClusters")
    predicates: tuple[_Predicate, ...] = msgspec.field(default=(), name="spec.predicates")
    mode: Any = msgspec.field(default="", name="spec.prioritizerPolicy.mode")
    configurations: tuple[_Configuration, ...] = msgspec.field(default=(), name="spec.prioritizerPolicy.configurations")
    tolerations: tuple[_Toleration, ...] = msgspec.field(default=(), name="spec.tolerations")
    spread: tuple[_Constraint, ...] = msgspec.field(default=(), name="spec.spreadPolicy.spreadConstraints")
    groups: tuple[_Group, ...] = msgspec.field(default=(), name=_GROUPS)
    clusters_per_group: Any = msgspec.field(
        default="100%", name="spec.decisionStrategy.groupStrategy.clustersPerDecisionGroup"
    )
    sort_by: Any = msgspec.field(default="ClusterName", name="spec.sortBy")
    score_rate_limit: Any = msgspec.field(default=None, name="spec.scoreRateLimit")
    spec: Mapping[str, Any] = msgspec.field(default_factory=dict)


def read_placement(document: object) -> Placement:
    raw, faults = convert(document, _RawPlacement), Faults()
    number = raw.number_of_clusters
    tolerations = (_toleration(each, f"spec.tolerations[{i}]", faults) for i, each in enumerate(raw.tolerations))
    return Placement(
        metadata=raw.metadata,
        cluster_sets=raw.cluster_sets,
        number_of_clusters=None if number is None else faults.count("spec.numberOfClusters", number),
        predicates=tuple(
            _selector(each.required_cluster_selector, f"spec.predicates[{index}].requiredClusterSelector", faults)
            for index, each in enumerate(raw.predicates)
        ),
        tolerations=tuple(each for each in tolerations if each is not None),
        weights=_weights(raw.mode, raw.configurations, faults),
        spread=_spread(raw.spread, faults),
        groups=tuple(
            DecisionGroup(
                name=each.group_name,
                selector=_selector(each.group_cluster_selector, f"{_GROUPS}[{index}].groupClusterSelector", faults),
            )
            for index, each in enumerate(raw.groups)
        ),
        clusters_per_group=_per_group(raw.clusters_per_group, faults),
        sort_by_score=faults.choice("spec.sortBy", raw.sort_by, ("ClusterName", "Score")) == "Score",
        score_rate_limit=_rate_limit(raw.score_rate_limit, faults),
        disabled=raw.metadata.annotations.get(_DISABLED) == "true",
        spec=raw.spec,
        faults=faults.found,
    )


def _selector(selector: _Selector, place: str, faults: Faults) -> ClusterSelector:
    never = False
    for name, tests in (
        ("labelSelector", selector.label_selector.match_expressions),
        ("claimSelector", selector.claim_selector.match_expressions),
    ):
        for index, test in enumerate(tests):
            field = f"{place}.{name}.matchExpressions[{index}]"
            if faults.choice(f"{field}.operator", test.operator, _SELECTOR_OPERATORS) is None:
                never = True
            elif (test.operator in {"In", "NotIn"}) != bool(test.values):
                remedy = "write at least one value" if test.operator in {"In", "NotIn"} else "remove the values"
                faults.add(f"{field}.values", list(test.values), f"{remedy}; it selects no cluster")
                never = True
    if selector.cel_selector.cel_expressions:
        field = f"{place}.celSelector.celExpressions"
        faults.add(field, list(selector.cel_selector.cel_expressions), "is not evaluated here and selects no cluster")
        never = True
    claims = selector.claim_selector.match_expressions
    return ClusterSelector(labels=selector.label_selector, claims=claims, never=never)


def _toleration(each: _Toleration, place: str, faults: Faults) -> Toleration | None:
    operator = faults.choice(f"{place}.operator", each.operator or "Equal", ("Equal", "Exists"))
    effect = None if not each.effect else faults.choice(f"{place}.effect", each.effect, _EFFECTS)
    if operator is None or (each.effect and effect is None):
        return None
    if not each.key and operator == "Equal":
        faults.add(f"{place}.key", each.key, "write a key, or operator: Exists")
        return None
    if operator == "Exists" and each.value:
        faults.add(f"{place}.value", each.value, "remove it, or write operator: Equal")
        return None
    seconds = each.toleration_seconds
    if seconds is not None:
        seconds = faults.number(f"{place}.tolerationSeconds", seconds, -_LONGEST_SECONDS, _LONGEST_SECONDS)
        if seconds is None:
            return None
    return Toleration(
        key=each.key,
        exists=operator == "Exists",
        value=each.value,
        effect=None if effect is None else TaintEffect(effect),
        seconds=seconds,
    )


def _weights(mode: Any, configurations: tuple[_Configuration, ...], faults: Faults) -> dict[Coordinate, float]:
    known = faults.choice("spec.prioritizerPolicy.mode", mode or "Additive", ("Additive", "Exact"))
    weights = {} if known == "Exact" else {Coordinate(built_in=BALANCE): 1.0, Coordinate(built_in=STEADY): 1.0}
    for index, each in enumerate(configurations):
        place = f"spec.prioritizerPolicy.configurations[{index}]"
        coordinate = _coordinate(each, place, faults)
        weight = faults.number(f"{place}.weight", each.weight, -MOST_WEIGHT, MOST_WEIGHT)
        if coordinate is not None and weight is not None:
            weights[coordinate] = weight
    return weights


def _coordinate(each: _Configuration, place: str, faults: Faults) -> Coordinate | None:
    given = each.score_coordinate
    if given is None and not each.name:
        faults.add(f"{place}.scoreCoordinate", None, "write a builtIn or an addOn")
        return None
    if given is None or (given.type or "BuiltIn") == "BuiltIn":
        name, field = (each.name, "name") if given is None else (given.built_in, "scoreCoordinate.builtIn")
        built_in = faults.choice(f"{place}.{field}", name, _BUILT_INS)
        return None if built_in is None else Coordinate(built_in=built_in)
    if faults.choice(f"{place}.scoreCoordinate.type", given.type, ("BuiltIn", "AddOn")) is None:
        return None
    for name, value in (("resourceName", given.add_on.resource_name), ("scoreName", given.add_on.score_name)):
        if not value:
            faults.add(f"{place}.scoreCoordinate.addOn.{name}", None, "write the name")
            return None
    resource, score = given.add_on.resource_name, given.add_on.score_name
    if resource == USAGE_SCORE and (real := USAGE_ALIASES.get(score)) is not None:
        faults.add(f"{place}.scoreCoordinate.addOn.scoreName", score, f"write {real}, which is used")
        score = real
    return Coordinate(resource=resource, score=score)


def _spread(constraints: tuple[_Constraint, ...], faults: Faults) -> tuple[SpreadConstraint, ...]:
    found: list[SpreadConstraint] = []
    place = "spec.spreadPolicy.spreadConstraints"
    if len(constraints) > _MOST_CONSTRAINTS:
        faults.add(
            place, f"{len(constraints)} constraints", f"write at most {_MOST_CONSTRAINTS}; the first ones are used"
        )
    for index, each in enumerate(constraints[:_MOST_CONSTRAINTS]):
        field = f"{place}[{index}]"
        kind = faults.choice(f"{field}.topologyKeyType", each.topology_key_type, ("Label", "Claim"))
        skew = faults.count(f"{field}.maxSkew", each.max_skew, 1)
        action = faults.choice(f"{field}.whenUnsatisfiable", each.when_unsatisfiable, _ACTIONS)
        if kind is not None:
            key, is_claim, required = each.topology_key, kind == "Claim", action == "DoNotSchedule"
            found.append(SpreadConstraint(key=key, is_claim=is_claim, max_skew=skew or 1, required=required))
    return tuple(found)


def _per_group(value: object, faults: Faults) -> float | None:
    field = "spec.decisionStrategy.groupStrategy.clustersPerDecisionGroup"
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and text.endswith("%") and text[:-1].isdecimal() and len(text) <= len("100%"):
        percent = int(text[:-1])
        if 0 < percent <= 100:  # noqa: PLR2004  percent
            return None if percent == 100 else percent / 100  # noqa: PLR2004
    elif isinstance(text, int) or (isinstance(text, str) and text.isdecimal() and len(text) < len("2147483648")):
        return faults.count(field, int(text), 1)
    faults.add(field, value, "write a number of at least 1, or a share from 1% to 100%")
    return None


def _rate_limit(value: object, faults: Faults) -> float:
    if value is None:
        return DEFAULT_RATE_LIMIT
    try:
        return parse_duration(str(value))
    except ValueError:
        faults.add("spec.scoreRateLimit", value, "write a duration such as 1m")
        return DEFAULT_RATE_LIMIT
