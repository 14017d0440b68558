"""`epp serve`: the endpoint picker for a gateway that runs elsewhere."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from epp.cli.flags import Endpoints, Switch, Verbosity, duration_option, size_option
from epp.cli.picker_options import read_config, read_endpoints
from epp.cli.running import run
from epp.extproc.server import DEFAULT_MESSAGE_BYTES, ServerSettings
from epp.framework import ConfigurationError
from epp.observability import logs
from epp.picker import Picker, PickerSettings

_PORT = {"min": 0, "max": 65535}


def serve(
    endpoints: Endpoints = None,
    config_file: Annotated[Path | None, typer.Option(help="An EndpointPickerConfig file.")] = None,
    config_text: Annotated[str | None, typer.Option(help="An EndpointPickerConfig as text.")] = None,
    grpc_port: Annotated[int, typer.Option(help="Port of the ext_proc service.", **_PORT)] = 9002,
    grpc_health_port: Annotated[int, typer.Option(help="Port of the gRPC health service, plaintext.", **_PORT)] = 9003,
    metrics_port: Annotated[int, typer.Option(help="Port of the metrics page.", **_PORT)] = 9090,
    health_checking: Annotated[
        Switch, typer.Option(help="Answer health checks on the ext_proc port too.")
    ] = Switch.FALSE,
    secure_serving: Annotated[Switch, typer.Option(help="Serve ext_proc over TLS.")] = Switch.TRUE,
    cert_path: Annotated[
        Path | None, typer.Option(help="Directory with tls.crt and tls.key; self-signed without it.")
    ] = None,
    grpc_max_recv_msg_size: Annotated[
        int, size_option(text="Largest message taken, such as 64Mi (default).")
    ] = DEFAULT_MESSAGE_BYTES,
    grpc_max_send_msg_size: Annotated[
        int, size_option(text="Largest message sent, such as 64Mi (default).")
    ] = DEFAULT_MESSAGE_BYTES,
    pool_name: Annotated[str, typer.Option(help="Name of the pool, a label of its metrics.")] = "default",
    disable_endpoint_subset_filter: Annotated[
        Switch, typer.Option(help="Ignore the gateway's subset hint.")
    ] = Switch.FALSE,
    emit_endpoint_scores: Annotated[
        Switch, typer.Option(help="Send every candidate's score in dynamic metadata.")
    ] = Switch.FALSE,
    refresh_metrics_interval: Annotated[
        float, duration_option(text="Time between two polls of an endpoint, 50ms by default.")
    ] = 0.05,
    refresh_prometheus_metrics_interval: Annotated[
        float, duration_option(text="Time between two updates of the pool's gauges, 5s by default.")
    ] = 5.0,
    drain_timeout: Annotated[
        float, duration_option(text="How long open streams may take to finish at the end, 30s by default.")
    ] = 30.0,
    v: Verbosity = 2,
) -> None:
    """Run the endpoint picker: an ext_proc server that a gateway asks where each LLM request should go."""
    logs.configure(v)

    async def work(stop: asyncio.Event) -> None:
        picker = Picker(
            PickerSettings(
                server=ServerSettings(
                    address=f"[::]:{grpc_port}",
                    health_address=f"[::]:{grpc_health_port}",
                    health_on_main=bool(health_checking),
                    secure=bool(secure_serving),
                    cert_path=cert_path,
                    max_receive_bytes=grpc_max_recv_msg_size,
                    max_send_bytes=grpc_max_send_msg_size,
                ),
                config=read_config(config_file, config_text),
                discovery=read_endpoints(endpoints),
                pool_name=pool_name,
                metrics_address=("0.0.0.0", metrics_port),  # noqa: S104  scraped from elsewhere
                refresh_metrics_seconds=refresh_metrics_interval,
                refresh_prometheus_seconds=refresh_prometheus_metrics_interval,
                emit_endpoint_scores=bool(emit_endpoint_scores),
                use_subset=not disable_endpoint_subset_filter,
                drain_seconds=drain_timeout,
            )
        )
        await picker.start()
        await stop.wait()
        await picker.stop()

    run(work, ConfigurationError)
