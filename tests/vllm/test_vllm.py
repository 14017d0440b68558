# SPDX-License-Identifier: Apache-2.0
"""The gateway in front of two genuine vLLM servers."""

import asyncio
import math

import openai
import pytest
from openai import AsyncOpenAI

from epp.framework.snapshot import (
    KV_BLOCK_TOKENS,
    KV_BLOCKS,
    KV_USAGE,
    PREFIX_HIT_TOKENS,
    RUNNING,
    SERVED,
    WAITING,
)
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(600)

LONG = "def area(width, height):\n    return width * height\n" * 40  # some 700 tokens of the test model
MODEL = "medium"


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def test_engine_metrics_arrive_in_the_columns(world):
    await until(lambda: not any(map(math.isnan, world.column(KV_USAGE).values())), "both have been scraped")
    assert world.column(WAITING) == {"a": 0, "b": 0}
    assert world.column(KV_BLOCK_TOKENS) == {"a": 32, "b": 32}
    assert set(world.column(KV_BLOCKS).values()) == {256}  # 96 MiB


async def test_answer_through_the_gateway_is_the_servers_own(world):
    through = await world.client.chat.completions.create(
        model=MODEL, messages=chat("hello"), max_tokens=8, temperature=0
    )
    async with AsyncOpenAI(base_url=f"http://{world.servers[0].address}/v1", api_key="none") as client:
        direct = await client.chat.completions.create(model=MODEL, messages=chat("hello"), max_tokens=8, temperature=0)
    assert through.choices[0].message.content == direct.choices[0].message.content
    assert through.usage.completion_tokens == direct.usage.completion_tokens


async def test_stream_with_usage(world):
    stream = await world.client.chat.completions.create(
        model=MODEL,
        messages=chat("count"),
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage.completion_tokens == 12
    assert chunks[-2].choices[0].finish_reason == "length"


async def test_prefix_reuse_shows_in_vllms_own_cached_tokens(world):
    await world.idle()
    hits_before = world.column(PREFIX_HIT_TOKENS)
    served_before = world.column(SERVED)
    cached = []
    for turn in range(4):
        answer = await world.client.chat.completions.create(
            model=MODEL, messages=chat(f"{LONG}# question {turn}"), max_tokens=4
        )
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
        await world.idle()
    assert cached[0] == 0
    assert all(tokens >= 500 for tokens in cached[1:])
    served = {name: count - served_before[name] for name, count in world.column(SERVED).items()}
    assert sorted(served.values()) == [0, 4]  # all on one server
    await until(
        lambda: sum(world.column(PREFIX_HIT_TOKENS).values()) - sum(hits_before.values()) >= sum(cached),
        "vLLM's own counters say the same",
    )


async def test_burst_is_spread_over_both(world):
    await world.idle()
    before = world.column(SERVED)
    await asyncio.gather(
        *(
            world.client.chat.completions.create(
                model=MODEL, messages=chat(f"{i} different"), max_tokens=16, extra_body={"ignore_eos": True}
            )
            for i in range(8)
        )
    )
    await world.idle()
    assert all(count - before[name] >= 2 for name, count in world.column(SERVED).items())


async def test_unknown_model_is_vllms_own_error(world):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await world.client.chat.completions.create(model="nope", messages=chat("hi"))


async def test_client_that_hangs_up_frees_the_engine(world):
    await world.idle()
    stream = await world.client.chat.completions.create(
        model=MODEL, messages=chat("go on"), max_tokens=3000, stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in stream:
        break
    await until(lambda: sum(world.column(RUNNING).values()) == 1, "the engine says it runs")
    await stream.close()
    await world.idle()
