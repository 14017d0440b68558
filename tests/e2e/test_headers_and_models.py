# SPDX-License-Identifier: Apache-2.0
"""What a request's headers lose and gain on the way, and the name of its model."""

import json
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from epp.lab.sim.server import running
from tests.support.config_files import picker_config
from tests.support.world import FAST, MODEL, World, open_world, pool_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

WRONG_PATH_CONFIG = picker_config("""
plugins: [{type: openai-parser}, {type: queue-scorer}]
requestHandler: {parsers: [{pluginRef: openai-parser}]}
""")
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
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
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
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
    headers = {"content-type": "application/json", **dict.fromkeys(spelled, "6"), "x-tag": "6"}
    async with tuned.http.post(f"{tuned.url}/v1/chat/completions", data=body, headers=headers) as response:
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


async def test_usage_is_counted_from_the_response(tuned: World):
    sample = tuned.gateway.picker.metrics.registry.get_sample_value
    labels = {"model_name": MODEL, "target_model_name": MODEL, "fairness_id": "default-flow", "priority": "0"}
    outcome = {"model_server_endpoint": "a", "outcome": "2xx"}

    def counts() -> list[float]:
        tokens = [sample(f"llm_d_epp_request_output_tokens_{kind}", labels) or 0.0 for kind in ("sum", "count")]
        return [*tokens, sample("llm_d_epp_endpoint_responses_total", outcome) or 0.0]

    before = counts()
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "count me"}], "max_tokens": 7}
    await tuned.client.chat.completions.create(**ask)
    stream = await tuned.client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    assert [chunk async for chunk in stream]
    await tuned.settled()
    assert [after - each for after, each in zip(counts(), before, strict=True)] == [14, 2, 2]


async def test_path_that_no_parser_knows_is_400_where_there_is_no_fallback(tuned: World):
    async with (
        open_world(endpoints=pool_of(tuned.sims), config=WRONG_PATH_CONFIG) as world,
        world.http.post(f"{world.url}/v1/nope", data=b'{"model":"m"}') as response,
    ):
        assert response.status == 400
        message = (await response.json())["error"]["message"]
        assert message == "path '/v1/nope' is of no API that is served here: correct the URL"


async def test_anthropic_request_and_refusal(tuned: World):
    async with tuned.http.post(f"{tuned.url}/v1/messages", json={"model": "m", "messages": []}) as response:
        assert response.status == 400
        assert (await response.json())["type"] == "error"
