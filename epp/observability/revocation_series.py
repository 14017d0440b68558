# SPDX-License-Identifier: Apache-2.0
"""Metrics of requests under way that were told to end for others of higher priority."""

from prometheus_client.registry import CollectorRegistry

from epp.observability.families import Counters, Gauges, Histograms

_PREFIX = "llm_d_epp_flow_control_"
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class RevocationSeries:
    """Counts decisions and what comes of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._issued = Counters(
            f"{_PREFIX}revocations_issued_total",
            "Requests under way that were told to end for one of higher priority.",
            (),
            registry,
        ).labels()
        self._ended = Counters(
            f"{_PREFIX}revocations_total",
            "Requests told to end, by outcome: confirmed as they have ended, expired if they did not in time.",
            ("outcome",),
            registry,
        )
        self._target = Gauges(
            f"{_PREFIX}reclaim_target", "Requests that had to end by the last decision.", (), registry
        ).labels()
        self._pending = Gauges(
            f"{_PREFIX}pending_reclaim", "Requests that were told to end and have not yet.", (), registry
        ).labels()
        self._seconds = Histograms(
            f"{_PREFIX}revocation_confirmation_seconds",
            "Time from telling a request to end to its end.",
            (),
            _SECONDS,
            registry,
        ).labels()

    def decided(self, target: int, issued: int, pending: int) -> None:
        """Count a decision."""
        self._target.set(target)
        self._issued.inc(issued)
        self._pending.set(pending)

    def confirmed(self, seconds: float, pending: int) -> None:
        """Count the end of a request that was told to."""
        self._ended.labels("confirmed").inc()
        self._seconds.observe(seconds)
        self._pending.set(pending)

    def expired(self, count: int) -> None:
        """Count requests that did not end in time."""
        self._ended.labels("expired").inc(count)
        self._pending.set(0)
