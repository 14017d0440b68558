# SPDX-License-Identifier: Apache-2.0
"""How long requests wait: another time while the pool is empty, and again when that changes."""

from math import inf

from epp.admission.flow_control.band import Waiting


class Patience:
    """Knows whether the pool has endpoints, and since when."""

    __slots__ = ("_since", "has_endpoints")

    def __init__(self) -> None:
        self.has_endpoints = True
        """Whether the pool has any."""
        self._since = -inf

    def pool_changed(self, now: float, *, has_endpoints: bool) -> None:
        """Note whether the pool is empty."""
        if has_endpoints != self.has_endpoints:
            self.has_endpoints = has_endpoints
            self._since = now

    def end(self, waiting: Waiting, ttl_seconds: float, no_endpoint_ttl_seconds: float) -> float:
        """Return when a request has waited too long; later for all that came later to the same band."""
        seconds = ttl_seconds if self.has_endpoints else no_endpoint_ttl_seconds
        return max(waiting.queued.enqueued_at, self._since) + seconds
