# SPDX-License-Identifier: Apache-2.0
"""The server over loopback, as a client, a gateway and a scraper see it."""

import asyncio
import hashlib
import json
import re
import time
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from epp.lab.sim.profile import SimProfile
from epp.lab.sim.server import running
from tests.support.waiting import until

RECORDED = Path(__file__).parents[2] / "data" / "vllm-0.32" / "chat-stream.txt"
MODEL = "tiny"
PROFILE = SimProfile(
    name="one",
    model=MODEL,
    lora_adapters=("lora-a",),
    prefill_tokens_per_second=1e6,
    seconds_per_output_token=1e-4,
    max_num_seqs=4,
    max_num_batched_tokens=1000,
    block_size=4,
    num_gpu_blocks=250,
    max_model_len=1000,
    default_output_tokens=8,
)
# The next token, or the first one, takes longer than any test: 1 token per 1,000 or 10,000 seconds.
SLOW = SimProfile(model=MODEL, seconds_per_output_token=1000)
STUCK = SimProfile(name="stuck", model=MODEL, prefill_tokens_per_second=1e-4, max_num_seqs=4)
# <|user|> (2), "hello" (2), the end (1), <|assistant|> (4)
HELLO = [{"role": "user", "content": "hello"}]
HELLO_TOKENS = 9


@pytest.fixture
async def sim():
    async with running(PROFILE) as sim:
        yield sim


@pytest.fixture
async def http(sim):
    async with aiohttp.ClientSession(f"http://{sim.address}") as session:
        yield session


@pytest.fixture
async def client(sim):
    async with openai_client(sim) as client:
        yield client


@asynccontextmanager
async def openai_client(sim):
    async with AsyncOpenAI(base_url=f"http://{sim.address}/v1", api_key="none", max_retries=0) as client:
        yield client


async def post(http, path, **body):
    async with http.post(path, json=body) as response:
        return response.status, await response.json()


async def test_openai_client_gets_an_answer_with_usage(client):
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].finish_reason == "stop"
    assert len(answer.choices[0].message.content) == 8 * 4
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (9, 8, 17)
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    again = await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert again.choices == answer.choices
    assert again.usage.prompt_tokens_details.cached_tokens == 8  # two blocks of four


async def test_openai_client_streams_the_same_text(client):
    whole = await client.chat.completions.create(model=MODEL, messages=HELLO)
    stream = await client.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * 8 + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8


@pytest.mark.parametrize(
    ("limit", "tokens"),
    [
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 3}, 3),
        ({"max_tokens": 20, "extra_body": {"ignore_eos": True}}, 20),
    ],
)
async def test_a_limit_cuts_the_answer(client, limit, tokens):
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, **limit)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (tokens, "length")


async def test_completions_whole_and_streamed(client):
    whole = await client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=5)
    assert whole.id.startswith("cmpl-")
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (4, 5)
    stream = await client.completions.create(model=MODEL, prompt=["Once upon a time"], max_tokens=5, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "tokens"), [("12345", 2), (["12345"], 2), ([1, 2, 3], 3), ([[1, 2, 3]], 3), (["1", "2"], None)]
)
async def test_a_completion_has_one_prompt_in_any_of_its_forms(http, prompt, tokens):
    status, answer = await post(http, "/v1/completions", prompt=prompt)
    if tokens is None:
        assert (status, answer["error"]["param"]) == (400, "prompt")
    else:
        assert (status, answer["usage"]["prompt_tokens"]) == (200, tokens)


async def test_a_second_turn_finds_the_first_one_in_the_cache(client):
    first = await client.chat.completions.create(model=MODEL, messages=HELLO)
    messages = [
        *HELLO,
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": [{"type": "text", "text": "and then?"}]},
    ]
    second = await client.chat.completions.create(model=MODEL, messages=messages)
    # 9 prompt tokens and 7 of the 8 generated ones were computed: four blocks.
    assert second.usage.prompt_tokens_details.cached_tokens == 16


async def test_events_have_the_shape_of_a_recorded_stream(http):
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 3, "stream": True}
    body["stream_options"] = {"include_usage": True}
    async with http.post("/v1/chat/completions", json=body) as response:
        assert response.content_type == "text/event-stream"
        ours = events(await response.text())
    theirs = events(RECORDED.read_text())
    assert len(ours) == len(theirs) == 6
    assert ours[-1] == theirs[-1] == "[DONE]"
    for our, their in zip(ours[:-1], theirs[:-1], strict=True):
        assert list(our) == [key for key in their if key in our]
        assert {"id", "object", "created", "model", "choices"} <= set(our)
        assert ("usage" in our) == ("usage" in their)
        for our_choice, their_choice in zip(our["choices"], their["choices"], strict=True):
            assert our_choice == {**{key: their_choice[key] for key in our_choice}, "delta": our_choice["delta"]}
            assert list(our_choice["delta"]) == list(their_choice["delta"])


def events(text: str) -> list:
    datas = [block.removeprefix("data: ") for block in text.strip().split("\n\n")]
    return [data if data == "[DONE]" else json.loads(data) for data in datas]


async def test_models_lists_base_model_and_adapters(client):
    models = (await client.models.list()).data
    assert [(model.id, model.parent) for model in models] == [(MODEL, None), ("lora-a", MODEL)]
    assert models[0].max_model_len == 1000


async def test_unknown_model_is_404_with_the_names_that_exist(client):
    with pytest.raises(NotFoundError, match="Valid aliases: tiny, lora-a") as caught:
        await client.chat.completions.create(model="other", messages=HELLO)
    assert caught.value.body["type"] == "NotFoundError"


async def test_prompt_beyond_the_context_is_400(client):
    with pytest.raises(BadRequestError) as caught:
        await client.completions.create(model=MODEL, prompt="x" * 4000)
    assert (caught.value.body["type"], caught.value.body["param"]) == ("BadRequestError", "input_tokens")
    with pytest.raises(BadRequestError, match="there is room for 996 output tokens"):
        await client.completions.create(model=MODEL, prompt="x" * 16, max_tokens=997)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not valid"),
        (b'{"messages": [{"role": "user", "content": 5}]}', r"\$\.messages\[0\]\.content"),
        (b'{"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}', "text part"),
        (b'{"messages": []}', "prompt is empty"),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": 2}', "n is 2"),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}', "at least 1"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "not valid"),
    ],
)
async def test_body_that_asks_for_nothing_sensible_is_400(http, body, message):
    async with http.post("/v1/chat/completions", data=body) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert (error["type"], error["code"]) == ("BadRequestError", 400)
    assert re.search(message, error["message"])


async def test_every_answer_says_who_gave_it(http):
    for path in ("/health", "/metrics", "/v1/models", "/no-such-path"):
        async with http.get(path) as response:
            assert response.headers["x-sim-server"] == "one"
    async with http.post("/v1/chat/completions", json={"messages": HELLO, "stream": True}) as response:
        assert response.headers["x-sim-server"] == "one"


async def test_request_id_of_the_client_becomes_the_id_of_the_answer(http):
    async with http.post("/v1/chat/completions", json={"messages": HELLO}, headers={"x-request-id": "abc"}) as response:
        assert (await response.json())["id"] == "chatcmpl-abc"
        assert response.headers["x-request-id"] == "abc"


async def test_what_arrived_can_be_read_back(http):
    body = b'{"messages":  [{"role":"user","content":"hello"}],"unknown":1}'
    async with http.post("/v1/chat/completions?a=b", data=body, headers={"X-Test": "One"}) as response:
        answer = await response.json()
    await post(http, "/v1/chat/completions", model="other", messages=HELLO)
    async with http.get("/sim/requests") as response:
        served, refused = await response.json()
    assert served["id"] == answer["id"]
    assert served["path"] == "/v1/chat/completions?a=b"
    assert (served["model"], served["prompt_tokens"], served["cached_tokens"]) == (MODEL, HELLO_TOKENS, 0)
    assert served["finish_reason"] == "stop"
    assert (served["body_bytes"], served["body_sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
    assert ["x-test", "One"] in served["headers"]
    assert (refused["id"], refused["model"], refused["finish_reason"]) == (None, "other", None)


async def test_a_server_can_be_made_to_look_loaded(http):
    status, load = await post(http, "/sim/occupy", running=3, waiting=5, kv_usage=0.5)
    assert (status, load) == (200, {"running": 3, "waiting": 5, "kv_usage": 0.5})
    async with http.get("/metrics") as response:
        page = await response.text()
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'vllm:num_requests_waiting{engine="0",model_name="tiny"} 5.0' in page
    assert (await post(http, "/v1/chat/completions", messages=HELLO))[0] == 200
    assert await post(http, "/sim/release") == (200, {"running": 0, "waiting": 0, "kv_usage": 0.0})


async def test_load_that_does_not_fit_is_refused(http):
    status, answer = await post(http, "/sim/occupy", running=5)
    assert (status, answer["error"]["message"]) == (409, "running 5 must be 0 to 4, the number of free slots")
    status, answer = await post(http, "/sim/occupy", requests=5)
    assert status == 400
    assert "/sim/occupy expects JSON with running, waiting, kv_usage, lora_adapter" in answer["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_while_it_waits_frees_its_place(sim, http, stream):
    await post(http, "/sim/occupy", running=4)
    waiting = asyncio.create_task(post(http, "/v1/chat/completions", messages=HELLO, stream=stream))
    await until(lambda: sim.machine.waiting == 1, "a request is in the queue")
    waiting.cancel()
    await sim.idle()
    assert sim.machine.waiting == 0


async def test_a_client_that_hangs_up_in_the_middle_of_a_stream_frees_its_blocks():
    async with running(SLOW) as sim, aiohttp.ClientSession(f"http://{sim.address}") as http:
        async with http.post("/v1/chat/completions", json={"messages": HELLO, "stream": True}) as response:
            await response.content.readline()
            assert sim.machine.running == 1
            response.close()
        await sim.idle()
        assert (sim.machine.running, sim.machine.kv_usage) == (0, 0.0)
        async with http.get("/sim/requests") as response:
            (record,) = await response.json()
        assert record["finish_reason"] == "abort"


async def test_a_server_that_drains_lets_requests_in_flight_finish():
    slow = SimProfile(model=MODEL, seconds_per_output_token=0.01, default_output_tokens=20)
    async with running(slow) as sim, aiohttp.ClientSession(f"http://{sim.address}") as http:
        async with http.post("/v1/chat/completions", json={"messages": HELLO, "stream": True}) as response:
            await response.content.readline()
            draining = asyncio.create_task(sim.drain(3600))
            text = (await response.content.read()).decode()
        await draining
    assert '"finish_reason":"stop"' in text
    assert text.endswith("data: [DONE]\n\n")


async def test_requests_that_outlast_the_drain_end_with_abort():
    async with (
        running(SLOW) as sim,
        aiohttp.ClientSession(f"http://{sim.address}") as http,
        http.post("/v1/chat/completions", json={"messages": HELLO, "stream": True}) as response,
    ):
        await response.content.readline()
        await sim.drain(0)
        ours = events((await response.content.read()).decode().strip())
    assert ours[-1] == "[DONE]"
    assert ours[-2]["choices"][0]["finish_reason"] == "abort"


async def test_a_server_that_drains_refuses_new_requests_and_stays_healthy():
    async with running(STUCK) as sim, aiohttp.ClientSession(f"http://{sim.address}") as http:
        in_flight = asyncio.create_task(post(http, "/v1/chat/completions", messages=HELLO))
        await until(lambda: sim.machine.running == 1, "a request is in the batch")
        draining = asyncio.create_task(sim.drain(3600))
        status, answer = await post(http, "/v1/chat/completions", messages=HELLO)
        assert (status, answer["error"]["type"]) == (500, "InternalServerError")
        async with http.get("/health") as response:
            assert response.status == 200
        for task in (in_flight, draining):
            task.cancel()
        await asyncio.gather(in_flight, draining, return_exceptions=True)


async def test_request_is_queued_after_the_overhead_of_its_server():
    profile = msgspec.structs.replace(PROFILE, request_overhead_seconds=2.0, time_scale=0.1)
    async with running(profile) as sim, aiohttp.ClientSession(f"http://{sim.address}") as http:
        began = time.monotonic()
        status, _ = await post(http, "/v1/completions", prompt="hello")
        assert (status, time.monotonic() - began >= 0.2) == (200, True)
