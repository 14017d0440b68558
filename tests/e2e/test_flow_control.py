# SPDX-License-Identifier: Apache-2.0
"""Requests in front of a full pool, behind a real Envoy: who is next, who is refused, and that none is forgotten."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import aiohttp
import grpc
import pytest
import yaml

from epp.config import load_text
from epp.framework.snapshot import IN_FLIGHT
from epp.lab.sim.server import RunningSim
from tests.e2e.test_policies import DROPPED, OBJECTIVE, objective, written
from tests.support.config_files import endpoints_file, picker_config, replace
from tests.support.gateways import Gateway, gateway_of
from tests.support.http2.raw_connection import connected
from tests.support.in_process import running_picker
from tests.support.serving import APART, PATH, REQUEST, answer, ask, exchange
from tests.support.transports import over_asyncio
from tests.support.waiting import read_until, until
from tests.support.world import MODEL

FLOW = "x-llm-d-inference-fairness-id"
Answer = tuple[int, dict[str, str], dict]
SECONDS = 60.0
"""More than anything takes."""


class Front:
    """Clients of a gateway whose pool takes one request at a time; they count what waits by its health page."""

    def __init__(self, gateway: Gateway, http: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self._http = http
        self._tasks: set[asyncio.Task[Answer]] = set()

    def ask(self, name: str, *, tokens: int = 2, **headers: str) -> asyncio.Task[Answer]:
        """Send a request; its task returns status, headers and JSON."""
        task = asyncio.create_task(self._ask(name, tokens, headers))
        self._tasks.add(task)
        return task

    async def _ask(self, name: str, tokens: int, headers: dict[str, str]) -> Answer:
        body = {"model": MODEL, "prompt": name, "max_tokens": tokens, "ignore_eos": True}
        given = {"x-request-id": name, **{key.replace("_", "-"): value for key, value in headers.items()}}
        async with self._http.post(f"{self.gateway.url}/v1/completions", json=body, headers=given) as response:
            lower = {key.lower(): value for key, value in response.headers.items()}
            return response.status, lower, await response.json()

    async def waiting(self, count: int) -> None:
        """Wait until so many requests wait."""
        what = f"{count} requests wait"
        await self.gateway.shows(lambda health: health.get("queued", {}).get("requests") == count, what, SECONDS)

    async def running(self, count: int) -> None:
        """Wait until so many requests are under way."""
        what = f"{count} requests are under way"
        await read_until(lambda: self.gateway.total("request_running"), lambda found: found == count, what, SECONDS)

    async def line(self, name: str) -> dict:
        """Return the log line of a request."""
        return json.loads(await self.gateway.process.says(f'"x-request-id":"{name}"'))

    async def counted(self, outcome: str) -> float:
        return await self.gateway.total("flow_control_requests_total", f"outcome={outcome}")

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def front_of(*flags: str) -> AsyncIterator[Front]:
    """Run a gateway, and clients of it until the block ends."""
    timeout = aiohttp.ClientTimeout(total=2 * SECONDS)
    async with (
        gateway_of(*flags) as gateway,
        aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        front = Front(gateway, http)
        try:
            yield front
        finally:
            await front.end()


class Setting:
    """The files of a gateway, and the servers behind it."""

    def __init__(self, directory: Path, sims: dict[str, RunningSim]) -> None:
        self.sims = sims
        self.config = directory / "config.yaml"
        self.endpoints = directory / "endpoints.yaml"
        self.objects = written(directory / "objects.yaml", objective("high", 10), objective("low", -5))

    def pool(self, *names: str) -> None:
        endpoints_file(self.endpoints, **{name: (self.sims[name].address, {}) for name in names})

    def configure(self, *plugins: dict, on: bool = True, places: int = 1, **flow_control: object) -> None:
        """Write the configuration, with more plugins."""
        detector = {"type": "concurrency-detector", "parameters": {"maxConcurrency": places}}
        discovery = {"type": "file-discovery", "parameters": {"path": str(self.endpoints), "watchFile": True}}
        given = {
            "saturationDetector": {"pluginRef": "concurrency-detector"},
            "defaultRequestTTL": "10m",
            "noEndpointRequestTTL": "10m",
            **flow_control,
        }
        content = {
            "plugins": [discovery, {"type": "queue-scorer"}, *([detector] if on else []), *plugins],
            "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}],
            "dataLayer": {"discovery": {"pluginRef": "file-discovery"}},
            **({"featureGates": ["flowControl"], "flowControl": given} if on else {}),
        }
        replace(self.config, picker_config(yaml.safe_dump(content)))

    def front(self, *flags: str) -> AbstractAsyncContextManager[Front]:
        return front_of(f"--config-file={self.config}", f"--objects={self.objects}", *flags)

    async def served(self, name: str = "a") -> list[str]:
        """Return the requests that a server has seen, in order."""
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://{self.sims[name].address}/sim/requests") as response,
        ):
            return [dict(record["headers"])["x-request-id"] for record in await response.json()]


@pytest.fixture
async def setting(simulated: Callable, tmp_path: Path) -> Setting:
    setting = Setting(tmp_path, await simulated("a", "b"))
    setting.pool("a")
    setting.configure()
    return setting


LONG = 100_000
"""Tokens of a request that holds its place until its client leaves."""


@contextlib.asynccontextmanager
async def taken(front: Front, name: str = "holder") -> AsyncIterator[None]:
    """Hold the only place, so that the next request waits."""
    holder = front.ask(name, tokens=LONG)
    await front.running(1)
    try:
        yield
    finally:
        holder.cancel()
        await asyncio.gather(holder, return_exceptions=True)


async def test_order_is_that_of_the_objectives_and_operators_see_who_waited(setting):
    async with setting.front() as front:
        async with taken(front):
            asked = []
            for number, name in enumerate(("low", "", "high", "low", "high"), 1):
                headers = {OBJECTIVE: name} if name else {}
                asked.append(front.ask(f"{number}-{name or 'none'}", **headers))
                await front.waiting(number)
            _, health = await front.gateway.health()
            assert health["queued"]["bytes"] > 0
        assert [status for status, *_ in await asyncio.gather(*asked)] == [200] * 5
        assert (await setting.served())[1:] == ["3-high", "5-high", "2-none", "1-low", "4-low"]
        line = await front.line("1-low")
        assert line["queue_outcome"] == "Dispatched"
        assert 0 < line["queue_seconds"] <= line["duration_seconds"]
        assert "; queued " in line["why"]
        assert (await front.line("holder"))["queue_seconds"] is None
        assert await front.counted("Dispatched") == 6


async def test_full_queue_refuses_with_the_reason_and_when_to_come_back(setting):
    setting.configure(defaultPriorityBand={"maxRequests": 1})
    async with setting.front() as front:
        async with taken(front):
            waits = front.ask("waits")
            await front.waiting(1)
            status, headers, answer = await front.ask("refused")
            assert (status, headers[DROPPED]) == (429, "rejected-saturated")
            assert int(headers["retry-after"]) >= 1
            assert answer["error"]["code"] == "rate_limit_exceeded"
        assert (await waits)[0] == 200
        assert await front.counted("RejectedCapacity") == 1


async def test_client_that_leaves_makes_way(setting):
    async with setting.front() as front:
        async with taken(front):
            gone, stays = front.ask("gone"), None
            await front.waiting(1)
            stays = front.ask("stays")
            await front.waiting(2)
            gone.cancel()
            await front.waiting(1)
        assert (await stays)[0] == 200
        assert await setting.served() == ["holder", "stays"]
        assert (await front.line("gone"))["queue_outcome"] == "EvictedContextCancelled"
        await front.waiting(0)


async def test_what_waits_goes_on_under_the_next_configuration(setting):
    async with setting.front() as front, taken(front):
        asked = [front.ask(f"r{number}") for number in range(40)]
        await front.waiting(40)
        setting.configure(defaultRequestTTL="9m")
        await front.gateway.process.says('"msg":"configuration applied"')
        await front.waiting(40)
        setting.configure(places=50)
        assert [status for status, *_ in await asyncio.gather(*asked)] == [200] * 40
        await front.waiting(0)


async def test_empty_pool_is_a_waiting_room(setting):
    setting.pool()
    async with setting.front() as front:
        asked = [front.ask(f"r{number}") for number in range(3)]
        await front.waiting(3)
        setting.pool("b")
        assert [status for status, *_ in await asyncio.gather(*asked)] == [200] * 3
        assert sorted(await setting.served("b")) == ["r0", "r1", "r2"]


async def test_drain_serves_what_waits_while_there_is_room(setting):
    async with setting.front("--drain-timeout=10m") as front:
        async with taken(front):
            waits = front.ask("waits")
            await front.waiting(1)
            front.gateway.process.terminate()
            await front.gateway.process.says('"msg":"draining"')
        assert (await waits)[0] == 200
        assert await front.gateway.process.end() == 0


async def test_end_of_a_drain_refuses_what_waits(setting):
    async with setting.front("--drain-timeout=10m") as front, taken(front):
        waits = front.ask("waits")
        await front.waiting(1)
        front.gateway.process.terminate()
        await front.gateway.process.says('"msg":"draining"')
        front.gateway.process.terminate()
        status, headers, _ = await waits
        assert (status, headers[DROPPED]) == (503, "rejected-shutting-down")
        await front.gateway.process.end()


@over_asyncio
async def test_stream_that_ends_with_its_request_leaves_nothing_in_the_queue(setting):
    async with (
        running_picker(config=load_text(setting.config.read_text())) as picker,
        grpc.aio.insecure_channel(f"127.0.0.1:{picker.port}", options=APART) as channel,
        connected(picker.port) as connection,
    ):
        holder = exchange(channel)
        await ask(holder)
        for _ in range(20):
            call, opened = connection.peer.call(PATH, REQUEST)
            await connection.send(opened, connection.peer.cancel(call))  # both in one segment
        await until(lambda: picker.open_streams == 1, "the streams have ended")
        assert picker.director.flow is not None
        assert picker.director.flow.queues.requests == 0
        await answer(holder)
        await until(lambda: picker.open_streams == 0, "the first has ended")
        assert not sum(picker.store.snapshot().column(IN_FLIGHT))
