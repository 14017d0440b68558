# SPDX-License-Identifier: Apache-2.0
"""Sessions like to stay where they are."""

import base64

import numpy as np
import pytest

from epp.framework import Category, Destination, ManualClock, ProfileResult, Request, Response, SchedulingResult
from epp.framework.registry import Registry
from epp.framework.request import AGENT_IDENTITY, Headers
from epp.framework.testing import candidates
from epp_scorers.affinity import SessionAffinityScorer

POOL = candidates(waiting=[0, 0, 0])
TOKEN_OF_E1 = base64.b64encode(b"default/e1").decode()


def build(clock=None, **parameters):
    registry = Registry({})
    registry.register(SessionAffinityScorer)
    return registry.build("session-affinity-scorer", parameters, name="sticky", clock=clock or ManualClock())


def sent(position):
    primary = ProfileResult("default", POOL, np.zeros(len(POOL)), np.array([position], dtype=np.intp))
    return SchedulingResult(Destination(primary), {"default": primary}, {})


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
    request = Request("r", headers=Headers([("x-session-token", token)]))
    assert build().score(request, POOL).tolist() == scores


def test_response_carries_the_token_of_the_endpoint_that_served():
    plugin, request = build(), Request("r")
    plugin.pre_request(request, sent(0))
    assert plugin.response_headers(request, Response(POOL[1])) == {"x-session-token": TOKEN_OF_E1}


def test_slots_not_positions_are_compared():
    request = Request("r", headers=Headers([("x-session-token", TOKEN_OF_E1)]))
    others = POOL.keep(np.array([False, True, True]))  # slots 1 and 2
    assert build().score(request, others).tolist() == [1.0, 0.0]


def test_agent_is_a_session_too():
    plugin = build(strategy="session_id", sessionIdConfig={"sources": [{"attribute": "agent-identity"}]})
    assert plugin.reads == (AGENT_IDENTITY,)
    request = Request("r")
    request.put(AGENT_IDENTITY, "agent")
    assert plugin.score(request, POOL).tolist() == [0.0, 0.0, 0.0]
    plugin.pre_request(request, sent(2))
    assert plugin.score(request, POOL).tolist() == [0.0, 0.0, 1.0]
    assert plugin.response_headers(request, Response(POOL[2])) == {}


def test_no_more_sessions_are_remembered_than_allowed():
    plugin = build(strategy="session_id", sessionIdConfig={"maxSessions": 1})
    first, second = (Request("r", headers=Headers([("x-session-id", session)])) for session in "st")
    plugin.pre_request(first, sent(0))
    plugin.pre_request(second, sent(1))
    assert plugin.score(first, POOL).tolist() == [0.0, 0.0, 0.0]
    assert plugin.score(second, POOL).tolist() == [0.0, 1.0, 0.0]


def test_it_pulls_towards_what_the_endpoint_holds():
    assert SessionAffinityScorer.category is Category.AFFINITY
