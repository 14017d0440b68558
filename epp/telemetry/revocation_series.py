# SPDX-License-Identifier: Apache-2.0
"""Metrics of requests under way that were told to end for others of higher priority."""

from epp.telemetry.buckets import CONFIRMATION_SECONDS
from epp.telemetry.families import Families
from epp.telemetry.request_series import OTHER

_PREFIX = "flow_control_"
_POOL = ("inference_pool",)
_MOST_PRIORITIES = 64
"""Priorities that have series of their own: objects name them."""


class RevocationSeries:
    """Counts decisions and what comes of them."""

    def __init__(self, pool_name: str, families: Families) -> None:
        self._pool = pool_name
        self._issued = families.counters(
            f"{_PREFIX}revocations_issued_total",
            "Requests under way that were told to end, by the priority of the one that they make room for.",
            ("priority", *_POOL),
        )
        self._ended = families.counters(
            f"{_PREFIX}revocations_total",
            "Requests told to end, by outcome: confirmed as they have ended, timed_out if they did not in time.",
            ("outcome", *_POOL),
        )
        self._target = families.gauges(
            f"{_PREFIX}reclaim_target",
            "How much fuller than allowed the endpoint was at the last decision, in units of pool_saturation.",
            _POOL,
        ).labels(pool_name)
        self._pending = families.gauges(
            f"{_PREFIX}pending_reclaim",
            "What requests that were told to end, and have not yet, take of an endpoint, in the same units.",
            _POOL,
        ).labels(pool_name)
        self._seconds = families.histograms(
            f"{_PREFIX}revocation_confirmation_seconds",
            "Time from telling a request to end to its end.",
            CONFIRMATION_SECONDS,
            _POOL,
        ).labels(pool_name)
        self._priorities: set[int] = set()
        self._credit = 0.0

    def decided(
        self,
        target: int,  # noqa: ARG002  requests; what they take is shown
        issued: int,
        pending: int,
        *,
        priority: int,
        deficit: float,
        credit: float,
    ) -> None:
        """Count a decision."""
        if len(self._priorities) < _MOST_PRIORITIES:
            self._priorities.add(priority)
        label = str(priority) if priority in self._priorities else OTHER
        self._issued.labels(label, self._pool).inc(issued)
        self._credit = credit
        self._target.set(deficit)
        self._pending.set(pending * credit)

    def confirmed(self, seconds: float, pending: int) -> None:
        """Count the end of a request that was told to."""
        self._ended.labels("confirmed", self._pool).inc()
        self._seconds.observe(seconds)
        self._pending.set(pending * self._credit)

    def expired(self, count: int) -> None:
        """Count requests that did not end in time."""
        self._ended.labels("timed_out", self._pool).inc(count)
        self._pending.set(0)
