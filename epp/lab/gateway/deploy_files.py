# SPDX-License-Identifier: Apache-2.0
"""The Envoy configurations in `deploy/`: stand-alone ones, and those in the pods of the chart (`deploy/chart/files/`).

They are complete, with the addresses of a sidecar. The chart replaces the values of a release: ports, the picker's
address, limits, and the name of the model servers' Service.
"""

from pathlib import Path

import msgspec
import yaml

from epp.framework.headers import DESTINATION, OBEYED_BY_ENDPOINTS
from epp.lab.gateway.bootstrap import Fields, bootstrap_dict, bootstrap_yaml, envoy_address, extension, one_address
from epp.lab.gateway.settings import OPEN_BODY_MODES, Bodies, ClusterType, FailureMode, GatewaySettings

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
STANDALONE = {
    "envoy.yaml": (_STANDALONE, _ORIGINAL_DST),
    "envoy-buffered.yaml": (msgspec.structs.replace(_STANDALONE, body_mode=Bodies.BUFFERED), _BUFFERED),
    "envoy-override-host.yaml": (
        msgspec.structs.replace(
            _STANDALONE,
            cluster_type=ClusterType.OVERRIDE_HOST,
            failure_mode=FailureMode.FAIL_OPEN,
            eds_file=Path("/etc/envoy/endpoints.json"),
        ),
        _OVERRIDE_HOST,
    ),
}
"""Settings and further comments of the stand-alone files, by name in `deploy/`."""
_ADMIN = "envoy_admin"
"""The cluster of Envoy's own admin interface, for its statistics only."""
_FALLBACK = "any_model_server"
"""The cluster that requests go to while the picker is down, with FailOpen."""
_ADMIN_PORT = 19000
_STATUS_PORT = 19001
_HEAP_BYTES = 768 * 1024 * 1024
"""Limit of Envoy's heap; the chart computes it from the limit of its container."""
_CHART_HEADER = """\
# Envoy of the stand-alone flavour, with {mode}. Generated from epp/lab/gateway/ by `make docs`; a test
# compares the two. The chart replaces ports, the picker's address, limits and the name of the model servers' Service.
"""
_CHART = msgspec.structs.replace(_STANDALONE, listen_port=8081, admin_address=f"127.0.0.1:{_ADMIN_PORT}")


def standalone_yaml(name: str) -> str:
    """Return the text of a file of `STANDALONE`, with comments."""
    settings, more = STANDALONE[name]
    return _HEADER.format(name=name, more=more) + bootstrap_yaml(settings)


def chart_proxy_yaml(mode: FailureMode, bodies: Bodies | None = None) -> str:
    """Return the text of the file for a failure mode, with its default body modes or `bodies`."""
    settings = msgspec.structs.replace(_CHART, body_mode=bodies)
    opened = mode is FailureMode.FAIL_OPEN
    if opened:
        # FailOpen is built from the FailClose settings, so what differs is set here.
        modes = OPEN_BODY_MODES if bodies is None else {}
        settings = msgspec.structs.replace(settings, modes=modes, message_timeout_seconds=10.0)
    bootstrap = bootstrap_dict(settings)
    listeners, clusters = bootstrap["static_resources"]["listeners"], bootstrap["static_resources"]["clusters"]
    manager = listeners[0]["filter_chains"][0]["filters"][0]["typed_config"]
    # The picker chooses a parser by the path, so it must see the same path as the server.
    manager.update(normalize_path=True, merge_slashes=True)
    if opened:
        _add_fallback_route(manager)
        clusters.append(_fallback(clusters[0]))
    listeners.append(_status_listener())
    to_admin = one_address(_ADMIN, envoy_address(f"127.0.0.1:{_ADMIN_PORT}"))
    clusters.append({"name": _ADMIN, "type": "STATIC", "connect_timeout": "1s", "load_assignment": to_admin})
    heap = extension("resource_monitors.fixed_heap", "FixedHeapConfig", max_heap_size_bytes=_HEAP_BYTES)
    bootstrap["overload_manager"]["resource_monitors"].append(heap)
    bootstrap["overload_manager"]["actions"] = [
        {"name": f"envoy.overload_actions.{action}", "triggers": [{"name": heap["name"], "threshold": {"value": part}}]}
        for action, part in (("shrink_heap", 0.9), ("stop_accepting_requests", 0.95))
    ]
    title = mode.value if bodies is None else f"{mode.value} and {bodies.value} bodies"
    return _CHART_HEADER.format(mode=title) + yaml.safe_dump(bootstrap, sort_keys=False, width=100)


def _add_fallback_route(manager: Fields) -> None:
    """Send requests without a picker's decision to any ready model server.

    The picker's reply clears Envoy's choice of a route: a request with a destination then takes the first route. Other
    requests need a second route, because ORIGINAL_DST has no endpoint for them.
    """
    manager["common_http_protocol_options"]["headers_with_underscores_action"] = "DROP_HEADER"
    host = manager["route_config"]["virtual_hosts"][0]
    (routed,) = host["routes"]
    passed = {**routed, "route": {**routed["route"], "cluster": _FALLBACK}}
    routed["match"] = {"prefix": "/", "headers": [{"name": DESTINATION, "present_match": True}]}
    host["routes"] = [routed, passed]
    mutation, ext_proc, *_ = (each["typed_config"] for each in manager["http_filters"])
    ext_proc["failure_mode_allow"] = True
    mutation["mutations"]["request_mutations"] = [
        {"remove": name} for name in (DESTINATION, *sorted(OBEYED_BY_ENDPOINTS))
    ]


def _fallback(model_servers: Fields) -> Fields:
    shared = (
        "connect_timeout",
        "per_connection_buffer_limit_bytes",
        "circuit_breakers",
        "typed_extension_protocol_options",
    )
    return {
        "name": _FALLBACK,
        "type": "STRICT_DNS",
        "dns_lookup_family": "V4_PREFERRED",
        "lb_policy": "LEAST_REQUEST",
        **{name: model_servers[name] for name in shared},
        "load_assignment": one_address(_FALLBACK, envoy_address("model-servers:8000")),
    }


def _status_listener() -> Fields:
    """Return a listener for probes and scrapers; it exposes only the statistics of the admin interface."""
    statistics = {"match": {"path": "/stats/prometheus"}, "route": {"cluster": _ADMIN}}
    manager = extension(
        "filters.network.http_connection_manager",
        "HttpConnectionManager",
        stat_prefix="status",
        route_config={
            "name": "status",
            "virtual_hosts": [{"name": "status", "domains": ["*"], "routes": [statistics]}],
        },
        http_filters=[
            extension(
                "filters.http.health_check",
                "HealthCheck",
                pass_through_mode=False,
                headers=[{"name": ":path", "string_match": {"exact": "/ready"}}],
            ),
            extension("filters.http.router", "Router"),
        ],
        request_headers_timeout="10s",
    )
    return {
        "name": "status",
        "address": envoy_address(f"{_CHART.listen_host}:{_STATUS_PORT}"),
        "filter_chains": [{"filters": [manager]}],
        # Probes are answered even if clients use all connections.
        "ignore_global_conn_limit": True,
    }
