"""`epp gateway`: Envoy and the picker on this machine, one command."""

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from epp.cli.flags import Endpoints, Experimental, PluginModules, Switch, Verbosity, WatchConfig
from epp.cli.picker_options import read_config, read_endpoints, read_modules
from epp.cli.running import run
from epp.extproc.server import ServerSettings
from epp.framework import ConfigurationError
from epp.gateway import ClusterType, FailureMode, GatewayError, GatewaySettings, bootstrap_yaml
from epp.gateway.settings import parse_tcp_address
from epp.local import local_gateway
from epp.observability import logs
from epp.picker import PickerSettings


def gateway(
    endpoints: Endpoints = None,
    listen: Annotated[str, typer.Option(help="Where clients connect, host:port.")] = "127.0.0.1:8080",
    config_file: Annotated[Path | None, typer.Option(help="An EndpointPickerConfig file.")] = None,
    config_text: Annotated[str | None, typer.Option(help="An EndpointPickerConfig as text.")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port of the picker's metrics page; no page without it.", min=0, max=65535)
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Envoy's worker threads.", min=1)] = 1,
    cluster_type: Annotated[
        ClusterType,
        typer.Option(
            help="original-dst: Envoy connects to the one address that the picker names. override-host: it knows the "
            "endpoints, and tries the next of the picker's list when one takes no connection."
        ),
    ] = ClusterType.ORIGINAL_DST,
    failure_mode: Annotated[
        FailureMode,
        typer.Option(
            help="While the picker is down: FailClose answers 503, FailOpen (with override-host) lets Envoy choose."
        ),
    ] = FailureMode.FAIL_CLOSE,
    eds_file: Annotated[
        Path | None,
        typer.Option(
            help="With override-host: where to keep the list of endpoints that Envoy follows; a temporary file "
            "without it."
        ),
    ] = None,
    print_envoy_config: Annotated[
        bool, typer.Option("--print-envoy-config", help="Print Envoy's configuration and end.")
    ] = False,
    watch_config_file: WatchConfig = Switch.TRUE,
    allow_experimental_plugins: Experimental = Switch.FALSE,
    allow_plugin_modules: PluginModules = "",
    v: Verbosity = 0,
) -> None:
    """Run Envoy with the picker behind it: send it OpenAI-style requests, they land on the right model server."""
    writer = logs.configure(v)

    def settings() -> GatewaySettings:
        return msgspec.structs.replace(
            read_listen(listen, concurrency),
            cluster_type=cluster_type,
            failure_mode=failure_mode,
            eds_file=None if eds_file is None else eds_file.absolute(),
        )

    async def work(stop: asyncio.Event) -> None:
        picker = PickerSettings(
            server=ServerSettings("unix:unset"),
            config=read_config(config_file, config_text),
            watch_config=config_file if watch_config_file else None,
            experimental=bool(allow_experimental_plugins),
            plugin_modules=read_modules(allow_plugin_modules),
            discovery=read_endpoints(endpoints),
            metrics_address=None if metrics_port is None else ("127.0.0.1", metrics_port),
            lost_log_lines=lambda: writer.lost,
        )
        async with local_gateway(picker, settings()) as running:
            pool = ", ".join(endpoint.hostport for endpoint in running.picker.store.endpoints)
            typer.echo(f"listening on {running.url} for {pool or 'no endpoints yet'}; Ctrl-C stops")
            await running.wait(stop)

    if print_envoy_config:
        try:
            typer.echo(bootstrap_yaml(settings()), nl=False)
        except (ConfigurationError, GatewayError) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error
        return
    run(work, ConfigurationError, GatewayError)


def read_listen(text: str, concurrency: int) -> GatewaySettings:
    """Return the gateway's settings for `host:port` or `:port`; raises SettingsError."""
    address = parse_tcp_address(f"127.0.0.1{text}" if text.startswith(":") else text, setting="--listen")
    return GatewaySettings(listen_host=address.host, listen_port=address.port, concurrency=concurrency)
