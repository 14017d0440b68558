# SPDX-License-Identifier: Apache-2.0
"""Metrics of polls, and of problems with metrics pages of endpoints."""

from epp.framework.plugin_status import Legacy
from epp.telemetry.families import Families

_PREFIX = "datalayer_"
_OLDER = "llm_d_inference_scheduler_datalayer_"


class PollSeries:
    """Counts polls and pages that fail."""

    def __init__(self, families: Families) -> None:
        self._errors = families.counters(
            f"{_PREFIX}poll_errors_total",
            "Failed polls of endpoints.",
            ("source_type",),
            Legacy(f"{_OLDER}poll_errors_total", ("source_type",)),
        )
        self._extract_errors = families.counters(
            f"{_PREFIX}extract_errors_total",
            "Polled pages that could not be read.",
            ("source_type", "extractor_type"),
            Legacy(f"{_OLDER}extract_errors_total", ("source_type", "extractor_type")),
        )
        self._limits = families.counters(
            f"{_PREFIX}page_limits_total",
            "Polled pages beyond a limit: refused, or read in part (family_series, series_bytes).",
            ("source_type", "limit"),
        )
        self._interval = families.gauges(
            f"{_PREFIX}poll_interval_seconds", "Time between two polls of an endpoint, which grows with the pool."
        ).labels()

    def failed(self, source_type: str) -> None:
        """Count a failed poll."""
        self._errors.labels(source_type).inc()

    def unreadable(self, source_type: str, extractor_type: str) -> None:
        """Count a page that an extractor or a tagger could not read."""
        self._extract_errors.labels(source_type, extractor_type).inc()

    def limited(self, source_type: str, limit: str) -> None:
        """Count a page beyond a limit."""
        self._limits.labels(source_type, limit).inc()

    def interval(self, seconds: float) -> None:
        """Set the time between two polls."""
        self._interval.set(seconds)
