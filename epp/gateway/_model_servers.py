"""The model servers as Envoy sees them: the cluster, how one of its hosts is chosen, and what is tried again."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from envoy_data_plane.envoy.config.cluster.v3 import (
    Cluster,
    ClusterDiscoveryType,
    ClusterEdsClusterConfig,
    ClusterLbPolicy,
    ClusterOriginalDstLbConfig,
    LoadBalancingPolicy,
    LoadBalancingPolicyPolicy,
)
from envoy_data_plane.envoy.config.core.v3 import (
    ApiVersion,
    ConfigSource,
    Http1ProtocolOptions,
    HttpProtocolOptions,
    PathConfigSource,
    TypedExtensionConfig,
    WatchedDirectory,
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
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptions as UpstreamProtocolOptions,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptionsExplicitHttpConfig as ExplicitHttpConfig,
)
from envoy_data_plane.envoy.type.metadata.v3 import MetadataKey, MetadataKeyPathSegment
from envoy_data_plane.google.protobuf import Any

from epp.framework.headers import DESTINATION, DESTINATION_NAMESPACE, DESTINATION_SERVED
from epp.gateway._limits import PROTOCOL_OPTIONS, unlimited
from epp.gateway.errors import SettingsError
from epp.gateway.settings import MODEL_SERVERS, ClusterType, FailureMode, GatewaySettings

__all__ = ["model_servers", "retry_policy"]

# uvicorn, which most model servers run, closes idle connections after 5 s. Closing first avoids requests sent
# into a connection that the server is just closing.
_MODEL_SERVER_IDLE = timedelta(seconds=4)
# A picker names three endpoints at most (maxNumOfEndpoints): the first, and one retry for each of the others.
_RETRIES = 2
_RESELECTIONS = 5


def model_servers(settings: GatewaySettings) -> Cluster:
    """Return the cluster that requests go to."""
    cluster = _override_host(settings) if settings.cluster_type is ClusterType.OVERRIDE_HOST else _original_dst()
    cluster.connect_timeout = timedelta(seconds=settings.connect_timeout_seconds)
    cluster.circuit_breakers = unlimited()
    cluster.per_connection_buffer_limit_bytes = settings.buffer_limit_bytes
    cluster.typed_extension_protocol_options = {
        PROTOCOL_OPTIONS: Any.pack(
            UpstreamProtocolOptions(
                common_http_protocol_options=HttpProtocolOptions(idle_timeout=_MODEL_SERVER_IDLE),
                explicit_http_config=ExplicitHttpConfig(http_protocol_options=Http1ProtocolOptions()),
            ),
        ),
    }
    return cluster


def retry_policy() -> RetryPolicy:
    """Return what walks the picker's list: each retry goes to the next endpoint of it.

    A generation is not idempotent: it costs seconds of an accelerator and may have begun to stream. So only those
    failures are retried in which no server can have begun to work: no connection (connect-failure), a stream that
    the server says it did not take (refused-stream), a connection lost before the request's headers were written
    (reset-before-request). A 503 is not among them: the server that sent it had the request.
    """
    return RetryPolicy(
        retry_on="connect-failure,refused-stream,reset-before-request",
        num_retries=_RETRIES,
        # The list needs no help to go on; the fallback policy would take the host that just failed again.
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
            "eds_file: Envoy finds the endpoints of an override-host cluster in a file; name it, as in "
            "/etc/envoy/endpoints.json"
        )
    fallback = _least_request() if settings.failure_mode is FailureMode.FAIL_OPEN else _nobody()
    policy = OverrideHost(
        override_host_sources=[
            OverrideHostOverrideHostSource(header=DESTINATION),
            OverrideHostOverrideHostSource(metadata=_metadata_key(DESTINATION)),
        ],
        # After a retry the picker learns from this who served the request.
        selected_host_key=_metadata_key(DESTINATION_SERVED),
        fallback_policy=fallback,
    )
    return Cluster(
        name=MODEL_SERVERS,
        type=ClusterDiscoveryType.EDS,
        eds_cluster_config=ClusterEdsClusterConfig(eds_config=_followed(settings.eds_file)),
        load_balancing_policy=_policy("envoy.load_balancing_policies.override_host", policy),
    )


def _followed(path: Path) -> ConfigSource:
    # Watching the directory, not the file, also sees the symbolic links that Kubernetes swaps in a mounted ConfigMap.
    source = PathConfigSource(path=str(path), watched_directory=WatchedDirectory(path=str(path.parent)))
    return ConfigSource(path_config_source=source, resource_api_version=ApiVersion.V3)


def _least_request() -> LoadBalancingPolicy:
    return _policy("envoy.load_balancing_policies.least_request", LeastRequest())


def _nobody() -> LoadBalancingPolicy:
    # Any other policy would send a request past the picker's filters, to a prefill server for example, once the list
    # is used up. Hosts carry no such metadata, so every subset of this one is empty.
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
