# SPDX-License-Identifier: Apache-2.0
"""The contents of `deploy/chart/files/`: configurations of an Envoy that runs in a pod, beside the picker or apart.

They are complete, with the addresses of a side-car. The chart replaces what a release decides: ports, the picker's
address, limits, and the name of the model servers' Service.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import yaml

from epp.framework.headers import DESTINATION, OBEYED_BY_ENDPOINTS
from epp.lab.gateway.bootstrap import Json, bootstrap_dict
from epp.lab.gateway.settings import Bodies, BodyMode, FailureMode, GatewaySettings

__all__ = ["chart_proxy_yaml"]

ADMIN = "envoy_admin"
"""The cluster of Envoy's own admin interface, for its statistics only."""
FALLBACK = "any_model_server"
"""The cluster that requests go to while the picker is down, with FailOpen."""
ADMIN_PORT = 19000
LISTEN_PORT = 8081
STATUS_PORT = 19001
HEAP_BYTES = 768 * 1024 * 1024
"""What Envoy may hold; the chart computes it from the limit of its container."""

_HEADER = """\
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
    # The picker chooses a parser by the path, so it is to see the one that the server understands.
    "normalize_path": True,
    "merge_slashes": True,
}
"""How paths are read."""


def chart_proxy_yaml(mode: FailureMode, bodies: Bodies | None = None) -> str:
    """Return the text of the file for one failure mode, and for other body modes than it has by itself."""
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
    return _HEADER.format(mode=title) + yaml.safe_dump(bootstrap, sort_keys=False, width=100)


def _settings(bodies: Bodies | None, *, opened: bool) -> GatewaySettings:
    if not opened:
        return msgspec.structs.replace(_CLOSED, body_mode=bodies)
    # An open Envoy is made of a closed one below, so its modes are said here; see `GatewaySettings.body_modes`.
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
    """Send requests that no picker has routed to any ready model server.

    The picker's reply clears Envoy's choice of a route: a request with a destination then takes the first route.
    ORIGINAL_DST alone has no endpoint for the others.
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
    """Answer probes and scrapers; nothing else of the admin interface leaves the pod."""
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
        # Probes are answered when clients have taken all connections.
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
