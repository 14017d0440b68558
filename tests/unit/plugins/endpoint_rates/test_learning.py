# SPDX-License-Identifier: Apache-2.0
"""Learning of rates and of batch limits."""

import math
import statistics
from itertools import count
from math import inf, isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.plugins.endpoint_rates.learning import PlacesLearner, RateLearner, fill_unlearned


def learner(**settings):
    return RateLearner(**({"half_life_seconds": 600.0, "min_samples": 3, "window": 5} | settings))


def taught(*samples, **settings):
    """Return a learner with these samples of slot 0, at time 0."""
    one = learner(**settings)
    for ratio in samples:
        one.add(0, 0, ratio, 0.0)
    return one


def ratio(one, now=0.0):
    return math.exp(one.learned(1, now)[0][0])


@pytest.mark.parametrize(
    ("samples", "median", "count"),
    [
        ([2.0, 100.0], nan, 0),  # fewer than the least number
        ([2.0, 100.0, 3.0], 3.0, 3),
        ([1.0, 1.0, 1.0, 4.0, 4.0, 4.0], 4.0, 6),  # only the last 5 count: 1, 1, 4, 4, 4
    ],
)
def test_median_is_that_of_the_last_samples_if_there_are_enough(samples, median, count):
    logs, counts = taught(*samples).learned(1, 0.0)
    assert logs.tolist() == pytest.approx([math.log(median)], nan_ok=True)
    assert counts.tolist() == [count]


def test_het_4_what_was_learned_decays_towards_the_profile():
    one = taught(16.0, 16.0, 16.0)
    # 16^1, 16^(1/2) = 4, 16^(1/4) = 2; then it is not trusted at all
    assert [round(ratio(one, age), 9) for age in (0, 600, 1200)] == [16.0, 4.0, 2.0]
    assert isnan(ratio(one, 1201))


def test_sample_after_a_long_pause_starts_afresh():
    one = taught(16.0, 16.0, 16.0)
    one.add(0, 0, 1.0, 5000.0)
    assert one.learned(1, 5000.0)[1].tolist() == [0]


def test_sample_from_before_the_slot_was_forgotten_changes_nothing():
    one = learner(min_samples=1)
    epoch = one.epoch(0)
    one.forget(0)
    one.add(0, epoch, 4.0, 0.0)
    assert one.learned(1, 0.0)[1].tolist() == [0]
    one.add(0, one.epoch(0), 4.0, 0.0)
    assert one.learned(1, 0.0)[1].tolist() == [1]


def test_unlearned_slots_take_the_median_of_their_kind_or_of_all():
    logs = np.array([1.0, 3.0, np.nan, 8.0, np.nan, np.nan])
    kinds = np.array([1, 1, 1, 2, 2, 3])
    # kind 1: (1 + 3) / 2; kind 2: 8; kind 3 has no samples: the median of 1, 3 and 8
    assert fill_unlearned(logs, kinds).tolist() == [1.0, 3.0, 2.0, 8.0, 8.0, 3.0]
    assert fill_unlearned(np.full(2, np.nan), np.array([0, 1])).tolist() == [0.0, 0.0]


@given(st.lists(st.floats(), max_size=20), st.floats(0, 1e9))
def test_any_sample_at_all_leaves_a_ratio_that_is_finite_and_above_0(samples, age):
    one = taught(*samples, min_samples=1)
    known = np.exp(fill_unlearned(one.learned(2, age)[0], np.zeros(2, dtype=np.intp)))
    assert (np.isfinite(known) & (known > 0)).all()


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(1e-3, 1e3), st.booleans()), max_size=30))
def test_median_is_that_of_the_latest_samples_however_often_it_is_asked_for(samples):
    one, given_to = learner(min_samples=1), {0: [], 1: []}
    for slot, ratio, asked in samples:
        one.add(slot, 0, ratio, 0.0)
        given_to[slot].append(math.log(ratio))
        if asked:
            one.learned(2, 0.0)
    logs, counts = one.learned(2, 0.0)
    for slot, theirs in given_to.items():
        assert counts[slot] == len(theirs)
        assert np.isnan(logs[slot]) if not theirs else logs[slot] == statistics.median(theirs[-5:])


@given(st.lists(st.tuples(st.just(math.nan) | st.floats(-9, 9), st.integers(1, 3)), min_size=1, max_size=8))
def test_unlearned_slot_takes_the_median_that_numpy_computes_of_its_kind_or_of_all(slots):
    logs, kinds = (np.array(column) for column in zip(*slots, strict=True))
    found = fill_unlearned(np.append(logs, math.nan), np.append(kinds, 0))  # and a free slot
    learned = ~np.isnan(logs)
    for log, kind, its in zip(logs, kinds, found, strict=False):
        theirs = logs[learned & (kinds == kind)]
        likely = theirs if len(theirs) else logs[learned]
        assert its == (log if not np.isnan(log) else np.median(likely) if len(likely) else 0.0)
    assert found[-1] == 0.0


class Slots(RuleBasedStateMachine):
    """Samples and departures of four slots, in any order."""

    def __init__(self):
        super().__init__()
        self.one = learner()
        self.now = 0.0
        self.since_forgotten = dict.fromkeys(range(4), 0)

    @rule(slot=st.integers(0, 3), ratio=st.floats(1e-6, 1e6), late=st.booleans())
    def sample(self, slot, ratio, late):
        epoch = self.one.epoch(slot)
        self.one.add(slot, epoch - 1 if late else epoch, ratio, self.now)
        self.since_forgotten[slot] += not late

    @rule(slot=st.integers(0, 3))
    def leave(self, slot):
        self.one.forget(slot)
        self.since_forgotten[slot] = 0

    @rule(seconds=st.floats(0, 1000))
    def pass_time(self, seconds):
        self.now += seconds

    @invariant()
    def nothing_is_known_of_who_left(self):
        logs, counts = self.one.learned(4, self.now)
        for slot, samples in self.since_forgotten.items():
            assert counts[slot] <= samples
            assert np.isnan(logs[slot]) == (counts[slot] == 0)
            assert np.isnan(logs[slot]) or abs(logs[slot]) <= math.log(1e4)


TestSlots = Slots.TestCase


_TIMES = count(1.0)


def looked(*looks: tuple[float, float], learner: PlacesLearner | None = None) -> PlacesLearner:
    """Return a learner that saw these batches and queues of slot 0."""
    learner = learner or PlacesLearner()
    for running, waiting in looks:
        learner.update(np.array([running]), np.array([waiting]), np.array([next(_TIMES)]))
    return learner


def test_batch_that_is_the_largest_and_has_a_queue_again_and_again_is_full():
    learner = looked(*[(8.0, 2.0)] * 4)
    assert learner.learned(1) is None
    assert looked((8.0, 1.0), learner=learner).learned(1).tolist() == [8.0]
    assert learner.learned(3).tolist() == [8.0, inf, inf]


@pytest.mark.parametrize(
    "looks",
    [
        [(8.0, 0.0), *[(5.0, 3.0)] * 9],  # a queue behind a smaller batch
        [*[(nan, nan)] * 9, *[(8.0, nan)] * 9, *[(nan, 3.0)] * 9],  # not reported
        [(0.0, 3.0)] * 9,  # an engine that runs nothing is not full but stopped
    ],
)
def test_places_are_not_learned_from(looks):
    assert looked(*looks).learned(1) is None


def test_larger_batch_shows_that_there_was_room():
    learner = looked(*[(8.0, 2.0)] * 5)
    assert looked((9.0, 0.0), learner=learner).learned(1) is None


def test_report_that_is_seen_again_counts_once():
    learner = PlacesLearner()
    for _ in range(9):
        learner.update(np.array([8.0]), np.array([2.0]), np.array([1.0]))
    assert learner.learned(1) is None


def test_another_endpoint_in_the_slot_begins_anew():
    learner = looked(*[(8.0, 2.0)] * 5)
    learner.forget(0)
    learner.forget(7)  # never seen
    assert learner.learned(1) is None
    assert looked(*[(4.0, 2.0)] * 5, learner=learner).learned(1).tolist() == [4.0]


numbers = st.one_of(st.just(nan), st.integers(0, 5).map(float))


@given(st.lists(st.tuples(numbers, numbers), max_size=60))
def test_places_are_never_fewer_than_the_requests_that_ran(looks):
    places = looked(*looks).learned(1)
    assert places is None or places[0] == max(running for running, _ in looks if not isnan(running))
