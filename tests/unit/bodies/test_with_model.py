# SPDX-License-Identifier: Apache-2.0
"""Requests get another model; all other bytes stay."""

import json

import pytest

from epp.framework.errors import MalformedBodyError
from epp.routing.bodies.model_member import with_model, with_model_added


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"a"}', b'{"model":"new"}'),
        (b'{"model":""}', b'{"model":"new"}'),
        (b' {\r\n\t"model" :\t"a"\n} \n', b' {\r\n\t"model" :\t"new"\n} \n'),
        (b'{"z":1.50,"model":"a","a":1E+2}', b'{"z":1.50,"model":"new","a":1E+2}'),
        (b'{"messages":[{"content":"hi"}],"model":"a"}', b'{"messages":[{"content":"hi"}],"model":"new"}'),
        (b'{"model":"a","x":"\xc3\xa9\\u00e9\\/"}', b'{"model":"new","x":"\xc3\xa9\\u00e9\\/"}'),
        (b'{"model":"a","n":1,"model":"b"}', b'{"model":"new","n":1,"model":"new"}'),
        (b'{"t":NaN,"model":"a","n":-Infinity}', b'{"t":NaN,"model":"new","n":-Infinity}'),  # for lenient readers
    ],
)
def test_only_the_value_of_the_model_changes(body, expected):
    assert with_model(body, "new") == expected


@pytest.mark.parametrize("key", [b'"model"', rb'"mod\u0065l"'])
def test_more_than_two_are_refused_however_they_are_spelled(key):
    with pytest.raises(MalformedBodyError, match="more than twice"):
        with_model(b'{"model":"a",' + key + b':"b","n":{"model":"c"},' + key + b':"d"}', "e")
    with pytest.raises(MalformedBodyError, match="more than twice"):
        with_model(b'{"t":NaN,"model":"a",' + key + b':"b",' + key + b':"d"}', "e")  # for lenient readers


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"a","prompt":"trunc', b'{"model":"b","prompt":"trunc'),
        (b'{"x":[{"model":"n"}],"model":"a"', b'{"x":[{"model":"n"}],"model":"b"'),
        (b'{"model":"a","model":"tru', b'{"model":"a","model":"tru'),  # it cannot be replaced, so none is
        (b'{"model":"tru', b'{"model":"tru'),
    ],
)
def test_truncated_body_gets_the_model_where_it_is_complete(body, expected):
    assert with_model(body, "b", partial=True) == expected


@pytest.mark.parametrize("value", [b"null", b"-1.5e3", b"true", b"[1,[2]]", b'{"model":"x"}', b"{}"])
def test_value_that_is_no_string_is_replaced(value):
    assert with_model(b'{"model":' + value + b' ,"n":1}', "a") == b'{"model":"a" ,"n":1}'
    assert with_model(b'{"model":' + value + b"}", "a") == b'{"model":"a"}'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"null",
        b'"model"',
        b'[{"model":"a"}]',
        b'{"n":1}',
        b'{"model":"a"',
        b'{"model":"a',
        b'{"model":"a"} {"model":"b"}',
        b'{"model":"a",}',
        b'{"model" "a"}',
        b'{"model":}',
        b'{"model":"a" "b":1}',
        b'{,"model":"a"}',
        b"\xff\xfe\x00",
        b"--boundary\r\nContent-Disposition: form-data\r\n\r\n",
    ],
)
def test_body_without_a_model_or_that_is_no_object_stays(body):
    assert with_model(body, "b") is body


def test_large_body_with_numbers_text_and_deep_nesting():
    document = {
        "prompt": list(range(20_000)),
        "text": 'He said "model": "x" \\ \n' * 2_000,
        "deep": json.loads("[" * 300 + "]" * 300),
        "messages": [{"model": "x", "content": [{"text": "}{"}]}] * 300,
        "model": "old",
        "end": [0.5] * 5_000,
    }
    body = json.dumps(document).encode()
    assert with_model(body, "new") == body.replace(b'"model": "old"', b'"model": "new"')


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", b'{"model":"m"}'),
        (b" { } ", b' {"model":"m" } '),
        (b'{"a":1}', b'{"model":"m","a":1}'),
        (b'{\n "a": {"model": "x"}}', b'{"model":"m",\n "a": {"model": "x"}}'),
    ],
)
def test_model_is_added_as_the_first_member(body, expected):
    assert with_model_added(body, "m") == expected
