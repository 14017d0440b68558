# SPDX-License-Identifier: Apache-2.0
"""The clusters in Envoy's configuration: the endpoint picker, and the model servers."""

from __future__ import annotations

import ssl
from datetime import timedelta
from pathlib import Path

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    Cluster,
    ClusterCommonLbConfig,
    ClusterDiscoveryType,
    ClusterEdsClusterConfig,
    ClusterLbPolicy,
    ClusterOriginalDstLbConfig,
    ClusterTransportSocketMatch,
    LoadBalancingPolicy,
    LoadBalancingPolicyPolicy,
)
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    ApiVersion,
    ConfigSource,
    DataSource,
    HealthCheck,
    HealthCheckGrpcHealthCheck,
    Http1ProtocolOptions,
    Http2ProtocolOptions,
    HttpProtocolOptions,
    PathConfigSource,
    Pipe,
    SocketAddress,
    TransportSocket,
    TypedExtensionConfig,
    WatchedDirectory,
)
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.config.route.v3 import RetryPolicy, RetryPolicyRetryHostPredicate
from envoy_data_plane.envoy.extensions.load_balancing_policies.least_request.v3 import LeastRequest
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host.v3 import (
    OverrideHost,
    OverrideHostOverrideHostSource,
)
from envoy_data_plane.envoy.extensions.load_balancing_policies.subset.v3 import (
    Subset,
    SubsetLbSubsetFallbackPolicy,
    SubsetLbSubsetSelector,
)
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts.v3 import PreviousHostsPredicate
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import (
    CertificateValidationContext,
    CertificateValidationContextSystemRootCerts,
    CertificateValidationContextTrustChainVerification,
    CommonTlsContext,
    SubjectAltNameMatcher,
    SubjectAltNameMatcherSanType,
    UpstreamTlsContext,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptions as UpstreamProtocolOptions,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptionsExplicitHttpConfig as ExplicitHttpConfig,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.envoy.type.metadata.v3 import MetadataKey, MetadataKeyPathSegment
from envoy_data_plane.envoy.type.v3 import Percent
from envoy_data_plane.google.protobuf import Any, Struct, Value

from epp.framework.endpoint import EndpointTrust
from epp.framework.headers import DESTINATION, DESTINATION_NAMESPACE, DESTINATION_SERVED
from epp.lab.gateway.errors import SettingsError
from epp.lab.gateway.settings import (
    ENDPOINT_PICKER,
    HTTPS,
    MODEL_SERVERS,
    ClusterType,
    FailureMode,
    GatewaySettings,
    PipeAddress,
    parse_address,
)
from epp.runtime.addresses import HostPort

__all__ = ["endpoint_picker", "envoy_address", "model_servers", "retry_policy"]

_NO_LIMIT = 1_000_000
"""The picker limits load, as it knows the model servers; Envoy's default of 1024 would act first."""

_EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_PROTOCOL_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_MIB = 1024 * 1024
# uvicorn, which most model servers run, closes idle connections after 5 s. Closing first avoids requests on a
# connection that the server is closing.
_MODEL_SERVER_IDLE = timedelta(seconds=4)
# A picker names three endpoints at most (maxNumOfEndpoints): the first, and one retry for each of the others.
_RETRIES = 2
_SAFE_TO_RETRY = "connect-failure,refused-stream,reset-before-request"
_RESELECTIONS = 5


def envoy_address(address: HostPort | PipeAddress) -> Address:
    """Return an address in Envoy's form."""
    if isinstance(address, PipeAddress):
        return Address(pipe=Pipe(path=address.path))
    return Address(socket_address=SocketAddress(address=address.host, port_value=address.port))


def endpoint_picker(settings: GatewaySettings) -> Cluster:
    """Return the cluster of the one picker."""
    picker = envoy_address(parse_address(settings.picker_address, setting="picker_address"))
    return Cluster(
        name=ENDPOINT_PICKER,
        type=ClusterDiscoveryType.STATIC,
        connect_timeout=timedelta(seconds=1),
        load_assignment=ClusterLoadAssignment(
            cluster_name=ENDPOINT_PICKER,
            endpoints=[LocalityLbEndpoints(lb_endpoints=[LbEndpoint(endpoint=Endpoint(address=picker))])],
        ),
        # By default Envoy ignores health in a cluster without healthy hosts, and would use a picker that is not ready.
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
    second = timedelta(seconds=1)
    return HealthCheck(
        timeout=second,
        interval=second,
        no_traffic_interval=second,
        no_traffic_healthy_interval=second,
        unhealthy_interval=timedelta(milliseconds=250),  # a picker that has started is in use after this time
        unhealthy_threshold=3,
        healthy_threshold=1,
        grpc_health_check=HealthCheckGrpcHealthCheck(service_name=_EXT_PROC_SERVICE),
    )


def _unverified_tls() -> TransportSocket:
    return _tls_socket(UpstreamTlsContext(common_tls_context=CommonTlsContext(alpn_protocols=["h2"])))


def _tls_socket(context: UpstreamTlsContext) -> TransportSocket:
    return TransportSocket(name="envoy.transport_sockets.tls", typed_config=Any.pack(context))


def _endpoint_tls(settings: GatewaySettings) -> list[ClusterTransportSocketMatch]:
    """Return TLS for the endpoints that the EDS file marks: for those with a host name, and for each IP address."""
    if not settings.endpoint_tls:
        return []
    trust = settings.endpoint_trust
    by_name = UpstreamTlsContext(
        common_tls_context=CommonTlsContext(alpn_protocols=["http/1.1"], validation_context=_validation(trust)),
        auto_host_sni=True,
        auto_sni_san_validation=trust.verify,
    )
    sockets = {HTTPS: by_name}
    for address in settings.endpoint_addresses:
        validation = _validation(trust)
        if trust.verify:
            validation.match_typed_subject_alt_names = [
                SubjectAltNameMatcher(
                    san_type=SubjectAltNameMatcherSanType.IP_ADDRESS, matcher=StringMatcher(exact=address)
                )
            ]
        sockets[address] = UpstreamTlsContext(
            common_tls_context=CommonTlsContext(alpn_protocols=["http/1.1"], validation_context=validation)
        )
    return [
        ClusterTransportSocketMatch(
            name=mark,
            match=Struct(fields={HTTPS: Value(string_value=mark)}),
            transport_socket=_tls_socket(context),
        )
        for mark, context in sockets.items()
    ]


def _validation(trust: EndpointTrust) -> CertificateValidationContext:
    if not trust.verify:
        return CertificateValidationContext(
            trust_chain_verification=CertificateValidationContextTrustChainVerification.ACCEPT_UNTRUSTED
        )
    # The same authorities as those of the picker, which polls the same servers.
    file: Path | str | None = trust.ca_file or ssl.get_default_verify_paths().cafile
    if file is None:
        return CertificateValidationContext(system_root_certs=CertificateValidationContextSystemRootCerts())
    return CertificateValidationContext(trusted_ca=DataSource(filename=str(file)))


def model_servers(settings: GatewaySettings) -> Cluster:
    """Return the cluster of the model servers."""
    cluster = _override_host(settings) if settings.cluster_type is ClusterType.OVERRIDE_HOST else _original_dst()
    cluster.connect_timeout = timedelta(seconds=settings.connect_timeout_seconds)
    cluster.circuit_breakers = _unlimited()
    cluster.per_connection_buffer_limit_bytes = settings.buffer_limit_bytes
    cluster.typed_extension_protocol_options = {
        _PROTOCOL_OPTIONS: Any.pack(
            UpstreamProtocolOptions(
                common_http_protocol_options=HttpProtocolOptions(idle_timeout=_MODEL_SERVER_IDLE),
                explicit_http_config=ExplicitHttpConfig(http_protocol_options=Http1ProtocolOptions()),
            ),
        ),
    }
    return cluster


def retry_policy(settings: GatewaySettings) -> RetryPolicy:
    """Return the policy that sends each retry to the next endpoint in the picker's list.

    A generation is not idempotent: it costs seconds of an accelerator and may have begun to stream. So only failures
    are retried in which no server can have begun to work: no connection (connect-failure), a stream that the server
    rejected (refused-stream), a connection lost before the request's headers were written (reset-before-request). A
    503 is not among them: the server that sent it had the request. A server that dies may have begun, and the request
    may be what it died of: Envoy's `reset` is for those who accept that.
    """
    return RetryPolicy(
        retry_on=f"{_SAFE_TO_RETRY},reset" if settings.retry_on_reset else _SAFE_TO_RETRY,
        num_retries=_RETRIES,
        # For the fallback policy, which could otherwise choose the host that has just failed.
        retry_host_predicate=[
            RetryPolicyRetryHostPredicate(
                name="envoy.retry_host_predicates.previous_hosts", typed_config=Any.pack(PreviousHostsPredicate())
            )
        ],
        host_selection_retry_max_attempts=_RESELECTIONS,
    )


def _original_dst() -> Cluster:
    return Cluster(
        name=MODEL_SERVERS,
        type=ClusterDiscoveryType.ORIGINAL_DST,
        lb_policy=ClusterLbPolicy.CLUSTER_PROVIDED,
        original_dst_lb_config=ClusterOriginalDstLbConfig(use_http_header=True, http_header_name=DESTINATION),
    )


def _override_host(settings: GatewaySettings) -> Cluster:
    if settings.eds_file is None:
        raise SettingsError(
            "eds_file", "missing: an override-host cluster needs a file of endpoints, such as /etc/envoy/endpoints.json"
        )
    fallback = _least_request() if settings.failure_mode is FailureMode.FAIL_OPEN else _no_host()
    policy = OverrideHost(
        override_host_sources=[
            OverrideHostOverrideHostSource(header=DESTINATION),
            OverrideHostOverrideHostSource(metadata=_metadata_key(DESTINATION)),
        ],
        # Tells the picker which endpoint served the request, after a retry too.
        selected_host_key=_metadata_key(DESTINATION_SERVED),
        fallback_policy=fallback,
    )
    return Cluster(
        name=MODEL_SERVERS,
        transport_socket_matches=_endpoint_tls(settings),
        type=ClusterDiscoveryType.EDS,
        eds_cluster_config=ClusterEdsClusterConfig(eds_config=_watched_file(settings.eds_file)),
        load_balancing_policy=_policy("envoy.load_balancing_policies.override_host", policy),
    )


def _watched_file(path: Path) -> ConfigSource:
    # A watch on the directory also sees the symbolic links that Kubernetes swaps in a mounted ConfigMap.
    source = PathConfigSource(path=str(path), watched_directory=WatchedDirectory(path=str(path.parent)))
    return ConfigSource(path_config_source=source, resource_api_version=ApiVersion.V3)


def _least_request() -> LoadBalancingPolicy:
    return _policy("envoy.load_balancing_policies.least_request", LeastRequest())


def _no_host() -> LoadBalancingPolicy:
    # Any other policy would bypass the picker's filters once its list is used up, and could choose a prefill server.
    # Hosts have no such metadata, so every subset of this policy is empty.
    subset = Subset(
        fallback_policy=SubsetLbSubsetFallbackPolicy.NO_FALLBACK,
        subset_selectors=[SubsetLbSubsetSelector(keys=["no-endpoint-has-this"])],
        subset_lb_policy=_least_request(),
    )
    return _policy("envoy.load_balancing_policies.subset", subset)


def _policy(name: str, config: OverrideHost | LeastRequest | Subset) -> LoadBalancingPolicy:
    extension = TypedExtensionConfig(name=name, typed_config=Any.pack(config))
    return LoadBalancingPolicy(policies=[LoadBalancingPolicyPolicy(typed_extension_config=extension)])


def _metadata_key(name: str) -> MetadataKey:
    return MetadataKey(key=DESTINATION_NAMESPACE, path=[MetadataKeyPathSegment(key=name)])


def _unlimited() -> CircuitBreakers:
    limits = CircuitBreakersThresholds(
        max_connections=_NO_LIMIT, max_pending_requests=_NO_LIMIT, max_requests=_NO_LIMIT, max_retries=_NO_LIMIT
    )
    return CircuitBreakers(thresholds=[limits])
