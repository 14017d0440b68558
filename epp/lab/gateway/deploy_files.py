# SPDX-License-Identifier: Apache-2.0
"""The Envoy configurations in `deploy/`: stand-alone ones, and those in the pods of the chart (`deploy/chart/files/`).

They are complete, with the addresses of a sidecar. The chart replaces the values of a release: ports, the picker's
address, limits, and the name of the model servers' Service.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml

from epp.framework.headers import DESTINATION, OBEYED_BY_ENDPOINTS
from epp.lab.gateway.bootstrap import bootstrap_dict, bootstrap_yaml
from epp.lab.gateway.clusters import Json
from epp.lab.gateway.settings import Bodies, BodyMode, ClusterType, FailureMode, GatewaySettings

_HEADER = """\
# For a stand-alone Envoy (1.40 or later) next to a picker started with `epp serve`: on a virtual machine, on bare
# metal, as a sidecar. A Kubernetes gateway configures Envoy itself; to try things out, `epp gateway` starts an Envoy.
#
#   envoy --config-path {name}
#
# Clients      0.0.0.0:8080, HTTP/1.1 or HTTP/2 without TLS.
# Picker       127.0.0.1:9002 with TLS. The certificate is not verified, so keep the picker on the same host or add a
#              validation_context.
# Admin        127.0.0.1:9901. Its clients can stop Envoy.
# Access log   stdout, one line of JSON per request: destination as the picker named it, served_by for where the request
#              went, reason if the picker refused it, details for the origin of the status.
{more}#
# Generated, see README.md in this directory; a test compares the file with the code.
"""

_ORIGINAL_DST = """\
# Destination  The picker names one ip:port in x-gateway-destination-endpoint, and Envoy connects to it. This cluster
#              type accepts exactly one address: a comma-separated list is answered with 503.
"""

_BUFFERED = (
    _ORIGINAL_DST
    + """\
# Bodies       Requests go to the picker whole: 32 MiB at most, larger ones get 413 (request_body_buffer_limit, and
#              --max-request-body of the picker). It gets only the bodies of responses that it requests
#              (allow_mode_override), so it counts no tokens without --response-usage=always.
# Ends         Without bodies, the picker sees the end of a response, but not whether it is complete.
"""
)

_OVERRIDE_HOST = """\
# Endpoints    /etc/envoy/endpoints.json, see endpoints.json in this directory. Envoy watches it: write another file
#              beside it and rename that. An endpoint that is not in it is skipped.
# Destination  The picker names ip:port,ip:port,... in x-gateway-destination-endpoint (maxNumOfEndpoints of its picker
#              plugin). Envoy connects to the first, and to the next one when that fails.
# Picker down  FailOpen: of two random endpoints, Envoy picks the one with fewer requests. This needs buffered request
#              bodies: 32 MiB at most, larger ones get 413. For FailClose, see
#              `epp gateway --cluster-type override-host --eds-file /etc/envoy/endpoints.json --print-envoy-config`.
"""

_STANDALONE = GatewaySettings(
    listen_host="0.0.0.0",  # noqa: S104 - clients are elsewhere
    picker_tls=True,
    admin_address="127.0.0.1:9901",
    access_log=True,
)
_STANDALONE_OVERRIDE_HOST = msgspec.structs.replace(
    _STANDALONE,
    cluster_type=ClusterType.OVERRIDE_HOST,
    failure_mode=FailureMode.FAIL_OPEN,
    eds_file=Path("/etc/envoy/endpoints.json"),
)


def standalone_yaml() -> str:
    """Return the text of `deploy/envoy.yaml`, with comments."""
    return _HEADER.format(name="envoy.yaml", more=_ORIGINAL_DST) + bootstrap_yaml(_STANDALONE)


def standalone_buffered_yaml() -> str:
    """Return the text of `deploy/envoy-buffered.yaml`, with comments."""
    header = _HEADER.format(name="envoy-buffered.yaml", more=_BUFFERED)
    return header + bootstrap_yaml(msgspec.structs.replace(_STANDALONE, body_mode=Bodies.BUFFERED))


def standalone_override_host_yaml() -> str:
    """Return the text of `deploy/envoy-override-host.yaml`, with comments."""
    header = _HEADER.format(name="envoy-override-host.yaml", more=_OVERRIDE_HOST)
    return header + bootstrap_yaml(_STANDALONE_OVERRIDE_HOST)


ADMIN = "envoy_admin"
"""The cluster of Envoy's own admin interface, for its statistics only."""
FALLBACK = "any_model_server"
"""The cluster that requests go to while the picker is down, with FailOpen."""
ADMIN_PORT = 19000
LISTEN_PORT = 8081
STATUS_PORT = 19001
HEAP_BYTES = 768 * 1024 * 1024
"""Limit of Envoy's heap; the chart computes it from the limit of its container."""

_CHART_HEADER = """\
# Envoy of the stand-alone flavour, with {mode}. Generated from epp/lab/gateway/ by `make docs`; a test
# compares the two. The chart replaces ports, the picker's address, limits and the name of the model servers' Service.
"""
_TYPE = "type.googleapis.com/envoy."
_CLOSED = GatewaySettings(
    listen_host="0.0.0.0",  # noqa: S104 - clients are elsewhere
    listen_port=LISTEN_PORT,
    picker_tls=True,
    admin_address=f"127.0.0.1:{ADMIN_PORT}",
    access_log=True,
)
_PATIENCE_OPEN_SECONDS = 10.0
_EDGE: Mapping[str, Json] = {
    # The picker chooses a parser by the path, so it must see the same path as the server.
    "normalize_path": True,
    "merge_slashes": True,
}
"""Normalisation of paths."""


def chart_proxy_yaml(mode: FailureMode, bodies: Bodies | None = None) -> str:
    """Return the text of the file for a failure mode, with its default body modes or `bodies`."""
    opened = mode is FailureMode.FAIL_OPEN
    bootstrap = bootstrap_dict(_settings(bodies, opened=opened))
    resources = _mapping(bootstrap["static_resources"])
    listeners, clusters = _list(resources["listeners"]), _list(resources["clusters"])
    manager = _connection_manager(_mapping(listeners[0]))
    manager.update(_EDGE)
    if opened:
        _let_pass(manager)
        clusters.append(_fallback(_mapping(clusters[0])))
    listeners.append(_status_listener())
    clusters.append(_local_cluster(ADMIN, ADMIN_PORT))
    _limit_heap(_mapping(bootstrap["overload_manager"]))
    title = mode.value if bodies is None else f"{mode.value} and {bodies.value} bodies"
    return _CHART_HEADER.format(mode=title) + yaml.safe_dump(bootstrap, sort_keys=False, width=100)


def _settings(bodies: Bodies | None, *, opened: bool) -> GatewaySettings:
    if not opened:
        return msgspec.structs.replace(_CLOSED, body_mode=bodies)
    # FailOpen is built from the FailClose settings, so its body modes are set here; see `GatewaySettings.body_modes`.
    modes = (BodyMode.BUFFERED, BodyMode.STREAMED) if bodies is None else (None, None)
    return msgspec.structs.replace(
        _CLOSED,
        body_mode=bodies,
        request_body_mode=modes[0],
        response_body_mode=modes[1],
        message_timeout_seconds=_PATIENCE_OPEN_SECONDS,
    )


def _connection_manager(listener: Mapping[str, Json]) -> dict[str, Json]:
    chain = _mapping(_list(listener["filter_chains"])[0])
    return _mapping(_mapping(_list(chain["filters"])[0])["typed_config"])


def _let_pass(manager: Mapping[str, Json]) -> None:
    """Send requests without a picker's decision to any ready model server.

    The picker's reply clears Envoy's choice of a route: a request with a destination then takes the first route. Other
    requests need a second route, because ORIGINAL_DST has no endpoint for them.
    """
    _mapping(manager["common_http_protocol_options"])["headers_with_underscores_action"] = "DROP_HEADER"
    host = _mapping(_list(_mapping(manager["route_config"])["virtual_hosts"])[0])
    (routed,) = map(_mapping, _list(host["routes"]))
    passed = {**routed, "route": {**_mapping(routed["route"]), "cluster": FALLBACK}}
    routed["match"] = {"prefix": "/", "headers": [{"name": DESTINATION, "present_match": True}]}
    host["routes"] = [routed, passed]
    mutation, ext_proc, *_ = (_mapping(_mapping(each)["typed_config"]) for each in _list(manager["http_filters"]))
    ext_proc["failure_mode_allow"] = True
    removed: list[Json] = [{"remove": name} for name in (DESTINATION, *sorted(OBEYED_BY_ENDPOINTS))]
    _mapping(mutation["mutations"])["request_mutations"] = removed


def _fallback(model_servers: Mapping[str, Json]) -> Json:
    shared = (
        "connect_timeout",
        "per_connection_buffer_limit_bytes",
        "circuit_breakers",
        "typed_extension_protocol_options",
    )
    return {
        "name": FALLBACK,
        "type": "STRICT_DNS",
        "dns_lookup_family": "V4_PREFERRED",
        "lb_policy": "LEAST_REQUEST",
        **{name: model_servers[name] for name in shared},
        "load_assignment": _one_address(FALLBACK, "model-servers", 8000),
    }


def _status_listener() -> Json:
    """Return a listener for probes and scrapers; it exposes only the statistics of the admin interface."""
    probe: Json = {
        "@type": f"{_TYPE}extensions.filters.http.health_check.v3.HealthCheck",
        "pass_through_mode": False,
        "headers": [{"name": ":path", "string_match": {"exact": "/ready"}}],
    }
    statistics: Json = {"match": {"path": "/stats/prometheus"}, "route": {"cluster": ADMIN}}
    manager: Json = {
        "@type": f"{_TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "status",
        "route_config": {
            "name": "status",
            "virtual_hosts": [{"name": "status", "domains": ["*"], "routes": [statistics]}],
        },
        "http_filters": [
            {"name": "envoy.filters.http.health_check", "typed_config": probe},
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_TYPE}extensions.filters.http.router.v3.Router"},
            },
        ],
        "request_headers_timeout": "10s",
    }
    filters: Json = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    return {
        "name": "status",
        "address": {"socket_address": {"address": _CLOSED.listen_host, "port_value": STATUS_PORT}},
        "filter_chains": [{"filters": filters}],
        # Probes are answered even if clients use all connections.
        "ignore_global_conn_limit": True,
    }


def _local_cluster(name: str, port: int) -> Json:
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": _one_address(name, "127.0.0.1", port),
    }


def _one_address(cluster: str, host: str, port: int) -> Json:
    address: Json = {"socket_address": {"address": host, "port_value": port}}
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]}


def _limit_heap(overload_manager: dict[str, Json]) -> None:
    heap = "envoy.resource_monitors.fixed_heap"
    config: Json = {
        "@type": f"{_TYPE}extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig",
        "max_heap_size_bytes": HEAP_BYTES,
    }
    _list(overload_manager["resource_monitors"]).append({"name": heap, "typed_config": config})
    overload_manager["actions"] = [
        {"name": f"envoy.overload_actions.{action}", "triggers": [{"name": heap, "threshold": {"value": part}}]}
        for action, part in (("shrink_heap", 0.9), ("stop_accepting_requests", 0.95))
    ]


def _mapping(value: Json) -> dict[str, Json]:
    assert isinstance(value, dict)  # noqa: S101 - a file that is generated, not a request
    return value


def _list(value: Json) -> list[Json]:
    assert isinstance(value, list)  # noqa: S101 - the same
    return value
