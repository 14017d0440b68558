# SPDX-License-Identifier: Apache-2.0
"""Metrics of the configuration in effect and of background tasks."""

from epp.telemetry.families import Families


class ConfigSeries:
    """Counts versions of the configuration file, and restarts of tasks."""

    def __init__(self, families: Families) -> None:
        self._number = 1
        self._generation = families.gauges(
            "config_generation", "Generation of the configuration in effect, from 1."
        ).labels()
        self._generation.set(self._number)
        self._good = families.gauges(
            "config_last_reload_successful", "1 if the current configuration file is in effect, 0 if it was rejected."
        ).labels()
        self._good.set(1)
        self._reloads = families.counters(
            "config_reloads_total", "New versions of the configuration file, by result.", ("result",)
        )
        self._task_failures = families.counters(
            "background_task_failures_total", "Restarts of background tasks after an error.", ("task",)
        )

    def taken(self, generation: int) -> None:
        """Record that the configuration file is in effect."""
        self._good.set(1)
        if generation != self._number:
            self._reloads.labels("taken").inc()
            self._generation.set(generation)
        self._number = generation

    def refused(self) -> None:
        """Record that the configuration file was rejected."""
        self._good.set(0)
        self._reloads.labels("refused").inc()

    def task_failed(self, kind: str) -> None:
        """Count an error of a background task."""
        self._task_failures.labels(kind).inc()
