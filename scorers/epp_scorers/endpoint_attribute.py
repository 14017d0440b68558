# SPDX-License-Identifier: Apache-2.0
"""Prefer endpoints by a metric or any other number known about them."""

from math import inf
from typing import Literal

import msgspec
import numpy as np

from epp.framework import LOAD_INPUTS, Candidates, Category, Floats, Name, Parameters, Request, Scorer, comparable_load
from epp.framework.snapshot import column_named


class FixedRange(Parameters, frozen=True):
    """A range given in the configuration."""

    min: float
    """Lower end; lower values count as this."""
    max: float
    """Upper end; higher values count as this."""

    def __post_init__(self) -> None:
        if not -inf < self.min < self.max < inf:
            raise ValueError(f"fixedRange is {self.min} to {self.max}; min must be below max, and both finite")


class AdaptiveRange(Parameters, frozen=True):
    """The range from the lowest to the highest value among the candidates."""


class Normalization(Parameters, frozen=True):
    """The range to map to [0, 1]: fixed, or adaptive, which is the default."""

    fixed_range: FixedRange | None = None
    """A fixed range."""
    adaptive_range: AdaptiveRange | None = None
    """The range of the candidates' own values; takes no parameters."""

    def __post_init__(self) -> None:
        if self.fixed_range is not None and self.adaptive_range is not None:
            raise ValueError("normalization has fixedRange and adaptiveRange; keep one")


class ScorerAlgorithm(Parameters, frozen=True):
    """Conversion of the value to a score."""

    type: Literal["linear_lower_is_better", "linear_higher_is_better"]
    """Whether low or high values score high."""
    normalization: Normalization = msgspec.field(default_factory=Normalization)
    """Range of values to map to [0, 1]."""


class EndpointAttributeScorerParameters(Parameters, frozen=True):
    """The value to read, and its conversion to a score."""

    attribute_key: Name
    """Name of the value: `waiting`, `running`, `kv_usage`, `GPUUtilization`, or the `attributeKey` of a custom metric.
    The name of a producer at its end is ignored, as in `GPUUtilization/dcgm-extractor`; for a name that contains a
    slash itself, set `producer: ""`."""
    algorithm: ScorerAlgorithm
    """Conversion of the value to a score."""
    producer: str | None = None
    """Accepted for compatibility: values are looked up by name only."""


class EndpointAttributeScorer(Scorer[EndpointAttributeScorerParameters]):
    """`(value - min) / (max - min)`, limited to [0, 1]; 1 minus that for `linear_lower_is_better`.

    `min` and `max` are those of the fixed range, else the lowest and highest value among the candidates; if these are
    equal, every endpoint with a value gets 1. An endpoint whose value is unknown or not finite gets 0; but `waiting`,
    `running` and `kv_usage` of an endpoint that does not report them are estimated from requests in flight.
    """

    plugin_type = "endpoint-attribute-scorer"
    category = Category.DISTRIBUTION
    zero_means = "is at the worst end of the range, or its value is not known"
    may_read = LOAD_INPUTS

    def setup(self) -> None:
        attribute = self.parameters.attribute_key
        self._column = column_named(attribute, self.parameters.producer)
        self.reads = (self._column,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        values = comparable_load(candidates, self._column)
        known = np.isfinite(values)
        if not known.any():
            return np.zeros(len(values))
        fixed = self.parameters.algorithm.normalization.fixed_range
        low, high = (fixed.min, fixed.max) if fixed else (values[known].min(), values[known].max())
        if low == high:
            return known.astype(np.float64)
        shares = np.clip((np.where(known, values, low) - low) / (high - low), 0.0, 1.0)
        if self.parameters.algorithm.type == "linear_lower_is_better":
            shares = 1.0 - shares
        return np.where(known, shares, 0.0)
