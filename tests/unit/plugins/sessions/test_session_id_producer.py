# SPDX-License-Identifier: Apache-2.0
"""Session ids out of headers and cookies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Request
from epp.framework.errors import ConfigurationError
from epp.framework.request import SESSION_ID, Headers
from epp.framework.testing import candidates
from epp.plugins.sessions import SessionIdProducer, cookie
from tests.support.plugins import built

POOL = candidates(waiting=[0])


def produced(fields, name="session-id-producer", key=SESSION_ID, **parameters):
    producer = built(SessionIdProducer, parameters, name=name)
    assert producer.writes == (key,)
    request = Request("r", headers=Headers(fields))
    producer.produce(request, POOL)
    return request.get(key)


def test_default_is_the_header_x_session_id():
    assert produced([("X-Session-Id", "s")]) == "s"


def test_header_can_be_another_whatever_its_case():
    assert produced([("x-mine", "s"), ("x-session-id", "t")], headerName="X-Mine") == "s"


@pytest.mark.parametrize("fields", [[], [("x-session-id", "")]])
def test_nothing_is_published_for_nothing(fields):
    assert produced(fields) is None


def test_cookie_is_found_among_others():
    assert produced([("cookie", "a=1; sid=s; b=2"), ("x-session-id", "t")], cookieName="sid") == "s"


def test_named_instance_publishes_under_its_own_key():
    assert produced([("x-session-id", "s")], name="by-header", key=SESSION_ID.produced_by("by-header")) == "s"


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
