# SPDX-License-Identifier: Apache-2.0
"""The clusters in Envoy's configuration: the endpoint picker, and the model servers."""

from __future__ import annotations

import ssl
from pathlib import Path

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

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None

_NO_LIMIT = 1_000_000
"""The picker limits the load of model servers; Envoy's default of 1024 would apply first."""
_EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_PROTOCOL_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_MIB = 1024 * 1024
# uvicorn, which most model servers run, closes idle connections after 5 s. Closing first avoids requests on a
# connection that the server is closing.
_MODEL_SERVER_IDLE_SECONDS = 4.0
# A picker names three endpoints at most (maxNumOfEndpoints): the first, and one retry for each of the others.
_RETRIES = 2
_SAFE_TO_RETRY = "connect-failure,refused-stream,reset-before-request"
_RESELECTIONS = 5


def typed(name: str, **fields: Json) -> Json:
    """Return a `typed_config` of Envoy's message `name`."""
    return {"@type": f"type.googleapis.com/{name}", **fields}


def duration(seconds: float) -> str:
    """Return a duration in protobuf's JSON mapping, in microseconds at the finest."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


def envoy_address(address: HostPort | PipeAddress) -> Json:
    """Return an address in Envoy's form."""
    if isinstance(address, PipeAddress):
        return {"pipe": {"path": address.path}}
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def endpoint_picker(settings: GatewaySettings) -> Json:
    """Return the cluster of the one picker."""
    picker = envoy_address(parse_address(settings.picker_address, setting="picker_address"))
    options = {
        "max_concurrent_streams": _NO_LIMIT,
        "initial_stream_window_size": 16 * _MIB,
        "initial_connection_window_size": 256 * _MIB,
    }
    cluster: dict[str, Json] = {
        "name": ENDPOINT_PICKER,
        "type": "STATIC",
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": settings.buffer_limit_bytes,
        "load_assignment": {
            "cluster_name": ENDPOINT_PICKER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": picker}}]}],
        },
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "1s",
                "unhealthy_threshold": 3,
                "healthy_threshold": 1,
                "grpc_health_check": {"service_name": _EXT_PROC_SERVICE},
                "no_traffic_interval": "1s",
                "no_traffic_healthy_interval": "1s",
                "unhealthy_interval": "0.250s",  # time until a new picker is used
            }
        ],
        "circuit_breakers": _unlimited(),
        "typed_extension_protocol_options": {
            _PROTOCOL_OPTIONS: typed(_PROTOCOL_OPTIONS, explicit_http_config={"http2_protocol_options": {**options}})
        },
        # 0: by default, Envoy ignores health without healthy hosts, and would use a picker that is not ready.
        "common_lb_config": {"healthy_panic_threshold": {}},
    }
    if settings.picker_tls:  # the certificate is not verified
        cluster["transport_socket"] = _tls_socket({"common_tls_context": {"alpn_protocols": ["h2"]}})
    return cluster


def _tls_socket(context: dict[str, Json]) -> Json:
    config = typed("envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", **context)
    return {"name": "envoy.transport_sockets.tls", "typed_config": config}


def _endpoint_tls(settings: GatewaySettings) -> list[Json]:
    """Return TLS settings for the endpoints that the EDS file marks: one for host names, one for each IP address."""
    if not settings.endpoint_tls:
        return []
    trust = settings.endpoint_trust
    by_name: dict[str, Json] = {**_validated(trust), "auto_host_sni": True}
    if trust.verify:
        by_name["auto_sni_san_validation"] = True
    contexts = {HTTPS: by_name}
    contexts |= {address: _validated(trust, address) for address in settings.endpoint_addresses}
    return [
        {"name": mark, "match": {HTTPS: mark}, "transport_socket": _tls_socket(context)}
        for mark, context in contexts.items()
    ]


def _validated(trust: EndpointTrust, address: str = "") -> dict[str, Json]:
    """Return a TLS context that verifies the certificate of a server, and that it has this IP address."""
    validation: dict[str, Json] = {}
    # The same authorities as those of the picker, which polls the same servers.
    file: Path | str | None = trust.ca_file or ssl.get_default_verify_paths().cafile
    if not trust.verify:
        validation["trust_chain_verification"] = "ACCEPT_UNTRUSTED"
    elif file is None:
        validation["system_root_certs"] = {}
    else:
        validation["trusted_ca"] = {"filename": str(file)}
    if trust.verify and address:
        validation["match_typed_subject_alt_names"] = [{"san_type": "IP_ADDRESS", "matcher": {"exact": address}}]
    return {"common_tls_context": {"validation_context": validation, "alpn_protocols": ["http/1.1"]}}


def model_servers(settings: GatewaySettings) -> Json:
    """Return the cluster of the model servers."""
    overrides = settings.cluster_type is ClusterType.OVERRIDE_HOST
    discovery = _override_host(settings) if overrides else {"name": MODEL_SERVERS, "type": "ORIGINAL_DST"}
    protocol_options = typed(
        _PROTOCOL_OPTIONS,
        common_http_protocol_options={"idle_timeout": duration(_MODEL_SERVER_IDLE_SECONDS)},
        explicit_http_config={"http_protocol_options": {}},
    )
    cluster: dict[str, Json] = {
        **discovery,
        "connect_timeout": duration(settings.connect_timeout_seconds),
        "per_connection_buffer_limit_bytes": settings.buffer_limit_bytes,
        **({} if overrides else {"lb_policy": "CLUSTER_PROVIDED"}),
        "circuit_breakers": _unlimited(),
        "typed_extension_protocol_options": {_PROTOCOL_OPTIONS: protocol_options},
    }
    if overrides:
        cluster["load_balancing_policy"] = _override_policy(settings)
    else:
        cluster["original_dst_lb_config"] = {"use_http_header": True, "http_header_name": DESTINATION}
    return cluster


def retry_policy(settings: GatewaySettings) -> Json:
    """Return the policy that sends each retry to the next endpoint in the picker's list.

    A generation is not idempotent: it takes seconds of an accelerator, and streaming may have begun. Only failures
    before the server could begin are retried: no connection (connect-failure), a stream that the server rejected
    (refused-stream), a connection lost before the request's headers were written (reset-before-request). A 503 is not
    retried: the server had the request. A server that crashes may have begun, and the request may be the cause:
    Envoy's `reset` is only for operators who accept this.
    """
    # Without the predicate, the fallback policy could choose the host that just failed.
    previous_hosts = typed("envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate")
    return {
        "retry_on": f"{_SAFE_TO_RETRY},reset" if settings.retry_on_reset else _SAFE_TO_RETRY,
        "num_retries": _RETRIES,
        "retry_host_predicate": [
            {"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": previous_hosts}
        ],
        "host_selection_retry_max_attempts": str(_RESELECTIONS),
    }


def _override_host(settings: GatewaySettings) -> dict[str, Json]:
    """Return the fields of a cluster that reads its endpoints from a file."""
    if settings.eds_file is None:
        raise SettingsError(
            "eds_file", "missing: an override-host cluster needs a file of endpoints, such as /etc/envoy/endpoints.json"
        )
    # A watch on the directory also sees the symbolic links that Kubernetes swaps in a mounted ConfigMap.
    source: Json = {"path": str(settings.eds_file), "watched_directory": {"path": str(settings.eds_file.parent)}}
    matches = _endpoint_tls(settings)
    return {
        **({"transport_socket_matches": matches} if matches else {}),
        "name": MODEL_SERVERS,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": {"path_config_source": source, "resource_api_version": "V3"}},
    }


def _override_policy(settings: GatewaySettings) -> Json:
    least_request = _policy("least_request", "least_request.v3.LeastRequest")
    fallback = least_request
    if settings.failure_mode is FailureMode.FAIL_CLOSE:
        # Any other policy would bypass the picker's filters after its list, and could choose a prefill server. Hosts
        # have no such metadata, so every subset of this policy is empty.
        selector: Json = {"keys": ["no-endpoint-has-this"]}
        fallback = _policy("subset", "subset.v3.Subset", subset_selectors=[selector], subset_lb_policy=least_request)
    return _policy(
        "override_host",
        "override_host.v3.OverrideHost",
        override_host_sources=[{"header": DESTINATION}, {"metadata": _metadata_key(DESTINATION)}],
        # Tells the picker which endpoint served the request, after a retry too.
        selected_host_key=_metadata_key(DESTINATION_SERVED),
        fallback_policy=fallback,
    )


def _policy(name: str, message: str, **fields: Json) -> Json:
    config = typed(f"envoy.extensions.load_balancing_policies.{message}", **fields)
    extension: Json = {"name": f"envoy.load_balancing_policies.{name}", "typed_config": config}
    return {"policies": [{"typed_extension_config": extension}]}


def _metadata_key(name: str) -> Json:
    return {"key": DESTINATION_NAMESPACE, "path": [{"key": name}]}


def _unlimited() -> Json:
    names = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    return {"thresholds": [dict.fromkeys(names, _NO_LIMIT)]}
