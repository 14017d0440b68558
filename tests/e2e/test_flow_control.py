# SPDX-License-Identifier: Apache-2.0
"""Requests in front of a full pool, behind a real Envoy: who is next, who is refused, and that none is forgotten."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import grpc
import pytest
import yaml

from epp.app import Picker, PickerSettings
from epp.config import load_text
from epp.extproc.wire import METHOD, SERVICE
from epp.framework.snapshot import IN_FLIGHT
from epp.lab.sim.server import RunningSim
from epp.pool.discovery import StaticDiscovery, parse_targets
from tests.e2e.test_policies import DROPPED, OBJECTIVE, objective, written
from tests.support.config_files import endpoints_file, replace
from tests.support.exchanges import BODY, request_body
from tests.support.gateways import Gateway, gateway_of
from tests.support.http2 import http2_bytes as h2
from tests.support.http2.raw_connection import connected
from tests.support.serving import APART, answer, ask, exchange, first_message
from tests.support.transports import over_asyncio, server_settings
from tests.support.world import MODEL, until

FLOW = "x-llm-d-inference-fairness-id"
FLOWS = ("greedy", "modest")
SECONDS = 60.0
"""More than anything takes."""


class Front:
    """Clients of a gateway whose pool takes one request at a time; they count what waits by its health page."""

    def __init__(self, gateway: Gateway, http: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self._http = http
        self._tasks: set[asyncio.Task[tuple[int, dict[str, str], dict]]] = set()

    def ask(self, name: str, *, tokens: int = 2, **headers: str) -> asyncio.Task[tuple[int, dict[str, str], dict]]:
        """Send a request; its task returns status, headers and JSON."""
        task = asyncio.create_task(self._ask(name, tokens, headers))
        self._tasks.add(task)
        return task

    async def _ask(self, name: str, tokens: int, headers: dict[str, str]) -> tuple[int, dict[str, str], dict]:
        body = {"model": MODEL, "prompt": name, "max_tokens": tokens, "ignore_eos": True}
        given = {"x-request-id": name, **{key.replace("_", "-"): value for key, value in headers.items()}}
        async with self._http.post(f"{self.gateway.url}/v1/completions", json=body, headers=given) as response:
            return (
                response.status,
                {key.lower(): value for key, value in response.headers.items()},
                await response.json(),
            )

    async def waiting(self, count: int) -> None:
        """Wait until so many requests wait."""

        async def counted() -> bool:
            _, health = await self.gateway.health()
            return bool(health.get("queued", {}).get("requests") == count)

        await until(counted, f"{count} requests wait", seconds=SECONDS)

    async def line(self, name: str) -> dict:
        """Return the log line of a request."""
        return json.loads(await self.gateway.process.says(f'"x-request-id":"{name}"'))

    async def counted(self, outcome: str) -> float:
        samples = (await self.gateway.metrics()).get("llm_d_epp_flow_control_requests_total", {})
        return sum(value for labels, value in samples.items() if f"outcome={outcome}" in labels)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


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
            "apiVersion": "llm-d.ai/v1alpha1",
            "kind": "EndpointPickerConfig",
            "plugins": [discovery, {"type": "queue-scorer"}, *([detector] if on else []), *plugins],
            "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}],
            "dataLayer": {"discovery": {"pluginRef": "file-discovery"}},
            **({"featureGates": ["flowControl"], "flowControl": given} if on else {}),
        }
        replace(self.config, yaml.safe_dump(content))

    @contextlib.asynccontextmanager
    async def front(self, *flags: str) -> AsyncIterator[Front]:
        timeout = aiohttp.ClientTimeout(total=2 * SECONDS)
        async with (
            gateway_of(f"--config-file={self.config}", f"--objects={self.objects}", *flags) as gateway,
            aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http,
        ):
            front = Front(gateway, http)
            try:
                yield front
            finally:
                await front.end()

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
    """Hold a place: the only one, so that the next request waits."""
    holder = front.ask(name, tokens=LONG)

    async def is_running() -> bool:
        samples = (await front.gateway.metrics()).get("llm_d_epp_request_running", {})
        return sum(samples.values()) > 0

    await until(is_running, "the place is taken", seconds=SECONDS)
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


async def test_program_that_has_had_least_service_is_next_and_operators_see_what_each_has_had(setting):
    aware = {"type": "program-aware-fairness", "parameters": {"lasHalfLifeSeconds": 3600}}
    setting.configure(aware, defaultPriorityBand={"fairnessPolicyRef": "program-aware-fairness"})
    async with setting.front() as front:
        for number in range(3):  # 60 tokens and more for one program, nothing for the other
            assert (await front.ask(f"before-{number}", tokens=20, **{FLOW: "greedy"}))[0] == 200
        async with taken(front):
            asked = []
            for number, flow in enumerate(("greedy", "greedy", "modest", "modest"), 1):
                asked.append(front.ask(f"{number}-{flow}", **{FLOW: flow}))
                await front.waiting(number)
        assert [status for status, *_ in await asyncio.gather(*asked)] == [200] * 4
        flows = [name.partition("-")[2] for name in (await setting.served())[4:]]
        assert flows == ["modest", "modest", "greedy", "greedy"]
        samples = (await front.gateway.metrics())["llm_d_epp_program_aware_attained_service_tokens"]
        service = {
            flow: sum(value for labels, value in samples.items() if f"program_id={flow}" in labels) for flow in FLOWS
        }
        assert service["greedy"] > service["modest"] > 0


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
    setting.configure()
    picker = Picker(
        PickerSettings(
            server=server_settings("127.0.0.1:0"),
            config=load_text(setting.config.read_text()),
            discovery=StaticDiscovery(parse_targets("10.0.0.1:8000")),
        )
    )
    await picker.start()
    try:
        async with (
            grpc.aio.insecure_channel(f"127.0.0.1:{picker.port}", options=APART) as channel,
            connected(picker.port) as connection,
        ):
            holder = exchange(channel)
            await ask(holder)
            messages = [each.SerializeToString() for each in (first_message(), request_body(BODY, end=True))]
            for _ in range(20):
                call, opened = connection.peer.call(f"/{SERVICE}/{METHOD}", *map(h2.grpc_message, messages))
                await connection.send(opened, connection.peer.cancel(call))  # both in one segment
            await until(lambda: picker.open_streams == 1, "the streams have ended")
            assert picker.director.flow is not None
            assert picker.director.flow.queues.requests == 0
            await answer(holder)
            await until(lambda: picker.open_streams == 0, "the first has ended")
            assert not sum(picker.store.snapshot().column(IN_FLIGHT))
    finally:
        await picker.stop(drain_seconds=0)
