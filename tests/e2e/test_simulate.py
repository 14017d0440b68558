# SPDX-License-Identifier: Apache-2.0
"""Requests that are only tried, at a running picker behind Envoy: decided like real ones, without a trace."""

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from tests.support.commands import command, outcome
from tests.support.config_files import picker_config
from tests.support.gateways import Gateway, gateway_of
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "tried-8b"
CONFIG = picker_config("""
plugins: [{type: queue-scorer}, {type: prefix-cache-scorer}, {type: no-hit-lru-scorer}]
""")
COUNTED = ("request", "plugin_", "scheduler", "prefix", "pool_", "decision")
"""Parts of the names of metrics that would show a request; others go on by themselves."""
NOT_COUNTED = "per_pod_queue_size"
"""Has no series of a server whose last page is too old, as on a busy machine."""


class Front:
    """A gateway with three servers behind it, or a picker alone, and its admin port."""

    def __init__(self, http: aiohttp.ClientSession, admin: str, gateway: Gateway | None = None) -> None:
        self._http = http
        self._admin = admin
        self._gateway = gateway

    async def ask(self, number: int) -> None:
        response = await self._gateway.post("/v1/completions", body(number), **{"x-request-id": f"r{number}"})
        assert response.status == 200

    async def simulate(self, **ask: object) -> dict:
        async with self._http.post(f"{self._admin}/api/simulate-schedule", json=ask) as answer:
            assert answer.status == 200
            return await answer.json()

    async def get(self, path: str) -> dict:
        async with self._http.get(f"{self._admin}{path}") as answer:
            return await answer.json()

    async def has_recorded_all(self) -> bool:
        """Records are made in a share of the picker's time, once requests are routed and again at their end."""
        records = (await self.get("/api/decisions?limit=50"))["decisions"]
        return len(records) == ASKED and all(record.get("ending") for record in records)

    async def counted(self) -> list[str]:
        async with self._http.get(f"http://127.0.0.1:{self._gateway.metrics_port}/metrics") as page:
            lines = (await page.text()).splitlines()
        samples = [line for line in lines if not line.startswith("#") and NOT_COUNTED not in line]
        return [line for line in samples if any(part in line for part in COUNTED)]

    async def load(self) -> list[dict]:
        rows = (await self.get("/api/endpoints"))["endpoints"]
        return [
            {name: row["load"][name] for name in ("inFlight", "inFlightTokens", "served", "failed")} for row in rows
        ]


ASKED = 9
"""Requests that each gateway of these tests has had."""


def body(number: int) -> dict:
    return {"model": MODEL, "prompt": f"Conversation {number}. " * 40, "max_tokens": 2}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("simulate")
    (directory / "config.yaml").write_text(CONFIG)
    return directory


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(files) -> AsyncIterator[Front]:
    simulate = ("sim-server", "--port=0", "--model", MODEL, "--time-scale=0.05")
    async with command(*simulate) as a, command(*simulate) as b, command(*simulate) as c:
        addresses = [(await server.says(MODEL)).rpartition("http://")[2] for server in (a, b, c)]
        endpoints = ",".join(f"{name}={address}" for name, address in zip("abc", addresses, strict=True))
        recording = ("--decision-sample-rate=1", f"--decision-file={files / 'decisions.jsonl'}")
        flags = (f"--endpoints={endpoints}", f"--config-file={files / 'config.yaml'}", "--admin-port=0")
        async with gateway_of(*flags, *recording) as gateway, aiohttp.ClientSession() as http:
            admin = (await gateway.process.ready())["admin"]
            front = Front(http, f"http://{admin}", gateway)
            for number in range(ASKED):
                await front.ask(number)
            await until(front.has_recorded_all, "all decisions are recorded")
            yield front


async def test_the_same_decision_simulated_again_gives_the_same_pick(front):
    records = (await front.get("/api/decisions?limit=50"))["decisions"]
    assert len({record["pick"]["endpoint"] for record in records}) == 3
    for record in records:
        number = int(record["requestId"][1:])
        again = await front.simulate(body=body(number), seed=record["asked"]["seed"])
        assert again["pick"]["endpoint"] == record["pick"]["endpoint"]
        assert again["pick"]["cachedShare"] > 0.9
        assert again["asked"]["model"] == record["asked"]["model"] == MODEL


async def test_tf_6_simulations_leave_no_trace_at_a_running_picker(front):
    load, recorded = await front.load(), (await front.get("/api/decisions"))["recorded"]
    counted = await front.counted()
    predicted = (await front.simulate(body=body(100), seed="1"))["pick"]
    for number in range(30):
        await front.simulate(body=body(100 + number % 3), objective="any", endpoints={"a": {"waiting": 50}})
        await front.simulate(body=body(100), config=picker_config(""))
    assert await front.load() == load
    assert await front.counted() == counted
    assert (await front.get("/api/decisions"))["recorded"] == recorded
    again = (await front.simulate(body=body(100), seed="1"))["pick"]
    assert again == predicted  # nothing of the prompt is believed to be anywhere
    assert again["cachedShare"] == 0.0


async def test_recorded_decisions_are_taken_again_as_they_were(front, files):
    config = str(files / "config.yaml")
    arguments = (str(files / "decisions.jsonl"), "--decisions", "--config", config, "--output=json")

    async def written() -> bool:
        lines = await asyncio.to_thread((files / "decisions.jsonl").read_bytes)
        return lines.count(b"\n") >= ASKED

    await until(written, "all decisions are in the file")
    found = await compared(*arguments, "--config", config)
    assert (found["replayed"], found["reproduced"], found["differing"]) == (ASKED, ASKED, 0)
    assert (await compared(*arguments, "--config", "random"))["differing"] > 0


async def compared(*arguments: str) -> dict:
    code, said = await outcome("replay", *arguments)
    assert (code, said.err) == (0, [])
    return json.loads("\n".join(said.out))
