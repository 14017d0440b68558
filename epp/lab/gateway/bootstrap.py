# SPDX-License-Identifier: Apache-2.0
"""Envoy's bootstrap configuration: a listener, its filters and the clusters, validated by Envoy's typed classes."""

import json
import ssl
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from epp.framework.endpoint import EndpointTrust
from epp.framework.headers import (
    DESTINATION,
    DESTINATION_NAMESPACE,
    DESTINATION_SERVED,
    DROPPED_REASON,
    OBEYED_BY_ENDPOINTS,
    REQUEST_ID,
    SUBSET_NAMESPACE,
)
from epp.lab.gateway.settings import (
    ENDPOINT_PICKER,
    HTTPS,
    LISTENER,
    MODEL_SERVERS,
    Bodies,
    ClusterType,
    FailureMode,
    GatewaySettings,
    PackageMissingError,
    SettingsError,
)
from epp.runtime.addresses import parse_host_port

Fields = dict[str, Any]
"""An Envoy message in protobuf's JSON mapping, with field names in snake case."""

_NO_LIMIT = 1_000_000
"""Value that disables a limit: the picker limits the load, and Envoy's default of 1024 would apply first."""
_UNLIMITED = {
    "thresholds": [dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), _NO_LIMIT)]
}
_MIB = 1024 * 1024
_SAFE_TO_RETRY = "connect-failure,refused-stream,reset-before-request"
_EXTENSIONS = (
    "access_loggers.stream",
    "filters.http.ext_proc",
    "filters.http.header_mutation",
    "filters.http.router",
    "filters.network.http_connection_manager",
    "load_balancing_policies.least_request",
    "load_balancing_policies.override_host",
    "load_balancing_policies.subset",
    "resource_monitors.downstream_connections",
    "retry.host.previous_hosts",
    "transport_sockets.tls",
    "upstreams.http",
)
"""Packages of the messages in an `Any`; a message can be decoded only after its package is imported."""
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
_MOST_CONNECTIONS = 10_000
"""Maximum number of client connections; further ones are closed."""
_RUNTIME = {
    # Envoy's defaults: a connection that resets most of its streams this early is closed.
    "overload.premature_reset_total_stream_count": 500,
    "overload.premature_reset_min_stream_lifetime_seconds": 1,
    # By default, Envoy starts all requests of one read before it serves other connections.
    "http.max_requests_per_io_cycle": 10,
}


def load_types() -> Any:
    """Return the typed class of the bootstrap. Loading takes almost a second, so call this before anything else runs.

    Raises `PackageMissingError` without `envoy-data-plane`.
    """
    with warnings.catch_warnings():
        # The package uses pydantic in a deprecated way.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap  # noqa: PLC0415  an optional package

            for package in _EXTENSIONS:
                import_module(f"envoy_data_plane.envoy.extensions.{package}.v3")
        except ModuleNotFoundError as error:
            raise PackageMissingError("envoy-data-plane") from error
    return Bootstrap


def bootstrap_dict(settings: GatewaySettings) -> dict[str, Any]:
    """Return the bootstrap as plain data in protobuf's JSON mapping, field names in snake case.

    Each `typed_config` is expanded, with its `@type`. Raises `PackageMissingError` without `envoy-data-plane`, and
    `SettingsError` for settings that do not fit together, such as an override-host cluster without `eds_file`.
    """
    bootstrap = load_types()
    from betterproto2 import Casing  # noqa: PLC0415  the same

    checked: dict[str, Any] = bootstrap.from_dict(_bootstrap(settings)).to_dict(casing=Casing.SNAKE)
    return checked


def bootstrap_json(settings: GatewaySettings) -> str:
    return json.dumps(bootstrap_dict(settings), indent=2)


def bootstrap_yaml(settings: GatewaySettings) -> str:
    """Return the bootstrap as YAML text, fields in the order in which Envoy's API declares them."""
    return yaml.safe_dump(bootstrap_dict(settings), sort_keys=False, width=100)


def _bootstrap(settings: GatewaySettings) -> Fields:
    if settings.picker_address == str(settings.listen):
        raise SettingsError("listen_port", f"{settings.listen} is the address of the picker: choose another port")
    bootstrap: Fields = {
        "static_resources": {
            "listeners": [_listener(settings)],
            "clusters": [_model_servers(settings), _endpoint_picker(settings)],
        },
        "overload_manager": {
            "resource_monitors": [
                extension(
                    "resource_monitors.global_downstream_max_connections",
                    "DownstreamConnectionsConfig",
                    package="resource_monitors.downstream_connections",
                    max_active_downstream_connections=_MOST_CONNECTIONS,
                )
            ]
        },
        "layered_runtime": {"layers": [{"name": "limits", "static_layer": _RUNTIME}]},
    }
    if settings.cluster_type is ClusterType.OVERRIDE_HOST:
        # Envoy requires a node name if it reads endpoints from a file.
        bootstrap["node"] = {"id": LISTENER, "cluster": LISTENER}
    if settings.admin_address is not None:
        bootstrap["admin"] = {"address": envoy_address(settings.admin_address)}
    return bootstrap


def _listener(settings: GatewaySettings) -> Fields:
    is_open = settings.failure_mode is FailureMode.FAIL_OPEN
    access_log = extension(
        "access_loggers.stdout",
        "StdoutAccessLog",
        package="access_loggers.stream",
        log_format={"json_format": _ACCESS_LOG},
    )
    manager = extension(
        "filters.network.http_connection_manager",
        "HttpConnectionManager",
        stat_prefix=LISTENER,
        access_log=[access_log] if settings.access_log else [],
        route_config=_routes(settings),
        http_filters=[
            _header_removal(is_open=is_open),
            _external_processor(settings),
            extension("filters.http.router", "Router"),
        ],
        # The first token may take minutes.
        stream_idle_timeout="0s",
        use_remote_address=True,
        # The picker uses the client's request id, as its seed for example.
        preserve_external_request_id=True,
        common_http_protocol_options={
            "idle_timeout": "3600s",
            # A server may read `x_header` as `x-header`. The picker removes such spellings of headers that affect
            # routing; with FailOpen, Envoy removes all of them. Otherwise they stay: agents send `session_id`.
            "headers_with_underscores_action": "DROP_HEADER" if is_open else "ALLOW",
        },
        http2_protocol_options={
            "max_concurrent_streams": 100,  # per connection; a client waits, or opens another one
            "initial_stream_window_size": 64 * 1024,
            "initial_connection_window_size": 1024 * 1024,
        },
        # The whole request has no timeout: it may wait in a queue. The picker refuses bodies that stop arriving
        # (--body-timeout).
        request_headers_timeout="10s",
    )
    return {
        "name": LISTENER,
        "address": envoy_address(str(settings.listen)),
        "filter_chains": [{"filters": [manager]}],
        "per_connection_buffer_limit_bytes": settings.buffer_limit_bytes,
    }


def _routes(settings: GatewaySettings) -> Fields:
    action: Fields = {"cluster": MODEL_SERVERS, "timeout": "0s"}
    to_model_servers: Fields = {"match": {"prefix": "/"}, "route": action}
    if settings.cluster_type is ClusterType.OVERRIDE_HOST:
        action["retry_policy"] = _retry_policy(settings)
        if settings.endpoint_tls:
            # A proxy may serve several host names: send that of the endpoint. Only HTTPS endpoints have one here.
            action["auto_host_rewrite"] = True
    buffers_requests = settings.processing_mode["request_body_mode"] == "BUFFERED"
    if settings.cluster_type is ClusterType.OVERRIDE_HOST or buffers_requests:
        # Limits the body that is buffered for a retry, or for a picker that receives whole bodies.
        to_model_servers["request_body_buffer_limit"] = settings.max_body_bytes
    everything = {"name": MODEL_SERVERS, "domains": ["*"], "routes": [to_model_servers]}
    return {"name": MODEL_SERVERS, "virtual_hosts": [everything]}


def _external_processor(settings: GatewaySettings) -> Fields:
    return extension(
        "filters.http.ext_proc",
        "ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": ENDPOINT_PICKER, "skip_envoy_headers": True}},
        processing_mode=settings.processing_mode,
        failure_mode_allow=settings.failure_mode is FailureMode.FAIL_OPEN,
        message_timeout=f"{settings.message_timeout:g}s",
        # The picker requests more time while a request waits in a queue.
        max_message_timeout="3600s",
        # The picker requests the response bodies that it needs.
        allow_mode_override=settings.body_mode is Bodies.BUFFERED,
        # Otherwise, bodies are chunked in all modes except NONE and BUFFERED. The picker sets the exact length of a
        # body that it changes, or removes the length.
        allow_content_length_header=True,
        # An unreachable picker is a temporary condition of the service, not a fault of the request.
        status_on_error={"code": "ServiceUnavailable"},
        metadata_options={
            "forwarding_namespaces": {"untyped": [SUBSET_NAMESPACE, DESTINATION_NAMESPACE]},
            "receiving_namespaces": {
                "untyped": [DESTINATION_NAMESPACE, *sorted({*settings.metadata_namespaces} - {DESTINATION_NAMESPACE})]
            },
        },
    )


def _header_removal(*, is_open: bool) -> Fields:
    # Envoy connects to the address in the destination header. If a request bypasses the picker, its client could
    # otherwise choose the server, and the servers that its sidecar calls.
    names = [DESTINATION, *(sorted(OBEYED_BY_ENDPOINTS) if is_open else ())]
    mutations = {"request_mutations": [{"remove": name} for name in names]}
    return extension("filters.http.header_mutation", "HeaderMutation", mutations=mutations)


def extension(name: str, message: str, *, package: str = "", **fields: Any) -> Fields:
    """Return the configuration of an extension; `package` is the package of its message, by default `name`."""
    kind = f"type.googleapis.com/envoy.extensions.{package or name}.v3.{message}"
    return {"name": f"envoy.{name}", "typed_config": {"@type": kind, **fields}}


def envoy_address(text: str) -> Fields:
    """Return the address of `ip:port`, `[ipv6]:port` or `unix:/absolute/path`."""
    if text.startswith("unix:"):
        return {"pipe": {"path": text.removeprefix("unix:")}}
    address = parse_host_port(text, min_port=0)
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def one_address(cluster: str, address: Fields) -> Fields:
    """Return the `load_assignment` of a cluster with one endpoint."""
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]}


def _endpoint_picker(settings: GatewaySettings) -> Fields:
    picker = envoy_address(settings.picker_address)
    # The certificate is not verified: pickers use self-signed ones.
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
                "unhealthy_interval": "0.250s",  # a new picker is used after this time
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


def _model_servers(settings: GatewaySettings) -> Fields:
    return {
        "name": MODEL_SERVERS,
        **(_override_host(settings) if settings.cluster_type is ClusterType.OVERRIDE_HOST else _ORIGINAL_DST),
        "connect_timeout": "2s",
        "circuit_breakers": _UNLIMITED,
        "per_connection_buffer_limit_bytes": settings.buffer_limit_bytes,
        "typed_extension_protocol_options": _protocol_options(
            # uvicorn, which most model servers run, closes idle connections after 5 s. Closing first avoids requests on
            # a connection that the server is closing.
            common_http_protocol_options={"idle_timeout": "4s"},
            explicit_http_config={"http2_protocol_options" if settings.endpoint_http2 else "http_protocol_options": {}},
        ),
    }


def _retry_policy(settings: GatewaySettings) -> Fields:
    """Return the policy that sends each retry to the next endpoint in the picker's list.

    A generation is not idempotent: it costs seconds of an accelerator and may have begun to stream. A retry happens
    only if no server can have begun to work on it: no connection (connect-failure), a stream that the server rejected
    (refused-stream), a connection lost before the request's headers were written (reset-before-request). A 503 is not
    retried, because the server has received the request. A server that crashes may have begun to work, and the request
    may have caused the crash: `retry_on_reset` accepts this risk.
    """
    return {
        "retry_on": f"{_SAFE_TO_RETRY},reset" if settings.retry_on_reset else _SAFE_TO_RETRY,
        # A picker names three endpoints at most (maxNumOfEndpoints): the first, and one retry for each of the others.
        "num_retries": 2,
        # The fallback policy could otherwise choose the host that has just failed.
        "retry_host_predicate": [
            extension(
                "retry_host_predicates.previous_hosts", "PreviousHostsPredicate", package="retry.host.previous_hosts"
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
            # Reports the endpoint that served the request to the picker, also after a retry.
            selected_host_key=_metadata_key(DESTINATION_SERVED),
            fallback_policy=least_request if settings.failure_mode is FailureMode.FAIL_OPEN else no_host,
        ),
    }


def _endpoint_tls(settings: GatewaySettings) -> list[Fields]:
    """Return the TLS settings of the endpoints marked in the EDS file: for all host names, and for each IP address."""
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
    # The picker uses the same authorities to poll the same servers.
    file: Path | str | None = trust.ca_file or ssl.get_default_verify_paths().cafile
    return {"system_root_certs": {}} if file is None else {"trusted_ca": {"filename": str(file)}}


def _tls_socket(**context: Any) -> Fields:
    return extension("transport_sockets.tls", "UpstreamTlsContext", **context)


def _protocol_options(**options: object) -> Fields:
    name = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {name: {"@type": f"type.googleapis.com/{name}", **options}}


def _policy(name: str, message: str, **fields: Any) -> Fields:
    policy = extension(f"load_balancing_policies.{name}", message, **fields)
    return {"policies": [{"typed_extension_config": policy}]}


def _metadata_key(name: str) -> Fields:
    return {"key": DESTINATION_NAMESPACE, "path": [{"key": name}]}
