"""Prefers endpoints by any number that is known of them."""

from math import inf
from typing import Literal

import msgspec
import numpy as np

from epp.framework import Candidates, Category, Floats, Parameters, Request, Scorer
from epp.framework.limits import Name
from epp.framework.snapshot import column_named


class FixedRange(Parameters, frozen=True):
    """The same range for every request."""

    min: float
    """Numbers at or below count as this."""
    max: float
    """Numbers at or above count as this."""

    def __post_init__(self) -> None:
        """Refuse an empty range."""
        if not -inf < self.min < self.max < inf:
            raise ValueError(f"fixedRange is {self.min} to {self.max}; min must be below max, and both finite")


class AdaptiveRange(Parameters, frozen=True):
    """From the lowest number to the highest among the candidates."""


class Normalization(Parameters, frozen=True):
    """The range that is mapped to [0, 1]: one of these; without either, the adaptive one."""

    fixed_range: FixedRange | None = None
    """A range with known ends."""
    adaptive_range: AdaptiveRange | None = None
    """The range of the candidates' own numbers; takes no parameters."""

    def __post_init__(self) -> None:
        """Refuse both at once."""
        if self.fixed_range is not None and self.adaptive_range is not None:
            raise ValueError("normalization has fixedRange and adaptiveRange; keep one")


class ScorerAlgorithm(Parameters, frozen=True):
    """How the number becomes a score."""

    type: Literal["linear_lower_is_better", "linear_higher_is_better"]
    """`linear_lower_is_better` or `linear_higher_is_better`."""
    normalization: Normalization = msgspec.field(default_factory=Normalization)
    """The range that is mapped to [0, 1]."""


class EndpointAttributeScorerParameters(Parameters, frozen=True):
    """Which number, and what it is worth."""

    attribute_key: Name
    """Name of the number: `waiting`, `running`, `kv_usage`, `GPUUtilization`, or a custom metric's `attributeKey`. It
    may end in its producer, `GPUUtilization/dcgm-extractor`; a name with a slash of its own needs `producer: ""`."""
    algorithm: ScorerAlgorithm
    """How the number becomes a score."""
    producer: str | None = None
    """Accepted for compatibility: a number has one name, whoever reports it."""


class EndpointAttributeScorer(Scorer[EndpointAttributeScorerParameters]):
    """`(value - min) / (max - min)` within [0, 1]; 1 less that where lower is better.

    `min` and `max` are the fixed range, else the lowest and highest number among the candidates; where these are
    equal, every endpoint that has the number gets 1. An endpoint whose number is not known, or not finite, gets 0.
    """

    plugin_type = "endpoint-attribute-scorer"
    category = Category.DISTRIBUTION

    def setup(self) -> None:
        attribute = self.parameters.attribute_key
        self._column = column_named(attribute, self.parameters.producer)
        self.reads = (self._column,)

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        values = candidates.values(self._column)
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
