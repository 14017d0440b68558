# SPDX-License-Identifier: Apache-2.0
"""Requests that are only tried, at a running picker behind Envoy: decided like real ones, without a trace."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
import yaml

from epp.lab.sim.server import running
from tests.support.commands import Command, command, outcome
from tests.support.config_files import picker_config
from tests.support.serving import ANY_PORT
from tests.support.world import FAST, until

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
    """A gateway with three servers behind it, and its admin port."""

    def __init__(self, http: aiohttp.ClientSession, url: str, admin: str, metrics: str) -> None:
        self._http = http
        self._url = url
        self._admin = admin
        self._metrics = metrics

    async def ask(self, number: int) -> None:
        headers = {"x-request-id": f"r{number}"}
        async with self._http.post(f"{self._url}/v1/completions", json=body(number), headers=headers) as answer:
            assert answer.status == 200
            await answer.read()

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
        async with self._http.get(f"{self._metrics}/metrics") as page:
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
        flags = (
            "--listen=127.0.0.1:0", "--endpoints", endpoints, "--config-file", str(files / "config.yaml"),
            "--metrics-port=0", "--admin-port=0", "--decision-sample-rate=1", "--decision-file",
            str(files / "decisions.jsonl"), "-v=1",
        )  # fmt: skip
        async with command("gateway", *flags) as gateway, aiohttp.ClientSession() as http:
            front = await front_of(gateway, http)
            for number in range(ASKED):
                await front.ask(number)
            await until(front.has_recorded_all, "all decisions are recorded")
            yield front


async def front_of(gateway: Command, http: aiohttp.ClientSession) -> Front:
    url = (await gateway.says("listening on")).split()[2]
    ready = json.loads(await gateway.says('"msg":"ready"'))
    metrics = ready["metrics"].replace("*", "127.0.0.1")
    return Front(http, url, f"http://{ready['admin']}", f"http://{metrics}")


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
        await front.simulate(body=body(100), config="apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n")
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


REGIONAL = picker_config("""
plugins:
- {type: disagg-profile-handler, parameters: {deciders: {prefill: prefix-based-pd-decider}}}
- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 512}}
- {type: topology-affinity-filter, parameters: {minAffinity: region}}
- {type: prefill-filter, parameters: {fallbackOnEmpty: false}}
- {type: decode-filter, parameters: {fallbackOnEmpty: false}}
- {type: random-picker}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: topology-affinity-filter}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: random-picker}]}
""")


async def test_gie_22_prefill_and_decode_are_in_one_region_by_nodes_in_files(tmp_path):
    (tmp_path / "config.yaml").write_text(REGIONAL)
    objects = []
    async with contextlib.AsyncExitStack() as servers:
        for region in ("eu", "us"):
            labels = {"topology.kubernetes.io/region": region}
            metadata = {"name": f"node-{region}", "labels": labels}
            objects.append({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
            for role in ("prefill", "decode"):
                server = await servers.enter_async_context(running(FAST))
                objects.append(pod(f"{role}-{region}", f"node-{region}", server.port, {"llm-d.ai/role": role}))
        (tmp_path / "objects.yaml").write_text(yaml.safe_dump_all(objects))
        files = ("--config-file", str(tmp_path / "config.yaml"), "--objects", str(tmp_path / "objects.yaml"))
        async with command("serve", *files, *ANY_PORT, "--admin-port=0") as picker, aiohttp.ClientSession() as http:
            ready = json.loads(await picker.says('"msg":"ready"'))
            front = Front(http, "", f"http://{ready['admin']}", "")
            regions = set()
            for number in range(12):
                ask = {"model": MODEL, "prompt": f"{number} " * 9000}
                found = await front.simulate(path="/v1/completions", body=ask)
                legs = found["profiles"]
                picked = [each["endpoint"] for leg in legs for each in leg["candidates"] if each.get("rank") == 0]
                roles, places = zip(*(name.split("-")[:2] for name in picked), strict=True)
                assert set(roles) == {"prefill", "decode"}
                assert len(set(places)) == 1
                regions.update(places)
    assert regions == {"eu", "us"}


def pod(name: str, node: str, port: int, labels: dict[str, str]) -> dict:
    gpu = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "llm", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "vllm", "ports": [{"containerPort": port}]} | gpu]},
        "status": {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
