"""Keeps endpoints by a threshold on any number that is known of them."""

from collections.abc import Callable, Mapping
from math import isnan
from typing import Literal, TypeAlias

import numpy as np

from epp.framework import Candidates, Filter, FilterParameters, Floats, Mask, Name, Parameters, Request
from epp.framework.snapshot import column_named

Operator: TypeAlias = Literal["LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"]

_OPERATORS: Mapping[Operator, Callable[[Floats, float], Mask]] = {
    "LessThan": np.less,
    "LessThanOrEqual": np.less_equal,
    "GreaterThan": np.greater,
    "GreaterThanOrEqual": np.greater_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
}


class Threshold(Parameters, frozen=True):
    """What an endpoint's number is held against."""

    operator: Operator
    """LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual, Equal or NotEqual; the number stands on the left."""
    value: float
    """The number on the right."""

    def __post_init__(self) -> None:
        """Refuse what cannot be compared."""
        if isnan(self.value):
            raise ValueError("value is not a number; give the number to compare with")


class FilterAlgorithm(Parameters, frozen=True):
    """How the number decides."""

    threshold: Threshold
    """Keep an endpoint if this comparison holds."""
    type: Literal["threshold"] = "threshold"
    """`threshold`: there is no other."""


class EndpointAttributeFilterParameters(FilterParameters, frozen=True, kw_only=True):
    """Which number, and what it must be."""

    attribute: Name
    """Name of the number: `waiting`, `running`, `kv_usage`, `GPUUtilization`, or a custom metric's `attributeKey`. It
    may end in its producer, `GPUUtilization/dcgm-extractor`; a name with a slash of its own needs `producer: ""`."""
    algorithm: FilterAlgorithm
    """How the number decides."""
    producer: str | None = None
    """Accepted for compatibility: a number has one name, whoever reports it."""
    on_missing: Literal["Pass", "Fail"] = "Pass"
    """What becomes of an endpoint whose number is not known: `Pass` keeps it, `Fail` drops it."""


class EndpointAttributeFilter(Filter[EndpointAttributeFilterParameters]):
    """Keeps an endpoint if `attribute operator value` holds; `onMissing` decides where the number is not known."""

    plugin_type = "endpoint-attribute-filter"

    def setup(self) -> None:
        attribute = self.parameters.attribute
        self._column = column_named(attribute, self.parameters.producer)
        self.reads = (self._column,)

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        values = candidates.values(self._column)
        threshold = self.parameters.algorithm.threshold
        holds = _OPERATORS[threshold.operator](values, threshold.value)
        return np.where(np.isnan(values), self.parameters.on_missing == "Pass", holds)
