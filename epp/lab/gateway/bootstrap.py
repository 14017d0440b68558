# SPDX-License-Identifier: Apache-2.0
"""Envoy's configuration: one listener, its filters and the clusters, checked by Envoy's typed classes."""

import json
import warnings
from importlib import import_module
from typing import Any

import yaml

from epp.framework.headers import (
    DESTINATION,
    DESTINATION_NAMESPACE,
    DROPPED_REASON,
    OBEYED_BY_ENDPOINTS,
    REQUEST_ID,
    SUBSET_NAMESPACE,
)
from epp.lab.gateway.clusters import Fields, endpoint_picker, envoy_address, extension, model_servers, retry_policy
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
    PackageMissingError,
    SettingsError,
    parse_address,
)

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
"""Packages of the messages in an `Any`, which are known once they are loaded."""
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
"""Of all clients; a further one is closed."""
_RUNTIME = {
    # Both are Envoy's own: a connection ends that resets most of its streams so early.
    "overload.premature_reset_total_stream_count": 500,
    "overload.premature_reset_min_stream_lifetime_seconds": 1,
    # By default all requests that one read has brought are begun before other connections have their turn.
    "http.max_requests_per_io_cycle": 10,
}


def load_types() -> Any:
    """Return the typed class of the bootstrap; loading it takes most of a second, so do it before anything else runs.

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
    if parse_address(settings.picker_address, setting="picker_address") == settings.listen:
        raise SettingsError("listen_port", f"{settings.listen} is the address of the picker: choose another port")
    bootstrap: Fields = {
        "static_resources": {
            "listeners": [_listener(settings)],
            "clusters": [model_servers(settings), endpoint_picker(settings)],
        },
        "overload_manager": {
            "resource_monitors": [
                extension(
                    "resource_monitors.global_downstream_max_connections",
                    "extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                    max_active_downstream_connections=_MOST_CONNECTIONS,
                )
            ]
        },
        "layered_runtime": {"layers": [{"name": "limits", "static_layer": _RUNTIME}]},
    }
    if settings.cluster_type is ClusterType.OVERRIDE_HOST:
        # Envoy requires a node name where it reads endpoints from a file.
        bootstrap["node"] = {"id": LISTENER, "cluster": LISTENER}
    if settings.admin_address is not None:
        bootstrap["admin"] = {"address": envoy_address(parse_address(settings.admin_address, setting="admin_address"))}
    return bootstrap


def _listener(settings: GatewaySettings) -> Fields:
    is_open = settings.failure_mode is FailureMode.FAIL_OPEN
    manager = extension(
        "filters.network.http_connection_manager",
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=LISTENER,
        access_log=[_access_log()] if settings.access_log else [],
        route_config=_routes(settings),
        http_filters=[
            _header_removal(is_open=is_open),
            _external_processor(settings),
            extension("filters.http.router", "extensions.filters.http.router.v3.Router"),
        ],
        # The first token may take minutes.
        stream_idle_timeout="0s",
        use_remote_address=True,
        # The picker uses the client's request id, as its seed for example.
        preserve_external_request_id=True,
        common_http_protocol_options={
            "idle_timeout": "3600s",
            # A server may take `x_header` for `x-header`. The picker removes such spellings of the names that steer;
            # where requests pass without it, only Envoy does. Elsewhere such names stay: agents send `session_id`.
            "headers_with_underscores_action": "DROP_HEADER" if is_open else "ALLOW",
        },
        http2_protocol_options={
            "max_concurrent_streams": 100,  # of one connection; its client waits, or opens another
            "initial_stream_window_size": 64 * 1024,
            "initial_connection_window_size": 1024 * 1024,
        },
        # None for the whole request: it may wait in a queue. The picker gives up those that stop coming
        # (--body-timeout).
        request_headers_timeout="10s",
    )
    return {
        "name": LISTENER,
        "address": envoy_address(settings.listen),
        "filter_chains": [{"filters": [manager]}],
        "per_connection_buffer_limit_bytes": settings.buffer_limit_bytes,
    }


def _access_log() -> Fields:
    return extension(
        "access_loggers.stdout",
        "extensions.access_loggers.stream.v3.StdoutAccessLog",
        log_format={"json_format": _ACCESS_LOG},
    )


def _routes(settings: GatewaySettings) -> Fields:
    action: Fields = {"cluster": MODEL_SERVERS, "timeout": "0s"}
    to_model_servers: Fields = {"match": {"prefix": "/"}, "route": action}
    if settings.cluster_type is ClusterType.OVERRIDE_HOST:
        action["retry_policy"] = retry_policy(settings)
        if settings.endpoint_tls:
            # A server behind a proxy of many names is asked by its own; endpoints without HTTPS have no host name here.
            action["auto_host_rewrite"] = True
    if settings.cluster_type is ClusterType.OVERRIDE_HOST or settings.body_modes.request is BodyMode.BUFFERED:
        # Limits the body that is buffered for a retry, or for a picker that gets bodies whole.
        to_model_servers["request_body_buffer_limit"] = settings.max_body_bytes
    everything = {"name": MODEL_SERVERS, "domains": ["*"], "routes": [to_model_servers]}
    return {"name": MODEL_SERVERS, "virtual_hosts": [everything]}


def _external_processor(settings: GatewaySettings) -> Fields:
    return extension(
        "filters.http.ext_proc",
        "extensions.filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": ENDPOINT_PICKER, "skip_envoy_headers": True}},
        processing_mode={
            "request_header_mode": settings.request_header_mode,
            "request_body_mode": settings.body_modes.request,
            "request_trailer_mode": settings.request_trailer_mode,
            "response_header_mode": settings.response_header_mode,
            "response_body_mode": settings.body_modes.response,
            "response_trailer_mode": settings.response_trailer_mode,
        },
        failure_mode_allow=settings.failure_mode is FailureMode.FAIL_OPEN,
        message_timeout=f"{settings.message_timeout:.6f}s",
        # The picker asks for more where it holds a request in a queue.
        max_message_timeout=f"{MOST_SECONDS:.0f}s",
        # The picker asks for the bodies of those responses in which something of them is needed.
        allow_mode_override=settings.body_mode is Bodies.BUFFERED,
        # Bodies would be chunked otherwise, in all modes but NONE and BUFFERED. The picker sets the exact length of a
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
    # Envoy connects to the address in the destination header. When a request passes without the picker, a client could
    # otherwise choose its server, and those that the server's sidecar calls.
    names = [DESTINATION, *(sorted(OBEYED_BY_ENDPOINTS) if is_open else ())]
    return extension(
        "filters.http.header_mutation",
        "extensions.filters.http.header_mutation.v3.HeaderMutation",
        mutations={"request_mutations": [{"remove": name} for name in names]},
    )
