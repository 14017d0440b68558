# SPDX-License-Identifier: Apache-2.0
"""`epp demo`: simulated servers of different speed and price, the gateway, traffic, and a table."""

import asyncio
import contextlib
import json
import math
import sys
from collections.abc import AsyncIterator, Callable, Coroutine

import typer
from rich.console import Console
from rich.live import Live

from epp.cli.commands import Demo
from epp.cli.gateway import read_listen
from epp.cli.running import run
from epp.config import load_file
from epp.datastore import Datastore
from epp.demo.clusters import cluster_config, two_clusters
from epp.demo.last_request import LastRequest
from epp.demo.pool import PRESETS, demo_config, demo_discovery
from epp.demo.servers import ServerFailedError, ServerSpec, model_servers
from epp.demo.table import line, table
from epp.demo.traffic import Traffic
from epp.extproc.settings import ServerSettings
from epp.framework import ConfigurationError
from epp.gateway import GatewayError, GatewaySettings
from epp.local import local_gateway
from epp.observability import logs
from epp.observability.request_log import request_log
from epp.picker import PickerSettings

MODEL = "demo-8b"
_DRAW_SECONDS = 0.25
_PRINT_SECONDS = 2.0
_PHASE_SECONDS = 10.0
_MIN_CONVERSATIONS = 6


def demo(flags: Demo) -> None:
    """Run the demo until stopped."""
    logs.configure(flags.v)

    async def work(stop: asyncio.Event) -> None:
        address = read_listen(flags.listen)
        last = LastRequest()
        config = None if flags.config_file is None else load_file(flags.config_file)
        async with contextlib.AsyncExitStack() as stack:
            clusters = await stack.enter_async_context(two_clusters(MODEL)) if flags.clusters else None
            if clusters is not None:
                discovery, config = clusters.discovery(), config or cluster_config(clusters.objects)
            else:
                servers = await stack.enter_async_context(model_servers([*map(ServerSpec, PRESETS)], MODEL))
                discovery, config = demo_discovery(servers), config or demo_config()
            picker = PickerSettings(
                server=ServerSettings("unix:unset"),
                config=config,
                watch_config=flags.config_file,
                discovery=discovery,
                observers=(last, *request_log(flags.v)),
            )
            settings = GatewaySettings(listen_host=address.host, listen_port=address.port)
            gateway = await stack.enter_async_context(local_gateway(picker, settings))
            if clusters is None:
                typer.echo(f"An H100, a slice of an A100 and a T4, simulated, behind {gateway.url}.")
                typer.echo("The cheapest with free capacity serves; raise --traffic to use the dearer ones.")
            else:
                typer.echo(f"Two clusters, east and west, simulated, behind {gateway.url}. East is the local one:")
                typer.echo("it fills up, then fails, and comes back.")
                await stack.enter_async_context(_background(clusters.run(_PHASE_SECONDS)))
            typer.echo("In another terminal:\n")
            typer.echo(f"  {curl(gateway.url)}\n")
            if flags.traffic:
                conversations = max(_MIN_CONVERSATIONS, math.ceil(flags.traffic))
                clients = Traffic(gateway.url, MODEL, flags.traffic, conversations=conversations)
                await stack.enter_async_context(_background(clients.run()))

            def caption() -> str:
                return last.text if clusters is None else f"{clusters.phase.value}\n{last.text}"

            async with _background(_show(gateway.picker.store, caption)):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(flags.duration):
                        await gateway.wait(stop)
            typer.echo(line(gateway.picker.store.snapshot()))

    run(work, ConfigurationError, GatewayError, ServerFailedError)


def curl(url: str) -> str:
    """Return a command that sends one request; the header x-sim-server of the answer names the server."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Which GPU are you?"}]})
    return f"curl -i {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"


async def _show(store: Datastore, caption: Callable[[], str]) -> None:
    if not sys.stdout.isatty():
        while True:
            await asyncio.sleep(_PRINT_SECONDS)
            typer.echo(line(store.snapshot()))
            typer.echo(caption())
    with Live(table(store.snapshot(), caption()), console=Console(), auto_refresh=False) as live:
        while True:
            live.update(table(store.snapshot(), caption()), refresh=True)
            await asyncio.sleep(_DRAW_SECONDS)


@contextlib.asynccontextmanager
async def _background(work: Coroutine[object, object, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
