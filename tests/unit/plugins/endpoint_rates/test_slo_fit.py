# SPDX-License-Identifier: Apache-2.0
"""Plugins that read the rates of endpoints."""

import pytest

from epp.framework import Candidates, Headers, Request, RequestBody
from epp.framework.accelerators.tag import AcceleratorTag, Cost
from epp.framework.expected_times import ENDPOINT_RATES
from epp.framework.testing import candidates, endpoint_rates
from epp.plugins.endpoint_rates.producer import EndpointRatesProducer
from epp.plugins.flow_policies import WorkSecondsDetector
from epp.plugins.predicted_latency import SloFitFilter
from epp.plugins.saturation import ConcurrencyDetector
from tests.support.plugins import built

ALL = [True, True, True]
# 1000 tokens take 0.1, 0.5 and 2 s
RATES = endpoint_rates([10_000, 2000, 500], itl_base=[0.005, 0.020, 0.060], itl_per_request=[0.0001, 0.0005, 0.001])


PRICES = [8.0, 2.0, 0.5]
BUSY = {"waiting": [4, 0, 0], "running": [5, 0, 0], "in_flight": [9, 0, 0]}
PROFILED = endpoint_rates([10_000] * 3, ttft_base=[0.020] * 3, ttft_per_token=[0.0001] * 3)


def kept(ttft=None, tpot=None, *, rates=RATES, prices=(None, None, None), headers=None, columns=None, **parameters):
    """Return the endpoints kept for a request with these targets in milliseconds, if any."""
    fields = {"x-llm-d-slo-ttft-ms": ttft, "x-llm-d-slo-tpot-ms": tpot} | (headers or {})
    given = [(name, str(value)) for name, value in fields.items() if value is not None]
    request = Request("r", RequestBody(prompt_tokens=1000), Headers(given))
    if rates is not None:
        request.put(ENDPOINT_RATES, rates)
    tags = [AcceleratorTag(model="gpu", cost=Cost(per_hour=price)) for price in prices]
    pool = candidates(accelerators=tags, **(columns or {}))
    return built(SloFitFilter, {"preferCheapest": False} | parameters).filter(request, pool).tolist()


@pytest.mark.parametrize(
    ("ttft", "tpot", "more", "expected"),
    [
        (500, None, {}, [True, True, False]),
        (499, None, {}, [True, False, False]),
        # what waits there counts: (4001 + 1000) / 10000 = 0.5001 s
        (500, None, {"columns": {"in_flight_tokens": [4001, 0, 0]}}, [False, True, False]),
        # 4 before it, one place each 200 * 0.0055 / 5 = 0.22 s: 0.88 s, and 0.1 s for the prompt
        (979, None, {"columns": BUSY}, [False, True, False]),
        (981, None, {"columns": BUSY}, [True, True, False]),
        # alone: 5.1, 20.5 and 61 ms; with 100 running at the second: 20 + 0.5 * 101 = 70.5 ms
        (None, 61, {}, ALL),
        (None, 60, {}, [True, True, False]),
        (None, 61, {"columns": {"running": [0, 100, 0]}}, [True, False, True]),
        (500, 20, {}, [True, False, False]),  # the second meets 500 ms, not 20 ms
        # a profile with gamma and delta: 20 + 0.1 * 1000 * batch: 120 ms alone, 320 ms with two others
        (121, None, {"rates": PROFILED, "columns": {"running": [0, 2, 0]}}, [True, False, True]),
        (1, None, {"rates": None}, ALL),
        # defaults hold for requests that say nothing
        (None, None, {"defaultTTFTMs": 500}, [True, True, False]),
        (100, None, {"defaultTTFTMs": 500}, [True, False, False]),
        ("soon", None, {"defaultTTFTMs": 500}, [True, True, False]),
        (None, None, {"defaultTPOTMs": 21, "columns": {"running": [0, 0, 0]}}, [True, True, False]),
        # a margin leaves a part of the limit free
        (1000, None, {"margin": 0.5}, [True, True, False]),
        (998, None, {"margin": 0.5}, [True, False, False]),
        (None, 40, {"margin": 0.5}, [True, False, False]),
        # old names are read where the new ones are missing
        (None, None, {"headers": {"x-slo-ttft-ms": 499}}, [True, False, False]),
        (None, None, {"headers": {"x-slo-tpot-ms": 60}}, [True, True, False]),
        (5000, None, {"headers": {"x-slo-ttft-ms": 1}}, ALL),
    ],
)
def test_het_3_endpoints_that_meet_the_limits_stay(ttft, tpot, more, expected):
    assert kept(ttft, tpot, **more) == expected


@pytest.mark.parametrize(
    ("ttft", "tpot", "more", "expected"),
    [
        # 0.1 / 0.01 = 10, 50 and 200 times the limit
        (10, None, {}, [True, False, False]),
        # times over the limits: max(0.1 / 0.1, 5.1 / 1) = 5.1; max(0.5 / 0.1, 20.5 / 1) = 20.5; 61
        (100, 1, {}, [True, False, False]),
        (10, None, {"rates": endpoint_rates([500, 500, 400])}, [True, True, False]),
        (1, None, {"noneFits": "all"}, ALL),
        (10, None, {"prices": PRICES, "preferCheapest": True}, [True, False, False]),  # the price does not count
    ],
)
def test_het_3_if_no_endpoint_fits_the_least_violation_is_kept(ttft, tpot, more, expected):
    assert kept(ttft, tpot, **more) == expected


@pytest.mark.parametrize(
    ("prices", "prefer", "expected"),
    [
        (PRICES, True, [False, True, False]),
        (PRICES, False, [True, True, False]),
        # one without a price is kept only if none has one
        ([8.0, None, 0.5], True, [True, False, False]),
        ([None, None, 0.5], True, [True, True, False]),
    ],
)
def test_het_3_cheapest_of_those_that_fit_stays(prices, prefer, expected):
    assert kept(500, prices=prices, preferCheapest=prefer) == expected


@pytest.mark.parametrize("value", [None, "soon", "0", "-5", "nan", "inf"])
def test_het_3_request_without_a_limit_goes_anywhere(value):
    assert kept(value, prices=PRICES, preferCheapest=True) == ALL


@pytest.mark.parametrize(
    ("waited", "expected"),
    [
        (0.0, ALL),
        (0.25, [True, True, False]),  # 1.75 s are left, and the third takes 2
        (1.75, [True, False, False]),  # 0.25 s, and the second takes 0.5
        (9.0, [True, False, False]),  # nothing is left: the fastest
    ],
)
def test_request_that_has_waited_has_less_time_left_for_its_first_token(waited, expected):
    headers = Headers([("x-llm-d-slo-ttft-ms", "2000")])
    request = Request("r", RequestBody(prompt_tokens=1000), headers, received_at=50.0)
    request.put(ENDPOINT_RATES, RATES)
    pool = candidates(accelerators=[AcceleratorTag()] * 3)
    now = Candidates(pool.snapshot, pool.slots, now=50.0 + waited)
    assert built(SloFitFilter, {"preferCheapest": False}).filter(request, now).tolist() == expected


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


IDLE = {"in_flight_tokens": [0, 0], "in_flight": [0, 0], "running": [0, 0], "waiting": [0, 0]}
IN_FLIGHT = IDLE | {"in_flight_tokens": [4000, 4000], "in_flight": [1, 1], "running": [1, 1]}
QUEUED = IDLE | {"in_flight": [12, 12], "running": [8, 8], "waiting": [4, 4]}


def fleet(columns):
    return candidates(accelerators=[H100, T4], **columns)


@pytest.mark.parametrize(
    ("columns", "parameters", "fullness"),
    [
        (IN_FLIGHT, {}, [0.5, 8.0]),  # 4000 / 8000 s and 4000 / 500 s, of 1 s
        # 4 wait behind 8, each of 200 tokens: 4 * 200 * 0.01 / 8 = 1 s, and 4 * 200 * 0.1 / 8 = 10 s
        (QUEUED, {"maxSeconds": 2}, [0.5, 5.0]),
        (IDLE, {}, [0, 0]),
    ],
)
def test_gie_14_same_load_is_more_work_for_a_slow_accelerator(columns, parameters, fullness):
    found = detector(producer(baseModel="m"), **parameters).fullness(fleet(columns))
    assert found.tolist() == pytest.approx(fullness)


def test_without_a_base_model_the_rates_are_those_of_the_model_asked_for_last():
    rates, pool = producer(), fleet(IN_FLIGHT)
    rates.produce(Request("r", RequestBody(model="m")), pool)
    assert detector(rates).fullness(pool).tolist() == pytest.approx([0.5, 8.0])


def test_plugin_that_knows_no_rates_is_refused():
    with pytest.raises(
        ValueError, match=r"endpointRatesProducerName: plugin 'concurrency-detector' .* does not publish rates"
    ):
        detector(ConcurrencyDetector())
