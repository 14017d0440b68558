"""`epp serve`: the endpoint picker for a gateway that runs elsewhere."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from epp.cli.options import (
    ConfigFile,
    ConfigText,
    Endpoints,
    Experimental,
    PluginModules,
    Switch,
    Verbosity,
    WatchConfig,
    duration_option,
    read_config,
    read_endpoints,
    size_option,
    split_list,
    tls_version_option,
)
from epp.cli.running import run
from epp.extproc.request_half import DEFAULT_MAX_BODY_BYTES
from epp.extproc.server import ServerSettings, message_bytes_for
from epp.framework import ConfigurationError
from epp.observability import logs
from epp.picker import Picker, PickerSettings

_PORT = {"min": 0, "max": 65535}


def serve(
    endpoints: Endpoints = None,
    config_file: ConfigFile = None,
    config_text: ConfigText = None,
    grpc_port: Annotated[int, typer.Option(help="Port of the ext_proc service.", **_PORT)] = 9002,
    grpc_health_port: Annotated[int, typer.Option(help="Port of the gRPC health service, plaintext.", **_PORT)] = 9003,
    metrics_port: Annotated[int, typer.Option(help="Port of the metrics page.", **_PORT)] = 9090,
    health_checking: Annotated[
        Switch, typer.Option(help="Serve health checks on the ext_proc port too.")
    ] = Switch.FALSE,
    secure_serving: Annotated[Switch, typer.Option(help="Serve ext_proc over TLS.")] = Switch.TRUE,
    cert_path: Annotated[
        Path | None, typer.Option(help="Directory with tls.crt and tls.key; a self-signed certificate without it.")
    ] = None,
    enable_cert_reload: Annotated[
        Switch, typer.Option(help="Reload tls.crt and tls.key of --cert-path when they change.")
    ] = Switch.TRUE,
    tls_min_version: Annotated[  # noqa: ARG001  only checked: gRPC has this minimum anyway
        str, tls_version_option("Minimum TLS version: VersionTLS12.")
    ] = "VersionTLS12",
    max_request_body: Annotated[
        int, size_option("Largest request body accepted; 32Mi by default.")
    ] = DEFAULT_MAX_BODY_BYTES,
    grpc_max_recv_msg_size: Annotated[
        int | None, size_option("Largest message accepted; by default 1Mi more than a body.")
    ] = None,
    grpc_max_send_msg_size: Annotated[
        int | None, size_option("Largest message sent; by default 1Mi more than a body.")
    ] = None,
    pool_name: Annotated[str, typer.Option(help="Name of the pool, in the labels of its metrics.")] = "default",
    disable_endpoint_subset_filter: Annotated[
        Switch, typer.Option(help="Ignore the gateway's subset hint.")
    ] = Switch.FALSE,
    emit_endpoint_scores: Annotated[
        Switch, typer.Option(help="Send the scores of all candidates in dynamic metadata.")
    ] = Switch.FALSE,
    plain_errors: Annotated[
        Switch, typer.Option(help="Send errors as plain text instead of the API's JSON.")
    ] = Switch.FALSE,
    refresh_metrics_interval: Annotated[
        float, duration_option("Time between two polls of an endpoint; 50ms by default.")
    ] = 0.05,
    refresh_prometheus_metrics_interval: Annotated[
        float, duration_option("Time between two updates of the pool's gauges; 5s by default.")
    ] = 5.0,
    drain_timeout: Annotated[float, duration_option("Longest time from SIGTERM to the end; 30s by default.")] = 30.0,
    drain_quiet_period: Annotated[
        float, duration_option("Time without open streams that ends the drain; 2s by default.")
    ] = 2.0,
    watch_config_file: WatchConfig = Switch.TRUE,
    allow_experimental_plugins: Experimental = Switch.FALSE,
    allow_plugin_modules: PluginModules = "",
    v: Verbosity = 2,
) -> None:
    """Run the endpoint picker: an ext_proc server that picks the endpoint of each LLM request for a gateway.

    The picker names addresses, and polls https endpoints over TLS; for requests to them, configure TLS in the gateway.
    """
    writer = logs.configure(v)
    message_bytes = message_bytes_for(max_request_body)

    async def work(stop: asyncio.Event) -> None:
        picker = Picker(
            PickerSettings(
                server=ServerSettings(
                    address=f"[::]:{grpc_port}",
                    health_address=f"[::]:{grpc_health_port}",
                    health_on_main=bool(health_checking),
                    secure=bool(secure_serving),
                    cert_path=cert_path,
                    cert_reload=bool(enable_cert_reload),
                    max_receive_bytes=message_bytes if grpc_max_recv_msg_size is None else grpc_max_recv_msg_size,
                    max_send_bytes=message_bytes if grpc_max_send_msg_size is None else grpc_max_send_msg_size,
                ),
                config=read_config(config_file, config_text),
                watch_config=config_file if watch_config_file else None,
                experimental=bool(allow_experimental_plugins),
                plugin_modules=split_list(allow_plugin_modules),
                discovery=read_endpoints(endpoints),
                pool_name=pool_name,
                metrics_address=("0.0.0.0", metrics_port),  # noqa: S104  scraped by other machines
                refresh_metrics_seconds=refresh_metrics_interval,
                refresh_prometheus_seconds=refresh_prometheus_metrics_interval,
                emit_endpoint_scores=bool(emit_endpoint_scores),
                use_subset=not disable_endpoint_subset_filter,
                plain_errors=bool(plain_errors),
                max_body_bytes=max_request_body,
                drain_seconds=drain_timeout,
                drain_quiet_seconds=drain_quiet_period,
                lost_log_lines=lambda: writer.lost,
                terminal=logs.terminal(writer),
            )
        )
        await picker.start()
        await stop.wait()
        stop.clear()  # the next signal ends the drain
        await picker.stop(enough=stop)

    run(work, ConfigurationError)
