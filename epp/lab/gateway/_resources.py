# SPDX-License-Identifier: Apache-2.0
"""The Envoy bootstrap as typed resources: one listener, its filters and the clusters."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from betterproto2 import Casing
from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog
from envoy_data_plane.envoy.config.bootstrap.v3 import (
    Admin,
    Bootstrap,
    BootstrapStaticResources,
    LayeredRuntime,
    RuntimeLayer,
)
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation as OneHeaderMutation
from envoy_data_plane.envoy.config.core.v3 import (
    GrpcService,
    GrpcServiceEnvoyGrpc,
    Http2ProtocolOptions,
    HttpProtocolOptions,
    Node,
    SubstitutionFormatString,
)
from envoy_data_plane.envoy.config.core.v3 import (
    HttpProtocolOptionsHeadersWithUnderscoresAction as Underscores,
)
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.config.overload.v3 import OverloadManager, ResourceMonitor
from envoy_data_plane.envoy.config.route.v3 import (
    Route,
    RouteAction,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.access_loggers.stream.v3 import StdoutAccessLog
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    MetadataOptions,
    MetadataOptionsMetadataNamespaces,
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import HeaderMutation, Mutations
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpFilter,
)
from envoy_data_plane.envoy.extensions.resource_monitors.downstream_connections.v3 import (
    DownstreamConnectionsConfig,
)
from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode
from envoy_data_plane.google.protobuf import Any, Struct

from epp.framework.headers import (
    DESTINATION,
    DESTINATION_NAMESPACE,
    DROPPED_REASON,
    OBEYED_BY_ENDPOINTS,
    REQUEST_ID,
    SUBSET_NAMESPACE,
)
from epp.lab.gateway._clusters import (
    endpoint_picker,
    envoy_address,
    model_servers,
    retry_policy,
)
from epp.lab.gateway.errors import SettingsError
from epp.lab.gateway.settings import (
    ENDPOINT_PICKER,
    LISTENER,
    MODEL_SERVERS,
    MOST_SECONDS,
    Bodies,
    BodyMode,
    ClusterType,
    FailureMode,
    GatewaySettings,
    parse_address,
)

__all__ = ["Casing", "build_bootstrap"]

_NEVER = timedelta(0)
_ACCESS_LOG = {
    "time": "%START_TIME%",
    "request_id": f"%REQ({REQUEST_ID})%",
    "method": "%REQ(:METHOD)%",
    "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
    "status": "%RESPONSE_CODE%",
    "destination": f"%REQ({DESTINATION})%",
    "served_by": "%UPSTREAM_HOST%",
    "reason": f"%RESP({DROPPED_REASON})%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "flags": "%RESPONSE_FLAGS%",
    "milliseconds": "%DURATION%",
    "bytes_received": "%BYTES_RECEIVED%",
    "bytes_sent": "%BYTES_SENT%",
}
"""A line of JSON per request: `destination` as the picker named it, `reason` of a refusal, `details` of the status."""


def build_bootstrap(settings: GatewaySettings) -> Bootstrap:
    """Return the whole configuration of one Envoy; `SettingsError` for settings that do not fit together."""
    if parse_address(settings.picker_address, setting="picker_address") == settings.listen:
        raise SettingsError("listen_port", f"{settings.listen} is the address of the picker: choose another port")
    return Bootstrap(
        node=_node(settings),
        admin=_admin(settings),
        static_resources=BootstrapStaticResources(
            listeners=[_listener(settings)],
            clusters=[model_servers(settings), endpoint_picker(settings)],
        ),
        overload_manager=connection_limit(),
        layered_runtime=runtime(),
    )


def _node(settings: GatewaySettings) -> Node | None:
    # Envoy requires a node name where it reads endpoints from a file.
    return Node(id=LISTENER, cluster=LISTENER) if settings.cluster_type is ClusterType.OVERRIDE_HOST else None


def _admin(settings: GatewaySettings) -> Admin | None:
    if settings.admin_address is None:
        return None
    return Admin(address=envoy_address(parse_address(settings.admin_address, setting="admin_address")))


def _listener(settings: GatewaySettings) -> Listener:
    manager = HttpConnectionManager(
        stat_prefix=LISTENER,
        access_log=_access_logs(settings),
        route_config=_routes(settings),
        http_filters=[
            HttpFilter(name="envoy.filters.http.header_mutation", typed_config=Any.pack(_header_removal(settings))),
            HttpFilter(name="envoy.filters.http.ext_proc", typed_config=Any.pack(_external_processor(settings))),
            HttpFilter(name="envoy.filters.http.router", typed_config=Any.pack(Router())),
        ],
        # The first token may take minutes.
        stream_idle_timeout=_NEVER,
        use_remote_address=True,
        # The picker uses the client's request id, as its seed for example.
        preserve_external_request_id=True,
    )
    limit_connections_of(manager, is_open=settings.failure_mode is FailureMode.FAIL_OPEN)
    return Listener(
        name=LISTENER,
        address=envoy_address(settings.listen),
        filter_chains=[
            FilterChain(
                filters=[Filter(name="envoy.filters.network.http_connection_manager", typed_config=Any.pack(manager))],
            ),
        ],
        per_connection_buffer_limit_bytes=settings.buffer_limit_bytes,
    )


def _access_logs(settings: GatewaySettings) -> list[AccessLog]:
    if not settings.access_log:
        return []
    stdout = StdoutAccessLog(log_format=SubstitutionFormatString(json_format=Struct.from_dict(_ACCESS_LOG)))
    return [AccessLog(name="envoy.access_loggers.stdout", typed_config=Any.pack(stdout))]


def _routes(settings: GatewaySettings) -> RouteConfiguration:
    to_model_servers = Route(match=RouteMatch(prefix="/"), route=RouteAction(cluster=MODEL_SERVERS, timeout=_NEVER))
    if settings.cluster_type is ClusterType.OVERRIDE_HOST and to_model_servers.route is not None:
        to_model_servers.route.retry_policy = retry_policy(settings)
        # A server behind a proxy of many names is asked by its own; endpoints without HTTPS have no host name here.
        to_model_servers.route.auto_host_rewrite = settings.endpoint_tls or None
    if settings.cluster_type is ClusterType.OVERRIDE_HOST or settings.body_modes.request is BodyMode.BUFFERED:
        # Limits the body that is buffered for a retry, or for a picker that gets bodies whole.
        to_model_servers.request_body_buffer_limit = settings.max_body_bytes
    everything = VirtualHost(name=MODEL_SERVERS, domains=["*"], routes=[to_model_servers])
    return RouteConfiguration(name=MODEL_SERVERS, virtual_hosts=[everything])


def _external_processor(settings: GatewaySettings) -> ExternalProcessor:
    """Return the filter that sends every request to the picker."""
    return ExternalProcessor(
        grpc_service=GrpcService(
            envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=ENDPOINT_PICKER, skip_envoy_headers=True),
        ),
        processing_mode=ProcessingMode(
            request_header_mode=ProcessingModeHeaderSendMode[settings.request_header_mode],
            request_body_mode=ProcessingModeBodySendMode[settings.body_modes.request],
            request_trailer_mode=ProcessingModeHeaderSendMode[settings.request_trailer_mode],
            response_header_mode=ProcessingModeHeaderSendMode[settings.response_header_mode],
            response_body_mode=ProcessingModeBodySendMode[settings.body_modes.response],
            response_trailer_mode=ProcessingModeHeaderSendMode[settings.response_trailer_mode],
        ),
        failure_mode_allow=settings.failure_mode is FailureMode.FAIL_OPEN,
        message_timeout=timedelta(seconds=settings.message_timeout),
        # The picker asks for more where it holds a request in a queue.
        max_message_timeout=timedelta(seconds=MOST_SECONDS),
        # The picker asks for the bodies of those responses in which something of them is needed.
        allow_mode_override=settings.body_mode is Bodies.BUFFERED,
        # Bodies would be chunked otherwise, in all modes but NONE and BUFFERED. The picker sets the exact length of a
        # body that it changes, or removes the length.
        allow_content_length_header=True,
        # An unreachable picker is a temporary condition of the service, not a fault of the request.
        status_on_error=HttpStatus(code=StatusCode.ServiceUnavailable),
        metadata_options=MetadataOptions(
            forwarding_namespaces=MetadataOptionsMetadataNamespaces(untyped=[SUBSET_NAMESPACE, DESTINATION_NAMESPACE]),
            receiving_namespaces=MetadataOptionsMetadataNamespaces(
                untyped=[DESTINATION_NAMESPACE, *sorted(set(settings.metadata_namespaces) - {DESTINATION_NAMESPACE})]
            ),
        ),
    )


def _header_removal(settings: GatewaySettings) -> HeaderMutation:
    # Envoy connects to the address in the destination header. When a request passes without the picker, a client could
    # otherwise choose its server, and those that the server's sidecar calls.
    names = [DESTINATION]
    if settings.failure_mode is FailureMode.FAIL_OPEN:
        names += sorted(OBEYED_BY_ENDPOINTS)
    return HeaderMutation(mutations=Mutations(request_mutations=[OneHeaderMutation(remove=name) for name in names]))


_Limits_all__ = ["connection_limit", "limit_connections_of", "runtime"]

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
