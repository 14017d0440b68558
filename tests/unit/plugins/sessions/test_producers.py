# SPDX-License-Identifier: Apache-2.0
"""Session ids and agent identities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Request
from epp.framework.errors import ConfigurationError
from epp.framework.request import AGENT_IDENTITY, SESSION_ID, Headers
from epp.framework.testing import candidates
from epp.plugins.request_control import AgentIdentity, SessionIdProducer, cookie
from tests.support.plugins import built

POOL = candidates(waiting=[0])


def produced(fields, name="session-id-producer", key=SESSION_ID, **parameters):
    producer = built(SessionIdProducer, parameters, name=name)
    assert producer.writes == (key,)
    request = Request("r", headers=Headers(fields))
    producer.produce(request, POOL)
    return request.get(key)


@pytest.mark.parametrize(
    ("fields", "parameters", "session"),
    [
        ([("X-Session-Id", "s")], {}, "s"),
        ([("x-mine", "s"), ("x-session-id", "t")], {"headerName": "X-Mine"}, "s"),
        ([], {}, None),
        ([("x-session-id", "")], {}, None),
        ([("cookie", "a=1; sid=s; b=2"), ("x-session-id", "t")], {"cookieName": "sid"}, "s"),
        ([("x-session-id", "s")], {"name": "by-header", "key": SESSION_ID.produced_by("by-header")}, "s"),
    ],
)
def test_session_is_the_value_of_the_header_or_cookie_if_it_is_not_empty(fields, parameters, session):
    assert produced(fields, **parameters) == session


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["sid=s"], "s"),
        (["a=1", "sid=s"], "s"),  # HTTP/2 may split them into several fields
        (["sid=; sid=s"], "s"),
        (['sid="s"'], "s"),
        (["sid = s "], "s"),
        (["sid=a=b=="], "a=b=="),
        (["SID=s"], ""),
        (["xsid=s"], ""),
        (["sid"], ""),
        (["; ;=; sid=s;"], "s"),
        ([], ""),
    ],
)
def test_cookie_forms(values, expected):
    assert cookie(Headers(("cookie", value) for value in values), "sid") == expected


@given(st.lists(st.text()))
def test_no_cookie_raises(values):
    cookie(Headers(("cookie", value) for value in values), "sid")


def test_header_and_cookie_together_are_refused():
    with pytest.raises(ConfigurationError, match="headerName is 'h' and cookieName is 'c'; leave one of them out"):
        produced([], headerName="h", cookieName="c")


def identity(fields, **parameters):
    request = Request("r", headers=Headers(fields))
    built(AgentIdentity, parameters).request_headers(request)
    return request.get(AGENT_IDENTITY)


def test_agent_is_named_by_the_first_header_that_is_not_empty():
    fields = [("session_id", "d"), ("session-id", "c"), ("x-session-affinity", "b"), ("x-claude-code-session-id", "a")]
    assert [identity(fields[:count]) for count in range(1, 5)] == ["d", "c", "b", "a"]
    assert identity([("x-claude-code-session-id", ""), ("session-id", "c")]) == "c"


def test_additional_headers_go_before_the_known_ones():
    fields = [("x-claude-code-session-id", "a"), ("x-two", "2"), ("x-one", "1")]
    assert identity(fields, additionalSessionHeaders=["X-One", "x-two"]) == "1"
    assert identity(fields[:2], additionalSessionHeaders=["X-One", "x-two"]) == "2"
    assert identity(fields[:1], additionalSessionHeaders=["X-One", "x-two"]) == "a"


def test_agent_that_does_not_say_has_no_identity():
    assert identity([("x-session-id", "s")]) is None


def test_nameless_header_is_refused():
    with pytest.raises(ConfigurationError, match="additionalSessionHeaders\\[1] is empty"):
        identity([], additionalSessionHeaders=["x-one", ""])


def test_agent_identity_says_what_it_writes():
    assert AgentIdentity.writes == (AGENT_IDENTITY,)
