# SPDX-License-Identifier: Apache-2.0
"""`epp serve`: the endpoint picker for a gateway that runs elsewhere."""

import asyncio
from dataclasses import replace

from epp.app import Picker
from epp.cli.inputs import read_bind_address
from epp.cli.kubernetes import pool_title, read_kubernetes
from epp.cli.picker_flags import Serve
from epp.cli.running import run
from epp.cli.settings import configure_logs, picker_settings
from epp.framework import ConfigurationError
from epp.runtime.addresses import EVERYWHERE, HostPort
from epp.runtime.supervisor import first_of
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
        settings = picker_settings(flags, server, host=host, log=writer)
        picker = Picker(
            replace(
                settings,
                kubernetes=read_kubernetes(flags, settings.config),
                pool_name=pool_title(flags),
                emit_endpoint_scores=flags.emit_endpoint_scores,
                use_subset=not flags.disable_endpoint_subset_filter,
                drain_seconds=flags.drain_timeout,
                drain_quiet_seconds=flags.drain_quiet_period,
            )
        )
        if picker.link is not None:
            await work_for(picker, picker.link)
            return
        if not await first_of(picker.start(), stop.wait()):  # stopped while it waits for the API server of its cluster
            return
        await stop.wait()
        stop.clear()  # the next signal ends the drain
        await picker.stop(enough=stop)

    run(work, ConfigurationError)


async def work_for(picker: Picker, link: Link) -> None:
    """Run the picker of a worker until the main process ends it; signals have no effect."""
    if await first_of(picker.start(), link.ended()):
        await link.ended()
    await picker.stop(drain_seconds=0)
