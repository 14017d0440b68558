# SPDX-License-Identifier: Apache-2.0
"""Endpoints that match the request: cached prompt, adapter, header and session."""

import base64

import numpy as np
import pytest

from epp.framework import Category, Headers, LoraState, PrefixMatch, Request, RequestBody, Response
from epp.framework.request import AGENT_IDENTITY, PREFIX_MATCH
from epp.framework.testing import candidates
from epp_scorers.affinity import (
    HeaderLabelAffinityScorer,
    LoraAffinityScorer,
    PrefixCacheScorer,
    SessionAffinityScorer,
)
from tests.support.plugins import built
from tests.support.results import sent_to

POOL = candidates(waiting=[0, 0, 0])


def by_match(matched, total, key=PREFIX_MATCH, **parameters):
    request = Request("r")
    if matched is not None:
        request.put(key, PrefixMatch(np.array(matched, dtype=np.int32), total, block_tokens=64))
    return built(PrefixCacheScorer, parameters).score(request, POOL).tolist()


@pytest.mark.parametrize(
    ("matched", "total", "parameters", "expected"),
    [
        ([0, 1, 4], 4, {}, [0.0, 0.25, 1.0]),  # the share of the prompt
        # 2 of 8 blocks = 128 tokens: 0.5 * (128/256)^2 + 0.5 * 2/8 = 0.125 + 0.125
        # 8 of 8 blocks = 512 tokens: 0.5 * min(1, 2)^2 + 0.5 * 1 = 1
        ([0, 2, 8], 8, {"matchLengthWeight": 0.5, "matchLengthScaleTokens": 256}, [0.0, 0.25, 1.0]),
        (None, 0, {}, [0.0, 0.0, 0.0]),
        ([0, 0, 0], 0, {}, [0.0, 0.0, 0.0]),  # no whole block
    ],
)
def test_score_of_a_match_is_its_share_of_the_prompt_and_its_length(matched, total, parameters, expected):
    assert by_match(matched, total, **parameters) == expected


def test_named_producer_is_the_one_that_is_read():
    named, parameters = PREFIX_MATCH.produced_by("fine-blocks"), {"prefixMatchInfoProducerName": "fine-blocks"}
    assert built(PrefixCacheScorer, parameters).reads == (named,)
    assert by_match([4, 0, 0], 4, **parameters) == [0.0, 0.0, 0.0]
    assert by_match([4, 0, 0], 4, named, **parameters) == [1.0, 0.0, 0.0]


def state(running=(), waiting=(), max_adapters=2):
    return LoraState(frozenset(running), frozenset(waiting), max_adapters)


def by_adapter(model, *states):
    return LoraAffinityScorer().score(Request("r", RequestBody(model=model)), candidates(lora=states)).tolist()


@pytest.mark.parametrize(
    ("adapters", "expected"),
    [
        (state(running=["m"]), 1.0),
        (state(running=["m"], waiting=["m"]), 1.0),  # engines list an adapter in use in both
        (state(running=["m", "a"]), 1.0),
        (state(), 0.8),
        (state(running=["a"]), 0.8),
        (state(running=["a"], waiting=["a"]), 0.8),  # one adapter takes one slot, listed twice or not
        (state(running=["a"], waiting=["m"]), 0.8),  # the second slot is for the one that waits
        (state(running=["a", "b"], waiting=["m"]), 0.6),
        (state(running=["a"], waiting=["b", "m"]), 0.6),  # the second slot may go to b
        (state(running=["a", "b"]), 0.0),
        (state(running=["a"], waiting=["b"]), 0.0),
        (state(max_adapters=0), 0.0),  # serves no adapters, or never said
    ],
)
def test_best_answer_that_applies_to_the_adapter_is_the_score(adapters, expected):
    assert by_adapter("m", adapters) == [expected]


def test_each_model_is_scored_for_itself_and_none_is_no_preference():
    states = state(running=["m", "a"]), state(running=["a", "b"])
    assert [by_adapter(model, *states) for model in ("m", "b", "")] == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]


LABELLED = candidates(labels=[{"slice": "0"}, {"slice": "1"}, {"slice": ""}, {}])


@pytest.mark.parametrize(
    ("fields", "label", "expected"),
    [
        ([("x-slice", "1")], "slice", [0.0, 1.0, 0.0, 0.0]),
        ([("x-slice", "0")], "slice", [1.0, 0.0, 0.0, 0.0]),
        ([("x-slice", "1")], "zone", [0.0] * 4),  # two labels of the same endpoints do not mix
        ([], "slice", [0.0] * 4),
        ([("x-slice", "2")], "slice", [0.0] * 4),
        ([("x-slice", "")], "slice", [0.0] * 4),
        ([("x-other", "1")], "slice", [0.0] * 4),
    ],
)
def test_label_that_equals_the_header_gets_one(fields, label, expected):
    scorer = built(HeaderLabelAffinityScorer, {"headerName": "X-Slice", "labelKey": label})
    request = Request("r", headers=Headers(fields))
    scores = scorer.score(request, LABELLED)
    assert scores.tolist() == expected
    assert scorer.score(request, LABELLED.keep(scores > 0)).tolist() == [1.0] * sum(map(int, expected))


TOKEN_OF_E1 = base64.b64encode(b"default/e1").decode()


def in_session(name, header="x-session-id"):
    return Request("r", headers=Headers([(header, name)]))


@pytest.mark.parametrize(
    ("token", "scores"),
    [
        (TOKEN_OF_E1, [0.0, 1.0, 0.0]),
        (base64.b64encode(b"other/e1").decode(), [0.0, 0.0, 0.0]),
        ("?", [0.0, 0.0, 0.0]),
        ("", [0.0, 0.0, 0.0]),
    ],
)
def test_endpoint_of_the_token_gets_one_and_all_others_nothing(token, scores):
    request, plugin = in_session(token, "x-session-token"), built(SessionAffinityScorer)
    assert plugin.score(request, POOL).tolist() == scores
    # slots, not positions, are compared
    assert plugin.score(request, POOL.keep(np.array([False, True, True]))).tolist() == scores[1:]


def test_response_carries_the_token_of_the_endpoint_that_served():
    plugin, request = built(SessionAffinityScorer), Request("r")
    plugin.pre_request(request, sent_to(POOL, 0))
    assert plugin.response_headers(request, Response(POOL[1])) == {"x-session-token": TOKEN_OF_E1}


def test_agent_is_a_session_too():
    ids = {"sources": [{"attribute": "agent-identity"}]}
    plugin = built(SessionAffinityScorer, {"strategy": "session_id", "sessionIdConfig": ids})
    assert plugin.reads == (AGENT_IDENTITY,)
    request = Request("r")
    request.put(AGENT_IDENTITY, "agent")
    assert plugin.score(request, POOL).tolist() == [0.0, 0.0, 0.0]
    plugin.pre_request(request, sent_to(POOL, 2))
    assert plugin.score(request, POOL).tolist() == [0.0, 0.0, 1.0]
    assert plugin.response_headers(request, Response(POOL[2])) == {}


def test_no_more_sessions_are_remembered_than_allowed():
    plugin = built(SessionAffinityScorer, {"strategy": "session_id", "sessionIdConfig": {"maxSessions": 1}})
    for position, session in enumerate("st"):
        plugin.pre_request(in_session(session), sent_to(POOL, position))
    assert plugin.score(in_session("s"), POOL).tolist() == [0.0, 0.0, 0.0]
    assert plugin.score(in_session("t"), POOL).tolist() == [0.0, 1.0, 0.0]


def test_it_pulls_towards_what_the_endpoint_holds():
    assert SessionAffinityScorer.category is Category.AFFINITY
