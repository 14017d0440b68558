# SPDX-License-Identifier: Apache-2.0
"""The agent behind a request, by the headers that agents send."""

import pytest

from epp.framework import Request
from epp.framework.errors import ConfigurationError
from epp.framework.request import AGENT_IDENTITY, Headers
from epp.plugins.sessions import AgentIdentity
from tests.support.plugins import built


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
