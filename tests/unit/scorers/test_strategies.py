# SPDX-License-Identifier: Apache-2.0
"""Strategies of OME: weights over dollars, first token, pace and load."""

from math import inf, nan

import pytest
from msgspec.structs import replace

from epp.framework import ConfigurationError, Request, RequestBody
from epp.framework.accelerators.tag import NO_TAG, Cost, Performance
from epp.framework.expected_times import ENDPOINT_RATES
from epp.framework.testing import endpoint_rates
from epp_scorers.strategies import StrategyScorer
from tests.support.scoring import A100, H100, T4, scores

NO_WEIGHTS = {"dollarsWeight": 0, "firstTokenWeight": 0, "paceWeight": 0, "idleWeight": 0}


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        # dollars 1/4, 1/2, 1; TFLOPS 1, 312/1979, 65/1979; bandwidth 1, 1555/3000, 320/3000; all are idle
        ("cost", [0.475, 0.517599, 0.813951]),  # 0.7 * 0.25 + 0.1 + 0.1 + 0.1
        ("performance", [1.0, 0.404195, 0.162780]),  # 0.45 * (0.157656 + 0.518333) + 0.1
        ("balanced", [0.7375, 0.493997, 0.534878]),  # 0.35 + 0.25 * (0.032845 + 0.106667) + 0.15
    ],
)
def test_ome_17_strategies_weigh_what_is_known_of_the_hardware(strategy, expected):
    assert scores(StrategyScorer, [H100, A100, T4], strategy=strategy) == pytest.approx(expected, abs=1e-6)


def test_ome_17_with_rates_the_request_counts_not_the_hour():
    # 4000 tokens: 0.2 s of 4 $/h on the H100, 4 s of 1 $/h on the T4, whose price is lower; no token is generated
    request = Request("r", RequestBody(prompt_tokens=4000, max_output_tokens=0))
    request.put(ENDPOINT_RATES, endpoint_rates([20_000, 1000], itl_base=[0.01, 0.04], itl_per_request=[0.0, 0.0]))
    # H100: 1 in all; T4: dollars 0.8/4, first token 0.2/4, pace 0.01/0.04: 0.7 * 0.2 + 0.1 * (0.05 + 0.25 + 1)
    assert scores(StrategyScorer, [H100, T4], request, strategy="cost") == pytest.approx([1.0, 0.27])


def test_ome_17_load_counts_and_weights_can_be_set():
    load = {"kv_usage": [0.8, 0.0], "running": [0, 0], "waiting": [0, 0]}
    # memory has 0.7 of what is in use: 1 - 0.7 * 0.8 = 0.44
    found = scores(StrategyScorer, [T4, T4], **load, **NO_WEIGHTS | {"idleWeight": 2})
    assert found == pytest.approx([0.44, 1.0])


def test_ome_17_weights_that_are_all_0_are_refused():
    with pytest.raises(ConfigurationError, match="firstTokenWeight and paceWeight and idleWeight are all 0"):
        scores(StrategyScorer, **NO_WEIGHTS)


def test_ome_17_unknown_hardware_is_no_preference():
    assert scores(StrategyScorer, [NO_TAG, NO_TAG]) == [1.0, 1.0]


@pytest.mark.parametrize("wrong", [inf, nan, -1.0])
def test_ome_17_impossible_figures_count_as_unknown(wrong):
    odd = replace(T4, bandwidth_gbps=wrong, performance=Performance(fp16=wrong), cost=Cost())
    # the T4 is best in TFLOPS and bandwidth, and the price of the other one is that of the T4
    assert scores(StrategyScorer, [T4, odd], strategy="performance") == pytest.approx([1.0, 0.1])
