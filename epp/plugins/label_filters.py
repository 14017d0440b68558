# SPDX-License-Identifier: Apache-2.0
"""Filters by labels and attributes of endpoints, and by placements and taints of their clusters."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import isnan
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from epp.framework import (
    Candidates,
    DropCause,
    Endpoint,
    Filter,
    FilterParameters,
    Floats,
    Mask,
    Name,
    Parameters,
    Request,
    Stability,
)
from epp.framework.arrays import all_true, any_true, everyone
from epp.framework.clusters import (
    CLUSTER,
    POOL_IMPORT,
    ClusterStatus,
    ClusterToleration,
    PlacementStatus,
    TaintEffect,
    counts_from,
    status_mask,
    status_numbers,
)
from epp.framework.endpoint import Requirement
from epp.framework.refusals import NoClustersError
from epp.framework.roles import FP
from epp.framework.session_affinity import SessionAffinity, SessionAffinityParameters
from epp.framework.snapshot import (
    GPU_UTILIZATION,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    KV_USAGE,
    RUNNING,
    WAITING,
    column_named,
)

OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "", "DoesNotExist": "!", "Gt": ">", "Lt": "<"}
"""Operators of label selectors, by their name in Kubernetes."""


class LabelSelectorRequirement(Parameters, frozen=True):
    """A requirement on one label, as in Kubernetes."""

    key: Name
    """Name of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """NotIn and DoesNotExist also match endpoints without the label."""
    values: tuple[str, ...] = ()
    """Values to compare with: at least one for In and NotIn, none for the other operators."""

    def __post_init__(self) -> None:
        takes_values = self.operator in {"In", "NotIn"}
        if takes_values and not self.values:
            raise ValueError(f"operator {self.operator} for label {self.key!r} has no values; list at least one")
        if self.values and not takes_values:
            raise ValueError(f"operator {self.operator} for label {self.key!r} takes no values; remove them")

    def matches(self, labels: Mapping[str, str]) -> bool:
        return Requirement(self.key, OPERATORS[self.operator], self.values).matches(labels)


class LabelSelectorParameters(FilterParameters, frozen=True):
    """A Kubernetes LabelSelector: all of it must match; an empty one matches all endpoints."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels and the exact value required of each."""
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()
    """Requirements on labels."""


class LabelSelectorFilter(Filter[LabelSelectorParameters]):
    """Keeps an endpoint if it has every label in `matchLabels` and meets every entry of `matchExpressions`."""

    plugin_type = "label-selector-filter"
    drops = DropCause.CONSTRAINT

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        return candidates.snapshot.endpoints.derive_mask(self._selects)[candidates.slots]

    def _selects(self, endpoint: Endpoint | None) -> bool:
        return endpoint is not None and self._unmet(endpoint.labels) is None

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:
        return [_label_reason(endpoint, self._unmet(endpoint.labels) or "") for endpoint in dropped.endpoints]

    def _unmet(self, labels: Mapping[str, str]) -> str | None:
        """Return the first label that does not match; None if all do."""
        exact = (key for key, value in self.parameters.match_labels.items() if labels.get(key) != value)
        others = (each.key for each in self.parameters.match_expressions if not each.matches(labels))
        return next(chain(exact, others), None)


class ByLabelSelectorFilter(LabelSelectorFilter):
    """Keeps an endpoint if it has every label in `matchLabels` and meets every entry of `matchExpressions`.

    Deprecated: the former name of `label-selector-filter`.
    """

    plugin_type = "by-label-selector"
    stability = Stability.DEPRECATED


class LabelValueFilter(Filter[FP]):
    """Base class: keeps an endpoint if its label has one of the values."""

    label: str
    values: tuple[str, ...]
    takes_unlabelled: bool = False
    """Whether endpoints without the label are kept."""

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        mask = candidates.where_label(self.label, self.values)
        if not self.takes_unlabelled:
            return mask
        return mask | candidates.snapshot.endpoints.derive_mask(_lacks_label, self.label)[candidates.slots]

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:
        return [_label_reason(endpoint, self.label) for endpoint in dropped.endpoints]


class ByLabelParameters(FilterParameters, frozen=True, kw_only=True):
    """A label and its allowed values."""

    label: Name
    """Name of the label."""
    valid_values: tuple[str, ...] = ()
    """Allowed values of the label. May be empty only with `allowsNoLabel`."""
    allows_no_label: bool = False
    """Also keep endpoints without the label."""

    def __post_init__(self) -> None:
        if not self.valid_values and not self.allows_no_label:
            raise ValueError(
                f"no value of label {self.label!r} would be kept; list validValues, or set allowsNoLabel to true"
            )


class ByLabelFilter(LabelValueFilter[ByLabelParameters]):
    """Keeps an endpoint if its label has one of the values, or, with `allowsNoLabel`, if it lacks the label.

    Deprecated: use `label-selector-filter`, which takes a Kubernetes LabelSelector.
    """

    plugin_type = "by-label"
    stability = Stability.DEPRECATED
    drops = DropCause.CONSTRAINT

    def setup(self) -> None:
        given = self.parameters
        self.label, self.values, self.takes_unlabelled = given.label, given.valid_values, given.allows_no_label


def _label_reason(endpoint: Endpoint, key: str) -> str:
    """Return the reason that an endpoint is dropped: its value of the label."""
    value = endpoint.labels.get(key)
    return f"has no label {key}" if value is None else f"its label {key} is {value!r}"


def _lacks_label(endpoint: Endpoint | None, label: str) -> bool:
    return endpoint is not None and label not in endpoint.labels


Operator: TypeAlias = Literal["LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"]

_OPERATORS: Mapping[Operator, Callable[[Floats, float], Mask]] = {
    "LessThan": np.less,
    "LessThanOrEqual": np.less_equal,
    "GreaterThan": np.greater,
    "GreaterThanOrEqual": np.greater_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
}
_LOAD = frozenset({WAITING, RUNNING, KV_USAGE, IN_FLIGHT, IN_FLIGHT_TOKENS, GPU_UTILIZATION})
"""Attributes that measure load: they fall again as requests end."""


class Threshold(Parameters, frozen=True):
    """Comparison of an endpoint's number with a value."""

    operator: Operator
    """Operator; its left side is the endpoint's number."""
    value: float
    """Right side of the comparison."""

    def __post_init__(self) -> None:
        if isnan(self.value):
            raise ValueError("value is not a number; give the number to compare with")


class FilterAlgorithm(Parameters, frozen=True):
    """Algorithm of the filter."""

    threshold: Threshold
    """Keep an endpoint if this comparison is true."""
    type: Literal["threshold"] = "threshold"
    """Only `threshold` is supported."""


class EndpointAttributeFilterParameters(FilterParameters, frozen=True, kw_only=True):
    """The number, and the condition on it."""

    attribute: Name
    """Name of the number: `waiting`, `running`, `kv_usage`, `GPUUtilization`, or the `attributeKey` of a custom metric.
    A producer at its end is ignored, as in `GPUUtilization/dcgm-extractor`; a name that contains a slash needs
    `producer: ""`."""
    algorithm: FilterAlgorithm
    """Condition on the number."""
    producer: str | None = None
    """Accepted for compatibility: the name of a number does not depend on its producer."""
    on_missing: Literal["Pass", "Fail"] = "Pass"
    """Treatment of endpoints whose number is unknown: `Pass` keeps them, `Fail` drops them."""


class EndpointAttributeFilter(Filter[EndpointAttributeFilterParameters]):
    """Keeps an endpoint if `attribute operator value` is true; `onMissing` decides if the number is unknown."""

    plugin_type = "endpoint-attribute-filter"

    def setup(self) -> None:
        attribute = self.parameters.attribute
        self._column = column_named(attribute, self.parameters.producer)
        self.reads = (self._column,)
        self.drops = DropCause.SATURATION if self._column in _LOAD else DropCause.UNSTATED

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        values = candidates.values(self._column)
        threshold = self.parameters.algorithm.threshold
        holds = _OPERATORS[threshold.operator](values, threshold.value)
        return np.where(np.isnan(values), self.parameters.on_missing == "Pass", holds)

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:
        name, threshold = self.parameters.attribute, self.parameters.algorithm.threshold
        wanted = f"not {threshold.operator} {threshold.value:g}"
        return [
            f"its {name} is not known" if isnan(value) else f"its {name} is {value:g}, {wanted}"
            for value in dropped.values(self._column).tolist()
        ]


_OBJECT = re.compile(r"[^/\s]+/[^/\s]+")
_UNKNOWN = PlacementStatus(any_chosen=False)


class PlacementFilterParameters(FilterParameters, frozen=True):
    """The placement or import, and the treatment of an empty one."""

    placement: str = ""
    """`namespace/name` of a Placement."""
    pool_import: str = ""
    """`namespace/name` of an InferencePoolImport, for the clusters that export the pool, and the local one."""
    on_empty: Literal["FailClosed", "FailOpen"] = "FailClosed"
    """Treatment of a placement that chose no cluster or is unknown: `FailClosed` refuses requests with 503, `FailOpen`
    keeps all endpoints."""

    def __post_init__(self) -> None:
        if bool(self.placement) == bool(self.pool_import):
            raise ValueError("write either placement or poolImport, with the namespace/name of the object")
        for name, value in (("placement", self.placement), ("poolImport", self.pool_import)):
            if value and not _OBJECT.fullmatch(value):
                raise ValueError(f"{name} is {value!r}: write namespace/name")


class PlacementFilter(Filter[PlacementFilterParameters]):
    """Keeps an endpoint if the placement chose its cluster, in any of its PlacementDecision objects.

    With `poolImport`, an endpoint is kept if its cluster exports the pool, or is the local one. A cluster that leaves
    the placement gets no new requests, even for its sessions and cached prefixes; requests in flight finish there. If
    the placement chose clusters, but no remaining endpoint is in one of them, the request is refused with 503.
    """

    plugin_type = "placement-filter"
    drops = DropCause.AVAILABILITY
    drop_means = "is in a cluster that was not chosen"
    reads = (CLUSTER,)

    def setup(self) -> None:
        imported = self.parameters.pool_import
        self._name = f"{POOL_IMPORT}/{imported}" if imported else self.parameters.placement

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        chosen = status_mask(candidates, self._is_chosen)
        if any_true(chosen):
            return chosen
        if any_true(candidates.snapshot.records(CLUSTER).derive_mask(self._has_decision)[candidates.snapshot.slots]):
            problem = f"placement {self._name} chose no cluster of the remaining endpoints"
        elif self.parameters.on_empty == "FailOpen":
            return everyone(len(candidates))
        else:
            problem = f"placement {self._name} chose no cluster, or is not known"
        if self.parameters.fallback_on_empty:
            return chosen
        raise NoClustersError(problem)

    def _is_chosen(self, status: ClusterStatus) -> bool:
        return status.placements.get(self._name, _UNKNOWN).chosen

    def _has_decision(self, status: ClusterStatus) -> bool:
        return status.placements.get(self._name, _UNKNOWN).any_chosen


class TaintFilterParameters(SessionAffinityParameters, frozen=True):
    """Tolerations, and the recognition of sessions."""

    strategy: Literal["encoded_endpoint_header", "session_id"] = "session_id"
    """Identify a session by its id (`session_id`) or by the token of its last response (`encoded_endpoint_header`)."""
    tolerations: tuple[ClusterToleration, ...] = ()
    """Taints to ignore."""
    fallback_on_empty: bool = False
    """Skip the filter if it would drop all candidates, instead of refusing the request."""


class TaintFilter(SessionAffinity[TaintFilterParameters], Filter[Any]):
    """Drops an endpoint if its cluster has a taint of effect `NoSelect`, or `NoSelectIfNew`.

    With `NoSelectIfNew`, the endpoint that served the request's session last is kept. Requests in flight finish there.
    If no endpoint is left, the request is refused with 503.
    """

    plugin_type = "taint-filter"
    drops = DropCause.AVAILABILITY
    drop_means = "is in a cluster with a taint that is not tolerated"

    def setup(self) -> None:
        super().setup()
        self.reads = (CLUSTER, *self.reads)

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        now = self.clock.utc()
        kept = self._effective_from(candidates, TaintEffect.NO_SELECT) > now
        for_new = self._effective_from(candidates, TaintEffect.NO_SELECT_IF_NEW) > now
        if not all_true(for_new):
            kept &= for_new | self.bound(request, candidates)
        if not any_true(kept) and not self.parameters.fallback_on_empty:
            raise NoClustersError("all clusters of the remaining endpoints have taints")
        return kept

    def _effective_from(self, candidates: Candidates, effect: TaintEffect) -> Floats:
        """Return the time from which a taint of that effect counts, in seconds since 1970 (UTC)."""
        return status_numbers(candidates, self._effective_from_status, effect)

    def _effective_from_status(self, status: ClusterStatus, effect: TaintEffect) -> float:
        return counts_from(status, effect, self.parameters.tolerations)
