# SPDX-License-Identifier: Apache-2.0
"""Requests go where two genuine engines report to hold their blocks."""

import asyncio
from itertools import count

import pytest

from epp.framework.snapshot import SERVED
from tests.support.waiting import until
from tests.vllm.test_vllm import MODEL, chat

pytestmark = pytest.mark.timeout(600)

BLOCK = 32  # tokens of a block of the engine
_conversations = count(1)


def new_prompt(blocks: int) -> list[int]:
    """Token ids that no other test has sent."""
    number = next(_conversations)
    return [(number * 37 + token * 7) % 900 + 10 for token in range(blocks * BLOCK)]


def held(world) -> dict[str, int]:
    """Number of blocks that each engine is known to hold."""
    producer = world.gateway.picker.plugins["precise-prefix-cache-producer"]
    state = producer.dump_state(world.gateway.picker.store.snapshot())
    return {endpoint["name"]: endpoint["blocks"] for endpoint in state["endpoints"]}


async def served_by(world, prompt: list[int], *, model: str = MODEL, **more: object) -> tuple[str, int]:
    """Send a prompt; return the endpoint that served it, and the prompt tokens that its engine had cached."""
    await world.idle()
    before = world.column(SERVED)
    answer = await world.client.completions.create(model=model, prompt=prompt, max_tokens=1, extra_body=more)
    await world.idle()
    ((name, _),) = [(name, n) for name, n in world.column(SERVED).items() if n > before[name]]
    return name, answer.usage.prompt_tokens_details.cached_tokens


def checked(world) -> dict[str, float]:
    """Cached tokens of all responses so far, as they were predicted and as the engines reported them."""
    samples = world.gateway.picker.plugins["precise-prefix-cache-producer"].samples
    return {each.labels[0]: each.value for each in samples if each.metric.name == "prefix_check_tokens"}


async def reported(world, name: str, change: int, before: dict[str, int]) -> None:
    await until(lambda: held(world)[name] >= before[name] + change, f"{name} has reported {change} blocks")


@pytest.mark.parametrize(
    ("model", "more"),
    [(MODEL, {}), ("lora-a", {}), (MODEL, {"cache_salt": "tenant-1"})],
    ids=["base", "lora", "salted"],
)
async def test_each_further_turn_goes_where_the_blocks_of_the_former_are(precise, model, more):
    first_turns = [new_prompt(10) for _ in range(4)]
    homes = []
    for prompt in first_turns:
        before = held(precise)
        name, cached = await served_by(precise, prompt, model=model, **more)
        assert cached == 0
        await reported(precise, name, 10, before)
        homes.append(name)
    for prompt, home in zip(first_turns, homes, strict=True):
        assert await served_by(precise, prompt + new_prompt(2), model=model, **more) == (home, 10 * BLOCK)


async def test_each_further_turn_of_a_chat_goes_where_its_blocks_are(precise):
    chats = [chat(" ".join(map(str, new_prompt(3)))) for _ in range(4)]
    turns = []
    for messages in chats:
        await precise.idle()
        before, served = held(precise), precise.column(SERVED)
        answer = await precise.client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8)
        await precise.idle()
        (home,) = [name for name, n in precise.column(SERVED).items() if n > served[name]]
        await reported(precise, home, answer.usage.prompt_tokens // BLOCK, before)
        turns.append((home, answer))
    for messages, (home, answer) in zip(chats, turns, strict=True):
        await precise.idle()
        served = precise.column(SERVED)
        reply = {"role": "assistant", "content": answer.choices[0].message.content}
        further = await precise.client.chat.completions.create(
            model=MODEL, messages=[*messages, reply, *chat("go on")], max_tokens=1
        )
        await precise.idle()
        assert [name for name, n in precise.column(SERVED).items() if n > served[name]] == [home]
        cached = further.usage.prompt_tokens_details.cached_tokens
        assert cached >= answer.usage.prompt_tokens // BLOCK * BLOCK
        assert checked(precise)["predicted"] == checked(precise)["reported"] >= cached


async def test_blocks_of_a_cleared_cache_are_forgotten(precise):
    prompt = new_prompt(10)
    before = held(precise)
    home, _ = await served_by(precise, prompt)
    await reported(precise, home, 10, before)
    rank = int(home[-1])
    (other,) = set(held(precise)) - {home}
    holder, second = precise.servers[rank], precise.servers[1 - rank]

    before = held(precise)
    second.post("/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 1})
    await reported(precise, other, 10, before)
    holder.post("/reset_prefix_cache")
    publishes = {"model": MODEL, "prompt": "hi", "max_tokens": 1}  # its next step publishes the reset
    holder.post("/v1/completions", publishes)
    await until(lambda: held(precise)[home] == 0, "the cache counts as empty")
    assert await served_by(precise, prompt + new_prompt(1)) == (other, 10 * BLOCK)


async def test_blocks_of_an_engine_that_was_killed_are_forgotten(precise):
    prompt = new_prompt(10)
    before = held(precise)
    home, _ = await served_by(precise, prompt)
    await reported(precise, home, 10, before)
    server = precise.servers[int(home[-1])]
    server.kill()
    await until(lambda: held(precise)[home] == 0, "the cache counts as empty")
    server.start()
    await asyncio.to_thread(server.wait_until_healthy)
    before = held(precise)
    await until(lambda: len(precise.gateway.picker.store.snapshot().available) == 2, "both are used again")
    while (await served_by(precise, prompt))[0] != home:  # the other one may hold it by now
        prompt = new_prompt(10)
    await reported(precise, home, 10, before)
    assert await served_by(precise, prompt + new_prompt(1)) == (home, 10 * BLOCK)
