# SPDX-License-Identifier: Apache-2.0
"""Requests that arrive together, held until their places are known: through the director, from a configuration."""

import asyncio
from collections import Counter

import pytest

from epp.admission.burst_prefix import BurstPrefixCacheParameters
from epp.framework.input_errors import ParameterError, read_parameters
from epp.framework.request import PREFIX_MATCH
from epp.routing.director import Cause, PendingRequest
from epp.routing.director.simulation import Simulation
from tests.unit.director.world import ENDPOINTS, POST, World

NAME = "burst-prefix-cache-producer"


def world_with(more=""):
    plugins = f"{{type: {NAME}, parameters: {{windowDurationMs: 1{more}}}}}"
    return World(f"{plugins}, {{type: prefix-cache-scorer, parameters: {{prefixMatchInfoProducerName: {NAME}}}}}")


def body(prompt):
    return b'{"model":"m","prompt":"%s"}' % (prompt * 600)


async def sent(world, prompts):
    """Send requests at once; return the endpoint of each, and the share of its prompt that it is said to hold."""
    held = [world.route(body(prompt)) for prompt in prompts]
    assert all(isinstance(each, PendingRequest) for each in held)
    await asyncio.gather(*(each.settle() for each in held))
    routings = [each.routing() for each in held]
    matches = [each.request.get(PREFIX_MATCH.produced_by(NAME)) for each in routings]
    shares = [
        match.matched_blocks[each.slot] / match.total_blocks for match, each in zip(matches, routings, strict=True)
    ]
    for each in routings:
        each.complete(Cause.NATURAL)
    return [each.result.targets[0].name for each in routings], shares


def results(world):
    return {sample.labels[0]: sample.value for sample in world.plugin(NAME).samples}


async def test_equal_prompts_of_a_window_go_to_one_endpoint_and_single_ones_anywhere():
    world = world_with()
    names, shares = await sent(world, [b"a", b"b", b"a", b"c", b"a", b"b"])
    assert len({names[0], names[2], names[4]}) == len({names[1], names[5]}) == 1
    assert names[0] != names[1]
    assert shares == [1.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    assert results(world) == {"placed": 5, "alone": 1}


async def test_limit_of_a_group_spreads_it():
    names, shares = await sent(world_with(", maxPerReplica: 2"), [b"a"] * 8)
    assert Counter(names) == dict.fromkeys("abcd", 2)
    assert shares == [1.0] * 8


async def test_each_window_is_a_batch_of_its_own():
    world = world_with()
    first, _ = await sent(world, [b"a", b"a"])
    assert results(world) == {"placed": 2}
    second, shares = await sent(world, [b"b", b"b"])
    assert (first, second, shares) == (["a", "a"], ["a", "a"], [1.0, 1.0])


async def test_request_beyond_the_size_of_a_batch_is_not_held_for_it():
    world = world_with(", maxBatchSize: 2")
    _, shares = await sent(world, [b"a"] * 3)
    assert shares == [1.0, 1.0, 0.0]
    assert results(world) == {"placed": 2, "batch full": 1}


async def test_client_that_leaves_is_not_placed_and_the_others_are():
    world = world_with()
    held = [world.route(body(b"a")) for _ in range(3)]
    settling = [asyncio.create_task(each.settle()) for each in held]
    await asyncio.sleep(0)
    settling[0].cancel()
    await asyncio.gather(*settling, return_exceptions=True)
    assert {each.routing().result.targets[0].name for each in held[1:]} == {"a"}
    assert world.in_flight() == {"a": 2}
    assert results(world) == {"placed": 2}


async def test_endpoint_that_left_during_the_window_gets_nothing():
    world = world_with()
    held = [world.route(body(b"a")) for _ in range(2)]
    settling = [asyncio.create_task(each.settle()) for each in held]
    await asyncio.sleep(0)
    world.store.replace(ENDPOINTS[1:])
    await asyncio.gather(*settling)
    assert "a" not in {each.routing().result.targets[0].name for each in held}


async def test_simulated_requests_are_not_held_and_join_no_batch():
    world = world_with()
    simulation: Simulation = world.director.simulation()
    found = simulation.run(simulation.read(POST, body(b"a"), None), seed=1)
    assert found.waits == ""
    assert results(world) == {}


async def test_request_without_a_prompt_is_not_held():
    assert not isinstance(world_with().route(b""), PendingRequest)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"windowDurationMs": 0}, "windowDurationMs is 0; it must be between 1 and 10000"),
        ({"windowDurationMs": 10001}, "windowDurationMs is 10001; it must be between 1 and 10000"),
        ({"maxPerReplica": 0}, "maxPerReplica is 0; it must be -1, or at least 1"),
        ({"maxBatchSize": 0}, "maxBatchSize is 0; it must be -1, or at least 1"),
        ({"maxBatchSize": -2}, "maxBatchSize is -2; it must be at least -1"),
        ({"maxPrefixTokensToMatch": 63}, "maxPrefixTokensToMatch is 63, less than blockSizeTokens, which is 64"),
        ({"balanceBy": "blocks"}, "'blocks' is not known; use 'requests', 'tokens'"),
    ],
)
def test_parameters_outside_their_range_are_refused(given, problem):
    with pytest.raises(ParameterError) as caught:
        read_parameters(BurstPrefixCacheParameters, given)
    assert problem in str(caught.value)
