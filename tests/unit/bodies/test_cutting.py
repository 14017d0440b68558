# SPDX-License-Identifier: Apache-2.0
"""The output and the token counts do not depend on how documents are spelled or cut."""

import itertools
import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epp.framework.errors import MalformedBodyError
from epp.routing.bodies.model_member import ModelRestorer, with_model
from epp.routing.bodies.usage import UsageReader

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
KEYS = st.sampled_from(["model", "model", "models", "usage", "", "a"]) | TEXT
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
SPACE = st.sampled_from(["", "", " ", "\t ", "\n", "\r\n  "])
PUNCTUATION = [b'"', b"\\", b"{", b"}", b"[", b"]", b":", b",", b" ", b"1", b"\n", b"\r", b"\n\n", b"\xff"]
PHRASES = [
    *(b"model", b'"model":', b'{"model":"a"}', b"data:", b"data: {", b'"a"', b'"a":', b"\\u006d", b"odel"),
    *(b'"usage":{', b'"response":{', b'"message":'),
]
FRAGMENTS = st.sampled_from([*PUNCTUATION, *PHRASES, b'"prompt_tokens":'])
BYTES = st.lists(FRAGMENTS, max_size=40).map(b"".join) | st.binary(max_size=80)
CUTS = st.lists(st.integers(0, 300), max_size=12)


def spelled(draw, text):
    """Some JSON spelling of a string: plain, in ASCII, or in escapes throughout."""
    if draw(st.booleans()):
        return json.dumps(text, ensure_ascii=draw(st.booleans()))
    units = text.encode("utf-16-be").hex()
    return '"' + "".join("\\u" + units[i : i + 4] for i in range(0, len(units), 4)) + '"'


@st.composite
def documents(draw, space=SPACE, *, is_event=False):
    """An object as alternating stretches and values of its models, some keys more than once.

    Those are the top-level ones, and in an event those of a `response` or a `message` too.
    """
    stretches, values, text = [], [], draw(space) + "{"
    keys = KEYS | st.sampled_from(["response", "message"])
    for number in range(count := draw(st.integers(0, 5))):
        key = draw(keys)
        text += draw(space) + spelled(draw, key) + draw(space) + ":" + draw(space)
        if is_event and key in ("response", "message") and draw(st.booleans()):
            (first, *more), inner = draw(documents(space))
            *whole, rendered = [text + first, *more]
            stretches += whole
            values += inner
            text = ""
        else:
            value = draw(VALUES.filter(lambda value: not (is_event and isinstance(value, dict))))
            is_text = isinstance(value, str)
            rendered = spelled(draw, value) if is_text else json.dumps(value, ensure_ascii=draw(st.booleans()))
        if key == "model":
            stretches.append(text)
            values.append(rendered)
            text = ""
        else:
            text += rendered
        text += draw(space) + ("," if number < count - 1 else "")
    return [*stretches, text + draw(space) + "}" + draw(space)], values


def assembled(stretches, values):
    return "".join(a + b for a, b in zip(stretches, [*values, ""], strict=True)).encode()


def pieces_of(body, cuts):
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    return [body[a:b] for a, b in itertools.pairwise(places)]


def passed(pieces, event_stream, model="new"):
    restorer = ModelRestorer(model, event_stream=event_stream)
    last = len(pieces) - 1
    return b"".join(restorer.feed(piece, last=number == last) for number, piece in enumerate(pieces))


def read(pieces, event_stream):
    reader = UsageReader(event_stream=event_stream)
    last = len(pieces) - 1
    for number, piece in enumerate(pieces):
        reader.feed(piece, last=number == last)
    return reader.usage


@given(documents(), TEXT)
def test_request_differs_in_its_model_only(document, model):
    stretches, values = document
    body = assembled(stretches, values)
    if len(values) > 2:
        with pytest.raises(MalformedBodyError):
            with_model(body, model)
        return
    changed = with_model(body, model)
    assert changed == assembled(stretches, [msgspec.json.encode(model).decode()] * len(values))
    assert json.loads(changed) == json.loads(body) | ({"model": model} if values else {})


@given(documents(), CUTS)
def test_json_response_differs_in_its_model_only_however_it_is_cut(document, cuts):
    stretches, values = document
    expected = assembled(stretches, ['"new"' if value.startswith('"') else value for value in values])
    assert passed(pieces_of(assembled(stretches, values), cuts), event_stream=False) == expected


EVENTS_OF_STREAM = st.lists(documents(st.sampled_from(["", "", " ", "\t", "\n", "\n "]), is_event=True), max_size=3)
FIELD = st.sampled_from(["data:", "data: "])
OTHER_LINES = st.sampled_from(["", "event: response.created", ": model", "id: 1", 'id: {"model":"a"}', "retry"])


def event_stream(events, end, field, other):
    """The events, one line for each line of their JSON, with another field before each, and the closing one."""
    texts = [assembled(*event).decode().replace("\n", end + field) for event in events]
    lines = [line for text in texts for line in (other, field + text, "")]
    return end.join([*lines, "data: [DONE]", "", ""]).encode()


@given(EVENTS_OF_STREAM, st.sampled_from(["\n", "\r\n", "\r"]), FIELD, OTHER_LINES, CUTS)
def test_event_stream_differs_in_its_models_only_wherever_it_is_cut(events, end, field, other, cuts):
    body = event_stream(events, end, field, other)
    replaced = [(parts, ['"new"' if v.startswith('"') else v for v in old]) for parts, old in events]
    expected = event_stream(replaced, end, field, other)
    assert passed([body], event_stream=True) == expected
    assert passed(pieces_of(body, cuts), event_stream=True) == expected
    assert passed(pieces_of(body, range(len(body))), event_stream=True) == expected
    for place in range(0, len(body), 1 + len(body) // 100):
        assert passed([body[:place], body[place:]], event_stream=True) == expected


@given(BYTES, st.booleans(), CUTS)
@example(body=b'data: {"a\\"b":[1],"model":"x\\\\"}\r\n\r\n', event_stream=True, cuts=[11])
def test_cutting_changes_nothing(body, event_stream, cuts):
    whole = passed([body], event_stream)
    assert passed(pieces_of(body, cuts), event_stream) == whole
    assert passed(pieces_of(body, range(len(body))), event_stream) == whole


@given(BYTES.map(lambda body: body.replace(b"odel", b"od").replace(b"\\u", b"u")), st.booleans())
def test_bytes_without_a_model_come_out_unchanged(body, event_stream):
    assert passed([body], event_stream) == body
    assert with_model(body, "new") == body


@given(BYTES)
def test_request_of_arbitrary_bytes_never_raises(body):
    assert isinstance(with_model(body, "new"), bytes)


COUNTS = st.integers(0, 99) | st.sampled_from([None, "7", "x", -1, 1.5, 2.0, True, {}, []])
NAMES = [
    *("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "cached_tokens", "finish_reason"),
    *("cache_read_input_tokens", "cache_creation_input_tokens"),
]
TOTALS = st.dictionaries(st.sampled_from(NAMES), COUNTS) | st.sampled_from(
    [None, 1, "usage", [], {"prompt_tokens_details": {"cached_tokens": 3}}]
)
EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["response.completed", "message_start", "message_delta", 1]),
        "text": TEXT,
        "usage": TOTALS,
        "meta_info": TOTALS,
        "response": st.fixed_dictionaries({"usage": TOTALS}) | TEXT,
        "message": st.fixed_dictionaries({"usage": TOTALS}) | TEXT,
    },
)


@given(st.lists(EVENTS, max_size=4), st.sampled_from(["\n", "\r\n", "\r"]), CUTS)
def test_cutting_a_stream_changes_no_count(events, end, cuts):
    body = "".join(f"data: {json.dumps(event)}{end}{end}" for event in events).encode()
    assert read(pieces_of(body, cuts), event_stream=True) == read([body], event_stream=True)


@given(EVENTS, st.sampled_from([None, 1]), CUTS)
def test_cutting_a_body_changes_no_count(event, indent, cuts):
    body = json.dumps(event, indent=indent).encode()
    assert read(pieces_of(body, cuts), event_stream=False) == read([body], event_stream=False)


@given(BYTES, st.booleans(), CUTS)
def test_reading_arbitrary_bytes_never_raises(body, event_stream, cuts):
    assert read(pieces_of(body, cuts), event_stream) == read([body], event_stream)
