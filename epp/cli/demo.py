# SPDX-License-Identifier: Apache-2.0
"""`epp demo`: simulated servers of different speed and price, the gateway, traffic, and a table."""

import asyncio
import contextlib
import json
import math
import os
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from epp.app import PickerSettings
from epp.cli.commands import Demo
from epp.cli.gateway import flags_in_errors, read_listen
from epp.cli.running import run
from epp.config import LoadedConfig, load_file, load_text
from epp.extproc.settings import ServerSettings
from epp.framework import Candidates, ConfigurationError, Snapshot, SystemClock
from epp.framework.accelerators.arrays import cost_per_hour
from epp.lab.demo.servers import (
    CHEAPEST_FIRST,
    PRESETS,
    ServerFailedError,
    ServerSpec,
    config_text,
    discovery,
    model_servers,
    two_clusters,
)
from epp.lab.demo.tenants import FAIR_QUEUES, FLOOD, SERVERS, STEADY, Tenants, TwoTenants
from epp.lab.demo.traffic import LastRequest, RoundRobin, Traffic, line, table
from epp.lab.gateway.local import local_gateway
from epp.lab.gateway.settings import GatewayError, GatewaySettings
from epp.pool.discovery import StaticDiscovery
from epp.routing.director import DirectorObserver
from epp.runtime.addresses import listener
from epp.telemetry import logs
from epp.telemetry.logs import LogWriter
from epp.telemetry.request_log import request_log
from epp.telemetry.settings import AdminSettings, DecisionSettings, PageSettings

MODEL = "demo-8b"
_REQUEST_ID = "my-request"
"""Id of the request to paste, so that its decision can be found."""
_HOST, _ADMIN_PORT = "127.0.0.1", 9091
"""Default address of `epp explain`."""
_DRAW_SECONDS = 0.25
_PRINT_SECONDS = 2.0
_PHASE_SECONDS = 10.0
_MIN_CONVERSATIONS = 6

Work = Coroutine[object, object, None]
Play = tuple[Work, Callable[[], str]]
"""Background work of a demo, and a function that returns its current phase."""


@dataclass(frozen=True)
class Scene:
    discovery: StaticDiscovery
    config: LoadedConfig
    intro: Sequence[str]
    """Lines to print at the start; `{url}` stands for the URL of the gateway."""
    play: Callable[[str], Play | None]
    """Returns the background work for the URL of the gateway."""
    observers: tuple[DirectorObserver, ...] = ()
    tenants: Tenants | None = None
    round_robin: RoundRobin | None = None

    def comparison(self, snapshot: Snapshot) -> str:
        """Return the comparison with round robin in one line; empty before there are enough requests."""
        if self.round_robin is None:
            return ""
        endpoints = Candidates(snapshot, snapshot.slots)
        prices = zip([each.name for each in endpoints.endpoints], cost_per_hour(endpoints).tolist(), strict=True)
        return self.round_robin.line(dict(prices))

    def drawn(self, snapshot: Snapshot, caption: str) -> RenderableType:
        endpoints = table(snapshot, caption)
        return endpoints if self.tenants is None else Group(self.tenants.table(), "", endpoints)

    def lines(self, snapshot: Snapshot) -> list[str]:
        lines = [line(snapshot)] if self.tenants is None else [self.tenants.line(), line(snapshot)]
        return [*lines, *filter(None, [self.comparison(snapshot)])]


def demo(flags: Demo) -> None:
    writer = logs.configure(flags.v)

    async def work(stop: asyncio.Event) -> None:
        address = read_listen(flags.listen)
        last = LastRequest()
        config = None if flags.config_file is None else load_file(flags.config_file)
        async with contextlib.AsyncExitStack() as stack:
            if flags.clusters and flags.tenants:
                raise ConfigurationError("--clusters and --tenants cannot be combined: give one")
            make = _clusters if flags.clusters else _tenants if flags.tenants else _prices
            scene = await make(flags, stack)
            picker = PickerSettings(
                server=ServerSettings(),
                config=config or scene.config,
                watch_config=flags.config_file,
                discovery=scene.discovery,
                observers=(last, *scene.observers, *request_log(flags.v)),
                page=PageSettings(port=flags.metrics_port),
                admin=AdminSettings(port=_admin_port() if flags.admin_port is None else flags.admin_port),
                decisions=DecisionSettings(sample_rate=1.0),
                stall_seconds=0,  # this process runs a demo as well
            )
            settings = GatewaySettings(listen_host=address.host, listen_port=address.port)
            with flags_in_errors():
                gateway = await stack.enter_async_context(local_gateway(picker, settings))
            for text in scene.intro:
                typer.echo(text.format(url=gateway.url))
            typer.echo("In another terminal:\n")
            typer.echo(f"  {curl(gateway.url)}\n")
            typer.echo("To see why that server was picked:\n")
            admin = gateway.picker.addresses["admin"]
            typer.echo(f"  {explain(admin)}\n")
            typer.echo(f"All requests, in a browser: http://{admin}/\n")
            play = scene.play(gateway.url)
            if play is not None:
                await stack.enter_async_context(_background(play[0]))

            def caption() -> str:
                phase = "" if play is None else play[1]()
                return "\n".join(filter(None, (phase, last.text, scene.comparison(store.snapshot()))))

            store = gateway.picker.store
            async with _background(_show(scene, store.snapshot, caption, writer)):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(flags.duration):
                        await gateway.wait(stop)
            for text in scene.lines(store.snapshot()):
                typer.echo(text)

    run(work, ConfigurationError, GatewayError, ServerFailedError)


async def _prices(flags: Demo, stack: contextlib.AsyncExitStack) -> Scene:
    specs = [*map(ServerSpec, PRESETS)]
    servers = await stack.enter_async_context(model_servers(specs, MODEL))
    round_robin = None
    if flags.traffic:
        others = await stack.enter_async_context(model_servers(specs, MODEL))
        round_robin = RoundRobin([server.address for server in others])
    return Scene(
        discovery(servers),
        load_text(CHEAPEST_FIRST, "demo configuration"),
        (
            "An H100, a slice of an A100 and a T4, simulated, behind {url}.",
            "The cheapest server with free capacity is used; raise --traffic to use the more expensive ones.",
            "A second set of servers gets copies of the requests by round robin, for comparison.",
        ),
        lambda url: (_conversations(flags, url, round_robin), str) if flags.traffic else None,
        round_robin=round_robin,
    )


async def _clusters(flags: Demo, stack: contextlib.AsyncExitStack) -> Scene:
    clusters = await stack.enter_async_context(two_clusters(MODEL))

    async def play(url: str) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(clusters.run(_PHASE_SECONDS))
            if flags.traffic:
                group.create_task(_conversations(flags, url))

    return Scene(
        discovery(clusters.servers),
        load_text(config_text(clusters.objects), "demo configuration"),
        ("Two simulated clusters, east and west, behind {url}:", "east, the local one, fills up, fails and recovers."),
        lambda url: (play(url), lambda: clusters.phase.value),
    )


async def _tenants(flags: Demo, stack: contextlib.AsyncExitStack) -> Scene:
    servers = await stack.enter_async_context(model_servers(SERVERS, MODEL))
    tenants = Tenants(SystemClock(), (STEADY, FLOOD))

    def play(url: str) -> Play | None:
        if not flags.traffic:
            return None
        clients = TwoTenants(url, MODEL, flags.traffic)
        return clients.run(_PHASE_SECONDS), lambda: clients.phase.value

    return Scene(
        discovery(servers),
        load_text(FAIR_QUEUES, "demo configuration"),
        (
            "Two T4s, simulated, behind {url}, shared fairly by two tenants: steady and flood.",
            "Flood repeatedly sends more than the servers can serve.",
        ),
        play,
        observers=(tenants,),
        tenants=tenants,
    )


async def _conversations(flags: Demo, url: str, round_robin: RoundRobin | None = None) -> None:
    conversations = max(_MIN_CONVERSATIONS, math.ceil(flags.traffic))
    await Traffic(url, MODEL, flags.traffic, conversations=conversations, beside=round_robin).run()


def curl(url: str) -> str:
    """Return a command that sends one request; header x-sim-server of the answer names the server."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Which GPU are you?"}]})
    headers = f"-H 'content-type: application/json' -H 'x-request-id: {_REQUEST_ID}'"
    return f"curl -i {url}/v1/chat/completions {headers} -d '{body}'"


def explain(admin: str) -> str:
    """Return a command that explains the decision for the request of `curl`; `admin` is the address of the port."""
    where = "" if admin.endswith(f":{_ADMIN_PORT}") else f" --admin http://{admin}"
    return f"{_program()} explain {_REQUEST_ID}{where}"


def _program() -> str:
    """Return a command that starts this program in another terminal, perhaps with a different PATH."""
    started = Path(sys.argv[0])
    found = shutil.which("epp")
    if found is not None and Path(found).resolve() == started.resolve() and "VIRTUAL_ENV" not in os.environ:
        return "epp"
    if started.suffix == ".py":
        return f"{shlex.quote(sys.executable)} -m epp"
    return shlex.quote(str(started.absolute()))


def _admin_port() -> int:
    """Return the default port if it is free, or else 0 for any free port."""
    try:
        listener(_HOST, _ADMIN_PORT).close()
    except OSError:
        return 0
    return _ADMIN_PORT


async def _show(scene: Scene, snapshot: Callable[[], Snapshot], caption: Callable[[], str], writer: LogWriter) -> None:
    if not sys.stdout.isatty():
        while True:
            await asyncio.sleep(_PRINT_SECONDS)
            for text in scene.lines(snapshot()):
                typer.echo(text)
            typer.echo(caption())
    with Live(scene.drawn(snapshot(), caption()), console=Console(), auto_refresh=False) as live:
        writer.divert(lambda lines: live.console.print(Text.from_ansi(lines.rstrip("\n"))))  # above the table
        try:
            while True:
                live.update(scene.drawn(snapshot(), caption()), refresh=True)
                await asyncio.sleep(_DRAW_SECONDS)
        finally:
            writer.divert(None)


@contextlib.asynccontextmanager
async def _background(work: Work) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
