# SPDX-License-Identifier: Apache-2.0
"""Seconds until the first tokens, counted with each endpoint's own rates."""

import math
from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import ManualClock, PrefixMatch, Request, RequestBody
from epp.framework.accelerators.selection import ACCELERATOR_SELECTION, SERVED_CLASS, Selection, Selections
from epp.framework.accelerators.tag import AcceleratorTag, Performance
from epp.framework.expected_times import ENDPOINT_RATES
from epp.framework.request import PREFIX_MATCH
from epp.framework.snapshot import IN_FLIGHT, IN_FLIGHT_TOKENS, KV_USAGE, RUNNING, WAITING, LoraState
from epp.framework.testing import candidates, endpoint_rates
from epp.plugins.endpoint_rates.producer import EndpointRatesProducer
from epp_scorers.work_seconds import WorkSecondsScorer
from tests.support.plugins import built


def build(**parameters):
    return built(WorkSecondsScorer, parameters)


def request_of(prompt_tokens, rates=None, matched=None, *, last=None, **body):
    """Return a request of this number of tokens; `last` is the slot that computed its conversation last."""
    request = Request("r", RequestBody(prompt_tokens=prompt_tokens, **body))
    if rates is not None:
        request.put(ENDPOINT_RATES, rates)
    if matched is not None:
        blocks = np.array(matched, dtype=np.int32)
        computed = {} if last is None else {"last_slot": last, "last_tokens": 640}
        request.put(PREFIX_MATCH, PrefixMatch(blocks, prompt_tokens // 64, block_tokens=64, **computed))
    return request


def seconds(request, *, kept=None, pool=None, parameters=None, **columns):
    """Return the expected seconds at candidates with these columns."""
    pool = pool or candidates(**columns)
    pool = pool if kept is None else pool.keep(np.array(kept, dtype=np.bool_))
    return build(**(parameters or {})).seconds(request, pool).tolist()


IDLE = {"in_flight_tokens": [0, 0]}
EQUAL = endpoint_rates([1000, 1000])
CACHED = request_of(1000, EQUAL, matched=[0, 10])
"""1,000 tokens, of which 1000 - 10 * 64 = 360 are not cached at the second endpoint."""


@pytest.mark.parametrize(
    ("request_", "parameters", "columns", "expected"),
    [
        # fast: (9000 + 1000) / 10000 = 1 s; slow: 1000 / 500 = 2 s
        (request_of(1000, endpoint_rates([10_000, 500])), {}, {"in_flight_tokens": [9000, 0]}, [1.0, 2.0]),
        # 20 times the rate: 19000 tokens wait at the fast one as long as none at the slow one
        (request_of(1000, endpoint_rates([10_000, 500])), {}, {"in_flight_tokens": [19_000, 0]}, [2.0, 2.0]),
        (CACHED, {}, IDLE, [1.0, 0.36]),
        # attention: nothing cached: 1000 + 1000 * 1000 / 1000; 640 cached: 360 + 360 * (640 + 1000) / 1000
        (CACHED, {"attentionQuadraticTokens": 1000}, IDLE, [2.0, 0.9504]),
        # a request behind: 1000 and 360 tokens, twice
        (CACHED, {"requestsBehind": 1}, IDLE, [2.0, 0.72]),
        # where 6 prompts of this length are in flight, as many follow: 6000 + 7 * 360
        (CACHED, {"requestsBehind": 1}, {"in_flight_tokens": [0, 6000]}, [2.0, 8.52]),
        # delay: 1 s for this request, and half of it for each of 2; 0.36 s, and half of it for each of 8
        (CACHED, {"delayWeight": 0.5}, IDLE | {"running": [2, 8], "kv_usage": [0, 0]}, [2.0, 1.8]),
    ],
)
def test_prompt_takes_uncached_tokens_over_the_endpoints_own_rate(request_, parameters, columns, expected):
    assert seconds(request_, parameters=parameters, **columns) == pytest.approx(expected)


def test_score_is_the_least_time_over_that_of_the_endpoint():
    request = request_of(1000, endpoint_rates([10_000, 500]))
    assert build().score(request, candidates(in_flight_tokens=[9000, 0])).tolist() == [1.0, 0.5]
    # 0.1 and 0.5 ms: differences below a millisecond are none
    request = request_of(1, endpoint_rates([10_000, 2_000]))
    assert build().score(request, candidates(**IDLE)).tolist() == [1.0, 1.0]
    # without rates, and for the only candidate
    assert build().score(request_of(10), candidates(in_flight_tokens=[0, 9])).tolist() == [1.0, 1.0]
    assert build().score(request_of(1000, endpoint_rates([500])), candidates(in_flight_tokens=[9000])).tolist() == [1.0]


@pytest.mark.parametrize(
    ("last", "kv_usage", "kept", "expected"),
    [
        # 1000 - 128 tokens, and half of half of the 640 - 128 that were evicted
        (1, [1.0, 1.0, 0.5], [1, 1, 1], [1.0, 0.872 - 0.128, 1.0]),
        # where an endpoint has room, nothing is evicted by a conversation that moves there
        (1, [1.0, 1.0, 0.0], [1, 1, 1], [1.0, 0.872, 1.0]),
        (1, [1.0, 1.0, 0.5], [1, 0, 1], [1.0, 1.0]),
        (1, [1.0, 1.0, 0.5], [0, 0, 0], []),
        # a slot beyond the pool, as in a simulation with fewer endpoints
        (7, [1.0, 1.0, 1.0], [1, 1, 1], [1.0, 0.872, 1.0]),
        # an absurd usage counts as empty or full
        (1, [-7.0] * 3, [1, 1, 1], [1.0, 0.872, 1.0]),
        (1, [1e9] * 3, [1, 1, 1], [1.0, 0.872 - 0.256, 1.0]),
        (1, [nan] * 3, [1, 1, 1], [1.0, 0.872, 1.0]),
    ],
)
def test_part_of_an_evicted_prefix_counts_as_cached_where_it_was_computed_last(last, kv_usage, kept, expected):
    request = request_of(1000, endpoint_rates([1000] * 3), matched=[0, 2, 0], last=last)
    weights = {"evictedPrefixWeight": 0.5, "kvBarrierSeconds": 0}
    found = seconds(request, kept=kept, parameters=weights, in_flight_tokens=[0, 0, 0], kv_usage=kv_usage)
    assert found == pytest.approx(expected)


def test_busy_batch_costs_what_it_adds_to_each_token():
    rates = endpoint_rates([1000] * 3, itl_base=[0.01] * 3, itl_per_request=[0.001] * 3)
    # batches, this request included: 10, 1, 20; 16 tokens of 20, 11 and 30 ms
    found = seconds(request_of(0, rates), running=[9, nan, 4], in_flight=[9, 0, 19], kv_usage=[0] * 3)
    assert found == pytest.approx([0.32, 0.176, 0.48])


PLAIN = {"outputTokens": 0, "kvBarrierSeconds": 0}


def test_request_waits_until_a_full_batch_has_places_for_all_before_it():
    request = request_of(0, endpoint_rates([1000] * 3, itl_base=[0.01] * 3))
    # 200 tokens of 10 ms take 2 s, so that one of 10 ends every 0.2 s: 4 * 0.2, and (20 - 10) * 0.2
    found = seconds(request, parameters=PLAIN, waiting=[4, 0, 4], running=[10, 10, 10], in_flight=[14, 14, 20])
    assert found == pytest.approx([0.8, 0.0, 2.0])


def test_request_waits_for_a_place_where_an_endpoint_has_as_many_requests_as_it_is_known_to_run():
    rates = replace(endpoint_rates([1000] * 4, itl_base=[0.01] * 4), places=np.array([10.0, 10.0, 10.0, inf]))
    load = {"waiting": [0, 0, nan, 0], "running": [10, 9, 10, 10], "in_flight": [10, 9, 11, 90]}
    # nothing waits yet: one turn of 0.2 s for the first, two where one more was just sent
    assert seconds(request_of(0, rates), parameters=PLAIN, **load) == pytest.approx([0.2, 0.0, 0.4, 0.0])


def adapters(*running, slots, waiting=(), loaded=()):
    return LoraState(frozenset(running), frozenset(waiting), slots, loaded)


TURN = 200 * 0.01 * (1 + math.log(1 + 4 / 2))  # an answer takes 2 s; each of 2 adapters has 2 of 4 requests
FULL = {"slots": 2, "loaded": ("b", "c")}


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        # it runs; 0.5 s to load it, and half of it for each of 4 requests; as much again to load the one pushed out
        (
            [adapters("a", "b", slots=2), adapters("b", slots=2, loaded=("b",)), adapters(slots=2, loaded=("b", "c"))],
            [0.0, 1.5, 3.0],
        ),
        # it is not loaded where it ran last, or where another request waits for it
        (
            [adapters("a", slots=1), adapters(slots=1, loaded=("a",)), adapters(slots=1, waiting=["a"])],
            [0.0, 0.0, 0.0],
        ),
        # without a free slot it waits until all requests of another one have ended: also behind another, and half way
        (
            [adapters("b", "c", waiting=waiting, **FULL) for waiting in ((), ["d"], ["a", "c"])],
            [3.0 + TURN, 3.0 + 2 * TURN, TURN / 2],
        ),
    ],
)
def test_adapter_is_loaded_before_its_request_and_waits_for_a_slot(states, expected):
    """4 requests run at each endpoint."""
    request = request_of(0, endpoint_rates([1000] * 3, itl_base=[0.01] * 3), model="a")
    weights = {"outputTokens": 0, "delayWeight": 0.5, "adapterLoadSeconds": 0.5}
    found = seconds(request, parameters=weights, running=[4] * 3, kv_usage=[0] * 3, lora=states)
    assert found == pytest.approx(expected)


def test_adapter_that_has_run_is_loaded_again_and_a_base_model_never():
    scorer = build(outputTokens=0, adapterLoadSeconds=0.5)

    def loading(model, *states):
        return scorer.seconds(request_of(0, EQUAL, model=model), candidates(kv_usage=[0, 0], lora=states)).tolist()

    full, idle = adapters("b", slots=1), adapters(slots=1)
    assert loading("a", full, idle) == [0.0, 0.0]
    assert loading("base", full, idle) == [0.0, 0.0]
    assert loading("a", adapters("a", slots=1), idle) == [0.0, 0.5]
    assert loading("a", idle, idle) == [0.5, 0.5]


@pytest.mark.parametrize(("output", "wanted", "expected"), [(16, 2, 0.02), (100, None, 1.0)])
def test_no_more_output_counts_than_is_asked_for(output, wanted, expected):
    request = request_of(0, endpoint_rates([1000], itl_base=[0.01]), max_output_tokens=wanted)
    assert seconds(request, parameters={"outputTokens": output}, in_flight_tokens=[0]) == [pytest.approx(expected)]


@pytest.mark.parametrize(
    ("kv_usage", "in_flight", "expected"),
    [
        # 0.05 * 0, 0.05 * 1, 0.05 * 9, and 1.0 counts as 0.99: 0.05 * 99
        ([0.0, 0.5, 0.9, 1.0], [0] * 4, [0.0, 0.05, 0.45, 4.95]),
        # an unknown one counts as one with as many requests
        ([0.2, nan, 0.5, 0.9], [20, 50, 50, 90], [0.0125, 0.05, 0.05, 0.45]),
        ([nan], [0], [0.0]),
    ],
)
def test_full_kv_cache_is_a_barrier(kv_usage, in_flight, expected):
    request = request_of(0, endpoint_rates([1000] * len(kv_usage)))
    assert seconds(request, kv_usage=kv_usage, in_flight=in_flight) == pytest.approx(expected)


def test_h100_takes_most_of_a_mixed_pools_requests_and_the_t4_some():
    """Requests of 2000 tokens arrive together; each goes where it is served soonest."""
    h100 = AcceleratorTag(model="h100", vendor="nvidia", count=1, performance=Performance(fp16=989))
    t4 = AcceleratorTag(model="t4", vendor="nvidia", count=1, performance=Performance(fp16=65))
    tokens = [0, 0]
    for _ in range(32):
        pool, request = candidates(in_flight_tokens=tokens, accelerators=[h100, t4]), request_of(2000)
        EndpointRatesProducer(clock=ManualClock()).produce(request, pool)
        tokens[int(build(outputTokens=0).score(request, pool).argmax())] += 2000
    # The T4 has 65 / 989 = 1 / 15.2 of the rate, so it gets every 16th request: the 16th and the 32nd
    # (16 * 2000 / r against 15.2 * 2000 / r).
    assert tokens == [30 * 2000, 2 * 2000]


def plain_seconds(pool, rates, prompt_tokens, matched, *, output, behind, delay, barrier):
    """Return the sum of the docstring, written out for endpoints that report everything."""
    running, in_flight, usage = (pool.values(column) for column in (RUNNING, IN_FLIGHT, KV_USAGE))
    waiting, ahead = pool.values(WAITING), pool.values(IN_FLIGHT_TOKENS)
    uncached = np.maximum(prompt_tokens - 64.0 * np.array(matched), 0.0)
    in_batch = np.maximum(running, in_flight)
    own = uncached * (behind * np.maximum(ahead / max(prompt_tokens, 1), 1.0) + delay * in_batch + 1.0)
    batch = np.maximum(running, 1.0)
    wait = np.where(waiting > 0, np.maximum(waiting, in_flight - batch), 0.0)
    queue = wait * (rates.output_tokens * (rates.itl_base_seconds + rates.itl_seconds_per_request * batch) / batch)
    itl = rates.itl_base_seconds + rates.itl_seconds_per_request * (np.maximum(running, in_flight) + 1.0)
    full = np.minimum(np.maximum(usage, 0.0), 0.99)
    prefill = (ahead + own) / rates.prefill_tokens_per_second
    return prefill + queue + output * itl + barrier * full / (1.0 - full)


@given(
    loads=st.lists(
        st.tuples(*[st.integers(0, 30)] * 3, st.integers(0, 9000), st.floats(0, 1), st.integers(0, 20)),
        min_size=1,
        max_size=4,
    ),
    prompt_tokens=st.integers(0, 3000),
    weights=st.tuples(st.sampled_from([0.0, 1.0, 0.7]), st.sampled_from([0.0, 0.5])),
    barrier=st.sampled_from([0.0, 0.05]),
    wanted=st.none() | st.integers(1, 40),
)
def test_seconds_are_the_sum_of_the_docstring_to_the_last_bit(loads, prompt_tokens, weights, barrier, wanted):
    behind, delay = weights
    names = ("waiting", "running", "in_flight", "in_flight_tokens", "kv_usage", "matched")
    columns = dict(zip(names, zip(*loads, strict=True), strict=True))
    matched = columns.pop("matched")
    count = len(matched)
    rates = endpoint_rates([9000, 1000, 3000, 700][:count], itl_base=[0.011] * count, itl_per_request=[0.0007] * count)
    pool, scorer = candidates(**columns), build(requestsBehind=behind, delayWeight=delay, kvBarrierSeconds=barrier)
    output = 16 if wanted is None else min(16, wanted)
    expected = plain_seconds(
        pool, rates, prompt_tokens, matched, output=output, behind=behind, delay=delay, barrier=barrier
    ).tolist()
    for _ in range(2):  # the second time, what requests share is at hand
        request = request_of(prompt_tokens, rates, matched, max_output_tokens=wanted)
        assert scorer.seconds(request, pool).tolist() == expected


def test_kv_caches_that_fill_up_between_requests_count_from_the_next_report_on():
    scorer = build()
    pools = [candidates(kv_usage=usage) for usage in ([0.0, 0.5], [0.5, 0.0], [0.5, 0.5])]
    found = [scorer.seconds(request_of(0, EQUAL), pool).tolist() for pool in pools]
    assert found == [[0.0, 0.05], [0.05, 0.0], [0.05, 0.05]]


H100_AND_T4 = candidates(accelerators=[AcceleratorTag(model="h100"), AcceleratorTag(model="t4")])


@pytest.mark.parametrize(
    ("served", "selected", "parameters", "expected"),
    [
        (None, None, {"classStickinessSeconds": 1.5}, [1.0, 2.0]),
        ("t4", None, {"classStickinessSeconds": 1.5}, [2.5, 2.0]),
        ("t4", None, {}, [1.0, 2.0]),
        ("t4", 0.5, {"classStickinessSeconds": 9}, [1.5, 2.0]),  # that of the selection takes precedence
    ],
)
def test_ome_19_another_class_than_the_one_that_served_the_session_costs(served, selected, parameters, expected):
    request = request_of(1000, endpoint_rates([1000, 500]))
    if served:
        request.put(SERVED_CLASS, served)
    if selected:
        request.put(ACCELERATOR_SELECTION, Selections(Selection(class_stickiness_seconds=selected)))
    assert seconds(request, pool=H100_AND_T4, parameters=parameters) == expected
    assert (SERVED_CLASS in build(**parameters).reads) == bool(parameters)
