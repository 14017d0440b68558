# SPDX-License-Identifier: Apache-2.0
"""What an end-to-end test sees: a real Envoy, a real picker and simulated model servers, all on loopback."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletionChunk

from epp.app import PickerSettings
from epp.config import load_file, load_text
from epp.extproc.settings import ResponseSettings
from epp.framework import SystemClock
from epp.framework.snapshot import IN_FLIGHT, METRICS_AT, Column
from epp.lab.gateway.local import LocalGateway, local_gateway
from epp.lab.gateway.settings import GatewaySettings
from epp.lab.sim.profile import PRESETS
from epp.lab.sim.server import RunningSim
from epp.pool.discovery import StaticDiscovery, parse_targets
from epp.routing.policies import policies_in_files
from epp.routing.settings import OutlierSettings
from tests.support.transports import server_settings
from tests.support.waiting import until

MODEL = "e2e-8b"
ENDLESS = {"extra_body": {"ignore_eos": True}}
"""What makes a server go on until max_tokens."""
FAST = msgspec.structs.replace(
    PRESETS["h100"], model=MODEL, time_scale=0.2, max_model_len=200_000, num_gpu_blocks=40_000
)

ANY_PORT = GatewaySettings(listen_port=0)


def question(prompt: str = "hello", tokens: int = 2, *, model: str | None = MODEL, **more: Any) -> dict[str, Any]:
    """The body of a chat request; one without a model for None."""
    named = {} if model is None else {"model": model}
    return {**named, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, **more}


async def endless(client: AsyncOpenAI, tokens: int, model: str = MODEL) -> AsyncStream[ChatCompletionChunk]:
    """Begin a stream of exactly so many tokens, of which the first has come."""
    stream = await client.chat.completions.create(**question("go on", tokens, model=model), stream=True, **ENDLESS)
    assert (await anext(stream)).choices
    return stream


async def rest_of(stream: AsyncStream[ChatCompletionChunk]) -> None:
    """Read a stream to its end, which must be the last of its tokens."""
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices[0].finish_reason == "length"


def client_of(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30)


def pool_of(sims: Mapping[str, RunningSim]) -> str:
    """Return the servers as `--endpoints` takes them."""
    return ",".join(f"{name}={sim.address}" for name, sim in sims.items())


def column_of(gateway: LocalGateway, column: Column) -> dict[str, float]:
    """Return a column of the picker's books by name of the endpoint."""
    snapshot = gateway.picker.store.snapshot()
    values = snapshot.column(column)
    return {e.name: float(values[i]) for i, e in enumerate(snapshot.endpoints.values) if e is not None}


@dataclass
class World:
    """What a test sees: the gateway from outside, and the picker's books from inside."""

    gateway: LocalGateway
    client: AsyncOpenAI
    http: aiohttp.ClientSession
    sims: dict[str, RunningSim] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.gateway.url

    def column(self, column: Column) -> dict[str, float]:
        """Name of each endpoint to its value."""
        return column_of(self.gateway, column)

    @property
    def available(self) -> set[str]:
        snapshot = self.gateway.picker.store.snapshot()
        return {e.name for s in snapshot.available if (e := snapshot.endpoints.values[s]) is not None}

    async def scraped(self) -> None:
        """Wait until every endpoint has reported what holds now: its next report may be older, the one after is not."""
        for _ in range(2):
            before = self.column(METRICS_AT)

            def newer(before: dict[str, float] = before) -> bool:
                return all(not np.isnan(at) and not at <= before[name] for name, at in self.column(METRICS_AT).items())

            await until(newer, "every endpoint has been scraped")

    async def settled(self) -> None:
        await until(lambda: not any(self.column(IN_FLIGHT).values()), "nothing is in flight")

    async def ask(self, prompt: str, **more) -> str:
        """Send one chat request; return the name of the server that answered."""
        return (await self.headers(prompt, **more))["x-sim-server"]

    async def headers(self, prompt: str = "hello", *, max_tokens: int = 4, **more: Any) -> Mapping[str, str]:
        """Send one chat request; return the headers of the response."""
        create = self.client.chat.completions.with_raw_response.create
        return (await create(**question(prompt, max_tokens), **more)).headers

    async def stream(self, tokens: int) -> AsyncStream[ChatCompletionChunk]:
        """Begin a stream of exactly so many tokens, of which the first has come."""
        return await endless(self.client, tokens)

    async def ask_when_idle(self, prompt: str) -> str:
        """Send one request once all gauges say that nothing else is under way."""
        await self.settled()
        await self.scraped()
        return await self.ask(prompt)

    async def occupy(self, name: str, **load) -> None:
        async with self.http.post(f"http://{self.sims[name].address}/sim/occupy", json=load) as response:
            assert response.status == 200, await response.text()
        await self.scraped()

    async def requests_at(self, name: str) -> list[dict]:
        async with self.http.get(f"http://{self.sims[name].address}/sim/requests") as response:
            return await response.json()


@contextlib.asynccontextmanager
async def open_world(
    *,
    endpoints: str = "",
    sims: dict[str, RunningSim] | None = None,
    config: str | None = None,
    config_file: Path | None = None,
    gateway: GatewaySettings = ANY_PORT,
    plugin_modules: tuple[str, ...] = (),
    objects: Path | None = None,
    experimental: bool = False,
    plain_errors: bool = False,
    outliers: OutlierSettings | None = None,
) -> AsyncIterator[World]:
    """Run a gateway with a configuration as text, or with a file that the picker follows; `objects` is followed too."""
    loaded = None if config is None else load_text(config)
    if config_file is not None:
        loaded = load_file(config_file)
    settings = PickerSettings(
        server=server_settings(),
        config=loaded,
        watch_config=config_file,
        plugin_modules=plugin_modules,
        policies=None if objects is None else policies_in_files([str(objects)], SystemClock()),
        experimental=experimental,
        responses=ResponseSettings(plain_errors=plain_errors),
        outliers=outliers or OutlierSettings(),
        discovery=None if not endpoints and loaded else StaticDiscovery(parse_targets(endpoints) if endpoints else ()),
    )
    async with (
        local_gateway(settings, gateway) as running,
        client_of(running.url) as client,
        aiohttp.ClientSession() as http,
    ):
        yield World(running, client, http, sims or {})
