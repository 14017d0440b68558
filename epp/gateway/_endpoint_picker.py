"""The endpoint picker as Envoy sees it: the filter that asks it, and the cluster it is in."""

from __future__ import annotations

from datetime import timedelta

from envoy_data_plane.envoy.config.cluster.v3 import Cluster, ClusterCommonLbConfig, ClusterDiscoveryType
from envoy_data_plane.envoy.config.core.v3 import (
    GrpcService,
    GrpcServiceEnvoyGrpc,
    HealthCheck,
    HealthCheckGrpcHealthCheck,
    Http2ProtocolOptions,
    TransportSocket,
)
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    MetadataOptions,
    MetadataOptionsMetadataNamespaces,
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
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

from epp.framework.headers import DESTINATION_NAMESPACE, SUBSET_NAMESPACE
from epp.gateway._addresses import envoy_address
from epp.gateway._limits import NO_LIMIT, PROTOCOL_OPTIONS, unlimited
from epp.gateway.settings import ENDPOINT_PICKER, FailureMode, GatewaySettings, parse_address

__all__ = ["endpoint_picker", "external_processor"]

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

_MIB = 1024 * 1024


def external_processor(settings: GatewaySettings) -> ExternalProcessor:
    """Return the filter that asks the picker about every request."""
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
        message_timeout=timedelta(seconds=settings.patience_seconds),
        # Bodies would be chunked otherwise, in all modes but NONE and BUFFERED. The picker sets the exact length of a
        # body that it changes, or removes the length.
        allow_content_length_header=True,
        # A picker that cannot be reached is a passing condition of the service, not a fault of the request.
        status_on_error=HttpStatus(code=StatusCode.ServiceUnavailable),
        metadata_options=MetadataOptions(
            forwarding_namespaces=MetadataOptionsMetadataNamespaces(untyped=[SUBSET_NAMESPACE, DESTINATION_NAMESPACE]),
            receiving_namespaces=MetadataOptionsMetadataNamespaces(
                untyped=[DESTINATION_NAMESPACE, *sorted(set(settings.metadata_namespaces) - {DESTINATION_NAMESPACE})]
            ),
        ),
    )


def endpoint_picker(settings: GatewaySettings) -> Cluster:
    """Return the cluster that holds the one picker."""
    picker = envoy_address(parse_address(settings.picker_address, setting="picker_address"))
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
        circuit_breakers=unlimited(),
        per_connection_buffer_limit_bytes=settings.buffer_limit_bytes,
        transport_socket=_unverified_tls() if settings.picker_tls else None,
        typed_extension_protocol_options={
            PROTOCOL_OPTIONS: Any.pack(
                UpstreamProtocolOptions(
                    explicit_http_config=ExplicitHttpConfig(
                        http2_protocol_options=Http2ProtocolOptions(
                            max_concurrent_streams=NO_LIMIT,
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
