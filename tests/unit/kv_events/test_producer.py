# SPDX-License-Identifier: Apache-2.0
"""The producer, with publishers in place of engines: the scores that llm-d-router has in the same states."""

import json

import numpy as np
import pytest

from epp.framework import (
    PREFIX_MATCH,
    PROMPT_TOKENS,
    ConfigurationError,
    Endpoint,
    ManualClock,
    MediaTokens,
    PromptTokens,
    Request,
    RequestBody,
)
from epp.framework.result import Destination, ProfileResult, SchedulingResult
from epp.pool.collectors.tagging import Tagging
from epp.routing.datastore import Datastore
from tests.support.apis import parse
from tests.support.kv_fleet import HASHES, PROMPT, Fleet, build, fleet
from tests.support.kv_publisher import CLEARED, removed, stored
from tests.support.waiting import until

MATCH = PREFIX_MATCH.produced_by("precise")


def picked(candidates, position: int) -> SchedulingResult:
    result = ProfileResult("default", candidates, np.zeros(len(candidates)), np.array([position]))
    return SchedulingResult(Destination(result), {"default": result}, {})


def match_of(world: Fleet, request: Request | None = None, **more):
    """Return the match of a request, or of one with so many tokens."""
    made, candidates = world.request(**more)
    request = request or made
    world.producer.produce(request, candidates)
    return request.get(MATCH)


MEDIA = {"mm_hashes": {"image": ["h"]}, "mm_placeholders": {"image": [{"offset": 0, "length": 1}]}}


def text_request(tokens: PromptTokens | None = None, **body) -> Request:
    """Return a request whose prompt is text, with the token ids of another plugin if any."""
    request = Request("r", body=RequestBody(prompt=b"text", **body), target_model="m")
    if tokens is not None:
        request.put(PROMPT_TOKENS, tokens)
    return request


async def test_scores_are_those_of_llm_d_in_the_same_states():
    async with fleet() as world:
        await world.tell(0, stored(HASHES, PROMPT, medium="GPU"))
        await world.tell(1, ["BlockStored", HASHES[:2], None, PROMPT[:32], 16])
        await world.tell(2, stored(HASHES, PROMPT, medium="CPU"))
        assert world.scores() == [1.0, 0.5, 0.75]  # 4 x 0.8 = 3.2 blocks, floored
        await world.tell(2, stored(HASHES[:1], PROMPT[:16], medium="GPU"))
        assert world.scores() == [1.0, 0.5, 0.75]
        assert world.scores([*PROMPT, *range(6)]) == [1.0, 0.5, 0.75]
        assert world.scores(PROMPT[:10]) == [0, 0, 0]
        assert world.scores(model="another") == [0, 0, 0]
        await world.tell(0, removed(HASHES[3:], medium="GPU"))
        assert world.scores() == [0.75, 0.5, 0.75]
        other = [*PROMPT[:48], *range(16)]
        await world.tell(0, stored([99], other[48:], parent=HASHES[2], medium="GPU"))
        assert world.scores(other)[:2] == [1.0, 0.5]
        await world.tell(1, CLEARED)
        assert world.scores() == [0.75, 0, 0.75]
        assert world.scores(prompts=[PROMPT, PROMPT]) == [0.75, 0, 0.75]


async def test_tokens_of_lower_tiers_are_told_apart():
    async with fleet(2) as world:
        await world.tell(0, stored(HASHES, PROMPT, medium="GPU"), stored(HASHES, PROMPT, medium="CPU"))
        await world.tell(1, stored(HASHES[:1], PROMPT[:16], medium="GPU"), stored(HASHES, PROMPT, medium="CPU"))
        tiers = match_of(world).tier_tokens
        assert {tier: tokens[:2].tolist() for tier, tokens in tiers.items()} == {"cpu": [0, 48]}


async def test_message_of_vllm_about_offloaded_blocks_is_read():
    async with fleet(1) as world:
        await world.tell(0, stored(HASHES, PROMPT, medium="GPU"))
        offloaded = {"lora_id": None, "lora_name": None, "locality": "LOCAL", "medium": "CPU"}
        await world.tell(0, *(stored([each], [], size=0, **offloaded) for each in HASHES))
        await world.tell(0, removed(HASHES, medium="GPU"))
        assert world.scores() == [0.75]  # 4 x 0.8 = 3.2 blocks, floored
        assert world.value("kv_cache_events_resets", "malformed") == 0


async def test_blocks_of_a_long_prompt_are_computed_in_steps_while_it_is_held():
    prompt = list(range(20_000))
    async with fleet(1) as world:
        await world.tell(0, stored(range(1, 1251), prompt))
        await until(lambda: world.value("kv_cache_index_blocks") == 1250, "all blocks are in the index")
        assert world.scores(prompt) == [0]
        assert await world.admitted_scores(prompt) == [1.0]
        request, candidates = world.request(prompt)
        simulated = request.dry_copy(seed=1)
        assert world.producer.admit(simulated, candidates) is None
        assert match_of(world, simulated).matched_blocks[0] == 1250


@pytest.mark.parametrize(
    ("event", "asked", "others"),
    [
        ({"extra_keys": [["tenant1"], None, None, None]}, {"salt": "tenant1"}, {"salt": "tenant2"}),
        ({"lora_name": "lora-a", "extra_keys": [["lora-a"]] * 4}, {"model": "lora-a"}, {"model": "lora-b"}),
    ],
    ids=["salt", "adapter, whose name is in the extra keys"],
)
async def test_request_matches_the_blocks_of_its_salt_or_adapter(event, asked, others):
    async with fleet(1) as world:
        await world.tell(0, stored(HASHES, PROMPT, **event))
        assert world.scores(**asked) == [1.0]
        assert world.scores() == world.scores(**others) == [0]


@pytest.mark.parametrize(("size", "hashes", "score"), [(32, [1, 2], 0.5), (8, range(1, 9), 0.75)])
async def test_blocks_of_the_engine_may_be_larger_or_smaller(size, hashes, score):
    async with fleet(1) as world:
        await world.tell(0, stored(hashes, PROMPT, size=size))
        await world.tell(0, removed(hashes[-1:]))
        assert world.scores() == [score]


async def test_what_an_engine_holds_is_unknown_after_a_gap():
    async with fleet(2) as world:
        await world.tell(0, stored(HASHES, PROMPT))
        await world.tell(1, stored(HASHES, PROMPT))
        world.publishers[0].sequence += 5
        await world.tell(0, stored([77], range(16)))
        assert world.scores() == [0, 1.0]
        assert world.value("kv_cache_events_resets", "gap") == 1
        assert world.scores(list(range(16))) == [1.0, 0]


async def test_endpoint_that_left_holds_nothing_when_it_is_back():
    async with fleet(2) as world:
        await world.tell(0, stored(HASHES, PROMPT))
        world.store.replace(world.endpoints[1:])
        await until(lambda: world.value("kv_cache_events_active_subscribers") == 1, "the subscription has ended")
        assert world.scores() == [0]
        await until(lambda: world.value("kv_cache_index_blocks") == 0, "its blocks are forgotten")
        world.store.replace(world.endpoints)
        await until(lambda: world.value("kv_cache_events_active_subscribers") == 2, "it is subscribed to again")
        assert world.scores() == [0, 0]


async def test_target_is_expected_to_hold_the_blocks_for_a_while():
    async with fleet(2, speculativeIndexing=True, speculativeTTL="3s") as world:
        request, candidates = world.request()
        world.producer.produce(request, candidates)
        world.producer.pre_request(request, picked(candidates, 1))
        assert world.scores() == [0, 1.0]
        await world.tell(1, stored(HASHES[:2], PROMPT[:32]))
        world.clock.advance(3.1)
        await until(lambda: world.scores() == [0, 0.5], "only what the engine said is left")


async def test_match_names_the_endpoint_that_computed_the_conversation_last():
    def last(world):
        match = match_of(world)
        return match.last_slot, match.last_tokens

    async with fleet(2) as world:
        request, candidates = world.request()
        world.producer.produce(request, candidates)
        world.producer.pre_request(request, picked(candidates, 1))
        assert world.scores() == [0, 0]
        assert last(world) == (1, 48)  # of 64: a block before the last
        world.producer.request_failed(request, picked(candidates, 1))
        assert last(world) == (-1, 0)
        world.producer.pre_request(request, picked(candidates, 1))
        assert last(world) == (1, 48)
        world.producer.slots_removed([1])
        assert last(world) == (-1, 0)


async def test_tokens_of_a_token_producer_are_used_with_the_ends_of_prompts_and_placeholders_of_media():
    """The list has the same prompt twice; of the picture, blocks 1 and 2 have the identifier."""
    extras = [["salt"], ["picture"], ["picture"], None]
    ids = np.array(PROMPT, dtype=np.uint32)
    media = (MediaTokens("picture", 20, 28),)
    async with fleet(1) as world:
        await world.tell(0, stored(HASHES, PROMPT), stored([21, 22, 23, 24], PROMPT, extra_keys=extras))
        for tokens, salt, blocks in (
            (PromptTokens(64, ids), "", 4),
            (PromptTokens(128, np.tile(ids, 2), ends=(64, 128)), "", 8),
            (PromptTokens(64, ids, media=media), "salt", 4),
            (PromptTokens(64, ids, media=media), "", 1),
        ):
            assert match_of(world, text_request(tokens, cache_salt=salt)).matched_blocks[0] == blocks


async def test_lookup_of_small_blocks_and_of_many_prompts_is_bounded():
    """Of blocks of one token, 12,288 are looked up; of a list, 32 prompts. Scores count blocks of 16 tokens."""
    long = [token % 1000 for token in range(20_000)]
    async with fleet(1) as world:
        await world.tell(0, stored(range(1, len(long) + 1), long, size=1))
        await until(lambda: world.value("kv_cache_index_blocks") == 20_000, "all blocks are in the index")
        for ids, blocks, total in (([long], 768, 1250), ([long[:16]] * 40, 32, 32)):
            request, candidates = world.request(prompts=ids)
            await world.admit(request, candidates)
            match = request.get(MATCH)
            assert (match.matched_blocks[0], match.total_blocks) == (blocks, total)


async def test_request_without_token_ids_has_no_match_and_is_counted():
    async with fleet(1) as world:
        request = text_request()
        assert match_of(world, request) is None
        world.producer.pre_request(request, picked(world.request()[1], 0))
        assert world.value("prefix_requests_without_tokens") == 1


async def test_state_says_what_each_endpoint_holds_and_a_simulated_request_changes_nothing():
    async with fleet(1) as world:
        await world.tell(0, stored(HASHES, PROMPT))
        request, _ = world.request()
        request.dry_run = True
        assert match_of(world, request).matched_blocks[0] == 4
        assert world.value("kv_cache_index_lookup_requests") == 0
        state = world.producer.dump_state(world.store.snapshot())
        assert (state["distinctBlocks"], state["blockSizes"]) == (4, [16])
        assert state["subscriptions"] == [f"tcp://127.0.0.1:{world.publishers[0].port}"]
        assert state["endpoints"] == [{"name": "p0", "address": "127.0.0.1:8000", "blocks": 4}]


def test_ranks_of_a_pod_have_ports_one_after_another():
    producer = build(kvEventsConfig={"podDiscoveryConfig": {"socketPort": 6000}})
    store = Datastore(ManualClock())
    ranks = [("pod-rank-0", "10.0.0.1", 8000), ("pod-rank-3", "10.0.0.1", 8003), ("pod", "fd00::1", 8000)]
    store.replace(Endpoint(*rank) for rank in ranks)
    Tagging(store, [producer])
    subscriptions = producer.dump_state(store.snapshot())["subscriptions"]
    assert subscriptions == ["tcp://10.0.0.1:6000", "tcp://10.0.0.1:6003", "tcp://[fd00::1]:6000"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"tokenProcessorConfig": {"blockSizeTokens": 0}}, "blockSizeTokens must be at least 1"),
        ({"tokenProcessorConfig": {"hashAlgorithm": "md5"}}, "'md5' is not known; use '', 'cbor-fnv', 'xxh64'"),
        ({"indexerConfig": {"tokenizersPoolConfig": {}}}, "declare a token-producer plugin"),
        ({"kvEventsConfig": {"zmqEndpoint": "5557"}}, "write tcp://"),
        ({"kvEventsConfig": {"engineType": "other"}}, "'other' is not known; use 'vllm', 'sglang'"),
        ({"kvEventsConfig": {"podDiscoveryConfig": {"socketPort": 0}}}, "socketPort"),
        ({"speculativeTTL": "soon"}, "soon"),
        ({"blockSize": 16}, "unknown key; known are indexerConfig"),
    ],
)
def test_mistakes_in_parameters_are_said(parameters, message):
    with pytest.raises(ConfigurationError, match=message):
        build(**parameters)


async def test_deprecated_block_size_counts_where_the_new_one_is_zero():
    async with fleet(1, tokenProcessorConfig={"blockSizeTokens": 0, "blockSize": 32}) as world:
        assert match_of(world).total_blocks == 2


@pytest.mark.parametrize(
    ("suffix", "body", "expected"),
    [
        ("completions", {"prompt": [1, 2]}, True),
        ("completions", {"prompt": [[1, 2], [3]]}, True),
        ("embeddings", {"input": [1, 2]}, True),
        ("inference/v1/generate", {"token_ids": [1, 2]}, True),
        ("/generate", {"input_ids": [1, 2]}, True),
        ("completions", {"prompt": "text"}, False),
        ("completions", {"prompt": ["a", "b"]}, False),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}, False),
        ("/generate", {"input_ids": [1, 2], "image_data": "x"}, False),
        ("inference/v1/generate", {"token_ids": [1, 2], "features": MEDIA}, False),
    ],
)
def test_prompts_that_are_token_ids(suffix, body, expected):
    found = parse(suffix, json.dumps({"model": "m", **body}).encode())
    assert found.is_token_ids is expected
