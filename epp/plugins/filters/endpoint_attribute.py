# SPDX-License-Identifier: Apache-2.0
"""Keeps endpoints by a threshold on any reported number."""

from collections.abc import Callable, Mapping, Sequence
from math import isnan
from typing import Literal, TypeAlias

import numpy as np

from epp.framework import Candidates, DropCause, Filter, FilterParameters, Floats, Mask, Name, Parameters, Request
from epp.framework.snapshot import (
    GPU_UTILIZATION,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    KV_USAGE,
    RUNNING,
    WAITING,
    column_named,
)

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
"""Numbers that fall again as requests end; what others stand for is not known here."""


class Threshold(Parameters, frozen=True):
    """Comparison of the number of an endpoint with a value."""

    operator: Operator
    """Operator; its left side is the number of the endpoint."""
    value: float
    """Right side of the comparison."""

    def __post_init__(self) -> None:
        """Refuse NaN."""
        if isnan(self.value):
            raise ValueError("value is not a number; give the number to compare with")


class FilterAlgorithm(Parameters, frozen=True):
    """Algorithm of the filter."""

    threshold: Threshold
    """Keep an endpoint if this comparison is true."""
    type: Literal["threshold"] = "threshold"
    """Only `threshold` is known."""


class EndpointAttributeFilterParameters(FilterParameters, frozen=True, kw_only=True):
    """The number, and the condition on it."""

    attribute: Name
    """Name of the number: `waiting`, `running`, `kv_usage`, `GPUUtilization`, or the `attributeKey` of a custom metric.
    It may end in its producer, `GPUUtilization/dcgm-extractor`; a name that contains a slash needs `producer: ""`."""
    algorithm: FilterAlgorithm
    """Condition on the number."""
    producer: str | None = None
    """Accepted for compatibility: the name of a number does not depend on its producer."""
    on_missing: Literal["Pass", "Fail"] = "Pass"
    """How to treat endpoints whose number is unknown: `Pass` keeps them, `Fail` drops them."""


class EndpointAttributeFilter(Filter[EndpointAttributeFilterParameters]):
    """Keeps an endpoint if `attribute operator value` is true; `onMissing` decides if the number is unknown."""

    plugin_type = "endpoint-attribute-filter"

    def setup(self) -> None:
        attribute = self.parameters.attribute
        self._column = column_named(attribute, self.parameters.producer)
        self.reads = (self._column,)
        self.drops = DropCause.SATURATION if self._column in _LOAD else DropCause.UNSTATED

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        values = candidates.values(self._column)
        threshold = self.parameters.algorithm.threshold
        holds = _OPERATORS[threshold.operator](values, threshold.value)
        return np.where(np.isnan(values), self.parameters.on_missing == "Pass", holds)

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:  # noqa: ARG002
        name, threshold = self.parameters.attribute, self.parameters.algorithm.threshold
        wanted = f"not {threshold.operator} {threshold.value:g}"
        return [
            f"its {name} is not known" if isnan(value) else f"its {name} is {value:g}, {wanted}"
            for value in dropped.values(self._column).tolist()
        ]
