# SPDX-License-Identifier: Apache-2.0
"""Header messages of a gateway: reading, and limits on their size."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.headers import MOST_BYTES, MOST_FIELDS, read_first, read_headers, read_some
from epp.extproc.wire import HeaderMap, HeaderValue
from epp.routing.director import Cause
from tests.support.exchanges import BODY, request_body, request_headers, response_headers

NAMES = st.sampled_from([":path", "X-Request-Id", "x-request-id", "accept", "cookie"])
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=4), st.text(max_size=3)), max_size=8)


@given(FIELDS)
def test_fields_are_read_in_order_and_the_first_of_a_name_answers(fields):
    message = HeaderMap(headers=[HeaderValue(key=name, raw_value=raw, value=value) for name, raw, value in fields])
    expected = [(name.lower(), raw.decode("utf-8", "replace") or value) for name, raw, value in fields]
    read = read_headers(message)
    assert list(read.fields()) == expected
    assert dict(read) == dict(reversed(expected))
    assert read_some(message, frozenset({"accept", "x-request-id"})) == {
        name: value for name, value in read.items() if name in ("accept", "x-request-id")
    }


def add_fields(message, count):
    """Add so many fields, all but the last one of a single name."""
    fields = [("x-many", b"1")] * (count - 1) + [("x-last", b"1")]
    message.headers.extend(HeaderValue(key=name, raw_value=value) for name, value in fields)


def shorter(headers, fields):
    """Make a message of so many fields, with one of 200 KiB."""
    add_fields(headers, fields - len(headers.headers) - 1)
    headers.headers.append(HeaderValue(key="x-long", raw_value=b"1" * 200 * 1024))


def longer(headers, _fields):
    """Make a message of a field that is longer than all may be."""
    headers.headers.append(HeaderValue(key="x-long", raw_value=b"1" * MOST_BYTES))


@pytest.mark.parametrize(
    ("make", "fields", "refused"), [(shorter, 1000, False), (shorter, 1001, True), (longer, 0, True)]
)
def test_request_of_more_or_larger_headers_than_are_read_is_431(bench, make, fields, refused):
    session, message = bench.session(), request_headers()
    make(message.request_headers.headers, fields)
    (reply, *_) = session.receive(message) or session.receive(request_body(BODY))
    session.close()
    assert bench.endings.refusals == (["HeadersTooLargeError"] if refused else [])
    if refused:
        assert reply.immediate_response.status.code == 431
        assert json.loads(reply.immediate_response.body)["error"] == {
            "message": "the request has more than 1000 header fields, or more than 262144 bytes of them, the limits "
            "here: send fewer, or shorter ones",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }


def test_of_a_message_that_is_too_large_the_first_short_fields_are_read():
    message = HeaderMap()
    longer(message, 0)
    add_fields(message, 1000)
    assert dict(read_first(message)) == {"x-many": "1"}


def test_response_of_more_header_fields_is_502_and_the_endpoint_has_its_place_back(bench):
    session, message = bench.routed(), response_headers()
    add_fields(message.response_headers.headers, MOST_FIELDS)
    (reply,) = session.receive(message)
    assert reply.immediate_response.status.code == 502
    assert session.done
    assert bench.endings.causes == [Cause.ERROR]
    assert bench.in_flight == 0
