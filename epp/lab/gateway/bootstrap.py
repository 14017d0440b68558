# SPDX-License-Identifier: Apache-2.0
"""The Envoy bootstrap in protobuf's JSON mapping: one listener, its filters, the clusters and limits on clients.

Fields are in the order in which Envoy's API declares them.
"""

from __future__ import annotations

import json
from typing import Final

import yaml

from epp.framework.headers import (
    DESTINATION,
    DESTINATION_NAMESPACE,
    DROPPED_REASON,
    OBEYED_BY_ENDPOINTS,
    REQUEST_ID,
    SUBSET_NAMESPACE,
)
from epp.lab.gateway.clusters import Json, duration, endpoint_picker, envoy_address, model_servers, retry_policy, typed
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
    HeaderMode,
    parse_address,
)

_ACCESS_LOG: Final = {
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
MOST_CONNECTIONS: Final = 10_000
"""Connections of all clients; more are closed."""
_MOST_STREAMS: Final = 100
"""Streams of one connection; its client waits or opens another connection."""
_STREAM_WINDOW_BYTES: Final = 64 * 1024
_CONNECTION_WINDOW_BYTES: Final = 1024 * 1024
_IDLE_SECONDS: Final = 3600.0
_HEADERS_SECONDS: Final = 10.0
_RUNTIME: Final[dict[str, Json]] = {
    # Envoy ends a connection that resets most of its streams this early.
    "overload.premature_reset_total_stream_count": 500.0,
    "overload.premature_reset_min_stream_lifetime_seconds": 1.0,
    # By default, Envoy starts all requests of one read before it serves other connections.
    "http.max_requests_per_io_cycle": 10.0,
}
"""Limits that Envoy reads only from its runtime."""


def bootstrap_dict(settings: GatewaySettings) -> dict[str, Json]:
    """Return the configuration of one Envoy as plain data in protobuf's JSON mapping, field names in snake case.

    Raises `SettingsError` for settings that do not fit together, such as an override-host cluster without `eds_file`.
    """
    if parse_address(settings.picker_address, setting="picker_address") == settings.listen:
        raise SettingsError("listen_port", f"{settings.listen} is the address of the picker: choose another port")
    bootstrap: dict[str, Json] = {}
    if settings.cluster_type is ClusterType.OVERRIDE_HOST:  # required to read endpoints from a file
        bootstrap["node"] = {"id": LISTENER, "cluster": LISTENER}
    bootstrap["static_resources"] = {
        "listeners": [_listener(settings)],
        "clusters": [model_servers(settings), endpoint_picker(settings)],
    }
    bootstrap["layered_runtime"] = {"layers": [{"name": "limits", "static_layer": {**_RUNTIME}}]}
    if settings.admin_address is not None:
        bootstrap["admin"] = {"address": envoy_address(parse_address(settings.admin_address, setting="admin_address"))}
    limit = typed(
        "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        max_active_downstream_connections=str(MOST_CONNECTIONS),
    )
    monitor: Json = {"name": "envoy.resource_monitors.global_downstream_max_connections", "typed_config": limit}
    bootstrap["overload_manager"] = {"resource_monitors": [monitor]}
    return bootstrap


def bootstrap_json(settings: GatewaySettings) -> str:
    """Return the bootstrap as JSON text."""
    return json.dumps(bootstrap_dict(settings), indent=2)


def bootstrap_yaml(settings: GatewaySettings) -> str:
    """Return the bootstrap as YAML text."""
    return yaml.safe_dump(bootstrap_dict(settings), sort_keys=False, width=100)


def _listener(settings: GatewaySettings) -> Json:
    http = "envoy.extensions.filters.http"
    options: dict[str, Json] = {"idle_timeout": duration(_IDLE_SECONDS)}
    if settings.failure_mode is FailureMode.FAIL_OPEN:
        # A server may treat `x_header` as `x-header`. The picker removes such spellings of the headers that it obeys;
        # with FailOpen only Envoy can. Otherwise such names stay: agents send `session_id`.
        options["headers_with_underscores_action"] = "DROP_HEADER"
    access_log: dict[str, Json] = {"access_log": [_stdout_log()]} if settings.access_log else {}
    manager = typed(
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=LISTENER,
        route_config=_routes(settings),
        http_filters=[
            {
                "name": "envoy.filters.http.header_mutation",
                "typed_config": typed(f"{http}.header_mutation.v3.HeaderMutation", mutations=_header_removal(settings)),
            },
            {"name": "envoy.filters.http.ext_proc", "typed_config": _external_processor(settings)},
            {"name": "envoy.filters.http.router", "typed_config": typed(f"{http}.router.v3.Router")},
        ],
        common_http_protocol_options=options,
        http2_protocol_options={
            "max_concurrent_streams": _MOST_STREAMS,
            "initial_stream_window_size": _STREAM_WINDOW_BYTES,
            "initial_connection_window_size": _CONNECTION_WINDOW_BYTES,
        },
        stream_idle_timeout="0s",  # the first token may take minutes
        # No timeout for the whole request, which may wait in a queue. The picker's --body-timeout limits incomplete
        # bodies.
        request_headers_timeout=duration(_HEADERS_SECONDS),
        **access_log,
        use_remote_address=True,
        preserve_external_request_id=True,  # the picker uses the client's request id, as its seed for example
    )
    filters: Json = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    return {
        "name": LISTENER,
        "address": envoy_address(settings.listen),
        "filter_chains": [{"filters": filters}],
        "per_connection_buffer_limit_bytes": settings.buffer_limit_bytes,
    }


def _stdout_log() -> Json:
    log = typed(
        "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog", log_format={"json_format": {**_ACCESS_LOG}}
    )
    return {"name": "envoy.access_loggers.stdout", "typed_config": log}


def _routes(settings: GatewaySettings) -> Json:
    action: dict[str, Json] = {"cluster": MODEL_SERVERS}
    overrides = settings.cluster_type is ClusterType.OVERRIDE_HOST
    if overrides and settings.endpoint_tls:
        # A proxy with several names needs the host name of the server; endpoints without HTTPS have none here.
        action["auto_host_rewrite"] = True
    action["timeout"] = "0s"
    if overrides:
        action["retry_policy"] = retry_policy(settings)
    route: dict[str, Json] = {"match": {"prefix": "/"}, "route": action}
    if overrides or settings.body_modes.request is BodyMode.BUFFERED:
        # Limits the body that is buffered for a retry, or for a picker that gets bodies whole.
        route["request_body_buffer_limit"] = settings.max_body_bytes
    return {"name": MODEL_SERVERS, "virtual_hosts": [{"name": MODEL_SERVERS, "domains": ["*"], "routes": [route]}]}


def _external_processor(settings: GatewaySettings) -> Json:
    """Return the filter that sends every request to the picker."""
    modes: dict[str, Json] = {
        "request_header_mode": settings.request_header_mode.value,
        "response_header_mode": settings.response_header_mode.value,
        "request_body_mode": settings.body_modes.request.value,
        "response_body_mode": settings.body_modes.response.value,
        "request_trailer_mode": settings.request_trailer_mode.value,
        "response_trailer_mode": settings.response_trailer_mode.value,
    }
    defaults = (HeaderMode.DEFAULT.value, BodyMode.NONE.value)
    failure_mode: dict[str, Json] = (
        {"failure_mode_allow": True} if settings.failure_mode is FailureMode.FAIL_OPEN else {}
    )
    # The picker requests the bodies of the responses that it must read.
    override: dict[str, Json] = {"allow_mode_override": True} if settings.body_mode is Bodies.BUFFERED else {}
    received = [DESTINATION_NAMESPACE, *sorted(set(settings.metadata_namespaces) - {DESTINATION_NAMESPACE})]
    return typed(
        "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": ENDPOINT_PICKER, "skip_envoy_headers": True}},
        **failure_mode,
        processing_mode={name: mode for name, mode in modes.items() if mode not in defaults},
        message_timeout=duration(settings.message_timeout),
        # The picker requests more time for a queued request.
        max_message_timeout=duration(MOST_SECONDS),
        **override,
        metadata_options={
            "forwarding_namespaces": {"untyped": [SUBSET_NAMESPACE, DESTINATION_NAMESPACE]},
            "receiving_namespaces": {"untyped": [*received]},
        },
        # An unreachable picker is a temporary condition of the service, not a fault of the request.
        status_on_error={"code": "ServiceUnavailable"},
        # Otherwise bodies would be chunked, in all modes but NONE and BUFFERED. The picker sets the exact length of a
        # body that it changes, or removes the length.
        allow_content_length_header=True,
    )


def _header_removal(settings: GatewaySettings) -> Json:
    # Envoy connects to the address in the destination header. Without the picker, a client could set this header, and
    # the headers that the sidecar of a server obeys.
    names = [DESTINATION]
    if settings.failure_mode is FailureMode.FAIL_OPEN:
        names += sorted(OBEYED_BY_ENDPOINTS)
    return {"request_mutations": [{"remove": name} for name in names]}
