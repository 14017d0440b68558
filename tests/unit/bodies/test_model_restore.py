# SPDX-License-Identifier: Apache-2.0
"""Responses get the name of the requested model back, cut anywhere; all other bytes stay."""

from pathlib import Path

import pytest

from epp.routing.bodies.model_member import ModelRestorer

RECORDED = Path(__file__).parents[2] / "data" / "vllm-0.32" / "chat-stream.txt"


def restored(*pieces, event_stream=True):
    restorer = ModelRestorer("mine", event_stream=event_stream)
    last = len(pieces) - 1
    return [restorer.feed(piece, last=number == last) for number, piece in enumerate(pieces)]


def test_every_recorded_event_gets_the_model_back():
    body = RECORDED.read_bytes()
    assert body.count(b'"model":"tiny"') == 5
    assert restored(body) == [body.replace(b'"model":"tiny"', b'"model":"mine"')]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (
            [b'data: {"mod', b'el": "ser', b'ved", "n"', b": 1}\n\n"],
            [b'data: {"mod', b'el": ', b'"mine", "n"', b": 1}\n\n"],
        ),
        (
            [b'data: {"model":"a"}\n\ndata: {"model":"', b'b"}\n\n'],
            [b'data: {"model":"mine"}\n\ndata: {"model":', b'"mine"}\n\n'],
        ),
        (
            [b'data: {"model":"a\n\n', b'data: {"model":"a"}\n\n'],
            [b'data: {"model":"a\n\n', b'data: {"model":"mine"}\n\n'],
        ),
        ([b'data: {"model":"a', b""], [b'data: {"model":', b'"a']),
        ([b'data: {"a":{\r', b'\ndata: "model":"a"}}\r\n'], [b'data: {"a":{\r', b'\ndata: "model":"a"}}\r\n']),
    ],
    ids=["cut in it", "after a whole event", "cut short by its line", "let go at the end", "CRLF is no blank line"],
)
def test_only_an_open_value_is_held_back(pieces, expected):
    assert restored(*pieces) == expected


def test_last_piece_of_json_lets_everything_go():
    assert restored(b'{"model":"a', b"bc", event_stream=False) == [b'{"model":', b'"abc']


def test_value_of_more_than_64_kib_passes_untouched():
    # with its quotes, the first is 65,536 bytes long and the second 65,537
    fits, too_long = b'"' + b"a" * 65_534 + b'"', b'"' + b"a" * 65_535 + b'"'
    for value, expected in ((fits, b'"mine"'), (too_long, too_long)):
        body = b'{"model":' + value + b',"model":"b"}'
        whole = b'{"model":' + expected + b',"model":"mine"}'
        assert restored(body, event_stream=False) == [whole]
        assert b"".join(restored(body[:30_000], body[30_000:65_545], body[65_545:], event_stream=False)) == whole


@pytest.mark.parametrize("value", [b"null", b"12", b'{"model":"a"}', b'["a"]'])
def test_value_that_is_no_string_stays(value):
    body = b'{"model":' + value + b',"n":1}'
    assert restored(body, event_stream=False) == [body]
    assert b"".join(restored(*(body[i : i + 1] for i in range(len(body))), event_stream=False)) == body


@pytest.mark.parametrize(
    "body",
    [
        b'event: {"model":"a"}\n\n',
        b': {"model":"a"}\n\n',
        b'dat: {"model":"a"}\n\n',
        b'data2: {"model":"a"}\n\n',
        b' data: {"model":"a"}\n\n',
        b'{"model":"a"}\n\n',
        b'data: "model":"a"\n\n',
        b'data: [{"model":"a"}]\n\n',
        b'data: {"type":"error","message":"model","response":["model",{"model":"a"}]}\n\n',
        b'data: {"delta":{"model":"a"},"a":{"message":{"model":"a"}},"message":{"b":{"model":"a"}}}\n\n',
        b'data: {"response":{"response":{"model":"a"},"message":{"model":"a"}}}\n\n',
        b"data\ndata\n\ndata:\n\n",
    ],
)
def test_what_is_no_object_in_a_data_line_passes(body):
    assert restored(body) == [body]


@pytest.mark.parametrize(
    "event",
    [
        b'{"type":"message_start","message":{"id":"m","model":"a","content":[],"usage":{"input_tokens":9}}}',
        b'{"type":"response.created","sequence_number":0,"response":{"id":"r","status":"in_progress","model":"a"}}',
        b'{"response": {"model" :\t"a", "output": [{"model": "b"}] } ,"type": "response.completed"}',
        rb'{"r\u0065sponse":{"mod\u0065l":"a"}}',
        b'{"message":{},"response":{"model":"a"}}',
    ],
)
def test_typed_event_gets_the_model_of_its_response_or_message_back(event):
    body = b"event: x\ndata: " + event + b"\n\n"
    assert restored(body) == [body.replace(b'"a"', b'"mine"')]


def test_json_body_has_its_model_on_top_alone():
    body = b'{"model":"a","message":{"model":"a"},"response":{"model":"a"}}'
    assert restored(body, event_stream=False) == [body.replace(b'{"model":"a",', b'{"model":"mine",')]


@pytest.mark.parametrize(
    "body",
    [
        b'data: {"model":null\ndata: ,"n":1,"model":12\ndata: ,"model":"a"}\n\n',
        b'data: {"model":"a"}\ndata: {"model":"a"}\n',
        b'data: {"a":{"b":\n\ndata: {"model":"a"}\n\n',
    ],
    ids=["number and literal end with their lines", "no blank line between events", "blank line after half an event"],
)
def test_lines_end_values_and_events(body):
    assert restored(body) == [body.replace(b'"a"}', b'"mine"}')]


def test_response_without_a_model_is_handed_on_uncopied():
    body = b'data: {"type":"content_block_delta","delta":{"text":"hello"}}\n\n'
    assert restored(body)[0] is body
