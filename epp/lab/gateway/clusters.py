# SPDX-License-Identifier: Apache-2.0
"""The clusters in Envoy's configuration, as plain data: the endpoint picker, and the model servers."""

import ssl
from pathlib import Path
from typing import Any

from epp.framework.endpoint import EndpointTrust
from epp.framework.headers import DESTINATION, DESTINATION_NAMESPACE, DESTINATION_SERVED
from epp.lab.gateway.settings import (
    ENDPOINT_PICKER,
    HTTPS,
    MODEL_SERVERS,
    ClusterType,
    FailureMode,
    GatewaySettings,
    PipeAddress,
    SettingsError,
    parse_address,
)
from epp.runtime.addresses import HostPort

Fields = dict[str, Any]
"""A message of Envoy in protobuf's JSON mapping, with field names in snake case."""

_NO_LIMIT = 1_000_000
"""The picker limits load, as it knows the model servers; Envoy's default of 1024 would act first."""
_UNLIMITED = {
    "thresholds": [dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), _NO_LIMIT)]
}
_MIB = 1024 * 1024
_SAFE_TO_RETRY = "connect-failure,refused-stream,reset-before-request"


def typed(name: str, **fields: object) -> Fields:
    """Return the message of this type, without the prefix `envoy.`, as an `Any`."""
    return {"@type": f"type.googleapis.com/envoy.{name}", **fields}


def extension(name: str, type_name: str, **fields: object) -> Fields:
    """Return the configuration of an extension; both names are without the prefix `envoy.`."""
    return {"name": f"envoy.{name}", "typed_config": typed(type_name, **fields)}


def envoy_address(address: HostPort | PipeAddress) -> Fields:
    if isinstance(address, PipeAddress):
        return {"pipe": {"path": address.path}}
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def one_address(cluster: str, address: Fields) -> Fields:
    """Return the `load_assignment` of a cluster with one endpoint."""
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]}


def endpoint_picker(settings: GatewaySettings) -> Fields:
    picker = envoy_address(parse_address(settings.picker_address, setting="picker_address"))
    # Its certificate is not verified: pickers serve self-signed ones.
    tls = {"transport_socket": _tls_socket(common_tls_context={"alpn_protocols": ["h2"]})}
    return {
        "name": ENDPOINT_PICKER,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": one_address(ENDPOINT_PICKER, picker),
        # By default Envoy ignores health in a cluster without healthy hosts, and would use a picker that is not ready.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0.0}},
        "health_checks": [
            {
                **dict.fromkeys(("timeout", "interval", "no_traffic_interval", "no_traffic_healthy_interval"), "1s"),
                "unhealthy_interval": "0.250s",  # a picker that has started is in use after this time
                "unhealthy_threshold": 3,
                "healthy_threshold": 1,
                "grpc_health_check": {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"},
            }
        ],
        "circuit_breakers": _UNLIMITED,
        "per_connection_buffer_limit_bytes": settings.buffer_limit_bytes,
        **(tls if settings.picker_tls else {}),
        "typed_extension_protocol_options": _protocol_options(
            explicit_http_config={
                "http2_protocol_options": {
                    "max_concurrent_streams": _NO_LIMIT,
                    "initial_stream_window_size": 16 * _MIB,
                    "initial_connection_window_size": 256 * _MIB,
                }
            }
        ),
    }


def model_servers(settings: GatewaySettings) -> Fields:
    return {
        "name": MODEL_SERVERS,
        **(_override_host(settings) if settings.cluster_type is ClusterType.OVERRIDE_HOST else _ORIGINAL_DST),
        "connect_timeout": f"{settings.connect_timeout_seconds:.6f}s",
        "circuit_breakers": _UNLIMITED,
        "per_connection_buffer_limit_bytes": settings.buffer_limit_bytes,
        "typed_extension_protocol_options": _protocol_options(
            # uvicorn, which most model servers run, closes idle connections after 5 s. Closing first avoids requests on
            # a connection that the server is closing.
            common_http_protocol_options={"idle_timeout": "4s"},
            explicit_http_config={"http2_protocol_options" if settings.endpoint_http2 else "http_protocol_options": {}},
        ),
    }


def retry_policy(settings: GatewaySettings) -> Fields:
    """Return the policy that sends each retry to the next endpoint in the picker's list.

    A generation is not idempotent: it costs seconds of an accelerator and may have begun to stream. So only failures
    are retried in which no server can have begun to work: no connection (connect-failure), a stream that the server
    rejected (refused-stream), a connection lost before the request's headers were written (reset-before-request). A
    503 is not among them: the server that sent it had the request. A server that dies may have begun, and the request
    may be what it died of: Envoy's `reset` is for those who accept that.
    """
    return {
        "retry_on": f"{_SAFE_TO_RETRY},reset" if settings.retry_on_reset else _SAFE_TO_RETRY,
        # A picker names three endpoints at most (maxNumOfEndpoints): the first, and one retry for each of the others.
        "num_retries": 2,
        # For the fallback policy, which could otherwise choose the host that has just failed.
        "retry_host_predicate": [
            extension(
                "retry_host_predicates.previous_hosts", "extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
            )
        ],
        "host_selection_retry_max_attempts": 5,
    }


_ORIGINAL_DST: Fields = {
    "type": "ORIGINAL_DST",
    "lb_policy": "CLUSTER_PROVIDED",
    "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
}


def _override_host(settings: GatewaySettings) -> Fields:
    file = settings.eds_file
    if file is None:
        raise SettingsError(
            "eds_file", "missing: an override-host cluster needs a file of endpoints, such as /etc/envoy/endpoints.json"
        )
    least_request = _policy("least_request", "LeastRequest")
    # Any other policy would bypass the picker's filters once its list is used up, and could choose a prefill server.
    # Hosts have no such metadata, so every subset of this policy is empty.
    no_host = _policy(
        "subset",
        "Subset",
        fallback_policy="NO_FALLBACK",
        subset_selectors=[{"keys": ["no-endpoint-has-this"]}],
        subset_lb_policy=least_request,
    )
    # A watch on the directory also sees the symbolic links that Kubernetes swaps in a mounted ConfigMap.
    watched = {"path": str(file), "watched_directory": {"path": str(file.parent)}}
    return {
        "transport_socket_matches": _endpoint_tls(settings) if settings.endpoint_tls else [],
        "type": "EDS",
        "eds_cluster_config": {"eds_config": {"path_config_source": watched, "resource_api_version": "V3"}},
        "load_balancing_policy": _policy(
            "override_host",
            "OverrideHost",
            override_host_sources=[{"header": DESTINATION}, {"metadata": _metadata_key(DESTINATION)}],
            # Tells the picker which endpoint served the request, after a retry too.
            selected_host_key=_metadata_key(DESTINATION_SERVED),
            fallback_policy=least_request if settings.failure_mode is FailureMode.FAIL_OPEN else no_host,
        ),
    }


def _endpoint_tls(settings: GatewaySettings) -> list[Fields]:
    """Return TLS for the endpoints that the EDS file marks: for those with a host name, and for each IP address."""
    trust = settings.endpoint_trust
    validation = _validation(trust)
    sockets: dict[str, Fields] = {
        HTTPS: {
            "common_tls_context": _alpn(validation, settings),
            "auto_host_sni": True,
            "auto_sni_san_validation": trust.verify,
        }
    }
    for address in settings.endpoint_addresses:
        names = [{"san_type": "IP_ADDRESS", "matcher": {"exact": address}}]
        of_address = {**validation, "match_typed_subject_alt_names": names} if trust.verify else validation
        sockets[address] = {"common_tls_context": _alpn(of_address, settings)}
    return [
        {"name": mark, "match": {HTTPS: mark}, "transport_socket": _tls_socket(**context)}
        for mark, context in sockets.items()
    ]


def _alpn(validation: Fields, settings: GatewaySettings) -> Fields:
    return {"alpn_protocols": ["h2" if settings.endpoint_http2 else "http/1.1"], "validation_context": validation}


def _validation(trust: EndpointTrust) -> Fields:
    if not trust.verify:
        return {"trust_chain_verification": "ACCEPT_UNTRUSTED"}
    # The same authorities as those of the picker, which polls the same servers.
    file: Path | str | None = trust.ca_file or ssl.get_default_verify_paths().cafile
    return {"system_root_certs": {}} if file is None else {"trusted_ca": {"filename": str(file)}}


def _tls_socket(**context: object) -> Fields:
    return extension("transport_sockets.tls", "extensions.transport_sockets.tls.v3.UpstreamTlsContext", **context)


def _protocol_options(**options: object) -> Fields:
    name = "extensions.upstreams.http.v3.HttpProtocolOptions"
    return {f"envoy.{name}": typed(name, **options)}


def _policy(name: str, message: str, **fields: object) -> Fields:
    policy = extension(
        f"load_balancing_policies.{name}", f"extensions.load_balancing_policies.{name}.v3.{message}", **fields
    )
    return {"policies": [{"typed_extension_config": policy}]}


def _metadata_key(name: str) -> Fields:
    return {"key": DESTINATION_NAMESPACE, "path": [{"key": name}]}
