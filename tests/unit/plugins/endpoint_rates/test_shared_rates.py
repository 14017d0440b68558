# SPDX-License-Identifier: Apache-2.0
"""Rates learned by one picker are used by another one until it has more samples."""

from math import exp

import msgspec
import numpy as np
import pytest

from epp.framework import Endpoint, ManualClock
from epp.plugins.endpoint_rates.learning import RateLearner, SharedRates
from epp.routing.datastore import Datastore

POOL = [Endpoint(f"e{number}", f"10.0.0.{number + 1}", 8000) for number in range(3)]


class Learners:
    """The learners of one picker, with its pool in an order of its own."""

    def __init__(self, pool) -> None:
        self.store = Datastore(ManualClock())
        self.store.replace(pool)
        self.prefill, self.itl = (RateLearner(half_life_seconds=600, min_samples=5, window=31) for _ in range(2))
        self.shared = SharedRates(self.prefill, self.itl)

    def learn(self, endpoint: Endpoint, ratio: float, samples: int) -> None:
        for _ in range(samples):
            self.prefill.add(self.store.slot_of(endpoint), 0, ratio, 0.0)

    def take(self, now: float) -> bytes | None:
        return self.shared.take(self.store.snapshot(), now)

    def apply(self, payload: bytes, now: float = 0.0) -> int:
        return self.shared.apply(payload, self.store.snapshot(), now)

    def ratio(self, endpoint: Endpoint, now: float = 0.0) -> float:
        logs, _ = self.prefill.learned(len(POOL), now)
        return round(exp(logs[self.store.slot_of(endpoint)]), 6)


@pytest.fixture
def two():
    return Learners(POOL), Learners(POOL[::-1])


def test_learned_ratio_is_used_by_the_picker_with_fewer_samples(two):
    one, other = two
    one.learn(POOL[0], 2.0, 10)
    assert np.isnan(other.ratio(POOL[0]))
    assert other.apply(one.take(0.0)) == 1
    assert (other.ratio(POOL[0]), other.ratio(POOL[0], 600.0)) == (2.0, round(2**0.5, 6))  # half of the logarithm
    other.learn(POOL[0], 3.0, 9)
    assert other.ratio(POOL[0]) == 2.0
    other.learn(POOL[0], 3.0, 2)
    assert other.ratio(POOL[0]) == 3.0


def test_only_own_samples_are_told_and_only_new_ones(two):
    one, other = two
    one.learn(POOL[0], 2.0, 10)
    other.apply(one.take(0.0))
    assert other.take(0.0) is None
    assert one.take(10.0) is None
    one.learn(POOL[0], 2.0, 1)
    one.learn(POOL[1], 2.0, 4)  # too few to have learned anything
    assert one.take(10.5) is None  # too soon
    assert other.apply(one.take(13.0)) == 1


def test_ratio_is_forgotten_with_its_endpoint_and_unknown_endpoints_are_passed_over(two):
    one, other = two
    one.learn(POOL[0], 2.0, 10)
    payload = one.take(0.0)
    other.apply(payload)
    other.prefill.forget(other.store.slot_of(POOL[0]))
    assert np.isnan(other.ratio(POOL[0]))
    other.store.replace(POOL[1:])
    assert other.apply(payload) == 0


@pytest.mark.parametrize("learned", [(float("nan"), 9), (1.0, -1), (float("inf"), 9), ("1", 9)])
def test_impossible_ratios_are_refused(two, learned):
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        two[0].apply(msgspec.msgpack.encode([["10.0.0.1:8000", learned, (0.0, 0)]]))
