# SPDX-License-Identifier: Apache-2.0
"""How many requests an engine runs at once, learned from where its queues begin."""

from itertools import count
from math import inf, isnan, nan

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from epp.plugins.endpoint_rates.learning import PlacesLearner

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


def test_queue_behind_a_smaller_batch_says_nothing():
    assert looked((8.0, 0.0), *[(5.0, 3.0)] * 9).learned(1) is None


def test_larger_batch_shows_that_there_was_room():
    learner = looked(*[(8.0, 2.0)] * 5)
    version = learner.version
    assert looked((9.0, 0.0), learner=learner).learned(1) is None
    assert learner.version > version


def test_what_is_not_reported_says_nothing():
    assert looked(*[(nan, nan)] * 9, *[(8.0, nan)] * 9, *[(nan, 3.0)] * 9).learned(1) is None


def test_report_that_is_seen_again_counts_once():
    learner = PlacesLearner()
    for _ in range(9):
        learner.update(np.array([8.0]), np.array([2.0]), np.array([1.0]))
    assert learner.learned(1) is None


def test_engine_that_runs_nothing_is_not_full_but_stopped():
    assert looked(*[(0.0, 3.0)] * 9).learned(1) is None


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
