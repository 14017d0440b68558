# SPDX-License-Identifier: Apache-2.0
"""Expected times: what requests share between two reports equals what each would compute by itself."""

from dataclasses import replace
from math import inf, nan

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Candidates, Endpoint, ManualClock, comparable_load
from epp.framework.datalayer import Report
from epp.framework.snapshot import IN_FLIGHT, IN_FLIGHT_TOKENS, RUNNING, WAITING
from epp.framework.testing import candidates, endpoint_rates
from epp.routing.datastore import Datastore

SIZE = 5
COUNTS = st.integers(0, 40).map(float)
REPORTED = COUNTS | st.just(nan)
PLACES = st.sampled_from([1.0, 4.0, 10.0, inf])


def five(strategy):
    return st.lists(strategy, min_size=SIZE, max_size=SIZE)


POOLS = st.fixed_dictionaries(
    {
        "waiting": five(REPORTED) | st.just([0.0] * SIZE),
        "running": five(REPORTED) | five(COUNTS),
        "in_flight": five(COUNTS),
        "in_flight_tokens": five(st.integers(0, 50_000).map(float)),
        "metrics_at": five(st.floats(0, 10)),
    }
)
RATES = st.builds(
    lambda prefill, base, per_request, places: replace(
        endpoint_rates(prefill, itl_base=base, itl_per_request=per_request),
        places=None if places is None else np.array(places),
    ),
    five(st.floats(1, 1e5)),
    five(st.floats(1e-4, 1)),
    five(st.floats(0, 0.1)),
    st.none() | five(PLACES),
)
UNCACHED = five(st.integers(0, 20_000).map(float)).map(np.array)


def plain_ttft(rates, pool, uncached):
    """Return the time to the first token, written out: no terms are taken from other requests."""
    slots = pool.slots
    waiting, in_flight = pool.values(WAITING), pool.values(IN_FLIGHT)
    running = np.maximum(comparable_load(pool, RUNNING, as_reported=True), 1.0)
    ahead = np.where(waiting > 0, np.fmax(waiting, in_flight - running), 0.0)
    if rates.places is not None:
        there = np.maximum(running + np.fmax(waiting, 0.0), in_flight)
        ahead = np.maximum(ahead, there + 1.0 - rates.places[slots])
    itl = rates.itl_base_seconds[slots] + rates.itl_seconds_per_request[slots] * running
    prefill = (pool.values(IN_FLIGHT_TOKENS) + uncached) / rates.prefill_tokens_per_second[slots]
    return prefill + ahead * (rates.output_tokens * itl / running)


def plain_seconds(rates, pool, tokens, output_tokens):
    slots = pool.slots
    batch = np.maximum(comparable_load(pool, RUNNING, as_reported=True), pool.values(IN_FLIGHT)) + 1.0
    itl = rates.itl_base_seconds[slots] + rates.itl_seconds_per_request[slots] * batch
    return plain_ttft(rates, pool, tokens - pool.values(IN_FLIGHT_TOKENS)) + output_tokens * itl


@given(POOLS, RATES, UNCACHED, st.lists(st.booleans(), min_size=SIZE, max_size=SIZE), st.none() | st.floats(0, 10))
def test_times_of_any_candidates_are_those_of_the_formula_to_the_last_bit(pool, rates, uncached, kept, stale_after):
    everyone = candidates(**pool)
    everyone = Candidates(everyone.snapshot, everyone.slots, now=10.0)
    mask = np.array(kept)
    for _ in range(2):  # the second time, terms are at hand
        for some, theirs in ((everyone, uncached), (everyone.keep(mask), uncached[mask])):
            shown = some if stale_after is None else some.without_stale_load(stale_after)
            ttft = rates.ttft_seconds(shown, theirs)
            assert ttft.tolist() == plain_ttft(rates, shown, theirs).tolist()
            whole = shown.values(IN_FLIGHT_TOKENS) + theirs
            assert rates.seconds(shown, whole, 16).tolist() == plain_seconds(rates, shown, whole, 16).tolist()
            for position, slot in enumerate(shown.slots.tolist()):
                alone = rates.ttft_seconds_at(shown, slot, theirs.item(position))
                unknown = shown.hides_load or np.isnan(shown.values(RUNNING)[position])
                assert np.isnan(alone) if unknown else alone == ttft[position]


def test_terms_that_requests_share_follow_each_report_and_each_change_of_the_pool():
    store, rates = Datastore(ManualClock()), endpoint_rates([1000.0] * 8, itl_base=[0.01] * 8)
    first, second = (Endpoint(name, f"10.0.0.{number}", 8000) for number, name in enumerate("ab", 1))

    def ttft():
        snapshot = store.snapshot()
        return rates.ttft_seconds(Candidates(snapshot, snapshot.available), np.zeros(len(snapshot.available))).tolist()

    store.replace([first])
    store.report(first, Report({WAITING: 0.0, RUNNING: 10.0}))
    assert ttft() == [0.0]
    # 200 tokens of 10 ms take 2 s, so that one of 10 ends every 0.2 s
    store.report(first, Report({WAITING: 2.0, RUNNING: 10.0}))
    assert ttft() == [0.4]
    store.report(first, Report({WAITING: 2.0, RUNNING: 20.0}))
    assert ttft() == [0.2]
    store.replace([first, second])
    store.report(second, Report({WAITING: 0.0, RUNNING: 10.0}))
    assert ttft() == [0.2, 0.0]
    store.replace([second])
    assert ttft() == [0.0]
