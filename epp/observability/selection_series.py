# SPDX-License-Identifier: Apache-2.0
"""Metric series of the accelerators that requests are sent to, bounded: a cluster may have any number of classes."""

from epp.framework import ACCELERATOR_SELECTION, Request
from epp.framework.result import SchedulingResult
from epp.framework.snapshot import ACCELERATOR
from epp.observability.families import Counters
from epp.observability.hardware_series import hardware_name
from epp.observability.request_series import MAX_COMBINATIONS, OTHER


class SelectionSeries:
    """Counts the pick of each profile; accelerators beyond 256 combinations are counted under `other`."""

    def __init__(self, counter: Counters) -> None:
        self._counter = counter
        self._known: set[tuple[str, str, str]] = set()

    def count(self, request: Request, result: SchedulingResult) -> None:
        """Count the picks for a request."""
        asked = request.get(ACCELERATOR_SELECTION)
        for profile, leg in result.profiles.items():
            if leg is None:
                continue
            tag = leg.candidates.snapshot.records(ACCELERATOR).values[leg.slot]
            labels = hardware_name(tag), profile, "" if asked is None else asked.of(profile).policy
            if labels not in self._known:
                if len(self._known) >= MAX_COMBINATIONS:
                    labels = OTHER, *labels[1:]
                self._known.add(labels)
            self._counter.labels(*labels).inc()
