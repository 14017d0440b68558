"""The Envoy bootstrap as typed resources: one listener that asks the picker, and the two clusters behind it."""

from __future__ import annotations

from datetime import timedelta

from epp.gateway.errors import PackageMissingError
from epp.gateway.settings import LISTENER, GatewaySettings, PipeAddress, TcpAddress, parse_address

try:
    from betterproto2 import Casing
    from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog
    from envoy_data_plane.envoy.config.bootstrap.v3 import Admin, Bootstrap, BootstrapStaticResources
    from envoy_data_plane.envoy.config.cluster.v3 import (
        CircuitBreakers,
        CircuitBreakersThresholds,
        Cluster,
        ClusterCommonLbConfig,
        ClusterDiscoveryType,
        ClusterLbPolicy,
        ClusterOriginalDstLbConfig,
    )
    from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation as OneHeaderMutation
    from envoy_data_plane.envoy.config.core.v3 import (
        Address,
        GrpcService,
        GrpcServiceEnvoyGrpc,
        HealthCheck,
        HealthCheckGrpcHealthCheck,
        Http1ProtocolOptions,
        Http2ProtocolOptions,
        HttpProtocolOptions,
        Pipe,
        SocketAddress,
        TransportSocket,
    )
    from envoy_data_plane.envoy.config.endpoint.v3 import (
        ClusterLoadAssignment,
        Endpoint,
        LbEndpoint,
        LocalityLbEndpoints,
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
    from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import CommonTlsContext, UpstreamTlsContext
    from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
        HttpProtocolOptions as UpstreamProtocolOptions,
    )
    from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
        HttpProtocolOptionsExplicitHttpConfig as ExplicitHttpConfig,
    )
    from envoy_data_plane.envoy.type.v3 import HttpStatus, Percent, StatusCode
    from envoy_data_plane.google.protobuf import Any
except ModuleNotFoundError as error:
    raise PackageMissingError("envoy-data-plane") from error

__all__ = ["Casing", "build_bootstrap"]

DESTINATION_HEADER = "x-gateway-destination-endpoint"
MODEL_SERVERS = "model_servers"
ENDPOINT_PICKER = "endpoint_picker"
EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

_PROTOCOL_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
# Load is limited by the picker, which knows the model servers; Envoy's default of 1024 would cut in before it.
_NO_LIMIT = 1_000_000
_NEVER = timedelta(0)
# uvicorn, which most model servers run, closes idle connections after 5 s. Closing first avoids requests sent
# into a connection that the server is just closing.
_MODEL_SERVER_IDLE = timedelta(seconds=4)
_MIB = 1024 * 1024


def build_bootstrap(settings: GatewaySettings) -> Bootstrap:
    """Return the whole configuration of one Envoy."""
    return Bootstrap(
        admin=_admin(settings),
        static_resources=BootstrapStaticResources(
            listeners=[_listener(settings)],
            clusters=[_model_servers(settings), _endpoint_picker(settings)],
        ),
        overload_manager=_connection_limit(),
    )


def _admin(settings: GatewaySettings) -> Admin | None:
    if settings.admin_address is None:
        return None
    return Admin(address=_address(parse_address(settings.admin_address, setting="admin_address")))


def _connection_limit() -> OverloadManager:
    # Envoy warns at every start when there is no limit at all.
    limit = DownstreamConnectionsConfig(max_active_downstream_connections=_NO_LIMIT)
    monitor = ResourceMonitor(
        name="envoy.resource_monitors.global_downstream_max_connections", typed_config=Any.pack(limit)
    )
    return OverloadManager(resource_monitors=[monitor])


def _listener(settings: GatewaySettings) -> Listener:
    manager = HttpConnectionManager(
        stat_prefix=LISTENER,
        access_log=_access_logs(settings),
        route_config=_routes(),
        http_filters=[
            HttpFilter(
                name="envoy.filters.http.header_mutation", typed_config=Any.pack(_no_destination_from_outside())
            ),
            HttpFilter(name="envoy.filters.http.ext_proc", typed_config=Any.pack(_ext_proc(settings))),
            HttpFilter(name="envoy.filters.http.router", typed_config=Any.pack(Router())),
        ],
        # A model may think for minutes before its first token.
        stream_idle_timeout=_NEVER,
        use_remote_address=True,
        # The caller's request id is what decisions are looked up by.
        preserve_external_request_id=True,
    )
    return Listener(
        name=LISTENER,
        address=_address(settings.listen),
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
    return [AccessLog(name="envoy.access_loggers.stdout", typed_config=Any.pack(StdoutAccessLog()))]


def _routes() -> RouteConfiguration:
    to_model_servers = Route(
        match=RouteMatch(prefix="/"),
        route=RouteAction(cluster=MODEL_SERVERS, timeout=_NEVER),
    )
    everything = VirtualHost(name=MODEL_SERVERS, domains=["*"], routes=[to_model_servers])
    return RouteConfiguration(name=MODEL_SERVERS, virtual_hosts=[everything])


def _no_destination_from_outside() -> HeaderMutation:
    # Envoy goes wherever this header says. When a request passes without the picker (failure_mode_allow), a client
    # could otherwise reach any address that Envoy can.
    return HeaderMutation(mutations=Mutations(request_mutations=[OneHeaderMutation(remove=DESTINATION_HEADER)]))


def _ext_proc(settings: GatewaySettings) -> ExternalProcessor:
    send = ProcessingModeHeaderSendMode.SEND
    return ExternalProcessor(
        grpc_service=GrpcService(
            envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=ENDPOINT_PICKER, skip_envoy_headers=True),
        ),
        processing_mode=ProcessingMode(
            request_header_mode=send,
            request_body_mode=ProcessingModeBodySendMode[settings.request_body_mode],
            request_trailer_mode=send,
            response_header_mode=send,
            response_body_mode=ProcessingModeBodySendMode[settings.response_body_mode],
            response_trailer_mode=send,
        ),
        failure_mode_allow=settings.failure_mode_allow,
        message_timeout=timedelta(seconds=settings.message_timeout_seconds),
        # A picker that cannot be reached is a passing condition of the service, not a fault of the request.
        status_on_error=HttpStatus(code=StatusCode.ServiceUnavailable),
        metadata_options=MetadataOptions(
            forwarding_namespaces=MetadataOptionsMetadataNamespaces(untyped=["envoy.lb.subset_hint", "envoy.lb"]),
            receiving_namespaces=MetadataOptionsMetadataNamespaces(untyped=["envoy.lb"]),
        ),
    )


def _model_servers(settings: GatewaySettings) -> Cluster:
    return Cluster(
        name=MODEL_SERVERS,
        type=ClusterDiscoveryType.ORIGINAL_DST,
        lb_policy=ClusterLbPolicy.CLUSTER_PROVIDED,
        original_dst_lb_config=ClusterOriginalDstLbConfig(use_http_header=True, http_header_name=DESTINATION_HEADER),
        connect_timeout=timedelta(seconds=settings.connect_timeout_seconds),
        circuit_breakers=_unlimited(),
        per_connection_buffer_limit_bytes=settings.buffer_limit_bytes,
        typed_extension_protocol_options={
            _PROTOCOL_OPTIONS: Any.pack(
                UpstreamProtocolOptions(
                    common_http_protocol_options=HttpProtocolOptions(idle_timeout=_MODEL_SERVER_IDLE),
                    explicit_http_config=ExplicitHttpConfig(http_protocol_options=Http1ProtocolOptions()),
                ),
            ),
        },
    )


def _endpoint_picker(settings: GatewaySettings) -> Cluster:
    picker = _address(parse_address(settings.picker_address, setting="picker_address"))
    return Cluster(
        name=ENDPOINT_PICKER,
        type=ClusterDiscoveryType.STATIC,
        connect_timeout=timedelta(seconds=1),
        load_assignment=ClusterLoadAssignment(
            cluster_name=ENDPOINT_PICKER,
            endpoints=[LocalityLbEndpoints(lb_endpoints=[LbEndpoint(endpoint=Endpoint(address=picker))])],
        ),
        # Without this, Envoy would send requests to a picker that says it is not ready, as it is the only one.
        common_lb_config=ClusterCommonLbConfig(healthy_panic_threshold=Percent(value=0.0)),
        health_checks=[_picker_health_check()],
        circuit_breakers=_unlimited(),
        per_connection_buffer_limit_bytes=settings.buffer_limit_bytes,
        transport_socket=_unverified_tls() if settings.picker_tls else None,
        typed_extension_protocol_options={
            _PROTOCOL_OPTIONS: Any.pack(
                UpstreamProtocolOptions(
                    explicit_http_config=ExplicitHttpConfig(
                        http2_protocol_options=Http2ProtocolOptions(
                            max_concurrent_streams=_NO_LIMIT,
                            initial_stream_window_size=16 * _MIB,
                            initial_connection_window_size=256 * _MIB,
                        ),
                    ),
                ),
            ),
        },
    )


def _picker_health_check() -> HealthCheck:
    every_second = timedelta(seconds=1)
    # A picker that comes up, or comes back, is used within this time.
    when_unhealthy = timedelta(milliseconds=250)
    return HealthCheck(
        timeout=every_second,
        interval=every_second,
        no_traffic_interval=every_second,
        no_traffic_healthy_interval=every_second,
        unhealthy_interval=when_unhealthy,
        unhealthy_threshold=3,
        healthy_threshold=1,
        grpc_health_check=HealthCheckGrpcHealthCheck(service_name=EXT_PROC_SERVICE),
    )


def _unverified_tls() -> TransportSocket:
    context = UpstreamTlsContext(common_tls_context=CommonTlsContext(alpn_protocols=["h2"]))
    return TransportSocket(name="envoy.transport_sockets.tls", typed_config=Any.pack(context))


def _unlimited() -> CircuitBreakers:
    return CircuitBreakers(
        thresholds=[
            CircuitBreakersThresholds(
                max_connections=_NO_LIMIT,
                max_pending_requests=_NO_LIMIT,
                max_requests=_NO_LIMIT,
            ),
        ],
    )


def _address(address: TcpAddress | PipeAddress) -> Address:
    if isinstance(address, PipeAddress):
        return Address(pipe=Pipe(path=address.path))
    return Address(socket_address=SocketAddress(address=address.host, port_value=address.port))
