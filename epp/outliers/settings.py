# SPDX-License-Identifier: Apache-2.0
"""Settings of the outlier detection, under the names that Envoy has for its own."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierSettings:
    """When endpoints are ejected, and for how long."""

    enabled: bool = True
    """Whether responses count for or against endpoints at all."""
    consecutive_gateway_failure: int = 3
    """Failed connections, and responses with 502, 503 or 504, in a row; 0 for never."""
    consecutive_5xx: int = 10
    """Responses with any status from 500 in a row, while others answer as many requests; 0 for never."""
    base_ejection_seconds: float = 10.0
    """Time of the first ejection, above 0; the second takes twice as long, and so on."""
    max_ejection_seconds: float = 300.0
    """Longest time of an ejection."""
    max_ejection_percent: float = 50.0
    """Largest part of the pool that is ejected at a time: of two or more one at least, never all; 0 for none."""

    def most_ejected(self, endpoints: int) -> int:
        """Return how many of so many endpoints may be ejected at a time."""
        if endpoints < 2 or self.max_ejection_percent <= 0:  # noqa: PLR2004  one is all there is
            return 0
        return min(max(int(endpoints * self.max_ejection_percent / 100), 1), endpoints - 1)

    def seconds_of(self, ejections: int) -> float:
        """Return the time of the ejection of this number, from 1."""
        return min(self.base_ejection_seconds * ejections, self.max_ejection_seconds)
