# SPDX-License-Identifier: Apache-2.0
import json

import pydantic_core
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.routing.bodies.model_member import completed

DOCUMENT = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("cut", "whole"),
    [
        (
            b'{"model":"m","messages":[{"role":"user","content":"hel',
            b'{"model":"m","messages":[{"role":"user","content":"hel"}]}',
        ),
        (b'{"model":"m","mess', b'{"model":"m"}'),
        (b'{"model":"m","messages"', b'{"model":"m"}'),
        (b'{"model":"m","messages":', b'{"model":"m"}'),
        (b'{"model":"m","n":12', b'{"model":"m","n":12}'),  # even if it was 123
        (b'{"model":"m","n":1.', b'{"model":"m"}'),
        (b'{"model":"m","n":12,', b'{"model":"m","n":12}'),
        (b'{"a":"half an escape \\u00e', b'{"a":"half an escape "}'),
        (b'{"a":"whole \\\\', b'{"a":"whole \\\\"}'),
        (b'{"a":"half a character \xe2\x82', b'{"a":"half a character "}'),
        (b'{"a":"half a pair \\ud83d', b'{"a":"half a pair "}'),
        (b'{"a":"half a pair \\ud83d\\ude0', b'{"a":"half a pair "}'),
        (b'{"a":"whole \\ud83d\\ude00', b'{"a":"whole \\ud83d\\ude00"}'),
        (b'{"a":[1,[2', b'{"a":[1,[2]]}'),
        (b'{"a":[1,-', b'{"a":[1]}'),
        (b'{"a":[NaN,Na', b'{"a":[NaN]}'),  # for lenient readers
        (b'{"a":1 , ', b'{"a":1 }'),
        (b'{"a":[1,2 ,"x"', b'{"a":[1,2 ,"x"]}'),
        (b'{"a":[1,2,', b'{"a":[1,2]}'),
        (b'{"a":"}]\\"", "b": [{"c":tru', b'{"a":"}]\\"", "b": [{}]}'),
        (b'{"a":true ', b'{"a":true }'),
        (b'{"a":true, "b" : nul', b'{"a":true}'),
        (b'{"a":["x', b'{"a":["x"]}'),
        (b'{"a":{"b":[]}', b'{"a":{"b":[]}}'),
    ],
)
def test_what_is_open_is_closed_and_what_is_incomplete_is_dropped(cut, whole):
    json.loads(whole)
    assert completed(cut) == whole


@pytest.mark.parametrize("text", [b"", b"   ", b"no json", b"}{", b"12"])
def test_what_is_no_cut_document_comes_back(text):
    assert completed(text) == text


@given(st.dictionaries(st.text(), DOCUMENT), st.booleans(), st.integers(0, 10_000))
def test_every_beginning_of_an_object_has_the_members_that_pydantic_finds(document, ascii_only, at):
    whole = json.dumps(document, ensure_ascii=ascii_only).encode()
    cut = whole[: max(1, at % (len(whole) + 1))]
    assert json.loads(completed(cut)) == pydantic_core.from_json(cut, allow_partial="trailing-strings")
    assert completed(whole) == whole


@given(st.binary())
def test_arbitrary_bytes_never_raise(text):
    completed(text)


def test_open_brackets_are_closed():
    assert completed(b'{"a":' + b"[" * 400_000) == b'{"a":' + b"[" * 400_000 + b"]" * 400_000 + b"}"


@pytest.mark.parametrize("unit", [b"[", b'["",', b'{"":', b"[],", b'"' + rb"\n" * 3])
def test_text_with_more_brackets_strings_or_escapes_than_the_limits_comes_back(unit):
    text = b'{"a":[' + unit * 1_000_000
    assert completed(text) == text
