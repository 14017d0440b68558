# SPDX-License-Identifier: Apache-2.0
"""Quantiles that responses teach, of the ratio of measured to expected times."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epp.framework import AcceleratorTag, Candidates
from epp.framework.testing import candidates
from epp.pool.predicted_latency.quantiles import LatencyQuantiles, Place, load_buckets

BUCKET = 5
POOL = candidates(accelerators=[AcceleratorTag(classes=(name,)) for name in ("fast", "fast", "slow")])


def predicted(quantiles, *, expected=1.0, bucket=BUCKET, now=0.0, pool=POOL):
    times = np.full(len(pool), expected)
    buckets = np.full(len(pool), bucket)
    return quantiles.predict(pool.snapshot, pool.slots, buckets, base=times, expected=times, now=now)


def taught(ratios, *, slot=0, name="fast", quantiles=None, bucket=BUCKET):
    quantiles = quantiles or LatencyQuantiles()
    for ratio in ratios:
        quantiles.learn(Place(slot, name, bucket), base=2.0, measured=2.0 * ratio)
        quantiles.compare(2.0 * ratio, 2.0, 2.0 * ratio)
    return quantiles


@given(st.lists(st.floats(1e-6, 1e6), min_size=10, max_size=400), st.integers(0, 15))
def test_p90_is_never_below_p50_and_both_are_finite(ratios, bucket):
    found = predicted(taught(ratios, bucket=bucket), bucket=bucket)
    assert (found.p90 >= found.p50).all()
    assert np.isfinite(found.p90).all()
    assert (found.p50 > 0).all()
    assert found.sure.tolist() == [True, True, False]


def test_quantiles_converge_to_those_of_the_measured_times():
    generator = Random(1)
    found = predicted(taught(generator.lognormvariate(0.5, 0.4) for _ in range(1000)))
    assert found.p50[0] == pytest.approx(1.65, rel=0.15)  # e^0.5
    assert found.p90[0] == pytest.approx(2.75, rel=0.15)  # e^(0.5 + 1.28 * 0.4)


def test_quantiles_follow_a_change_within_a_few_hundred_responses():
    quantiles = taught([0.5] * 1000)
    assert predicted(quantiles).p50[0] == pytest.approx(0.5, rel=0.1)
    found = predicted(taught([4.0] * 300, quantiles=quantiles), now=1.0)
    assert found.p50[0] == pytest.approx(4.0, rel=0.1)


def test_endpoint_without_responses_has_the_quantiles_of_its_class_and_others_the_expected_times():
    found = predicted(taught([3.0] * 200), expected=0.1)
    assert found.p50.tolist() == [pytest.approx(0.3, rel=0.1), pytest.approx(0.3, rel=0.1), 0.1]
    assert found.p90[2] == 0.1
    assert found.sure.tolist() == [True, True, False]
    assert found.samples.tolist() == [200, 0, 0]


def test_endpoints_of_a_class_differ_once_each_has_responses():
    quantiles = taught([3.0] * 200, slot=1, quantiles=taught([1.0] * 200))
    assert predicted(quantiles).p50[:2].tolist() == [pytest.approx(1.0, rel=0.1), pytest.approx(3.0, rel=0.1)]


def test_ten_responses_are_needed():
    quantiles = taught([3.0] * 9)
    assert not predicted(quantiles).sure.any()
    assert predicted(taught([3.0], quantiles=quantiles), now=1.0).sure[0]


def test_expected_time_stays_the_median_while_it_is_closer():
    quantiles = taught([])
    for _ in range(100):
        quantiles.learn(Place(0, "fast", BUCKET), base=1.0, measured=2.0)
        quantiles.compare(2.0, expected=2.0, learned=2.5)
    found = predicted(quantiles, expected=7.0)
    assert found.p50[0] == 7.0
    assert found.p90[0] == pytest.approx(14.0, rel=0.1)


def test_responses_of_an_endpoint_that_left_no_longer_count():
    quantiles = taught([3.0] * 100)
    quantiles.forget([0, 999])
    found = predicted(quantiles)
    assert found.samples.tolist() == [0, 0, 0]
    assert found.p50[0] == pytest.approx(3.0, rel=0.1)  # of its class
    assert quantiles.samples(3).tolist() == [0, 0, 0]


def test_memory_is_bounded_and_the_class_stands_in_for_endpoints_beyond(monkeypatch):
    monkeypatch.setattr("epp.pool.predicted_latency.quantiles._MOST_CELLS", 64)
    quantiles = LatencyQuantiles()
    for number in range(2000):
        quantiles.learn(Place(number, "fast", number % 16), base=1.0, measured=3.0)
    taught([3.0] * 20, slot=1, quantiles=quantiles)
    predicted(quantiles)
    assert 0 < quantiles.samples(2000).astype(bool).sum() < 64
    quantiles.forget(range(2000))
    assert taught([2.0] * 20, slot=2, quantiles=quantiles).samples(3).tolist() == [0, 0, 20]


def test_same_responses_give_the_same_predictions():
    ratios = [Random(3).uniform(0.1, 9) for _ in range(500)]
    assert predicted(taught(ratios)).p90.tolist() == predicted(taught(ratios)).p90.tolist()


def test_dry_run_changes_nothing():
    quantiles = taught([3.0] * 100)
    snapshot = replace(candidates(accelerators=[AcceleratorTag(classes=("slow",))] * 3).snapshot, dry_run=True)
    assert not predicted(quantiles, pool=Candidates(snapshot, POOL.slots)).sure.any()
    assert predicted(quantiles).sure.tolist() == [True, True, False]


def test_buckets_go_by_prompt_load_and_batch():
    first, further = load_buckets(
        np.array([10.0, 100.0, 100.0, 2000.0]),
        ahead=np.array([0.0, 50.0, 500.0, 0.0]),
        waiting=np.array([0.0, 0.0, np.nan, 3.0]),
        batch=np.array([1.0, 4.0, 20.0, 100.0]),
    )
    assert first.tolist() == [0, 5, 6, 15]
    assert further.tolist() == [0, 5, 6, 15]
