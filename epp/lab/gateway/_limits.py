# SPDX-License-Identifier: Apache-2.0
"""What clients may take of Envoy: connections, and what one connection may do."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from envoy_data_plane.envoy.config.bootstrap.v3 import LayeredRuntime, RuntimeLayer
from envoy_data_plane.envoy.config.core.v3 import Http2ProtocolOptions, HttpProtocolOptions
from envoy_data_plane.envoy.config.core.v3 import (
    HttpProtocolOptionsHeadersWithUnderscoresAction as Underscores,
)
from envoy_data_plane.envoy.config.overload.v3 import OverloadManager, ResourceMonitor
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpConnectionManager
from envoy_data_plane.envoy.extensions.resource_monitors.downstream_connections.v3 import (
    DownstreamConnectionsConfig,
)
from envoy_data_plane.google.protobuf import Any, Struct

__all__ = ["connection_limit", "limit_connections_of", "runtime"]

MOST_CONNECTIONS: Final = 10_000
"""Of all clients; a further one is closed."""
_MOST_STREAMS: Final = 100
"""Of one connection; its client waits, or opens another."""
_STREAM_WINDOW_BYTES: Final = 64 * 1024
_CONNECTION_WINDOW_BYTES: Final = 1024 * 1024
_IDLE: Final = timedelta(hours=1)
_HEADERS: Final = timedelta(seconds=10)
_RUNTIME: Final = {
    # Both are Envoy's own: a connection ends that resets most of its streams so early.
    "overload.premature_reset_total_stream_count": 500,
    "overload.premature_reset_min_stream_lifetime_seconds": 1,
    # By default all requests that one read has brought are begun before other connections have their turn.
    "http.max_requests_per_io_cycle": 10,
}


def connection_limit() -> OverloadManager:
    """Return what bounds the connections of all clients together."""
    limit = DownstreamConnectionsConfig(max_active_downstream_connections=MOST_CONNECTIONS)
    monitor = ResourceMonitor(
        name="envoy.resource_monitors.global_downstream_max_connections", typed_config=Any.pack(limit)
    )
    return OverloadManager(resource_monitors=[monitor])


def limit_connections_of(manager: HttpConnectionManager, *, is_open: bool) -> None:
    """Bound what one connection of a client may take."""
    manager.common_http_protocol_options = HttpProtocolOptions(
        idle_timeout=_IDLE,
        # A server may take `x_header` for `x-header`. The picker removes such spellings of the names that steer; where
        # requests pass without it, only Envoy does. Elsewhere such names stay: agents send `session_id`.
        headers_with_underscores_action=Underscores.DROP_HEADER if is_open else Underscores.ALLOW,
    )
    manager.http2_protocol_options = Http2ProtocolOptions(
        max_concurrent_streams=_MOST_STREAMS,
        initial_stream_window_size=_STREAM_WINDOW_BYTES,
        initial_connection_window_size=_CONNECTION_WINDOW_BYTES,
    )
    # None for the whole request: it may wait in a queue. The picker gives up those that stop coming (--body-timeout).
    manager.request_headers_timeout = _HEADERS


def runtime() -> LayeredRuntime:
    """Return the limits that Envoy has no other place for."""
    return LayeredRuntime(layers=[RuntimeLayer(name="limits", static_layer=Struct.from_dict(_RUNTIME))])
