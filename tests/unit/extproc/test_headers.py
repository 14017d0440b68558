# SPDX-License-Identifier: Apache-2.0
"""Header messages of a gateway as the rest of the program sees them."""

from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.headers import read_headers, read_some
from epp.extproc.wire import HeaderMap, HeaderValue

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
