# SPDX-License-Identifier: Apache-2.0
"""Requests in flight counted in tokens."""

import numpy as np
import pytest

from epp.framework import PrefixMatch, Request, RequestBody
from epp.framework.request import IN_FLIGHT_COST, PREFIX_MATCH
from epp.framework.testing import candidates
from epp.plugins.latency_observer import InflightLoadParameters, InflightLoadProducer

ENDPOINTS = candidates(waiting=[0, 0])


def cost(sent_to, body, *, match=None, key=PREFIX_MATCH, **parameters):
    request = Request("r", body)
    if match is not None:
        request.put(key, match)
    producer = InflightLoadProducer(InflightLoadParameters(**parameters), name="load")
    result = sent_to(ENDPOINTS, 1, 0)
    producer.pre_request(request, result)
    return request.get(IN_FLIGHT_COST)[result.primary.profile]


def held(*blocks):
    return PrefixMatch(np.array(blocks, dtype=np.int32), 10, block_tokens=64)


@pytest.mark.parametrize(
    ("prompt_tokens", "match", "expected"),
    [
        (1000, held(0, 10), 360),  # 1000 - 10 * 64 at slot 1; what slot 0 holds does not matter
        (1000, None, 1000),
        (600, held(0, 10), 0),
    ],
)
def test_uncached_prompt_tokens_of_the_target_are_the_cost(sent_to, prompt_tokens, match, expected):
    assert cost(sent_to, RequestBody(prompt_tokens=prompt_tokens), match=match) == expected


def test_match_of_a_named_producer_is_read(sent_to):
    key = PREFIX_MATCH.produced_by("fine-blocks")
    body = RequestBody(prompt_tokens=1000)
    assert cost(sent_to, body, match=held(0, 10), key=key) == 1000
    assert cost(sent_to, body, match=held(0, 10), key=key, prefix_match_info_producer_name="fine-blocks") == 360


@pytest.mark.parametrize(
    ("max_output_tokens", "parameters", "expected"),
    [
        (None, {}, 250),  # 100 + 1.5 * 100
        (None, {"output_ratio": 0.5}, 150),
        (None, {"max_estimated_output_tokens": 20}, 120),
        (10, {}, 110),
        (10, {"max_estimated_output_tokens": 20}, 110),
        (500, {}, 250),
        (-1, {}, 100),
    ],
)
def test_estimated_output_counts_when_asked_for(sent_to, max_output_tokens, parameters, expected):
    body = RequestBody(prompt_tokens=100, max_output_tokens=max_output_tokens)
    assert cost(sent_to, body, add_estimated_output_tokens=True, **parameters) == expected
