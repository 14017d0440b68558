# SPDX-License-Identifier: Apache-2.0
"""Metrics of endpoints at which requests fail."""

from prometheus_client.registry import CollectorRegistry

from epp.routing.outliers import Failure, Verdict
from epp.telemetry.families import Counters, Gauges

_PREFIX = "llm_d_epp_outlier_detection_"


class OutlierSeries:
    """Counts suspicions and ejections."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._suspected = Counters(
            f"{_PREFIX}suspicions_total",
            "Times that an endpoint was avoided and asked as a connection to it failed or ended, by what its port "
            "said: answers, refuses, silent.",
            ("verdict",),
            registry,
        )
        self._ejected = Counters(
            f"{_PREFIX}ejections_total",
            "Ejections of endpoints by the failures that led to them: connection, gateway (502, 503, 504), server "
            "(other errors).",
            ("cause",),
            registry,
        )
        self._spared = Counters(
            f"{_PREFIX}ejections_overflow_total",
            "Endpoints that were not ejected, as --outlier-max-ejection-percent of the pool are.",
            ("cause",),
            registry,
        )
        self._now = Gauges(f"{_PREFIX}ejections_active", "Endpoints that are ejected now.", (), registry).labels()

    def suspected(self, verdict: Verdict) -> None:
        """Count a suspicion."""
        self._suspected.labels(verdict.value).inc()

    def ejected(self, cause: Failure) -> None:
        """Count an ejection."""
        self._ejected.labels(cause.value).inc()

    def spared(self, cause: Failure) -> None:
        """Count an endpoint that was not ejected."""
        self._spared.labels(cause.value).inc()

    def now(self, count: int) -> None:
        """Set how many are ejected."""
        self._now.set(count)
