# SPDX-License-Identifier: Apache-2.0
"""Fullness of endpoints in seconds of work, by the rates of their accelerators."""

import pytest

from epp.framework import Request, RequestBody
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates
from epp.plugins.endpoint_rates.detector import WorkSecondsDetector
from epp.plugins.endpoint_rates.producer import EndpointRatesProducer
from epp.plugins.filters.saturation import ConcurrencyDetector
from tests.support.plugins import built

H100, T4 = AcceleratorTag(model="h100", count=1), AcceleratorTag(model="t4", count=1)
PROFILES = [
    {"model": "m", "accelerator": "h100", "prefillTokensPerSecond": 8000, "alphaMs": 10, "betaMs": 0},
    {"model": "m", "accelerator": "t4", "prefillTokensPerSecond": 500, "alphaMs": 100, "betaMs": 0},
]


def producer(**parameters):
    return built(EndpointRatesProducer, {"profiles": PROFILES} | parameters)


def detector(rates, **parameters):
    made = built(WorkSecondsDetector, parameters)
    made.connect({"endpointRatesProducerName": rates})
    return made


def fleet(**columns):
    return candidates(records={ACCELERATOR: [H100, T4]}, **columns)


def test_same_prompts_in_flight_are_more_work_for_a_slow_accelerator():
    pool = fleet(in_flight_tokens=[4000, 4000], in_flight=[1, 1], running=[1, 1], waiting=[0, 0])
    found = detector(producer(baseModel="m")).fullness(pool)
    assert found.tolist() == pytest.approx([0.5, 8.0])  # 4000 / 8000 s and 4000 / 500 s, of 1 s


def test_gie_14_same_queue_is_more_work_for_a_slow_accelerator():
    # 4 wait behind 8, each of 200 tokens: 4 * 200 * 0.01 / 8 = 1 s, and 4 * 200 * 0.1 / 8 = 10 s
    pool = fleet(in_flight_tokens=[0, 0], in_flight=[12, 12], running=[8, 8], waiting=[4, 4])
    found = detector(producer(baseModel="m"), maxSeconds=2).fullness(pool)
    assert found.tolist() == pytest.approx([0.5, 5.0])


def test_idle_endpoints_are_empty_whatever_their_rate():
    pool = fleet(in_flight_tokens=[0, 0], in_flight=[0, 0], running=[0, 0], waiting=[0, 0])
    assert detector(producer(baseModel="m")).fullness(pool).tolist() == [0, 0]


def test_without_a_base_model_the_rates_are_those_of_the_model_asked_for_last():
    rates = producer()
    pool = fleet(in_flight_tokens=[4000, 4000], in_flight=[1, 1], running=[1, 1], waiting=[0, 0])
    rates.produce(Request("r", RequestBody(model="m")), pool)
    assert detector(rates).fullness(pool).tolist() == pytest.approx([0.5, 8.0])


def test_plugin_that_knows_no_rates_is_refused():
    with pytest.raises(ValueError, match=r"endpointRatesProducerName: plugin 'concurrency-detector' .* knows no rates"):
        detector(ConcurrencyDetector())
