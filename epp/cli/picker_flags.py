# SPDX-License-Identifier: Apache-2.0
"""Flags of the commands that run a picker: `epp serve` and `epp gateway`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from epp.cli.options import (
    AdminHost,
    AdminPort,
    AdminTokenFile,
    Bytes,
    ConfigFile,
    DrainTimeout,
    Endpoints,
    EndpointSelector,
    EndpointTargetPorts,
    Experimental,
    Kubeconfig,
    Listen,
    MetricsPort,
    PluginModules,
    PoolGroup,
    PoolName,
    PoolNamespace,
    Seconds,
    Switch,
    Verbosity,
    cipher_suites_option,
    connections_option,
    count_option,
    duration_option,
    log_level_option,
    port_option,
    size_option,
    switch_option,
    tls_version_option,
)

POOL_GROUP = "inference.networking.k8s.io"


@dataclass(frozen=True, kw_only=True)
class PickerFlags:
    """Flags of the commands that run a picker."""

    endpoints: Endpoints = None
    config_file: ConfigFile = None
    config_text: Annotated[str | None, typer.Option(metavar="TEXT", help="An EndpointPickerConfig as text.")] = None
    watch_config_file: Annotated[
        Switch, switch_option("Apply new versions of --config-file at once; if false, at SIGHUP.")
    ] = Switch.TRUE
    allow_experimental_plugins: Experimental = Switch.FALSE
    allow_plugin_modules: PluginModules = ""
    objects: Annotated[
        str,
        typer.Option(
            metavar="PATH,...",
            help="Files or directories of cluster objects: InferenceObjective and InferenceModelRewrite, which set "
            "priorities and models of requests, and GPUResourceQuota for tenant-quotas. If no endpoints are "
            "configured, the pods in these files are the endpoints, and other objects describe their hardware. New "
            "versions are applied without a restart.",
        ),
    ] = ""
    pool_name: PoolName = None
    metrics_port: MetricsPort = None
    """None for no metrics page."""
    metrics_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token that clients of the metrics page have to send, as Authorization: Bearer; "
            "without it, /healthz only tells whether the picker is ready. It is read again when it changes.",
        ),
    ] = None
    metrics_endpoint_auth: Annotated[
        Switch | None,
        switch_option(
            "Answer only clients of the metrics page whose token the Kubernetes API knows (TokenReview) and allows to "
            "get its path (SubjectAccessReview); /healthz tells others whether the picker is ready. By default where "
            "the pool is in a cluster and --metrics-token-file is not given."
        ),
    ] = None
    metrics_cert_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Directory with tls.crt and tls.key for the metrics page, which is then served over HTTPS; read again "
            "when they change. Requires authentication of clients: --metrics-endpoint-auth, --metrics-token-file or "
            "--metrics-client-ca-file.",
        ),
    ] = None
    metrics_client_ca_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Certificates of the authorities (PEM) that sign the client certificates required for the metrics "
            "page; read again when it changes. Requires --metrics-cert-dir.",
        ),
    ] = None
    legacy_metrics: Annotated[
        Switch,
        switch_option(
            "Show metrics under older names of llm-d-router too (inference_objective_, inference_pool_, "
            "inference_extension_, llm_d_inference_scheduler_), for dashboards that use them."
        ),
    ] = Switch.TRUE
    enable_grpc_stream_metrics: Annotated[
        Switch, switch_option("Count ext_proc streams, how long they are open, and how they end.")
    ] = Switch.FALSE
    metrics_max_connections: Annotated[int, connections_option("Most connections to the metrics port")] = 1024
    metrics_request_timeout: Annotated[
        float, duration_option("Time for a client of the metrics port to send the head of a request.")
    ] = Seconds(10)
    admin_port: AdminPort = None
    """None for no admin API."""
    admin_host: AdminHost = "127.0.0.1"
    admin_token_file: AdminTokenFile = None
    admin_max_connections: Annotated[int, connections_option("Most connections to the admin port")] = 64
    admin_request_timeout: Annotated[
        float, duration_option("Time for a client of the admin port to send the head of a request.")
    ] = Seconds(10)
    decision_sample_rate: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Share of the requests whose decisions are recorded, 0 to 1, for `epp explain`, /api/decisions of the "
            "admin port, and --decision-file. Failed requests are always recorded, at most ten per second.",
            min=0,
            max=1,
        ),
    ] = 0
    decision_buffer: Annotated[
        int, typer.Option(metavar="COUNT", help="Number of latest decisions kept in memory.", min=0)
    ] = 1000
    decision_buffer_size: Annotated[int, size_option("Largest total size of these decisions.")] = Bytes(
        16 * 1024 * 1024
    )
    decision_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write each decision that is recorded into this file, as a line of JSON."),
    ] = None
    decision_file_size: Annotated[
        int,
        size_option("Size at which --decision-file is rotated: FILE becomes FILE.1, FILE.1 becomes FILE.2, and so on."),
    ] = Bytes(64 * 1024 * 1024)
    decision_file_count: Annotated[int, count_option("Number of decision files, including the current one.")] = 5
    max_request_body: Annotated[int, size_option("Largest request body accepted.")] = Bytes(32 * 1024 * 1024)
    max_gathered_bytes: Annotated[
        int | None,
        size_option(
            "Bytes of all incoming bodies and of all replies that gateways have not read. Above this limit, requests "
            "are refused with 503, slow ones first. By default 256Mi, or twice --max-request-body if that is more."
        ),
    ] = None
    max_pending_streams: Annotated[
        int, count_option("Most incomplete requests at a time; further ones are refused with 503.")
    ] = 16_384
    max_streams: Annotated[
        int, count_option("Most requests at a time, until their responses end; further ones get 503.")
    ] = 65_536
    max_streams_per_connection: Annotated[
        int,
        count_option("Most requests at a time on one connection of a gateway, which then opens another connection."),
    ] = 16_384
    max_connections: Annotated[
        int,
        count_option(
            "Connections of gateways, half of the file descriptors at most. A further one replaces one "
            "without requests, first one that never had any, or is closed. Not with --transport grpcio."
        ),
    ] = 4096
    body_timeout: Annotated[
        float,
        duration_option(
            "Longest pause within a request body; then the request is refused with 408. 0 for no limit. The time in "
            "which a gateway buffers a body is not counted."
        ),
    ] = Seconds(60)
    plain_errors: Annotated[Switch, switch_option("Send errors as plain text instead of the API's JSON.")] = (
        Switch.FALSE
    )
    decision_headers: Annotated[
        Switch,
        switch_option(
            "Tell clients which endpoint served and why, in the response headers x-epp-endpoint and x-epp-reason."
        ),
    ] = Switch.FALSE
    response_usage: Annotated[
        Literal["auto", "always", "never"],
        typer.Option(
            help="Read the tokens of responses, for metrics and log lines. auto: if the gateway shows their bodies. "
            "always: request the bodies that it does not show. never: decline the bodies that no plugin needs. Envoy "
            "must allow this (allow_mode_override), and does not while bodies are in full duplex."
        ),
    ] = "auto"
    ignore_client_headers: Annotated[
        str,
        typer.Option(
            metavar="GROUP,...",
            help="Headers of clients that are ignored and removed: all, or some of model-rewrite, objective, "
            "fairness-id, session, slo, accelerator, profile, video, prefer, attempt-count, request-id, "
            "decision-record, trace-context and endpoint-selection (docs/headers.md); header:NAME for one that a "
            "plugin is configured to read.",
        ),
    ] = ""
    reservation_ttl: Annotated[
        float,
        duration_option(
            "Time for an endpoint to begin its response. After it, a request no longer counts as load, although its "
            "stream is open; 0 for no limit. Without streaming, responses begin when all of their tokens are ready. It "
            "applies if the gateway shows response headers."
        ),
    ] = Seconds(600)
    inherited_requests_ttl: Annotated[
        float,
        duration_option(
            "Time for which the requests that model servers report when this picker starts, or becomes the leader, "
            "count as its own, as long as they report as many; 0 for no such requests: use 0 if several pickers are "
            "active."
        ),
    ] = Seconds(600)
    outlier_detection: Annotated[
        Switch,
        switch_option(
            "Avoid endpoints whose requests fail: after a failed connection until its port answers, and after repeated "
            "failures for a time."
        ),
    ] = Switch.TRUE
    outlier_consecutive_gateway_failure: Annotated[
        int,
        typer.Option(
            metavar="COUNT",
            help="Eject an endpoint after this number of failed connections (although its port answers) or responses "
            "with 502, 503 or 504 in a row; 0 for never. A 503 with Retry-After does not count.",
            min=0,
        ),
    ] = 3
    outlier_consecutive_5xx: Annotated[
        int,
        typer.Option(
            metavar="COUNT",
            help="Eject an endpoint after this number of failures in a row, unless the others fail as well: responses "
            "with any 5xx, with 429, with 404 for a model that others serve, or with 200 and no token; 0 for never.",
            min=0,
        ),
    ] = 5
    outlier_success_rate_request_volume: Annotated[
        int,
        typer.Option(
            metavar="COUNT",
            help="Eject an endpoint whose success rate is far below that of the others, if it and they had this "
            "number of requests in the last 15 to 30 seconds; 0 for never.",
            min=0,
        ),
    ] = 20
    outlier_base_ejection_time: Annotated[
        float, duration_option("Duration of an endpoint's first ejection; each further one is longer by this time.")
    ] = Seconds(10)
    outlier_max_ejection_time: Annotated[float, duration_option("Longest time of an ejection.")] = Seconds(300)
    outlier_max_ejection_percent: Annotated[
        float,
        typer.Option(
            metavar="PERCENT",
            help="Largest part of the pool that may be ejected at a time, but at least one of several endpoints and "
            "never all; 0 for none.",
            min=0,
            max=100,
        ),
    ] = 50
    v: Verbosity = 2
    zap_encoder: Annotated[
        Literal["json", "console"] | None,
        typer.Option(
            help="Form of log lines: JSON objects, or text for people. By default text on a terminal, JSON elsewhere."
        ),
    ] = None
    zap_log_level: Annotated[
        int | None,
        log_level_option(
            "Log verbosity instead of -v: info (-v 1), debug (-v 4), error (only errors), or a number as for -v."
        ),
    ] = None
    zap_time_encoding: Annotated[
        Literal["epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano"] | None,
        typer.Option(help="Form of the time of log lines. By default RFC 3339 with microseconds, in UTC."),
    ] = None
    tracing: Annotated[
        Switch,
        switch_option(
            "Export OpenTelemetry traces of requests if the environment sets an exporter, by "
            "OTEL_TRACES_EXPORTER=otlp or OTEL_EXPORTER_OTLP_ENDPOINT."
        ),
    ] = Switch.TRUE
    transport: Annotated[
        Literal["asyncio", "grpcio"],
        typer.Option(
            help="The gRPC server: asyncio, on the event loop, for the least CPU time; grpcio, the gRPC project's own."
        ),
    ] = "asyncio"
    stall_threshold: Annotated[
        float,
        duration_option(
            "Delay of the event loop, which all requests share, that is logged, with the plugin whose call took most "
            "of it; 0 for no log line. The metric event_loop_lag_seconds has all delays."
        ),
    ] = Seconds(0.1)
    refresh_metrics_interval: Annotated[
        float, duration_option("Time between two polls of an endpoint; up to 150ms while it is at rest.")
    ] = Seconds(0.05)
    refresh_prometheus_metrics_interval: Annotated[
        float, duration_option("Time between two updates of the pool's gauges.")
    ] = Seconds(5)
    max_page_size: Annotated[
        int, size_option("Largest page of metrics that is read of an endpoint; a larger one is refused.")
    ] = Bytes(8 * 1024 * 1024)
    max_page_series: Annotated[
        int,
        typer.Option(
            metavar="COUNT", help="Series of one name that are read of an endpoint's page: the first ones.", min=1
        ),
    ] = 1000
    max_series_size: Annotated[
        int,
        size_option(
            "Most bytes of the series that are read from an endpoint's page; a single series can have a quarter of "
            "them. Requests wait while they are read, some milliseconds for 64Ki."
        ),
    ] = Bytes(64 * 1024)


@dataclass(frozen=True, kw_only=True)
class Serve(PickerFlags):
    """Run the endpoint picker: an ext_proc server that picks the endpoint of each LLM request for a gateway."""

    pool_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The InferencePool whose pods are the endpoints: in the cluster, or in the files of --objects if "
            "there are any. With --endpoints, or endpoints in the configuration: the name of the pool in the labels "
            "of its metrics, by default default; objects of --objects for other pools are ignored.",
        ),
    ] = None
    pool_namespace: PoolNamespace = None
    pool_group: PoolGroup = POOL_GROUP
    endpoint_selector: EndpointSelector = None
    endpoint_target_ports: EndpointTargetPorts = None
    kubeconfig: Kubeconfig = None
    ha_enable_leader_election: Annotated[
        Switch, switch_option("Elect one replica of a pool in Kubernetes as leader; the others are on standby.")
    ] = Switch.FALSE
    bind_address: Annotated[
        str | None,
        typer.Option(
            metavar="IP", help="Address that all servers listen on; by default all of this machine, IPv4 and IPv6."
        ),
    ] = None
    grpc_port: Annotated[int, port_option("Port of the ext_proc service on --bind-address; 0 for any free one.")] = 9002
    grpc_health_port: Annotated[
        int, port_option("Port of the gRPC health service on --bind-address, plaintext; 0 for any free one.")
    ] = 9003
    metrics_port: MetricsPort = 9090
    health_checking: Annotated[
        Switch, switch_option("Answer gRPC health checks on the ext_proc port too, where Envoy asks.")
    ] = Switch.TRUE
    secure_serving: Annotated[Switch, switch_option("Serve ext_proc over TLS.")] = Switch.TRUE
    cert_path: Annotated[
        Path | None,
        typer.Option(metavar="DIRECTORY", help="Where tls.crt and tls.key are; a self-signed certificate without it."),
    ] = None
    enable_cert_reload: Annotated[
        Switch, switch_option("Reload tls.crt and tls.key of --cert-path when they change; if false, at SIGHUP.")
    ] = Switch.TRUE
    tls_min_version: Annotated[str, tls_version_option("Minimum TLS version.")] = "VersionTLS12"
    tls_cipher_suites: Annotated[
        str, cipher_suites_option("Cipher suites of TLS 1.2; by default all that HTTP/2 allows.")
    ] = ""
    grpc_max_recv_msg_size: Annotated[
        int | None, size_option("Largest message accepted; by default 1Mi more than a body.")
    ] = None
    grpc_max_send_msg_size: Annotated[
        int | None, size_option("Largest message sent; by default 1Mi more than a body.")
    ] = None
    trusted_gateways: Annotated[
        str,
        typer.Option(
            metavar="CIDR,...",
            help="Networks of gateways that set or check headers themselves: --ignore-client-headers does not apply to "
            "them. Only from these, x-gateway-decision-record: true records a decision.",
        ),
    ] = ""
    disable_endpoint_subset_filter: Annotated[Switch, switch_option("Ignore the gateway's subset hint.")] = Switch.FALSE
    emit_endpoint_scores: Annotated[
        Switch,
        switch_option(
            "Send the scores of all candidates in dynamic metadata, with accelerator and price of the pick, and why."
        ),
    ] = Switch.FALSE
    drain_timeout: DrainTimeout = Seconds(30)
    drain_quiet_period: Annotated[float, duration_option("Time without open streams that ends the drain.")] = Seconds(2)


@dataclass(frozen=True, kw_only=True)
class Gateway(PickerFlags):
    """Run Envoy with the picker behind it, for OpenAI-style requests to model servers.

    Some flags of `serve` are missing since they have no effect here: Envoy and picker use a private socket, and this
    Envoy neither sends a subset hint nor reads scores.
    """

    listen: Listen = "127.0.0.1:8080"
    bind_address: Annotated[
        str | None, typer.Option(metavar="IP", help="Address that the metrics page listens on; by default 127.0.0.1.")
    ] = None
    concurrency: Annotated[int, typer.Option(metavar="THREADS", help="Envoy's worker threads.", min=1)] = 1
    cluster_type: Annotated[
        Literal["auto", "original-dst", "override-host"],
        typer.Option(
            help="original-dst: Envoy connects to the one address that the picker names. override-host: it reads the "
            "endpoints from a file, and tries the next in the picker's list when a connection fails. auto: "
            "override-host if an endpoint is https, which original-dst cannot do."
        ),
    ] = "auto"
    body_mode: Annotated[
        Literal["full-duplex", "buffered"] | None,
        typer.Option(
            help="How Envoy sends bodies to the picker. full-duplex: in pieces, in both directions. buffered: requests "
            "whole, at most --max-request-body, and only the responses that are needed, to restore the name of a "
            "rewritten model or for a plugin. This takes three messages for a request and none for the pieces of its "
            "response, but gives no tokens in metrics and log lines, no time to the first token of a stream, and no "
            "distinction between complete and truncated responses. By default full-duplex; with FailOpen, requests "
            "whole and responses in pieces."
        ),
    ] = None
    failure_mode: Annotated[
        Literal["FailClose", "FailOpen"],
        typer.Option(
            help="While the picker is down: FailClose answers 503, FailOpen (with override-host) lets Envoy pick."
        ),
    ] = "FailClose"
    eds_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With override-host: the file of endpoints that Envoy reads; a temporary one by default.",
        ),
    ] = None
    retry_on_reset: Annotated[
        Switch,
        switch_option(
            "With override-host: also send a request again if its server is lost before the response begins. The "
            "server may have worked on it, and a request that crashes servers then reaches up to three."
        ),
    ] = Switch.FALSE
    drain_timeout: DrainTimeout = Seconds(0)
    endpoint_ca_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="PEM file with the authorities of https endpoints' certificates; by default the system's.",
        ),
    ] = None
    endpoint_insecure_skip_verify: Annotated[Switch, switch_option("Accept any certificate of https endpoints.")] = (
        Switch.FALSE
    )
    print_envoy_config: Annotated[Switch, switch_option("Print Envoy's configuration and exit.")] = Switch.FALSE
