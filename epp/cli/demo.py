"""`epp demo`: simulated servers of different speed and price, the gateway, and a table to watch."""

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

from epp.cli.flags import Verbosity, duration_option
from epp.cli.gateway import read_listen
from epp.cli.running import run
from epp.config import load_file
from epp.demo.pool import PRESETS, demo_config, demo_discovery
from epp.demo.servers import ServerFailedError, model_servers
from epp.demo.table import line, table
from epp.demo.traffic import Traffic
from epp.extproc.server import ServerSettings
from epp.framework import ConfigurationError
from epp.gateway import GatewayError
from epp.local import LocalGateway, local_gateway
from epp.observability import logs
from epp.picker import PickerSettings

MODEL = "demo-8b"
_LIVE_SECONDS = 0.25
_LEAST_CONVERSATIONS = 6
_LINE_SECONDS = 2.0


def demo(
    listen: Annotated[str, typer.Option(help="Where clients connect, host:port.")] = "127.0.0.1:8080",
    duration: Annotated[float | None, duration_option(text="End by itself after this time, such as 30s.")] = None,
    traffic: Annotated[
        float, typer.Option(help="Requests a second that the demo itself sends, at most; 0 for none.", min=0, max=100)
    ] = 12.0,
    config_file: Annotated[
        Path | None,
        typer.Option(help="Another EndpointPickerConfig than the demo's own, cost-aware one; edit it while it runs."),
    ] = None,
    v: Verbosity = 0,
) -> None:
    """Watch LLM requests land on simulated servers of different speed and price, behind a real Envoy."""
    logs.configure(v)

    async def work(stop: asyncio.Event) -> None:
        settings = read_listen(listen, 1)
        async with model_servers(tuple(PRESETS), MODEL) as servers:
            picker = PickerSettings(
                server=ServerSettings("unix:unset"),
                config=demo_config() if config_file is None else load_file(config_file),
                watch_config=config_file,
                discovery=demo_discovery(servers),
            )
            async with local_gateway(picker, settings) as gateway:
                typer.echo(f"An H100, a slice of an A100 and a T4, all simulated, behind {gateway.url}.")
                typer.echo("The cheapest that has room serves; raise --traffic to see the dearer ones open.")
                typer.echo("In another terminal:\n")
                typer.echo(f"  {curl(gateway.url)}\n")
                async with _sending(gateway.url, traffic), _showing(gateway):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(duration):
                            await gateway.wait(stop)

    run(work, ConfigurationError, GatewayError, ServerFailedError)


def curl(url: str) -> str:
    """Return a command that sends one request and shows, in the header x-sim-server, who answered."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Which GPU are you?"}]})
    return f"curl -i {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"


@contextlib.asynccontextmanager
async def _sending(url: str, requests_per_second: float) -> AsyncIterator[None]:
    if requests_per_second == 0:
        yield
        return
    conversations = max(_LEAST_CONVERSATIONS, math.ceil(requests_per_second))
    async with _background(Traffic(url, MODEL, requests_per_second, conversations=conversations).run()):
        yield


@contextlib.asynccontextmanager
async def _showing(gateway: LocalGateway) -> AsyncIterator[None]:
    show = _draw(gateway) if sys.stdout.isatty() else _print_lines(gateway)
    async with _background(show):
        yield
    typer.echo(line(gateway.picker.store.snapshot()))


async def _draw(gateway: LocalGateway) -> None:
    store = gateway.picker.store
    with Live(table(store.snapshot()), console=Console(), auto_refresh=False) as live:
        while True:
            live.update(table(store.snapshot()), refresh=True)
            await asyncio.sleep(_LIVE_SECONDS)


async def _print_lines(gateway: LocalGateway) -> None:
    while True:
        await asyncio.sleep(_LINE_SECONDS)
        typer.echo(line(gateway.picker.store.snapshot()))


@contextlib.asynccontextmanager
async def _background(work: Coroutine[object, object, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
