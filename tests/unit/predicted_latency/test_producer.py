# SPDX-License-Identifier: Apache-2.0
"""Predictions from the rates of endpoints, headrooms to targets, and what is recorded of responses."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from epp.framework.clock import ManualClock
from epp.framework.errors import ConfigurationError
from epp.framework.testing import candidates, endpoint_rates
from epp.pool.predicted_latency.metrics import RunningTargets
from epp.pool.predicted_latency.producer import PredictedLatencyProducer
from tests.support.plugins import built

NAMES = ("m", "m")


def milliseconds(values):
    return (np.asarray(values) * 1e3).round(6).tolist()


def test_time_to_the_first_token_is_that_of_the_uncached_tokens_and_those_in_flight(world):
    found = world(streamingMode=True, pool=candidates(in_flight_tokens=[1000, 0, 0])).predict(held=(0, 5, 0))
    assert milliseconds(found.ttft_seconds) == [200, 250, 2000]
    assert milliseconds(found.tpot_seconds) == [5, 20, 60]
    assert found.source == "rates"


BY_ROLE = {"endpointRoleLabel": "role", "pool": candidates(labels=[{"role": "prefill"}, {"role": "decode"}, {}])}
WHOLE = {"ttft": 200, "tpot": 1, "max_output_tokens": 10}


@pytest.mark.parametrize(
    ("parameters", "targets", "headrooms", "valid"),
    [
        # 100, 500 and 2000 ms; 5, 20 and 60 ms
        ({"sloBufferFactor": 0.5}, {"ttft": 500, "tpot": 50}, [[400, 0, -1500], [20, 5, -35]], [1, 0, 0]),
        # without targets the fastest has the largest headroom and none is valid
        ({}, {}, [[-100, -500, -2000], [-5, -20, -60]], [0, 0, 0]),
        # a target that is not given does not count beside one that is
        ({}, {"ttft": 300}, [[200, -200, -1700], [0, 0, 0]], [1, 0, 0]),
        ({}, {"tpot": 30}, [[0, 0, 0], [25, 10, -30]], [1, 1, 0]),
        # further tokens do not count at endpoints that only compute prompts
        (BY_ROLE, {"ttft": 5000, "tpot": 1}, [[4900, 4500, 3000], [0, -19, -59]], [1, 0, 0]),
        # without streaming the whole response counts, with 10 times 5, 20 and 60 ms, and further tokens do not
        ({"streamingMode": False}, WHOLE, [[50, -500, -2400], [0, 0, 0]], [1, 0, 0]),
    ],
)
def test_headrooms_are_what_the_targets_leave(world, parameters, targets, headrooms, valid):
    found = world(**{"streamingMode": True} | parameters).predict(**targets)
    assert [milliseconds(found.ttft_headroom), milliseconds(found.tpot_headroom)] == headrooms
    assert found.valid.tolist() == [bool(each) for each in valid]


def test_endpoints_without_a_negative_headroom_are_marked_and_requests_in_flight_are_told(world):
    found = world(streamingMode=True, sloBufferFactor=0.5).predict(ttft=500, tpot=50)
    assert found.positive.tolist() == [True, True, False]
    assert found.dispatched.tolist() == [0, 1, 2]


def test_time_that_a_request_has_waited_is_no_longer_left(streamed):
    request = streamed.request(ttft=500)
    streamed.clock.advance(0.25)
    assert milliseconds(streamed.predict(request).ttft_headroom) == [150, -250, -1750]


def test_strictest_target_of_running_requests_counts_until_they_end(streamed):
    assert milliseconds(streamed.predict(tpot=100).tpot_headroom) == [95, 80, 40]
    first, second = streamed.send(1, tpot=30), streamed.send(1, tpot=50)
    assert milliseconds(streamed.predict(tpot=100).tpot_headroom) == [95, 10, 40]
    streamed.answer(first, 1)
    assert milliseconds(streamed.predict(tpot=100).tpot_headroom) == [95, 30, 40]
    streamed.plugin.interrupted(second, None)
    assert milliseconds(streamed.predict(tpot=100).tpot_headroom) == [95, 80, 40]


@pytest.mark.parametrize("ttl", ["5s", 5_000_000_000])
def test_request_without_an_end_counts_for_a_limited_time(world, ttl):
    world = world(streamingMode=True, contextTTL=ttl)
    world.send(1, tpot=30)
    world.clock.advance(4.9)
    assert milliseconds(world.predict(tpot=100).tpot_headroom) == [95, 10, 40]
    world.clock.advance(0.1)
    assert milliseconds(world.predict(tpot=100).tpot_headroom) == [95, 80, 40]


def test_endpoint_that_leaves_takes_its_running_targets_along():
    targets = RunningTargets(60)
    number = targets.add(2, 0.03, now=0)
    targets.forget([2])
    targets.remove(2, number)
    assert targets.strictest(np.arange(3)) == inf
    targets.add(0, 0.03, now=0)
    assert targets.strictest(np.array([5, 0])).tolist() == [inf, 0.03]


UNKNOWN_RATES = replace(endpoint_rates([1000] * 3), sources=(("default", "default"),))


@pytest.mark.parametrize("more", [{"rates": UNKNOWN_RATES}, {"rates": None}, {"predictInProduce": False}])
def test_nothing_is_published_without_known_rates_or_if_not_wanted(world, more):
    assert world(**more).predict() is None


@pytest.mark.parametrize(
    ("is_streamed", "targets", "measured", "violations"),
    [
        # 0.1 s, and 10 ms for each of 20 further tokens
        (True, {"ttft": 90, "tpot": 15}, [0.1, 0.01], [1, 0]),
        # the whole response where responses are not streamed
        (False, {"ttft": 150}, [0.3, None], [1, 0]),
    ],
)
def test_measured_times_are_recorded(world, is_streamed, targets, measured, violations):
    world = world(streamingMode=is_streamed)
    world.answer(world.send(1, streaming=is_streamed, **targets), 1, first=0.1, total=0.3, tokens=21)
    for kind, seconds, violation in zip(("ttft", "tpot"), measured, violations, strict=True):
        found = world.metric("inference_request_metric", *NAMES, kind)
        assert found == (seconds if seconds is None else pytest.approx(seconds))
        assert world.metric("request_slo_violation", *NAMES, kind) == violation


def test_predicted_times_are_recorded(streamed):
    streamed.answer(streamed.send(1), 1)
    assert streamed.metric("request_predicted_ttft_seconds", *NAMES) == (1, 0.5)
    assert streamed.metric("request_predicted_tpot_seconds", *NAMES) == (1, 0.02)
    assert streamed.metric("latency_predictions", "rates") == 1


def test_response_of_another_endpoint_or_with_an_error_is_not_recorded(streamed):
    streamed.answer(streamed.send(0), 1)
    streamed.answer(streamed.send(0), 0, status=500)
    assert streamed.metric("request_predicted_ttft_seconds", *NAMES) is None


def test_clients_do_not_name_more_than_65_models(streamed):
    for number in range(100):
        request = streamed.request()
        request.target_model = f"m{number}"
        streamed.answer(streamed.send(request=request))
    name = "request_predicted_ttft_seconds"
    assert len({sample.labels for sample in streamed.plugin.samples if sample.metric.name == name}) == 65
    assert streamed.metric(name, "other", "other")[0] == 36


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PREDICTION_SERVER_URL", "localhost:8001", "http://host:port"),
        ("LATENCY_MAX_BULK_SIZE", "101", "LATENCY_MAX_BULK_SIZE is '101'"),
        ("LATENCY_COALESCE_WINDOW_MS", "1ms", "whole number"),
    ],
)
def test_environment_is_checked(world, variable, value, words):
    environment = {"PREDICTION_SERVER_URL": "http://localhost:8001", variable: value}
    with pytest.raises(ConfigurationError, match=words):
        world(environment=environment)


def test_parameters_without_effect_are_warned_of(world):
    given = {"samplingMean": 5, "maxDecodeTokenSamplesForPrediction": 1}
    assert world(**given).plugin.warnings == [f"{name} has no effect" for name in given]
    assert world().plugin.warnings == []


def answered(world, count, slot=1, **targets):
    for _ in range(count):
        world.clock.advance(1)
        world.answer(world.send(slot, **targets), slot, first=1.0, total=1.4, tokens=11)


def test_responses_teach_p50_and_p90_and_targets_are_held_against_p90(streamed):
    answered(streamed, 40)  # 1 s and 40 ms where rates say 0.5 s and 20 ms
    streamed.clock.advance(1)
    found = streamed.predict(ttft=1000)
    assert found.sure.tolist() == [True] * 3  # all are of one class
    assert found.samples.tolist() == [0, 40, 0]
    assert found.ttft_seconds[1] == pytest.approx(1.0, rel=0.15)
    assert found.tpot_seconds[1] == pytest.approx(0.04, rel=0.15)
    assert (found.ttft_p90_seconds >= found.ttft_seconds).all()
    assert found.ttft_headroom.tolist() == pytest.approx((1.0 - found.ttft_p90_seconds).tolist())
    assert streamed.predict().ttft_headroom.tolist() == pytest.approx((-found.ttft_seconds).tolist())
    assert found.source == "learned"


def test_times_are_those_by_rates_until_enough_was_measured(streamed):
    answered(streamed, 9)
    streamed.clock.advance(1)
    found = streamed.predict()
    assert milliseconds(found.ttft_seconds) == milliseconds(found.ttft_p90_seconds) == [100, 500, 2000]
    assert not found.sure.any()
    assert found.source == "rates"


def test_coverage_of_p90_is_counted(streamed):
    answered(streamed, 60)
    counts = [streamed.metric("request_p90_predictions", *NAMES, "ttft", result) for result in ("within", "beyond")]
    assert counts == [50, None]  # the first ten were predicted by rates
    streamed.clock.advance(1)
    streamed.answer(streamed.send(1), 1, first=5.0, total=9.0)
    assert streamed.metric("request_p90_predictions", *NAMES, "ttft", "beyond") == 1
    assert streamed.metric("latency_predictions", "learned") == 51


def test_response_of_an_endpoint_that_was_replaced_meanwhile_teaches_nothing(streamed):
    requests = [streamed.send(1) for _ in range(20)]
    streamed.plugin.slots_removed([1])
    for request in requests:
        streamed.answer(request, 1, first=1.0, total=1.4)
    streamed.clock.advance(1)
    assert not streamed.predict().sure.any()


def test_state_shows_samples_and_errors_of_a_bounded_number_of_models(streamed):
    for number in range(20):
        request = streamed.request()
        request.target_model = f"m{number}"
        streamed.answer(streamed.send(1, request=request), 1, first=1.0, total=1.4)
    answered(streamed, 30)
    models = streamed.plugin.dump_state(streamed.pool.snapshot)["models"]
    assert list(models) == [*(f"m{number}" for number in range(8)), "other models"]
    shown = models["other models"]
    assert [each["ttft"] for each in shown["samples"]["endpoints"] if each["ttft"]] == [42]
    assert shown["meanErrorSeconds"]["ttft"]["rates"] > shown["meanErrorSeconds"]["ttft"]["learned"]


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:9000"])
def test_gie_23_only_a_server_is_sent_a_row_for_each_candidate(monkeypatch, url):
    monkeypatch.setenv("PREDICTION_SERVER_URL", url)
    plugin = built(PredictedLatencyProducer, {}, name="predicted-latency-producer", clock=ManualClock())
    assert plugin.per_candidate is bool(url)
