# SPDX-License-Identifier: Apache-2.0
"""Requests of an ordinary client through a real Envoy."""

import asyncio
import hashlib
import json

import openai
import pytest

from epp.framework.snapshot import IN_FLIGHT, SERVED
from tests.support.waiting import until
from tests.support.world import MODEL, World, question

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = "The quick brown fox jumps over the lazy dog. " * 200  # 9,000 bytes, some 140 blocks of 64 bytes


def served(world: World) -> float:
    return sum(world.column(SERVED).values())


async def arrived(world: World) -> int:
    """Number of requests that the servers have seen."""
    return sum([len(await world.requests_at(name)) for name in world.sims])


async def test_answer_comes_back_with_usage(world: World):
    before = served(world)
    answer = await world.client.chat.completions.create(**question(tokens=5))
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert len(answer.choices[0].message.content.split()) == 5
    await world.settled()
    assert served(world) == before + 1


async def test_stream_comes_piece_by_piece_with_usage_at_the_end(world: World):
    asked = question(tokens=20, stream=True, stream_options={"include_usage": True})
    stream = await world.client.chat.completions.create(**asked)
    chunks = [chunk async for chunk in stream]
    words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(words) == 20
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 20
    await world.settled()


async def test_bodies_arrive_byte_for_byte_one_of_300_kilobytes_too(world: World):
    odd = (
        b'{ "messages" : [{"content":"caf\\u00e9 \xc3\xa9","role":"user"}],\n "max_tokens":1e0, "x":1.50, "model":"%s"}'
    )
    prompt = "".join(f"{i:07d} " for i in range(37_500))  # 300,000 bytes, no two blocks alike
    large = json.dumps(question(prompt)).encode()
    for body in (odd % MODEL.encode(), large):
        async with world.http.post(
            f"{world.url}/v1/chat/completions", data=body, headers={"content-type": "application/json"}
        ) as response:
            server = response.headers["x-sim-server"]
            await response.read()
        *_, record = await world.requests_at(server)
        assert (record["body_sha256"], record["body_bytes"]) == (hashlib.sha256(body).hexdigest(), len(body))


async def test_loaded_server_is_avoided(world: World):
    await world.occupy("a", running=50, waiting=20, kv_usage=0.9)
    await world.occupy("b", running=50, waiting=10, kv_usage=0.8)
    assert {await world.ask(f"question {i}") for i in range(9)} == {"c"}


async def test_idle_servers_take_turns(world: World):
    assert sorted([await world.ask_when_idle(f"q{i}") for i in range(6)]) == ["a", "a", "b", "b", "c", "c"]


async def test_long_prefix_goes_back_to_the_server_that_holds_it(world: World):
    first = await world.ask(LONG + "What jumps?")
    others = {await world.ask_when_idle(f"unrelated {i}") for i in range(6)}
    assert others == {"a", "b", "c"}  # the pool is free to send it anywhere
    for i in range(5):
        assert await world.ask(LONG + f"And who is lazy? ({i})") == first
    records = await world.requests_at(first)
    cached = [r["cached_tokens"] for r in records if 1000 < r["prompt_tokens"] < 5000]
    assert cached[0] == 0
    assert all(tokens > 2000 for tokens in cached[1:])  # 9,000 bytes are 2,250 tokens of 4 bytes


async def test_clients_own_destination_does_not_count(world: World):
    await world.occupy("a", waiting=9)
    await world.occupy("b", waiting=9)
    forged = {"x-gateway-destination-endpoint": world.sims["a"].address}
    assert await world.ask("where to?", extra_headers=forged) == "c"


async def test_client_that_hangs_up_mid_stream_frees_its_place(world: World):
    stream = await world.stream(5_000)
    assert sum(world.column(IN_FLIGHT).values()) == 1
    await stream.close()
    await world.settled()
    await until(lambda: all(sim.machine.running == 0 for sim in world.sims.values()), "the server has stopped too")


async def test_hundred_clients_at_once_are_all_served_and_the_books_balance(world: World):
    before = served(world)
    answers = await asyncio.gather(*(world.ask(f"client {i}", max_tokens=8) for i in range(100)))
    assert set(answers) == {"a", "b", "c"}
    await world.settled()
    assert served(world) == before + 100


FAULTS = [
    (
        b"{not json",
        "the request body is not valid JSON: at line 1, column 2 (byte 1), a key in double quotes was expected",
    ),
    (b'{"messages":[{"role":"user","content":"hi"}]}', 'the request names no model: add "model" to the JSON body, '),
    (None, "the request has no body: send a JSON object"),
    (b"", "the request has no body: send a JSON object"),
]


async def test_request_at_fault_gets_status_and_sentence(world: World):
    before = await arrived(world)
    for body, sentence in FAULTS:
        headers = {} if body is None else {"content-type": "application/json"}
        async with world.http.post(f"{world.url}/v1/chat/completions", data=body, headers=headers) as response:
            assert response.status == 400
            assert "x-llm-d-request-dropped-reason" not in response.headers
            assert (await response.json())["error"]["message"].startswith(sentence)
    assert await arrived(world) == before
    assert await world.ask("still there?") in {"a", "b", "c"}


async def test_openai_client_carries_the_message_the_parameter_and_the_code(world: World):
    with pytest.raises(openai.BadRequestError, match='"messages" is missing or empty: send at least one') as refused:
        await world.client.chat.completions.create(model=MODEL, messages=[])
    assert (refused.value.param, refused.value.code) == ("messages", "missing_required_parameter")
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match='"model" must be a string, not an integer'):
        await world.client.chat.completions.create(model=7, messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.BadRequestError, match=r'"messages\[0\].content" must be a string or an array'):
        await world.client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": True}])


async def test_other_methods_and_paths_that_no_parser_knows_are_left_to_the_model_server(world: World):
    async with world.http.get(f"{world.url}/v1/chat/completions") as response:
        assert response.status == 405
        assert "POST" in response.headers["allow"]
    async with world.http.post(f"{world.url}/v1/nope", data=b"anything") as response:
        assert response.status == 404
        assert response.headers["x-sim-server"] in {"a", "b", "c"}
