# SPDX-License-Identifier: Apache-2.0
"""Flags of the commands that run a picker: `epp serve` and `epp gateway`."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from epp.cli import options
from epp.extproc.settings import BudgetSettings, ResponseSettings, ServerSettings, Transport
from epp.pool.settings import PageLimits
from epp.routing.settings import OutlierSettings
from epp.runtime.flags import DURATION, LOG_LEVEL, PORT, SWITCH, flag
from epp.sharing.settings import SharingSettings
from epp.telemetry.settings import AdminSettings, DecisionSettings, PageSettings


@dataclass(frozen=True, kw_only=True)
class PickerFlags:
    """Flags of the commands that run a picker."""

    endpoints: list[str] | None = options.endpoints_flag()
    config_file: Path | None = flag(
        None, "An EndpointPickerConfig file, or a ConfigMap with one; `epp config list` names ready-made ones.", "FILE"
    )
    config_text: str | None = flag(None, "An EndpointPickerConfig as text.", "TEXT")
    watch_config_file: bool = flag(True, "Apply new versions of --config-file, and not only at SIGHUP.", SWITCH)
    allow_experimental_plugins: bool = options.experimental_flag()
    allow_plugin_modules: str = options.plugin_modules_flag()
    objects: str = flag(
        "",
        "Files or directories of cluster objects: InferenceObjective and InferenceModelRewrite, which set "
        "priorities and models of requests, and the quotas of tenant-quotas. If no endpoints are "
        "configured, the pods in these files are the endpoints, and other objects describe their hardware. New "
        "versions are applied without a restart.",
        "PATH,...",
    )
    pool_name: str | None = flag(
        None,
        "Name of the pool in the labels of its metrics, by default `default`; objects of --objects for "
        "other pools are ignored. If the endpoints are the pods in these files, the name of the InferencePool that "
        "selects them.",
        "NAME",
    )
    page: PageSettings = field(default_factory=PageSettings)
    admin: AdminSettings = field(default_factory=AdminSettings)
    decisions: DecisionSettings = field(default_factory=DecisionSettings)
    budgets: BudgetSettings = field(default_factory=BudgetSettings)
    responses: ResponseSettings = field(default_factory=ResponseSettings)
    ignore_client_headers: str = flag(
        "",
        "Headers of clients that are ignored and removed: all, or some of model-rewrite, objective, "
        "fairness-id, session, slo, accelerator, profile, video, prefer, attempt-count, request-id, "
        "decision-record, trace-context and endpoint-selection (docs/headers.md); header:NAME for one that a "
        "plugin is configured to read.",
        "GROUP,...",
    )
    reservation_ttl: float = flag(
        600.0,
        "Time for an endpoint to begin its response. After it, a request no longer counts as load, although its "
        "stream is open; 0 for no limit. Without streaming, responses begin when all of their tokens are ready. It "
        "applies if the gateway shows response headers.",
        DURATION,
    )
    inherited_requests_ttl: float = flag(
        600.0,
        "Time for which the requests that model servers report when this picker starts, or becomes the leader, "
        "count as its own, while they are still reported; 0 for no such requests: use 0 if several pickers are "
        "active without --shared-state.",
        DURATION,
    )
    workers: int = flag(
        1,
        "Processes that answer requests, each on a core of its own. With more than one, one more process finds and "
        "polls the endpoints and has all ports; a gateway needs as many connections: see docs/workers.md.",
        "PROCESSES",
        min=1,
        max=64,
    )
    sharing: SharingSettings = field(default_factory=SharingSettings)
    outliers: OutlierSettings = field(default_factory=OutlierSettings)
    v: int = options.verbosity_flag(2)
    request_log_sample: float = flag(
        100.0,
        "Maximum number of log lines of successful requests in a second, with bursts of ten times that number; the "
        "next line has the number of requests without a line. Failed requests always have one. 0 for a line for each "
        "request, as with -v 4.",
        "LINES",
        min=0,
    )
    zap_encoder: Literal["json", "console"] | None = flag(
        None, "Format of log lines: JSON, or human-readable text. By default text on a terminal, otherwise JSON."
    )
    zap_log_level: int | None = flag(
        None, "Replaces -v: info (-v 1), debug (-v 4), error (only errors), or a number as for -v.", LOG_LEVEL
    )
    zap_time_encoding: Literal["epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano"] | None = flag(
        None, "Format of the time of log lines. By default RFC 3339 with microseconds, in UTC."
    )
    zap_devel: bool | None = flag(None, "Format of logs without --zap-encoder: text if true, JSON if false.", SWITCH)
    zap_stacktrace_level: Literal["info", "error", "panic"] = flag(
        "error", "Whether log lines of errors have a traceback: panic for none."
    )
    tracing: bool = flag(
        True,
        "Export OpenTelemetry traces of requests if the environment sets an exporter, by "
        "OTEL_TRACES_EXPORTER=otlp or OTEL_EXPORTER_OTLP_ENDPOINT.",
        SWITCH,
    )
    transport: Transport = flag(
        Transport.ASYNCIO, "The gRPC server: asyncio, on the event loop, with the least CPU time; or grpcio."
    )
    stall_threshold: float = flag(
        0.1,
        "Delay of the event loop, which all requests share, that is logged, with the plugin whose call took most "
        "of it; 0 for no log line. The metric event_loop_lag_seconds has all delays.",
        DURATION,
    )
    refresh_metrics_interval: float = flag(0.05, "Time between polls of an endpoint; up to 150ms if idle.", DURATION)
    refresh_prometheus_metrics_interval: float = flag(5.0, "Time between two updates of the pool's gauges.", DURATION)
    metrics_staleness_threshold: float = flag(
        2.0,
        "Age at which the load of an endpoint is left out of the pool's averages, which keep their values if all "
        "loads are older. For routing, set staleAfter in the configuration.",
        DURATION,
    )
    page_limits: PageLimits = field(default_factory=PageLimits)


@dataclass(frozen=True, kw_only=True)
class Serve(PickerFlags):
    """Run the endpoint picker: an ext_proc server that picks the endpoint of each LLM request for a gateway."""

    pool_name: str | None = flag(
        None,
        "The InferencePool whose pods are the endpoints: in the cluster, or in the files of --objects if "
        "there are any. With --endpoints, or endpoints in the configuration: the name of the pool in the labels "
        "of its metrics, by default `default`; objects of --objects for other pools are ignored. Several names, with "
        "commas or repeated flags, for several pools of a cluster in one process: see docs/pools.md.",
        "POOL,...",
    )
    pool_selector: str | None = flag(
        None,
        "Serve all InferencePools of --pool-namespace that have these labels, such as team=search: see docs/pools.md.",
        "SELECTOR",
    )
    pool_config_dir: Path | None = flag(
        None, "With several pools: directory with NAME.yaml of pools; --config-file is for the others.", "DIRECTORY"
    )
    pool_namespace: str | None = options.pool_namespace_flag()
    pool_group: str = options.pool_group_flag()
    endpoint_selector: str | None = options.endpoint_selector_flag()
    endpoint_target_ports: str | None = options.endpoint_target_ports_flag()
    kubeconfig: Path | None = options.kubeconfig_flag()
    ha_enable_leader_election: bool = flag(False, "Elect one replica as leader; the others are on standby.", SWITCH)
    bind_address: str | None = flag(None, "Address of all servers; by default all, IPv4 and IPv6.", "IP")
    grpc_port: int = flag(9002, "Port of the ext_proc service on --bind-address; 0 for any free one.", PORT)
    grpc_health_port: int = flag(9003, "Port of the gRPC health service, plaintext; 0 for any free one.", PORT)
    page: PageSettings = field(default_factory=partial(PageSettings, port=9090))
    server: ServerSettings = field(default_factory=ServerSettings)
    trusted_gateways: str = flag(
        "",
        "Networks of gateways that set or check headers themselves: --ignore-client-headers does not apply to "
        "them. Only from these, x-gateway-decision-record: true records a decision.",
        "CIDR,...",
    )
    disable_endpoint_subset_filter: bool = flag(False, "Ignore the gateway's subset hint.", SWITCH)
    emit_endpoint_scores: bool = flag(
        False, "Send dynamic metadata with all scores, and with accelerator, price and reason of the pick.", SWITCH
    )
    drain_timeout: float = options.drain_timeout_flag(30.0)
    drain_quiet_period: float = flag(2.0, "Time without open streams that ends the drain.", DURATION)


@dataclass(frozen=True, kw_only=True)
class Gateway(PickerFlags):
    """Run Envoy with the picker behind it, for OpenAI-style requests to model servers.

    Some flags of `serve` are missing since they have no effect here: Envoy and picker use a private socket, and this
    Envoy neither sends a subset hint nor reads scores.
    """

    listen: str = options.listen_flag()
    bind_address: str | None = flag(None, "Address that the metrics page listens on; by default 127.0.0.1.", "IP")
    concurrency: int = flag(1, "Envoy's worker threads, at least --workers.", "THREADS", min=1)
    cluster_type: Literal["auto", "original-dst", "override-host"] = flag(
        "auto",
        "original-dst: Envoy connects to the address that the picker returns. override-host: it reads the "
        "endpoints from a file, and tries the next in the picker's list when a connection fails. auto: "
        "override-host if an endpoint is https, which original-dst cannot do.",
    )
    body_mode: Literal["full-duplex", "buffered"] | None = flag(
        None,
        "Mode for sending bodies to the picker. full-duplex: in pieces, in both directions. buffered: requests "
        "whole, at most --max-request-body, and only the responses that are needed, to restore the name of a "
        "rewritten model or for a plugin. This takes three messages for a request and none for the pieces of its "
        "response, but gives no tokens in metrics and log lines, no time to the first token of a stream, and no "
        "distinction between complete and truncated responses. By default full-duplex; with FailOpen, requests "
        "whole and responses in pieces.",
    )
    failure_mode: Literal["FailClose", "FailOpen"] = flag(
        "FailClose", "While the picker is down: FailClose answers 503, FailOpen (with override-host) lets Envoy pick."
    )
    eds_file: Path | None = flag(None, "With override-host: Envoy's file of endpoints; by default temporary.", "FILE")
    retry_on_reset: bool = flag(
        False,
        "With override-host: also send a request again if its server is lost before the response begins. The "
        "server may have worked on it, and a request that crashes servers then reaches up to three.",
        SWITCH,
    )
    drain_timeout: float = options.drain_timeout_flag(0.0)
    endpoint_http2: bool = flag(False, "Use HTTP/2 for endpoints, which model servers with a gRPC API require.", SWITCH)
    endpoint_ca_file: Path | None = flag(
        None, "PEM file with the authorities of https endpoints' certificates; by default the system's.", "FILE"
    )
    endpoint_insecure_skip_verify: bool = flag(False, "Accept any certificate of https endpoints.", SWITCH)
    print_envoy_config: bool = flag(False, "Print Envoy's configuration and exit.", SWITCH)
