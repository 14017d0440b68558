# SPDX-License-Identifier: Apache-2.0
"""The filter keeps a session at its endpoint."""

import base64

import numpy as np
import pytest

from epp.framework import ManualClock, Request, Response
from epp.framework.request import AGENT_IDENTITY, SESSION_ID, Headers
from epp.framework.testing import candidates
from epp.plugins.request_control import SessionAffinityFilter
from tests.support.plugins import built
from tests.support.results import legs_to, sent_to

POOL = candidates(waiting=[0, 0, 0])
TOKEN_OF_E1 = base64.b64encode(b"default/e1").decode()


def build(clock=None, name="sticky", **parameters):
    return built(SessionAffinityFilter, parameters, name=name, clock=clock)


def request(**headers):
    return Request("r", headers=Headers((name.replace("_", "-"), value) for name, value in headers.items()))


def kept(plugin, wanted, pool=POOL):
    return plugin.filter(wanted, pool).tolist()


def test_token_keeps_only_the_endpoint_it_names():
    assert kept(build(), request(x_session_token=TOKEN_OF_E1)) == [False, True, False]
    assert kept(build(), request()) == [True, True, True]
    # one that is no candidate keeps all that are
    assert kept(build(), request(x_session_token=TOKEN_OF_E1), POOL.keep(np.array([True, False, True]))) == [True, True]


@pytest.mark.parametrize("token", ["", "?", base64.b64encode(b"default/gone").decode()])
def test_token_that_leads_nowhere_keeps_all(token):
    assert kept(build(), request(x_session_token=token)) == [True, True, True]


def test_token_header_can_be_another_whatever_its_case():
    plugin = build(encodedEndpointHeaderConfig={"header": "X-Pin"})
    assert kept(plugin, request(x_pin=TOKEN_OF_E1)) == [False, True, False]
    assert plugin.response_headers(request(), Response(POOL[1])) == {"x-pin": TOKEN_OF_E1}


@pytest.mark.parametrize(
    ("parameters", "legs", "served", "told"),
    [
        ({}, {"decode": [0, 1]}, 1, {"x-session-token": TOKEN_OF_E1}),  # the fallback served
        # the token of another profile is that of its target
        ({"profileName": "prefill"}, {"decode": 0, "prefill": 1}, 0, {"x-session-token": TOKEN_OF_E1}),
        ({"profileName": "prefill"}, {"decode": 0, "prefill": None}, 0, {}),
        # naming the primary profile is naming none
        ({"profileName": "decode"}, {"decode": 0, "prefill": 2}, 1, {"x-session-token": TOKEN_OF_E1}),
    ],
)
def test_response_carries_the_token_of_the_endpoint_that_served_or_of_the_profile(parameters, legs, served, told):
    plugin, sent = build(**parameters), request()
    plugin.pre_request(sent, legs_to(POOL, **legs))
    assert plugin.response_headers(sent, Response(POOL[served])) == told


def test_two_instances_of_one_request_do_not_mix():
    decode, prefill, sent = build(name="d"), build(name="p", profileName="prefill"), request()
    for plugin in (decode, prefill):
        plugin.pre_request(sent, legs_to(POOL, decode=0, prefill=2))
    assert decode.response_headers(sent, Response(POOL[1])) == {"x-session-token": TOKEN_OF_E1}


def test_session_stays_where_it_was_sent_and_moves_on_with_the_request():
    plugin, wanted = build(strategy="session_id"), request(x_session_id="s")
    assert kept(plugin, wanted) == [True, True, True]
    plugin.pre_request(wanted, sent_to(POOL, 2, 0))
    assert kept(plugin, wanted) == [False, False, True]
    assert kept(plugin, request(x_session_id="t")) == [True, True, True]
    assert plugin.response_headers(wanted, Response(POOL[2])) == {}
    plugin.pre_request(wanted, sent_to(POOL, 0))
    assert kept(plugin, wanted) == [True, False, False]


def test_unused_session_is_forgotten_after_five_minutes():
    clock = ManualClock()
    plugin, wanted = build(clock, strategy="session_id"), request(x_session_id="s")
    plugin.pre_request(wanted, sent_to(POOL, 2))
    clock.advance(299)
    assert kept(plugin, wanted) == [False, False, True]
    clock.advance(300)
    assert kept(plugin, wanted) == [True, True, True]


def test_session_of_another_profile_is_bound_to_its_target():
    plugin, wanted = build(strategy="session_id", profileName="prefill"), request(x_session_id="s")
    plugin.pre_request(wanted, legs_to(POOL, decode=0, prefill=1))
    plugin.pre_request(wanted, legs_to(POOL, decode=2, prefill=None))  # which says nothing of prefill
    assert kept(plugin, wanted) == [False, True, False]


def test_request_without_a_session_binds_nothing():
    plugin = build(strategy="session_id")
    plugin.pre_request(request(), sent_to(POOL, 2))
    assert kept(plugin, request()) == [True, True, True]


def test_session_id_may_come_from_a_producer():
    sources = [{"attribute": "session-id", "producer": "by-cookie"}]
    plugin = build(strategy="session_id", sessionIdConfig={"sources": sources})
    key = SESSION_ID.produced_by("by-cookie")
    assert plugin.reads == (key,)
    wanted = request()
    wanted.put(key, "s")
    plugin.pre_request(wanted, sent_to(POOL, 1))
    assert kept(plugin, wanted) == [False, True, False]


def test_first_source_that_is_not_empty_counts():
    sources = [{"header": "X-Session-ID"}, {"attribute": "session-id"}, {"attribute": "agent-identity"}]
    plugin = build(strategy="session_id", sessionIdConfig={"sources": sources})
    wanted = request(x_session_id="")
    for position, name in enumerate(("agent", "produced", "named")):
        plugin.pre_request(request(x_session_id=name), sent_to(POOL, position))
    wanted.put(AGENT_IDENTITY, "agent")
    assert kept(plugin, wanted) == [True, False, False]
    wanted.put(SESSION_ID, "produced")
    assert kept(plugin, wanted) == [False, True, False]
    wanted.headers = Headers([("x-session-id", "named")])
    assert kept(plugin, wanted) == [False, False, True]


def test_attributes_are_read_of_the_producer_named():
    sources = [
        {"attribute": "session-id"},
        {"attribute": "SessionID", "producer": "by-cookie"},
        {"attribute": "agent-identity", "producer": "agents"},
        {"header": "x-session-id"},
    ]
    plugin = build(strategy="session_id", sessionIdConfig={"sources": sources})
    assert plugin.reads == (SESSION_ID, SESSION_ID.produced_by("by-cookie"), AGENT_IDENTITY)


def test_nothing_is_read_where_tokens_tell():
    assert build(sessionIdConfig={"sources": [{"attribute": "session-id"}]}).reads == ()


def test_at_least_one_endpoint_is_kept():
    assert not SessionAffinityFilter.may_empty
