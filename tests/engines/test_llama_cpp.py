# SPDX-License-Identifier: Apache-2.0
"""The gateway in front of two genuine servers of llama.cpp."""

import asyncio
import math

import pytest
from openai import AsyncOpenAI

from epp.framework.snapshot import KV_USAGE, RUNNING, SERVED, WAITING
from tests.engines.conftest import SLOTS
from tests.support.gateway_world import World
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(300)

LONG = "def area(width, height):\n    return width * height\n" * 40  # 2,000 tokens: one for each byte
MODEL = "tiny"


def direct(world: World, server: int) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://{world.servers[server].address}/v1", api_key="none", max_retries=0)


async def complete(client: AsyncOpenAI, prompt: str, tokens: int = 8) -> object:
    return await client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=tokens, temperature=0, extra_body={"ignore_eos": True}
    )


async def test_engine_is_recognised_by_its_metrics_page(world):
    await until(lambda: not any(map(math.isnan, world.column(RUNNING).values())), "both have been polled")
    assert world.column(WAITING) == {"a": 0, "b": 0}
    assert all(map(math.isnan, world.column(KV_USAGE).values()))  # not on the page of this version


async def test_answer_through_the_gateway_is_the_servers_own(world):
    through = await complete(world.client, "hello")
    async with direct(world, 0) as client:
        own = await complete(client, "hello")
    assert through.choices[0].text == own.choices[0].text
    assert through.usage.completion_tokens == own.usage.completion_tokens == 8


async def test_stream_with_usage(world):
    stream = await world.client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "count"}],
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage.completion_tokens == 12


async def test_same_prompt_goes_where_it_is_cached(world):
    await world.idle()
    before = world.column(SERVED)
    cached = []
    for turn in range(4):
        answer = await complete(world.client, f"{LONG}# question {turn}", 4)
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
        await world.idle()
    assert cached[0] < 100
    assert all(tokens >= 1_900 for tokens in cached[1:])
    assert sorted(count - before[name] for name, count in world.column(SERVED).items()) == [0, 4]


async def test_burst_is_spread_over_both(world):
    await world.idle()
    before = world.column(SERVED)
    await asyncio.gather(*(complete(world.client, f"{i} different", 64) for i in range(8)))
    await world.idle()
    assert all(count - before[name] >= 2 for name, count in world.column(SERVED).items())


async def test_server_with_a_queue_of_other_clients_gets_no_request(world):
    await world.idle()
    async with direct(world, 0) as other:
        others = [asyncio.create_task(complete(other, f"{i} of others", 3_000)) for i in range(SLOTS + 3)]
        await until(lambda: world.column(WAITING)["a"] == 3, "the engine reports its queue")
        before = world.column(SERVED)
        for i in range(4):
            await complete(world.client, f"{i} is next", 2)
        assert world.column(SERVED)["b"] - before["b"] == 4
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    await world.idle()


async def test_client_that_hangs_up_frees_the_engine(world):
    await world.idle()
    stream = await world.client.completions.create(
        model=MODEL, prompt="go on", max_tokens=3_000, stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in stream:
        break
    await until(lambda: sum(world.column(RUNNING).values()) == 1, "the engine reports that it runs")
    await stream.close()
    await world.idle()
