# SPDX-License-Identifier: Apache-2.0
"""`epp serve`: the endpoint picker for a gateway that runs elsewhere."""

import asyncio
from dataclasses import replace

from epp.app import Picker, PickerSettings, PoolChoice, Pools
from epp.cli.inputs import read_bind_address
from epp.cli.kubernetes import pool_title, read_kubernetes, read_pool_choice
from epp.cli.picker_flags import Serve
from epp.cli.running import run
from epp.cli.settings import configure_logs, picker_settings
from epp.extproc.settings import ServerSettings
from epp.framework import ConfigurationError
from epp.runtime.addresses import EVERYWHERE, HostPort
from epp.runtime.supervisor import first_of
from epp.telemetry.logs import LogWriter
from epp.workers.link import Link


def serve(flags: Serve) -> None:
    """Run the picker until stopped."""
    writer = configure_logs(flags)

    async def work(stop: asyncio.Event) -> None:
        host = EVERYWHERE if flags.bind_address is None else read_bind_address(flags.bind_address)
        server = replace(
            flags.server,
            address=str(HostPort(host, flags.grpc_port)),
            health_address=str(HostPort(host, flags.grpc_health_port)),
            transport=flags.transport,
            budgets=flags.budgets,
        )
        picker: Picker | Pools
        choice = read_pool_choice(flags)
        if choice is not None:
            picker = _pools(flags, choice, server, host, writer)
        else:
            picker = Picker(_settings(flags, server, host, writer))
            if picker.link is not None:
                await work_for(picker, picker.link)
                return
        if not await first_of(picker.start(), stop.wait()):  # stopped while it waits for the API server of its cluster
            return
        await stop.wait()
        stop.clear()  # the next signal ends the drain
        await picker.stop(enough=stop)

    run(work, ConfigurationError)


def _settings(flags: Serve, server: ServerSettings, host: str, writer: LogWriter) -> PickerSettings:
    """Return the settings of a picker; raises ConfigurationError."""
    settings = picker_settings(flags, server, host=host, log=writer)
    return replace(
        settings,
        kubernetes=read_kubernetes(flags, settings.config),
        pool_name=pool_title(flags),
        emit_endpoint_scores=flags.emit_endpoint_scores,
        use_subset=not flags.disable_endpoint_subset_filter,
        drain_seconds=flags.drain_timeout,
        drain_quiet_seconds=flags.drain_quiet_period,
    )


def _pools(flags: Serve, choice: PoolChoice, server: ServerSettings, host: str, writer: LogWriter) -> Pools:
    """Return the pickers of several pools; raises ConfigurationError."""
    any_name = min(choice.names, default="any")
    of_process = replace(flags, pool_name=any_name, config_file=None, config_text=None)
    process = _settings(of_process, server, host, writer)

    def settings_of(name: str, port: int) -> PickerSettings:
        own = None if flags.pool_config_dir is None else flags.pool_config_dir / f"{name}.yaml"
        records = flags.decisions.file
        of_pool = replace(
            flags,
            pool_name=name,
            config_file=own if own is not None and own.exists() else flags.config_file,
            decisions=replace(flags.decisions, file=records and records.with_stem(f"{records.stem}-{name}")),
            tracing=False,  # that of the process
        )
        settings = _settings(of_pool, replace(server, address=str(HostPort(host, port))), host, writer)
        if settings.kubernetes is None:
            raise ConfigurationError(
                "dataLayer.discovery of the configuration is for one pool: leave it out, the endpoints are the pods of "
                "each InferencePool"
            )
        files = (own, flags.config_file) if own is not None else (flags.config_file, None)
        return replace(settings, tracing=process.tracing, watch_config=files[0], default_config=files[1])

    return Pools(process, choice, settings_of)


async def work_for(picker: Picker, link: Link) -> None:
    """Run the picker of a worker until the main process ends it; signals have no effect."""
    if await first_of(picker.start(), link.ended()):
        await link.ended()
    await picker.stop(drain_seconds=0)
