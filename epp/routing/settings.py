# SPDX-License-Identifier: Apache-2.0
"""Settings of outlier detection, and the flags that set them."""

from dataclasses import dataclass

from epp.runtime.flags import DURATION, SWITCH, flag


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierSettings:
    """Conditions and durations of ejections; raises ValueError for durations that contradict each other."""

    enabled: bool = flag(
        True,
        "Avoid endpoints whose requests fail: after a failed connection, until the port answers; after repeated "
        "failures, for a time.",
        SWITCH,
        name="--outlier-detection",
    )
    consecutive_gateway_failure: int = flag(
        3,
        "Eject an endpoint after this number of failed connections (although its port answers) or responses "
        "with 502, 503 or 504 in a row; 0 for never. A 503 with Retry-After does not count.",
        "COUNT",
        name="--outlier-consecutive-gateway-failure",
        min=0,
    )
    consecutive_5xx: int = flag(
        5,
        "Eject an endpoint after this number of failures in a row, unless the others fail too: responses "
        "with any 5xx, with 429, with 404 for a model that others serve, or with 200 and no token; 0 for never.",
        "COUNT",
        name="--outlier-consecutive-5xx",
        min=0,
    )
    success_rate_request_volume: int = flag(
        20,
        "Eject an endpoint whose success rate is far below that of the others, if it had this number of requests "
        "in the last 15 to 30 seconds, and so had the others; 0 for never.",
        "COUNT",
        name="--outlier-success-rate-request-volume",
        min=0,
    )
    base_ejection_seconds: float = flag(
        10.0,
        "Duration of an endpoint's first ejection; each further ejection is longer by this time.",
        DURATION,
        name="--outlier-base-ejection-time",
    )
    max_ejection_seconds: float = flag(
        300.0, "Longest duration of an ejection.", DURATION, name="--outlier-max-ejection-time"
    )
    max_ejection_percent: float = flag(
        50,
        "Largest part of the pool that may be ejected at the same time: at least one endpoint and never all; "
        "0 for none.",
        "PERCENT",
        name="--outlier-max-ejection-percent",
        min=0,
        max=100,
    )

    def __post_init__(self) -> None:
        base, longest = self.base_ejection_seconds, self.max_ejection_seconds
        if base <= 0:
            raise ValueError(
                "--outlier-base-ejection-time: must be greater than 0: write a duration such as 10s, or "
                "--outlier-detection=false"
            )
        if longest < base:
            raise ValueError(
                f"--outlier-max-ejection-time: {longest:g}s is shorter than --outlier-base-ejection-time, {base:g}s"
            )

    def most_ejected(self, endpoints: int) -> int:
        if endpoints < 2 or self.max_ejection_percent <= 0:  # noqa: PLR2004  never the only one
            return 0
        return min(max(int(endpoints * self.max_ejection_percent / 100), 1), endpoints - 1)

    def seconds_of(self, ejections: int) -> float:
        """Return the duration of an endpoint's nth ejection, from 1."""
        return min(self.base_ejection_seconds * ejections, self.max_ejection_seconds)
