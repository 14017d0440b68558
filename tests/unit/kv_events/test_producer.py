# SPDX-License-Identifier: Apache-2.0
"""The producer, with publishers in place of engines: the scores that llm-d-router has in the same states."""

import json
from contextlib import asynccontextmanager

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
from tests.support.kv_fleet import HASHES, PROMPT, Fleet, build, fleet, running
from tests.support.kv_publisher import CLEARED, removed, stored
from tests.support.ports import reserved_ports
from tests.support.waiting import until


def picked(candidates, position: int) -> SchedulingResult:
    result = ProfileResult("default", candidates, np.zeros(len(candidates)), np.array([position]))
    return SchedulingResult(Destination(result), {"default": result}, {})


@asynccontextmanager
async def central_fleet(count, address="", replay_port=0):
    """Return a fleet whose engines connect to the picker."""
    with reserved_ports(1) as (port,):
        events = {"discoverPods": False, "zmqEndpoint": address or f"tcp://127.0.0.1:{port}"}
        events["podDiscoveryConfig"] = {"replaySocketPort": replay_port}
        async with running(Fleet(5557, [], count, kvEventsConfig=events)) as found:
            yield found


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
        request, candidates = world.request()
        world.producer.produce(request, candidates)
        tiers = request.get(PREFIX_MATCH.produced_by("precise")).tier_tokens
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
        world.producer.produce(simulated, candidates)
        assert simulated.get(PREFIX_MATCH.produced_by("precise")).matched_blocks[0] == 1250


async def test_salted_request_matches_the_blocks_of_its_salt():
    async with fleet(1) as world:
        await world.tell(0, stored(HASHES, PROMPT, extra_keys=[["tenant1"], None, None, None]))
        assert world.scores(salt="tenant1") == [1.0]
        assert world.scores() == world.scores(salt="tenant2") == [0]


async def test_request_for_an_adapter_matches():
    async with fleet(1) as world:
        await world.tell(0, stored(HASHES, PROMPT, lora_name="lora-a", extra_keys=[["lora-a"]] * 4))
        assert world.scores(model="lora-a") == [1.0]
        assert world.scores() == [0]


async def test_blocks_of_the_engine_may_be_larger_or_smaller():
    async with fleet(2) as world:
        await world.tell(0, stored([1, 2], PROMPT, size=32))
        await world.tell(0, removed([2]))
        assert world.scores() == [0.5, 0]
    async with fleet(1) as world:
        await world.tell(0, stored(range(1, 9), PROMPT, size=8))
        await world.tell(0, removed([8]))
        assert world.scores() == [0.75]


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
        request, candidates = world.request()
        world.producer.produce(request, candidates)
        match = request.get(PREFIX_MATCH.produced_by("precise"))
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


async def test_tokens_of_a_token_producer_are_used():
    async with fleet(1) as world:
        await world.tell(0, stored(HASHES, PROMPT))
        _, candidates = world.request()
        request = Request("r", body=RequestBody(prompt=b"text"), target_model="m")
        request.put(PROMPT_TOKENS, PromptTokens(len(PROMPT), np.array(PROMPT)))
        world.producer.produce(request, candidates)
        assert request.get(PREFIX_MATCH.produced_by("precise")).matched_blocks[0] == 4


async def test_lookup_of_small_blocks_and_of_many_prompts_is_bounded():
    """Of blocks of one token, 12,288 are looked up; of a list, 32 prompts. Scores count blocks of 16 tokens."""
    long = [token % 1000 for token in range(20_000)]
    async with fleet(1) as world:
        hashes = range(1, len(long) + 1)
        await world.tell(0, stored(hashes, long, size=1))
        await until(lambda: world.value("kv_cache_index_blocks") == 20_000, "all blocks are in the index")
        for ids, blocks, total in (([long], 768, 1250), ([long[:16]] * 40, 32, 32)):
            request, candidates = world.request(prompts=ids)
            await world.admit(request, candidates)
            match = request.get(PREFIX_MATCH.produced_by("precise"))
            assert (match.matched_blocks[0], match.total_blocks) == (blocks, total)


async def test_request_without_token_ids_has_no_match_and_is_counted():
    async with fleet(1) as world:
        _, candidates = world.request()
        request = Request("r", body=RequestBody(prompt=b"text"), target_model="m")
        world.producer.produce(request, candidates)
        assert request.get(PREFIX_MATCH.produced_by("precise")) is None
        world.producer.pre_request(request, picked(candidates, 0))
        assert world.value("prefix_requests_without_tokens") == 1


async def test_prompts_of_a_list_and_placeholders_of_media_match():
    """The list has the same prompt twice; of the picture, blocks 1 and 2 have the identifier."""
    extras = [["salt"], ["picture"], ["picture"], None]
    async with fleet(1) as world:
        await world.tell(0, stored(HASHES, PROMPT), stored([21, 22, 23, 24], PROMPT, extra_keys=extras))
        _, candidates = world.request()
        ids = np.array(PROMPT, dtype=np.uint32)
        media = (MediaTokens("picture", 20, 28),)
        for tokens, salt, blocks in (
            (PromptTokens(128, np.tile(ids, 2), ends=(64, 128)), "", 8),
            (PromptTokens(64, ids, media=media), "salt", 4),
            (PromptTokens(64, ids, media=media), "", 1),
        ):
            request = Request("r", body=RequestBody(prompt=b"text", cache_salt=salt), target_model="m")
            request.put(PROMPT_TOKENS, tokens)
            world.producer.produce(request, candidates)
            assert request.get(PREFIX_MATCH.produced_by("precise")).matched_blocks[0] == blocks


async def test_simulated_request_matches_and_leaves_nothing_behind():
    async with fleet(1) as world:
        await world.tell(0, stored(HASHES, PROMPT))
        request, candidates = world.request()
        request.dry_run = True
        world.producer.produce(request, candidates)
        assert request.get(PREFIX_MATCH.produced_by("precise")).matched_blocks[0] == 4
        assert world.value("kv_cache_index_lookup_requests") == 0


async def test_state_says_what_each_endpoint_holds_and_nothing_of_prompts():
    async with fleet(1) as world:
        await world.tell(0, stored(HASHES, PROMPT))
        state = world.producer.dump_state(world.store.snapshot())
        assert (state["distinctBlocks"], state["blockSizes"]) == (4, [16])
        assert state["subscriptions"] == [f"tcp://127.0.0.1:{world.publishers[0].port}"]
        assert state["endpoints"] == [{"name": "p0", "address": "127.0.0.1:8000", "blocks": 4}]


def test_ranks_of_a_pod_have_ports_one_after_another():
    producer = build(kvEventsConfig={"podDiscoveryConfig": {"socketPort": 6000}})
    store = Datastore(ManualClock())
    store.replace(
        [
            Endpoint("pod-rank-0", "10.0.0.1", 8000),
            Endpoint("pod-rank-3", "10.0.0.1", 8003),
            Endpoint("pod", "fd00::1", 8000),
        ]
    )
    Tagging(store, [producer])
    assert producer.dump_state(store.snapshot())["subscriptions"] == [
        "tcp://10.0.0.1:6000",
        "tcp://10.0.0.1:6003",
        "tcp://[fd00::1]:6000",
    ]


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
        request, candidates = world.request()
        world.producer.produce(request, candidates)
        assert request.get(PREFIX_MATCH.produced_by("precise")).total_blocks == 2


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
        (
            "inference/v1/generate",
            {
                "token_ids": [1, 2],
                "features": {"mm_hashes": {"image": ["h"]}, "mm_placeholders": {"image": [{"offset": 0, "length": 1}]}},
            },
            False,
        ),
    ],
)
def test_prompts_that_are_token_ids(suffix, body, expected):
    found = parse(suffix, json.dumps({"model": "m", **body}).encode())
    assert found.is_token_ids is expected
