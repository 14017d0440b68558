# SPDX-License-Identifier: Apache-2.0
"""What a request's headers lose and gain on the way, and the name of its model."""

import json
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from epp.lab.sim.server import running
from tests.support.world import FAST, MODEL, World, open_world, question

pytestmark = pytest.mark.asyncio(loop_scope="module")

REWRITE = {"x-llm-d-model-name-rewrite": "tuned"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tuned() -> AsyncIterator[World]:
    """One server that serves a base model and an adapter of it."""
    profile = msgspec.structs.replace(FAST, name="a", lora_adapters=("tuned",), max_lora=1)
    async with running(profile) as sim, open_world(endpoints=f"a={sim.address}", sims={"a": sim}) as world:
        yield world


async def arrived(world: World, name: str = "a") -> tuple[dict, list[tuple[str, str]]]:
    record = (await world.requests_at(name))[-1]
    return record, [(key, value) for key, value in record["headers"]]


async def test_control_headers_stay_behind_and_others_pass_twice_if_they_came_twice(tuned: World):
    headers = [
        ("content-type", "application/json"),
        ("x-llm-d-inference-fairness-id", "tenant"),
        ("x-gateway-inference-objective", "batch"),
        ("x-prefiller-host-port", "10.6.6.6:6"),
        ("x-encoder-hosts-ports", "10.6.6.6:6"),
        ("x-data-parallel-host-port", "10.6.6.6:6"),
        ("x-data-parallel-rank", "6"),
        ("x-kv-cache-source-host-port", "10.6.6.6:6"),
        ("x-tag", "one"),
        ("x-tag", "two"),
    ]
    body = json.dumps(question())
    async with tuned.http.post(f"{tuned.url}/v1/chat/completions", data=body, headers=headers) as response:
        assert response.status == 200
    _, fields = await arrived(tuned)
    names = [name for name, _ in fields]
    assert not {"x-llm-d-inference-fairness-id", "x-gateway-inference-objective"} & set(names)
    assert not any(value.startswith("10.6.6.6") for _, value in fields)  # no plugin here sets any of them
    assert "x-data-parallel-rank" not in names
    tags = [part.strip() for name, value in fields if name == "x-tag" for part in value.split(",")]
    assert tags == ["one", "two"]
    assert "x-request-id" in names


async def test_spelling_that_a_server_takes_for_a_control_header_stays_behind_too(tuned: World):
    spelled = (
        *("x_gateway_destination_endpoint", "X_Prefiller_Host_Port", "x-data_parallel_rank", "x-epp_accelerator-class"),
        *("x_llm_d_inference_fairness_id", "x-gateway.model.name.rewrite", "x~slo-ttft_ms"),
        "x_kv_cache-source_host_port",
    )
    headers = {**dict.fromkeys(spelled, "6"), "x-tag": "6"}
    async with tuned.http.post(f"{tuned.url}/v1/chat/completions", json=question(), headers=headers) as response:
        assert response.status == 200
    record, fields = await arrived(tuned)
    assert record["model"] == MODEL
    assert [key for key, value in fields if value == "6"] == ["x-tag"]


@pytest.mark.parametrize("stream", [False, True], ids=["JSON", "SSE"])
async def test_model_is_rewritten_for_the_server_and_put_back_for_the_client(tuned: World, stream):
    messages = b'[{"role":"user","content":"say \\"model\\""}]'
    flag = json.dumps(stream).encode()
    body = b'{ "messages": %s, "max_tokens":3,\n"model" : "%s", "stream": %s}' % (messages, MODEL.encode(), flag)
    headers = {"content-type": "application/json", **REWRITE}
    async with tuned.http.post(f"{tuned.url}/v1/chat/completions", data=body, headers=headers) as response:
        assert response.status == 200
        answer = await response.text()
    events = [line.removeprefix("data: ") for line in answer.splitlines() if line.startswith("data: {")]
    assert {json.loads(event)["model"] for event in (events if stream else [answer])} == {MODEL}
    record, _ = await arrived(tuned)
    assert record["model"] == "tuned"
    assert record["body_bytes"] == len(body) - len(MODEL) + len("tuned")
