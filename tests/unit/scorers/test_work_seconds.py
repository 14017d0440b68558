# SPDX-License-Identifier: Apache-2.0
"""Seconds until the first tokens, counted with each endpoint's own rates."""

import math
from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import ConfigurationError, ManualClock, PrefixMatch, Request, RequestBody
from epp.framework.accelerators.selection import ACCELERATOR_SELECTION, SERVED_CLASS, Selection, Selections
from epp.framework.accelerators.tag import AcceleratorTag, Performance
from epp.framework.rates import ENDPOINT_RATES
from epp.framework.registry import Registry
from epp.framework.request import PREFIX_MATCH
from epp.framework.snapshot import ACCELERATOR, IN_FLIGHT, IN_FLIGHT_TOKENS, KV_USAGE, RUNNING, WAITING, LoraState
from epp.framework.testing import candidates, endpoint_rates
from epp.plugins.endpoint_rates.producer import EndpointRatesProducer
from epp_scorers.work_seconds import WorkSecondsScorer


def build(**parameters):
    registry = Registry({})
    registry.register(WorkSecondsScorer)
    return registry.build("work-seconds-scorer", parameters, name="mine", clock=ManualClock())


def request_of(prompt_tokens, rates=None, matched=None, **body):
    request = Request("r", RequestBody(prompt_tokens=prompt_tokens, **body))
    if rates is not None:
        request.put(ENDPOINT_RATES, rates)
    if matched is not None:
        blocks = np.array(matched, dtype=np.int32)
        request.put(PREFIX_MATCH, PrefixMatch(blocks, prompt_tokens // 64, block_tokens=64))
    return request


def test_waiting_and_prefill_are_tokens_over_the_endpoints_own_rate():
    request = request_of(1000, endpoint_rates([10_000, 500]))
    pool = candidates(in_flight_tokens=[9000, 0])
    # fast: (9000 + 1000) / 10000 = 1 s; slow: 1000 / 500 = 2 s
    assert build().seconds(request, pool).tolist() == [1.0, 2.0]
    assert build().score(request, pool).tolist() == [1.0, 0.5]


def test_endpoint_that_computes_faster_may_have_as_much_more_to_do():
    # 20 times the rate: 19000 tokens wait at the fast one as long as none at the slow one
    request = request_of(1000, endpoint_rates([10_000, 500]))
    assert build().score(request, candidates(in_flight_tokens=[18_999, 0])).argmax() == 0
    assert build().score(request, candidates(in_flight_tokens=[19_001, 0])).argmax() == 1


def test_cached_tokens_are_not_computed():
    # 1000 - 10 * 64 = 360 tokens
    request = request_of(1000, endpoint_rates([1000, 1000]), matched=[0, 10])
    assert build().seconds(request, candidates(in_flight_tokens=[0, 0])).tolist() == [1.0, 0.36]


def test_part_of_an_evicted_prefix_counts_as_cached_where_the_conversation_was_computed_last():
    request = request_of(1000, endpoint_rates([1000] * 3))
    held = np.array([0, 2, 0], dtype=np.int32)
    request.put(PREFIX_MATCH, PrefixMatch(held, 15, block_tokens=64, last_slot=1, last_tokens=640))
    full = candidates(in_flight_tokens=[0, 0, 0], kv_usage=[1.0, 1.0, 0.5])
    # 1000 - 128 tokens, and half of half of the 640 - 128 that were evicted
    scorer = build(evictedPrefixWeight=0.5, kvBarrierSeconds=0)
    assert scorer.seconds(request, full).tolist() == [1.0, 0.872 - 0.128, 1.0]
    # where an endpoint has room, no one is evicted by a conversation that moves there
    room = candidates(in_flight_tokens=[0, 0, 0], kv_usage=[1.0, 1.0, 0.0])
    assert scorer.seconds(request, room).tolist() == [1.0, 0.872, 1.0]
    assert scorer.seconds(request, full.keep(np.array([True, False, True]))).tolist() == [1.0, 1.0]
    assert scorer.seconds(request, full.keep(np.zeros(3, dtype=np.bool_))).tolist() == []


def test_conversation_of_a_slot_beyond_the_pool_counts_for_nobody():
    request = request_of(1000, endpoint_rates([1000] * 2))
    held = np.array([0, 2], dtype=np.int32)  # as in a simulation with fewer endpoints
    request.put(PREFIX_MATCH, PrefixMatch(held, 15, block_tokens=64, last_slot=7, last_tokens=640))
    pool = candidates(in_flight_tokens=[0, 0], kv_usage=[1.0, 1.0])
    seconds = build(evictedPrefixWeight=0.5, kvBarrierSeconds=0).seconds(request, pool)
    assert seconds.tolist() == [1.0, 0.872]


@pytest.mark.parametrize(("usage", "expected"), [(-7.0, 0.872), (1e9, 0.872 - 0.256), (nan, 0.872)])
def test_absurd_kv_cache_usage_counts_as_empty_or_full(usage, expected):
    request = request_of(1000, endpoint_rates([1000] * 2))
    held = np.array([0, 2], dtype=np.int32)
    request.put(PREFIX_MATCH, PrefixMatch(held, 15, block_tokens=64, last_slot=1, last_tokens=640))
    pool = candidates(in_flight_tokens=[0, 0], kv_usage=[usage, usage])
    seconds = build(evictedPrefixWeight=0.5, kvBarrierSeconds=0).seconds(request, pool)
    assert seconds.tolist() == pytest.approx([1.0, expected])


def test_attention_counts_what_each_uncached_token_looks_back_at():
    scorer = build(attentionQuadraticTokens=1000)
    # nothing cached: 1000 + 1000 * 1000 / 1000 = 2000; 640 cached: 360 + 360 * (640 + 1000) / 1000 = 950.4
    request = request_of(1000, endpoint_rates([1000, 1000]), matched=[0, 10])
    assert scorer.seconds(request, candidates(in_flight_tokens=[0, 0])).tolist() == pytest.approx([2.0, 0.9504])


def test_busy_batch_costs_what_it_adds_to_each_token():
    rates = endpoint_rates([1000] * 3, itl_base=[0.01] * 3, itl_per_request=[0.001] * 3)
    pool = candidates(in_flight_tokens=[0] * 3, running=[9, nan, 4], in_flight=[9, 0, 19], kv_usage=[0] * 3)
    # batches, this request included: 10, 1, 20; 16 tokens of 20, 11 and 30 ms
    assert build().seconds(request_of(0, rates), pool).tolist() == pytest.approx([0.32, 0.176, 0.48])


def test_request_waits_until_a_full_batch_has_places_for_all_before_it():
    rates = endpoint_rates([1000] * 3, itl_base=[0.01] * 3)
    pool = candidates(in_flight_tokens=[0] * 3, waiting=[4, 0, 4], running=[10, 10, 10], in_flight=[14, 14, 20])
    # 200 tokens of 10 ms take 2 s, so that one of 10 ends every 0.2 s: 4 * 0.2, and (20 - 10) * 0.2
    found = build(outputTokens=0, kvBarrierSeconds=0).seconds(request_of(0, rates), pool)
    assert found.tolist() == pytest.approx([0.8, 0.0, 2.0])


def test_request_waits_for_a_place_where_an_endpoint_has_as_many_requests_as_it_is_known_to_run():
    rates = replace(endpoint_rates([1000] * 4, itl_base=[0.01] * 4), places=np.array([10.0, 10.0, 10.0, inf]))
    pool = candidates(
        in_flight_tokens=[0] * 4, waiting=[0, 0, nan, 0], running=[10, 9, 10, 10], in_flight=[10, 9, 11, 90]
    )
    # nothing waits yet: one turn of 0.2 s for the first, two where one more was just sent
    found = build(outputTokens=0, kvBarrierSeconds=0).seconds(request_of(0, rates), pool)
    assert found.tolist() == pytest.approx([0.2, 0.0, 0.4, 0.0])


def test_prompt_counts_once_more_for_each_request_behind_it():
    scorer = build(outputTokens=0, requestsBehind=1)
    request = request_of(1000, endpoint_rates([1000, 1000]), matched=[0, 10])
    # 1000 and 360 tokens, twice
    assert scorer.seconds(request, candidates(in_flight_tokens=[0, 0])).tolist() == pytest.approx([2.0, 0.72])
    # where 6 prompts of this length are in flight, as many follow: 6000 + 7 * 360
    busy = candidates(in_flight_tokens=[0, 6000])
    assert scorer.seconds(request, busy).tolist() == pytest.approx([2.0, 8.52])


def test_prompt_delays_the_requests_that_run_there():
    scorer = build(outputTokens=0, delayWeight=0.5)
    request = request_of(1000, endpoint_rates([1000, 1000]), matched=[0, 10])
    # 1 s for this request, and half of it for each of 2 requests; 0.36 s, and half of it for each of 8
    busy = candidates(in_flight_tokens=[0, 0], running=[2, 8], kv_usage=[0, 0])
    assert scorer.seconds(request, busy).tolist() == pytest.approx([2.0, 1.8])


def adapters(*running, slots, waiting=(), loaded=()):
    return LoraState(frozenset(running), frozenset(waiting), slots, loaded)


def adapter_seconds(*states):
    """Seconds of a request of adapter `a`, where 4 requests run at each endpoint."""
    count = len(states)
    rates = endpoint_rates([1000] * count, itl_base=[0.01] * count)
    pool = candidates(in_flight_tokens=[0] * count, running=[4] * count, kv_usage=[0] * count, lora=states)
    scorer = build(outputTokens=0, delayWeight=0.5, adapterLoadSeconds=0.5)
    return scorer.seconds(request_of(0, rates, model="a"), pool).tolist()


def test_adapter_is_loaded_before_its_request_and_holds_up_the_others():
    # it runs; 0.5 s to load it, and half of it for each of 4 requests; as much again to load the one that it pushes out
    states = adapters("a", "b", slots=2), adapters("b", slots=2, loaded=("b",)), adapters(slots=2, loaded=("b", "c"))
    assert adapter_seconds(*states) == pytest.approx([0.0, 1.5, 3.0])


def test_adapter_is_not_loaded_where_it_ran_last_or_where_another_request_waits_for_it():
    remembered, awaited = adapters(slots=1, loaded=("a",)), adapters(slots=1, waiting=["a"])
    assert adapter_seconds(adapters("a", slots=1), remembered, awaited) == [0.0, 0.0, 0.0]


def test_adapter_without_a_free_slot_waits_until_all_requests_of_another_one_have_ended():
    turn = 200 * 0.01 * (1 + math.log(1 + 4 / 2))  # an answer takes 2 s; each of 2 adapters has 2 of 4 requests
    full, behind_another, half_way = [
        adapters("b", "c", slots=2, waiting=waiting, loaded=("b", "c")) for waiting in ((), ["d"], ["a", "c"])
    ]
    expected = [3.0 + turn, 3.0 + 2 * turn, turn / 2]
    assert adapter_seconds(full, behind_another, half_way) == pytest.approx(expected)


def test_adapter_that_has_run_is_loaded_again_and_a_base_model_never():
    rates, scorer = endpoint_rates([1000] * 2), build(outputTokens=0, adapterLoadSeconds=0.5)

    def seconds(model, *states):
        pool = candidates(in_flight_tokens=[0, 0], kv_usage=[0, 0], lora=states)
        return scorer.seconds(request_of(0, rates, model=model), pool).tolist()

    full, idle = adapters("b", slots=1), adapters(slots=1)
    assert seconds("a", full, idle) == [0.0, 0.0]
    assert seconds("base", full, idle) == [0.0, 0.0]
    assert seconds("a", adapters("a", slots=1), idle) == [0.0, 0.5]
    assert seconds("a", idle, idle) == [0.5, 0.5]


def test_no_more_output_counts_than_is_asked_for():
    rates = endpoint_rates([1000], itl_base=[0.01])
    pool = candidates(in_flight_tokens=[0])
    assert build().seconds(request_of(0, rates, max_output_tokens=2), pool).tolist() == pytest.approx([0.02])
    assert build(outputTokens=100).seconds(request_of(0, rates), pool).tolist() == pytest.approx([1.0])


def test_full_kv_cache_is_a_barrier():
    pool = candidates(kv_usage=[0.0, 0.5, 0.9, 1.0])
    # 0.05 * 0, 0.05 * 1, 0.05 * 9, and 1.0 counts as 0.99: 0.05 * 99
    seconds = build().seconds(request_of(0, endpoint_rates([1000] * 4)), pool)
    assert seconds.tolist() == pytest.approx([0.0, 0.05, 0.45, 4.95])


def test_unknown_kv_cache_counts_as_one_with_as_many_requests():
    pool = candidates(kv_usage=[0.2, nan, 0.5, 0.9], in_flight=[20, 50, 50, 90])
    seconds = build().seconds(request_of(0, endpoint_rates([1000] * 4)), pool)
    assert seconds[1] == seconds[2] == pytest.approx(0.05)
    nobody_knows = build().seconds(request_of(0, endpoint_rates([1000])), candidates(kv_usage=[nan]))
    assert nobody_knows.tolist() == [0.0]


def test_differences_below_a_millisecond_are_none():
    request = request_of(1, endpoint_rates([10_000, 2_000]))  # 0.1 and 0.5 ms
    assert build().score(request, candidates(in_flight_tokens=[0, 0])).tolist() == [1.0, 1.0]


def test_nobody_is_preferred_without_rates():
    assert build().score(request_of(10), candidates(in_flight_tokens=[0, 9])).tolist() == [1.0, 1.0]


def test_h100_takes_most_of_a_mixed_pools_requests_and_the_t4_some():
    """Requests of 2000 tokens arrive together; each goes where it is served soonest."""
    h100 = AcceleratorTag(model="h100", vendor="nvidia", count=1, performance=Performance(fp16=989))
    t4 = AcceleratorTag(model="t4", vendor="nvidia", count=1, performance=Performance(fp16=65))
    tokens = [0, 0]
    for _ in range(32):
        pool = candidates(in_flight_tokens=tokens, records={ACCELERATOR: [h100, t4]})
        request = request_of(2000)
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


def test_only_candidate_has_the_best_score():
    assert build().score(request_of(1000, endpoint_rates([500])), candidates(in_flight_tokens=[9000])).tolist() == [1.0]


def test_kv_caches_that_fill_up_between_requests_count_from_the_next_report_on():
    scorer, rates = build(), endpoint_rates([1000, 1000])
    pools = [candidates(kv_usage=usage) for usage in ([0.0, 0.5], [0.5, 0.0], [0.5, 0.5])]
    found = [scorer.seconds(request_of(0, rates), pool).tolist() for pool in pools]
    assert found == [[0.0, 0.05], [0.05, 0.0], [0.05, 0.05]]


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"outputTokens": -1}, "outputTokens is -1; it must be 0 or more"),
        ({"kvBarrierSeconds": nan}, "kvBarrierSeconds is nan; it must be 0 or more, and finite"),
        ({"delayWeight": -1}, "delayWeight is -1; it must be 0 or more"),
        ({"attentionQuadraticTokens": -1}, "attentionQuadraticTokens is -1; it must be 0 or more"),
    ],
)
def test_negative_work_is_refused(parameters, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        build(**parameters)


def test_ome_19_another_class_than_the_one_that_served_the_session_costs_the_stickiness():
    request = request_of(1000, endpoint_rates([1000, 500]))
    pool = candidates(records={ACCELERATOR: [AcceleratorTag(model="h100"), AcceleratorTag(model="t4")]})
    sticky = build(classStickinessSeconds=1.5)
    assert sticky.seconds(request, pool).tolist() == [1.0, 2.0]
    request.put(SERVED_CLASS, "t4")
    assert sticky.seconds(request, pool).tolist() == [2.5, 2.0]
    assert build().seconds(request, pool).tolist() == [1.0, 2.0]
    assert SERVED_CLASS in sticky.reads
    assert SERVED_CLASS not in build().reads


def test_ome_19_stickiness_of_the_selection_takes_precedence():
    request = request_of(1000, endpoint_rates([1000, 500]))
    request.put(SERVED_CLASS, "t4")
    request.put(ACCELERATOR_SELECTION, Selections(Selection(class_stickiness_seconds=0.5)))
    pool = candidates(records={ACCELERATOR: [AcceleratorTag(model="h100"), AcceleratorTag(model="t4")]})
    assert build(classStickinessSeconds=9).seconds(request, pool).tolist() == [1.5, 2.0]
