# SPDX-License-Identifier: Apache-2.0
"""Events of the scheduler, for metrics and traces."""

from epp.scheduling.guard import PluginObserver


class SchedulingObserver(PluginObserver):
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def profile_started(self, profile: str) -> None:
        """Record that the plugins of a profile are called from now on."""

    def scores_rejected(self, plugin: str, count: int) -> None:
        """Record scores that were NaN or infinite and counted as 0."""

    def scores_clamped(self, plugin: str, count: int) -> None:
        """Record scores that were below 0 or above 1 and counted as these."""
