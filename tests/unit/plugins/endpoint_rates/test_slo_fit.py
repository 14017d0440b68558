# SPDX-License-Identifier: Apache-2.0
"""Plugins that read the rates of endpoints."""

import pytest

from epp.framework import Candidates, Headers, Request, RequestBody
from epp.framework.accelerators.tag import AcceleratorTag, Cost
from epp.framework.rates import ENDPOINT_RATES
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates, endpoint_rates
from epp.plugins.endpoint_rates.producer import EndpointRatesProducer
from epp.plugins.flow_policies import WorkSecondsDetector
from epp.plugins.predicted_latency import SloFitFilter
from epp.plugins.saturation import ConcurrencyDetector
from tests.support.plugins import built

ALL = [True, True, True]
# 1000 tokens take 0.1, 0.5 and 2 s
RATES = endpoint_rates([10_000, 2000, 500], itl_base=[0.005, 0.020, 0.060], itl_per_request=[0.0001, 0.0005, 0.001])


def kept(headers, *, rates=RATES, prices=(), tokens=1000, preferCheapest=False, given=None, **columns):  # noqa: N803
    parameters = {"preferCheapest": preferCheapest, **(given or {})}
    plugin = built(SloFitFilter, parameters)
    request = Request("r", RequestBody(prompt_tokens=tokens), Headers(headers.items()))
    if rates is not None:
        request.put(ENDPOINT_RATES, rates)
    tags = [AcceleratorTag(model="gpu", cost=Cost(per_hour=price)) for price in prices or (None, None, None)]
    return plugin.filter(request, candidates(records={ACCELERATOR: tags}, **columns)).tolist()


def test_het_3_endpoints_that_meet_the_time_to_first_token_stay():
    assert kept({"x-llm-d-slo-ttft-ms": "500"}) == [True, True, False]
    assert kept({"x-llm-d-slo-ttft-ms": "499"}) == [True, False, False]


def test_het_3_what_waits_there_counts():
    # (4001 + 1000) / 10000 = 0.5001 s
    assert kept({"x-llm-d-slo-ttft-ms": "500"}, in_flight_tokens=[4001, 0, 0]) == [False, True, False]


def kept_after_waiting(seconds, milliseconds):
    """Which are kept for a request that came at 50 s, and has waited since."""
    plugin = built(SloFitFilter, {"preferCheapest": False})
    headers = Headers([("x-llm-d-slo-ttft-ms", str(milliseconds))])
    request = Request("r", RequestBody(prompt_tokens=1000), headers, received_at=50.0)
    request.put(ENDPOINT_RATES, RATES)
    pool = candidates(records={ACCELERATOR: [AcceleratorTag()] * 3})
    return plugin.filter(request, Candidates(pool.snapshot, pool.slots, now=50.0 + seconds)).tolist()


def test_request_that_has_waited_has_less_time_left_for_its_first_token():
    assert kept_after_waiting(0.0, 2000) == ALL
    assert kept_after_waiting(0.25, 2000) == [True, True, False]  # 1.75 s are left, and the third takes 2
    assert kept_after_waiting(1.75, 2000) == [True, False, False]  # 0.25 s, and the second takes 0.5
    assert kept_after_waiting(9.0, 2000) == [True, False, False]  # nothing is left: the fastest


def test_het_3_endpoints_that_meet_the_time_between_tokens_stay():
    # alone: 5.1, 20.5 and 61 ms; with 100 running at the second: 20 + 0.5 * 101 = 70.5 ms
    assert kept({"x-llm-d-slo-tpot-ms": "61"}) == ALL
    assert kept({"x-llm-d-slo-tpot-ms": "60"}) == [True, True, False]
    assert kept({"x-llm-d-slo-tpot-ms": "61"}, running=[0, 100, 0]) == [True, False, True]


def test_het_3_both_limits_must_be_met():
    # the second meets 500 ms, not 20 ms
    assert kept({"x-llm-d-slo-ttft-ms": "500", "x-llm-d-slo-tpot-ms": "20"}) == [True, False, False]


def test_het_3_gamma_and_delta_count_where_a_profile_gives_them():
    rates = endpoint_rates([10_000] * 3, ttft_base=[0.020] * 3, ttft_per_token=[0.0001] * 3)
    # 20 + 0.1 * 1000 * batch: 120 ms alone, 320 ms with two others
    assert kept({"x-llm-d-slo-ttft-ms": "121"}, rates=rates, running=[0, 2, 0]) == [True, False, True]


def test_het_3_if_no_endpoint_fits_the_least_violation_is_kept():
    # 0.1 / 0.01 = 10, 50 and 200 times the limit
    assert kept({"x-llm-d-slo-ttft-ms": "10"}) == [True, False, False]
    # times over the limits: max(0.1 / 0.1, 5.1 / 1) = 5.1; max(0.5 / 0.1, 20.5 / 1) = 20.5; 61
    assert kept({"x-llm-d-slo-ttft-ms": "100", "x-llm-d-slo-tpot-ms": "1"}) == [True, False, False]
    equal = endpoint_rates([500, 500, 400])
    assert kept({"x-llm-d-slo-ttft-ms": "10"}, rates=equal) == [True, True, False]


def test_het_3_cheapest_of_those_that_fit_stays():
    headers = {"x-llm-d-slo-ttft-ms": "500"}
    assert kept(headers, prices=[8.0, 2.0, 0.5], preferCheapest=True) == [False, True, False]
    assert kept(headers, prices=[8.0, 2.0, 0.5]) == [True, True, False]


def test_het_3_endpoint_without_a_price_is_kept_only_if_none_has_one():
    headers = {"x-llm-d-slo-ttft-ms": "500"}
    assert kept(headers, prices=[8.0, None, 0.5], preferCheapest=True) == [True, False, False]
    assert kept(headers, prices=[None, None, 0.5], preferCheapest=True) == [True, True, False]


def test_het_3_price_does_not_count_if_no_endpoint_fits():
    headers = {"x-llm-d-slo-ttft-ms": "10"}
    assert kept(headers, prices=[8.0, 2.0, 0.5], preferCheapest=True) == [True, False, False]


@pytest.mark.parametrize("value", [None, "soon", "0", "-5", "nan", "inf"])
def test_het_3_request_without_a_limit_goes_anywhere(value):
    headers = {} if value is None else {"x-llm-d-slo-ttft-ms": value}
    assert kept(headers, prices=[8.0, 2.0, 0.5], preferCheapest=True) == ALL


def test_het_3_old_header_names_are_read_where_the_new_ones_are_missing():
    assert kept({"x-slo-ttft-ms": "499"}) == [True, False, False]
    assert kept({"x-slo-tpot-ms": "60"}) == [True, True, False]
    assert kept({"x-slo-ttft-ms": "1", "x-llm-d-slo-ttft-ms": "5000"}) == ALL


def test_het_3_without_rates_all_are_kept():
    assert kept({"x-llm-d-slo-ttft-ms": "1"}, rates=None) == ALL


def test_het_3_default_limits_hold_for_requests_that_say_nothing():
    assert kept({}, given={"defaultTTFTMs": 500}) == [True, True, False]
    assert kept({"x-llm-d-slo-ttft-ms": "100"}, given={"defaultTTFTMs": 500}) == [True, False, False]
    assert kept({"x-llm-d-slo-ttft-ms": "soon"}, given={"defaultTTFTMs": 500}) == [True, True, False]
    assert kept({}, given={"defaultTPOTMs": 21}, running=[0, 0, 0]) == [True, True, False]


def test_het_3_margin_leaves_a_part_of_the_limit_free():
    assert kept({"x-llm-d-slo-ttft-ms": "1000"}, given={"margin": 0.5}) == [True, True, False]
    assert kept({"x-llm-d-slo-ttft-ms": "998"}, given={"margin": 0.5}) == [True, False, False]


def test_het_3_without_an_endpoint_that_fits_the_scorers_may_choose():
    assert kept({"x-llm-d-slo-ttft-ms": "1"}, given={"noneFits": "all"}) == ALL
    assert kept({"x-llm-d-slo-ttft-ms": "1"}) == [True, False, False]


def test_het_3_queue_for_a_place_in_the_batch_counts():
    # 4 before it, one place each 200 * 0.0055 / 5 = 0.22 s: 0.88 s, and 0.1 s for the prompt
    busy = {"waiting": [4, 0, 0], "running": [5, 0, 0], "in_flight": [9, 0, 0]}
    assert kept({"x-llm-d-slo-ttft-ms": "979"}, **busy) == [False, True, False]
    assert kept({"x-llm-d-slo-ttft-ms": "981"}, **busy) == [True, True, False]


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
