# SPDX-License-Identifier: Apache-2.0
"""What a request's headers lose and gain on the way, and the name of its model."""

import json

import aiohttp
import pytest

from epp.app import PickerSettings
from epp.lab.gateway import BodyMode, GatewaySettings
from epp.lab.local import local_gateway
from epp.pool.discovery import StaticDiscovery, parse_targets
from tests.support.transports import server_settings
from tests.support.world import MODEL, World, open_world

WRONG_PATH_CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: openai-parser}, {type: queue-scorer}]
requestHandler: {parsers: [{pluginRef: openai-parser}]}
"""
REWRITE = {"x-llm-d-model-name-rewrite": "tuned"}


@pytest.fixture
async def tuned(simulated):
    """One server that serves a base model and an adapter of it."""
    sims = await simulated("a", lora_adapters=("tuned",), max_lora=1)
    async with open_world(endpoints=f"a={sims['a'].address}", sims=sims) as world:
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


@pytest.mark.parametrize(
    "name",
    [
        *("x_gateway_destination_endpoint", "X_Prefiller_Host_Port", "x-data_parallel_rank", "x-epp_accelerator-class"),
        *(
            "x_llm_d_inference_fairness_id",
            "x-gateway.model.name.rewrite",
            "x~slo-ttft_ms",
            "x_kv_cache-source_host_port",
        ),
    ],
)
async def test_spelling_that_a_server_takes_for_a_control_header_stays_behind_too(tuned: World, name):
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
    headers = {"content-type": "application/json", name: "6", "x-tag": "6"}
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


@pytest.mark.parametrize("response_mode", [BodyMode.STREAMED, BodyMode.BUFFERED])
@pytest.mark.parametrize("request_mode", [BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL])
async def test_model_is_rewritten_and_put_back_in_other_modes_too(simulated, request_mode, response_mode):
    sims = await simulated("a", lora_adapters=("tuned",), max_lora=1)
    picker = PickerSettings(server=server_settings(), discovery=StaticDiscovery(parse_targets(sims["a"].address)))
    modes = {"request_body_mode": request_mode, "response_body_mode": response_mode}
    async with (
        local_gateway(picker, GatewaySettings(listen_port=0, **modes)) as gateway,
        aiohttp.ClientSession() as client,
    ):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        async with client.post(f"{gateway.url}/v1/chat/completions", json=body, headers=REWRITE) as response:
            assert response.status == 200
            assert (await response.json())["model"] == MODEL
        async with client.get(f"http://{sims['a'].address}/sim/requests") as response:
            assert [record["model"] for record in await response.json()] == ["tuned"]


async def test_usage_is_counted_from_the_response(tuned: World):
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "count me"}], "max_tokens": 7}
    await tuned.client.chat.completions.create(**ask)
    stream = await tuned.client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    assert [chunk async for chunk in stream]
    await tuned.settled()
    registry = tuned.gateway.picker.metrics.registry
    labels = {"model_name": MODEL, "target_model_name": MODEL, "fairness_id": "default-flow", "priority": "0"}
    assert registry.get_sample_value("llm_d_epp_request_output_tokens_sum", labels) == 14
    assert registry.get_sample_value("llm_d_epp_request_output_tokens_count", labels) == 2
    outcome = {"model_server_endpoint": "a", "outcome": "2xx"}
    assert registry.get_sample_value("llm_d_epp_endpoint_responses_total", outcome) == 2


async def test_path_that_no_parser_knows_is_400_where_there_is_no_fallback(simulated):
    sims = await simulated("a")
    async with (
        open_world(endpoints=f"a={sims['a'].address}", sims=sims, config=WRONG_PATH_CONFIG) as world,
        world.http.post(f"{world.url}/v1/nope", data=b'{"model":"m"}') as response,
    ):
        assert response.status == 400
        message = (await response.json())["error"]["message"]
        assert message == "path '/v1/nope' is of no API that is served here: correct the URL"


async def test_anthropic_request_and_refusal(tuned: World):
    async with tuned.http.post(f"{tuned.url}/v1/messages", json={"model": "m", "messages": []}) as response:
        assert response.status == 400
        assert (await response.json())["type"] == "error"
