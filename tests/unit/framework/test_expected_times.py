# SPDX-License-Identifier: Apache-2.0
"""Expected times: what requests share between two reports equals what each would compute by itself."""

from dataclasses import replace
from math import inf, nan

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Candidates, Endpoint, ManualClock, comparable_load
from epp.framework.datalayer import Report
from epp.framework.snapshot import IN_FLIGHT, IN_FLIGHT_TOKENS, LOAD_AT, METRICS_AT, RUNNING, WAITING
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


def weighed(rates, *, now, **columns):
    pool = candidates(**columns)
    before = Candidates(pool.snapshot, pool.slots, now=now)
    after = rates.weighed_by_age(before)
    return None if after is before else (after.values(RUNNING).tolist(), after.values(WAITING).tolist())


def test_requests_of_others_count_less_the_older_the_report_of_them():
    rates = endpoint_rates([1000.0] * 2, itl_base=[0.05] * 2)  # 200 tokens take 10 s
    load = {"running": [20, 20], "waiting": [8, 0], "in_flight": [4, 12], "load_at": [100, 100]}
    # of others are 24 and 8: after 5 s they count for 1 / (1 + 32 * 0.5 ** 2) = 1/9
    running, waiting = weighed(rates, now=105.0, **load)
    assert np.allclose(running, [4 + 16 / 9, 12 + 8 / 9])
    assert np.allclose(waiting, [8 / 9, 0])
    assert weighed(rates, now=100.1, **load) is None
    running, _ = weighed(rates, now=1e6, **load)
    assert np.allclose(running, [4, 12], atol=1e-6)


def test_own_requests_and_those_that_no_time_is_known_of_count_as_reported():
    rates = endpoint_rates([1000.0] * 2, itl_base=[0.05] * 2)
    assert weighed(rates, now=200.0, running=[20, 5], waiting=[0, 0], in_flight=[20, 5], load_at=[100, 100]) is None
    assert weighed(rates, now=200.0, running=[20, 5], waiting=[0, 0], in_flight=[0, 0]) is None
    assert weighed(rates, now=nan, running=[20, 5], waiting=[0, 0], in_flight=[0, 0], load_at=[100, 100]) is None


def test_report_that_seldom_changes_as_there_are_few_requests_is_as_old_as_the_others_at_most():
    rates = endpoint_rates([1000.0] * 2, itl_base=[0.05] * 2)
    load = {"running": [30, 2], "waiting": [0, 0], "in_flight": [0, 0]}
    # 30 requests reported 1 s ago and 2 reported 9 s ago: 1.5 s in the mean; 32 of others, which take 10 s each
    running, _ = weighed(rates, now=109.0, **load, load_at=[108, 100])
    assert np.allclose(running, [30 / (1 + 32 * 0.1**2), 2 / (1 + 32 * 0.15**2)])


@given(POOLS, RATES, five(st.just(nan) | st.floats(0, 10)))
def test_weighed_load_is_between_the_own_requests_and_the_reported_ones(pool, rates, load_at):
    everyone = candidates(**pool, load_at=load_at)
    everyone = Candidates(everyone.snapshot, everyone.slots, now=10.0)
    shown = rates.weighed_by_age(everyone)
    reported, in_flight = everyone.values(RUNNING), everyone.values(IN_FLIGHT)
    unknown = np.isnan(reported)
    assert np.isnan(shown.values(RUNNING)).tolist() == unknown.tolist()
    assert (unknown | (shown.values(RUNNING) <= reported)).all()
    assert (unknown | (shown.values(RUNNING) >= np.minimum(reported, in_flight))).all()


def test_report_that_stays_the_same_grows_old_although_it_comes_again():
    clock, endpoint = ManualClock(100.0), Endpoint("a", "10.0.0.1", 8000)
    store = Datastore(clock)
    store.replace([endpoint])
    report = Report({WAITING: 0.0, RUNNING: 10.0})
    for known, at in ((report, 100.0), (report, 100.0), (Report({WAITING: 0.0, RUNNING: 9.0}), 102.0)):
        store.report(endpoint, known)
        snapshot = store.snapshot()
        assert snapshot.column(LOAD_AT)[0] == at
        assert snapshot.column(METRICS_AT)[0] == clock.now()
        clock.advance(1.0)
