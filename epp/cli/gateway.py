"""`epp gateway`: Envoy and the picker on this machine."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from epp.cli.options import (
    ConfigFile,
    ConfigText,
    Endpoints,
    Experimental,
    Listen,
    PluginModules,
    Switch,
    Verbosity,
    WatchConfig,
    read_config,
    read_endpoints,
    read_targets,
    read_trust,
    split_list,
)
from epp.cli.output import exit_on
from epp.cli.running import run
from epp.extproc.server import ServerSettings
from epp.framework import ConfigurationError
from epp.gateway import ClusterType, FailureMode, GatewayError, GatewaySettings, SettingsError, bootstrap_yaml
from epp.gateway.settings import parse_tcp_address
from epp.host_port import HostPort, is_ip
from epp.local import local_gateway, with_tls
from epp.observability import logs
from epp.picker import PickerSettings


def gateway(
    endpoints: Endpoints = None,
    listen: Listen = "127.0.0.1:8080",
    config_file: ConfigFile = None,
    config_text: ConfigText = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port of the picker's metrics page; no page without it.", min=0, max=65535)
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Envoy's worker threads.", min=1)] = 1,
    cluster_type: Annotated[
        ClusterType,
        typer.Option(
            help="original-dst: Envoy connects to the one address that the picker names. override-host: it reads the "
            "endpoints from a file, and tries the next in the picker's list when a connection fails. auto: "
            "override-host if an endpoint is https, which original-dst cannot do."
        ),
    ] = ClusterType.AUTO,
    failure_mode: Annotated[
        FailureMode,
        typer.Option(
            help="While the picker is down: FailClose answers 503, FailOpen (with override-host) lets Envoy pick."
        ),
    ] = FailureMode.FAIL_CLOSE,
    eds_file: Annotated[
        Path | None,
        typer.Option(help="With override-host: the file of endpoints that Envoy reads; a temporary one by default."),
    ] = None,
    endpoint_ca_file: Annotated[
        Path | None,
        typer.Option(help="PEM file with the authorities of https endpoints' certificates; by default the system's."),
    ] = None,
    endpoint_insecure_skip_verify: Annotated[
        Switch, typer.Option(help="Accept any certificate of https endpoints.")
    ] = Switch.FALSE,
    print_envoy_config: Annotated[
        bool, typer.Option("--print-envoy-config", help="Print Envoy's configuration and exit.")
    ] = False,
    watch_config_file: WatchConfig = Switch.TRUE,
    allow_experimental_plugins: Experimental = Switch.FALSE,
    allow_plugin_modules: PluginModules = "",
    v: Verbosity = 0,
) -> None:
    """Run Envoy with the picker behind it, for OpenAI-style requests to model servers."""
    writer = logs.configure(v)

    def settings() -> GatewaySettings:
        address = read_listen(listen)
        return GatewaySettings(
            listen_host=address.host,
            listen_port=address.port,
            concurrency=concurrency,
            cluster_type=cluster_type,
            failure_mode=failure_mode,
            eds_file=None if eds_file is None else eds_file.absolute(),
            endpoint_trust=read_trust(endpoint_ca_file, skip_verify=bool(endpoint_insecure_skip_verify)),
        )

    async def work(stop: asyncio.Event) -> None:
        picker = PickerSettings(
            server=ServerSettings("unix:unset"),
            config=read_config(config_file, config_text),
            watch_config=config_file if watch_config_file else None,
            experimental=bool(allow_experimental_plugins),
            plugin_modules=split_list(allow_plugin_modules),
            discovery=read_endpoints(endpoints),
            metrics_address=None if metrics_port is None else ("127.0.0.1", metrics_port),
            lost_log_lines=lambda: writer.lost,
            terminal=logs.terminal(writer),
        )
        with _flags_in_errors():
            async with local_gateway(picker, settings()) as running:
                typer.echo(f"listening on {running.url} for {running.picker.pool_text}; Ctrl-C stops")
                await running.wait(stop)

    if print_envoy_config:
        with exit_on(ConfigurationError, GatewayError), _flags_in_errors():
            secure = [target.host for target in read_targets(endpoints) if target.tls]
            printed = with_tls(settings(), filter(is_ip, secure)) if secure else settings()
            typer.echo(bootstrap_yaml(printed), nl=False)
        return
    run(work, ConfigurationError, GatewayError)


def read_listen(text: str) -> HostPort:
    """Return the address of --listen, `host:port` or `:port`; raises ConfigurationError."""
    with _flags_in_errors():
        return parse_tcp_address(f"127.0.0.1{text}" if text.startswith(":") else text, setting="listen")


@contextmanager
def _flags_in_errors() -> Iterator[None]:
    """Name the flag instead of the setting in errors."""
    try:
        yield
    except SettingsError as error:
        flag = "listen" if error.setting.startswith("listen") else error.setting.replace("_", "-")
        raise ConfigurationError(f"--{flag}: {error.problem}") from error
