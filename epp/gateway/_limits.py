"""What the clusters share: no limits of their own on how much is under way."""

from __future__ import annotations

from envoy_data_plane.envoy.config.cluster.v3 import CircuitBreakers, CircuitBreakersThresholds

__all__ = ["NO_LIMIT", "PROTOCOL_OPTIONS", "unlimited"]

PROTOCOL_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
# Load is limited by the picker, which knows the model servers; Envoy's default of 1024 would cut in before it.
NO_LIMIT = 1_000_000


def unlimited() -> CircuitBreakers:
    """Return circuit breakers that never open."""
    return CircuitBreakers(
        thresholds=[
            CircuitBreakersThresholds(
                max_connections=NO_LIMIT,
                max_pending_requests=NO_LIMIT,
                max_requests=NO_LIMIT,
                max_retries=NO_LIMIT,
            ),
        ],
    )
