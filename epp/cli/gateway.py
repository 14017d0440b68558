# SPDX-License-Identifier: Apache-2.0
"""`epp gateway`: Envoy and the picker on this machine."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import typer

from epp.app import Picker
from epp.cli.input_output import read_bind_address, read_targets, read_trust
from epp.cli.picker_flags import Gateway
from epp.cli.running import exit_on, run
from epp.cli.serve import configure_logs, picker_settings, work_for
from epp.extproc.settings import ServerSettings
from epp.framework import ConfigurationError
from epp.framework.messages import listed
from epp.lab.gateway.bootstrap import bootstrap_yaml
from epp.lab.gateway.local import local_gateway, with_tls
from epp.lab.gateway.settings import (
    Bodies,
    ClusterType,
    FailureMode,
    GatewayError,
    GatewaySettings,
    SettingsError,
)
from epp.runtime.addresses import HostPort, is_ip, parse_host_port

_log = structlog.get_logger()


def gateway(flags: Gateway) -> None:
    if flags.print_envoy_config:
        with exit_on(ConfigurationError, GatewayError), flags_in_errors():
            secure = [target.host for target in read_targets(flags.endpoints) if target.tls]
            settings = _settings(flags)
            typer.echo(bootstrap_yaml(with_tls(settings, filter(is_ip, secure)) if secure else settings), nl=False)
        return
    writer = configure_logs(flags)

    async def work(stop: asyncio.Event) -> None:
        server = ServerSettings(transport=flags.transport, budgets=flags.budgets, secure=False)
        picker = picker_settings(flags, server, host=_page_host(flags), log=writer)
        if picker.link is not None:
            await work_for(Picker(picker), picker.link)
            return
        with flags_in_errors():
            async with local_gateway(picker, _settings(flags)) as running:
                page = running.picker.addresses.get("metrics")
                metrics = "" if page is None else f", metrics on {page}"
                names = [endpoint.name for endpoint in running.picker.store.endpoints]
                pool = listed(names, 10) or "no endpoints yet"
                typer.echo(f"listening on {running.url} for {pool}{metrics}; Ctrl-C stops")
                await running.wait(stop)
                if flags.drain_timeout > 0:
                    _log.info("draining", most_seconds=flags.drain_timeout)
                    stop.clear()  # the next signal ends the drain
                    await running.drain(flags.drain_timeout, enough=stop)

    run(work, ConfigurationError, GatewayError)


def _page_host(flags: Gateway) -> str:
    if flags.bind_address is None:
        return "127.0.0.1"
    if flags.page.port is None:
        raise ConfigurationError("--bind-address has no effect without --metrics-port: add it")
    return read_bind_address(flags.bind_address)


def _settings(flags: Gateway) -> GatewaySettings:
    address = read_listen(flags.listen)
    return GatewaySettings(
        listen_host=address.host,
        listen_port=address.port,
        concurrency=max(flags.concurrency, flags.workers),
        cluster_type=ClusterType(flags.cluster_type),
        body_mode=None if flags.body_mode is None else Bodies(flags.body_mode),
        failure_mode=FailureMode(flags.failure_mode),
        eds_file=None if flags.eds_file is None else flags.eds_file.absolute(),
        retry_on_reset=flags.retry_on_reset,
        endpoint_http2=flags.endpoint_http2,
        max_body_bytes=flags.budgets.max_body_bytes,
        endpoint_trust=read_trust(flags.endpoint_ca_file, skip_verify=flags.endpoint_insecure_skip_verify),
    )


def read_listen(text: str) -> HostPort:
    """Return the address of --listen, `host:port`, `:port` or a port; raises ConfigurationError."""
    port = text.removeprefix(":")
    try:
        address = parse_host_port(f"127.0.0.1:{port}" if port.isdecimal() else text, min_port=0)
    except ValueError as error:
        raise ConfigurationError(f"--listen: {error}") from error
    if address.host == "localhost":
        return HostPort("127.0.0.1", address.port)
    if not is_ip(address.host):
        raise ConfigurationError(
            f"--listen: {text!r} is not an IP address and port; Envoy does not resolve host names here"
        )
    return address


@contextmanager
def flags_in_errors() -> Iterator[None]:
    """Name the flag instead of the setting in errors."""
    try:
        yield
    except SettingsError as error:
        flag = "listen" if error.setting.startswith("listen") else error.setting.replace("_", "-")
        raise ConfigurationError(f"--{flag}: {error.problem}") from error
