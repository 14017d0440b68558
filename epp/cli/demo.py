"""`epp demo`: simulated servers of different speed and price, the gateway, traffic, and a table."""

import asyncio
import contextlib
import json
import math
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from epp.cli.gateway import read_listen
from epp.cli.options import Listen, Verbosity, duration_option
from epp.cli.running import run
from epp.config import load_file
from epp.datastore import Datastore
from epp.demo.last_request import LastRequest
from epp.demo.pool import PRESETS, demo_config, demo_discovery
from epp.demo.servers import ServerFailedError, model_servers
from epp.demo.table import line, table
from epp.demo.traffic import Traffic
from epp.extproc.server import ServerSettings
from epp.framework import ConfigurationError
from epp.gateway import GatewayError, GatewaySettings
from epp.local import local_gateway
from epp.observability import logs
from epp.observability.request_log import request_log
from epp.picker import PickerSettings

MODEL = "demo-8b"
_DRAW_SECONDS = 0.25
_PRINT_SECONDS = 2.0
_MIN_CONVERSATIONS = 6


def demo(
    listen: Listen = "127.0.0.1:8080",
    duration: Annotated[float | None, duration_option("Exit after this time, such as 30s.")] = None,
    traffic: Annotated[
        float, typer.Option(help="Most requests a second that the demo sends; 0 for none.", min=0, max=100)
    ] = 12.0,
    config_file: Annotated[
        Path | None,
        typer.Option(help="An EndpointPickerConfig file instead of the demo's own; edit it while the demo runs."),
    ] = None,
    v: Verbosity = 0,
) -> None:
    """Watch LLM requests reach simulated servers of different speed and price, behind a real Envoy."""
    logs.configure(v)

    async def work(stop: asyncio.Event) -> None:
        address = read_listen(listen)
        last = LastRequest()
        config = demo_config() if config_file is None else load_file(config_file)
        async with contextlib.AsyncExitStack() as stack:
            servers = await stack.enter_async_context(model_servers(tuple(PRESETS), MODEL))
            picker = PickerSettings(
                server=ServerSettings("unix:unset"),
                config=config,
                watch_config=config_file,
                discovery=demo_discovery(servers),
                observers=(last, *request_log(v)),
            )
            settings = GatewaySettings(listen_host=address.host, listen_port=address.port)
            gateway = await stack.enter_async_context(local_gateway(picker, settings))
            typer.echo(f"An H100, a slice of an A100 and a T4, all simulated, behind {gateway.url}.")
            typer.echo("The cheapest with free capacity serves; raise --traffic to see the dearer ones in use.")
            typer.echo("In another terminal:\n")
            typer.echo(f"  {curl(gateway.url)}\n")
            if traffic:
                conversations = max(_MIN_CONVERSATIONS, math.ceil(traffic))
                clients = Traffic(gateway.url, MODEL, traffic, conversations=conversations)
                await stack.enter_async_context(_background(clients.run()))
            async with _background(_show(gateway.picker.store, last)):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(duration):
                        await gateway.wait(stop)
            typer.echo(line(gateway.picker.store.snapshot()))

    run(work, ConfigurationError, GatewayError, ServerFailedError)


def curl(url: str) -> str:
    """Return a command that sends one request; the header x-sim-server of the answer names the server."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Which GPU are you?"}]})
    return f"curl -i {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"


async def _show(store: Datastore, last: LastRequest) -> None:
    if not sys.stdout.isatty():
        while True:
            await asyncio.sleep(_PRINT_SECONDS)
            typer.echo(line(store.snapshot()))
            typer.echo(last.text)
    with Live(table(store.snapshot(), last.text), console=Console(), auto_refresh=False) as live:
        while True:
            live.update(table(store.snapshot(), last.text), refresh=True)
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
