# SPDX-License-Identifier: Apache-2.0
"""Long bodies: completed, and given another model, in turns of the event loop with the result of at once."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epp.framework import json_scan, long_json, steps
from epp.framework.errors import MalformedBodyError
from epp.routing.bodies import (
    completed,
    completed_in_turns,
    long_model,
    long_with_model,
    long_with_model_added,
    partial,
    with_model,
    with_model_added,
)

TEXTS = st.text('a"\\/{}[],:é€😀 \n', max_size=30)
VALUES = st.recursive(
    TEXTS | st.integers() | st.floats() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)
KEYS = st.sampled_from(["model", "mod\\u0065l", "prompt", "x"])
SPACES = st.sampled_from(["", " ", "\n" * 40])


@st.composite
def bodies(draw):
    """JSON objects, also with NaN, and what is left of them where they are cut."""
    members = draw(st.lists(st.tuples(KEYS, VALUES), max_size=6))
    space, ascii_only = draw(SPACES), draw(st.booleans())
    written = ",".join(
        f'{space}"{key}"{space}:{space}{json.dumps(value, ensure_ascii=ascii_only)}{space}' for key, value in members
    )
    whole = f"{space}{{{written}}}{space}".encode()
    end = draw(st.just(len(whole)) | st.integers(0, len(whole)))
    return whole[:end] + draw(st.sampled_from([b"", b"", b"\\", b'"', b"\xc3", b"}", b"]"]))


SIZES = st.sampled_from([16, 17, 19, 31, 100])


def ran(reading):
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return end.value


def outcome(change):
    try:
        return change()
    except MalformedBodyError as error:
        return error.message


SETTINGS = settings(deadline=None, max_examples=100)


@pytest.mark.parametrize("size", [16, 17, 31, 100])
@SETTINGS
@given(body=bodies())
@example(body=b'{"a":[1,"' + b"\\" * 100)
@example(body=b'{"a":[1,"' + b"\\" * 101)
@example(body=b'{"a":' + b" " * 100 + b"," + b" " * 100)
@example(body=b'{"a":"' + "é".encode() * 100 + b"\xc3")
def test_text_is_completed_as_at_once(size, body):
    with pytest.MonkeyPatch.context() as patch:
        small(patch, size)
        assert ran(completed_in_turns(body)) == completed(body)


def small(patch, size):
    for module in (json_scan, long_json, partial, long_model):
        patch.setattr(module, "RUN_BYTES", size)
    for module in (json_scan, long_model):
        patch.setattr(module, "SLICE_BYTES", size)
    for module in (long_json, steps):
        patch.setattr(module, "LONG_BYTES", 0)
    patch.setattr(partial, "_WINDOW_BYTES", size)


@SETTINGS
@given(bodies(), SIZES, st.booleans())
def test_model_is_replaced_as_at_once(body, size, is_partial):
    with pytest.MonkeyPatch.context() as patch:
        small(patch, size)
        in_turns = outcome(lambda: b"".join(ran(long_with_model(body, "other", partial=is_partial))))
    assert in_turns == outcome(lambda: with_model(body, "other", partial=is_partial))


@SETTINGS
@given(bodies(), SIZES)
def test_model_is_added_as_at_once(body, size):
    if b"{" not in body:
        return
    with pytest.MonkeyPatch.context() as patch:
        small(patch, size)
        in_turns = b"".join(ran(long_with_model_added(body, "other")))
    assert in_turns == with_model_added(body, "other")


def test_body_that_stays_is_its_only_part():
    body = b'{"prompt":"a"}'
    (part,) = ran(long_with_model(body, "other"))
    assert part is body
