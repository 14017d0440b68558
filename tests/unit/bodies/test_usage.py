# SPDX-License-Identifier: Apache-2.0
"""Token counts in the responses of each API."""

import json
from pathlib import Path

import pytest

from epp.framework import Usage
from epp.routing.bodies.usage import UsageReader

RECORDED = Path(__file__).parents[2] / "data" / "vllm-0.32" / "chat-stream.txt"


def read(*pieces, event_stream=True):
    reader = UsageReader(event_stream=event_stream)
    for number, piece in enumerate(pieces, 1):
        reader.feed(piece, last=number == len(pieces))
    return reader


def cut(body, size):
    return [body[at : at + size] for at in range(0, len(body), size)]


def of_stream(*pieces):
    return read(*pieces).usage


def of_events(*events):
    return of_stream(b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events))


def of_body(document):
    return read(document if isinstance(document, bytes) else json.dumps(document).encode(), event_stream=False).usage


def test_recorded_stream_has_its_usage_in_the_last_chunk():
    body = RECORDED.read_bytes()
    assert of_stream(body) == Usage(prompt_tokens=19, completion_tokens=3, cached_tokens=0)
    assert of_stream(*cut(body, 5)) == of_stream(body)
    assert of_stream(body[: body.index(b'"usage"')]) is None


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_of_a_stream_are_counted_however_it_is_cut(end, size):
    body = (b'data: {"choices":[]}' + end) * 5 + b"data: [DONE]" + end
    assert read(*cut(body, size)).events == 6


CHAT = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
RESPONSES = {"input_tokens": 30, "input_tokens_details": {"cached_tokens": 16}, "output_tokens": 4}
MESSAGES = {"input_tokens": 3, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 9}
SGLANG = {"prompt_tokens": 6, "completion_tokens": 2, "cached_tokens": 4, "finish_reason": {"type": "stop"}}


@pytest.mark.parametrize(
    ("document", "usage"),
    [
        ({"choices": [], "usage": CHAT | {"prompt_tokens_details": {"cached_tokens": 8}}}, Usage(20, 5, 8)),
        ({"choices": [], "usage": CHAT | {"prompt_tokens_details": None}}, Usage(20, 5, 0)),
        ({"data": [{"embedding": [0.25] * 10_000}], "usage": {"prompt_tokens": 7, "total_tokens": 7}}, Usage(7, 0, 0)),
        ({"object": "response", "usage": RESPONSES, "metadata": {}}, Usage(30, 4, 16)),  # cached ones are in the input
        ({"type": "message", "usage": MESSAGES}, Usage(123, 9, 100)),  # the prompt is 3 + 100 + 20 tokens long
        ({"text": "x", "meta_info": SGLANG}, Usage(6, 2, 4)),
    ],
    ids=["chat", "chat, nothing cached", "embeddings", "responses", "messages", "sglang"],
)
def test_usage_of_an_answer(document, usage):
    assert of_body(document) == usage


CREATED = {"type": "response.created", "response": {"usage": None}}
START = {"type": "message_start", "message": {"role": "assistant", "usage": MESSAGES}}
DELTA = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 42, "input_tokens": None}}
RUNNING = {"meta_info": SGLANG | {"completion_tokens": 1, "finish_reason": None}}
COUNTS = [{"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": n}} for n in (1, 2, 3)]
ERROR = {"type": "error", "message": "out of memory", "response": 5, "usage": {"prompt_tokens": 2}}


@pytest.mark.parametrize(
    ("events", "usage"),
    [
        *(
            ([CREATED, {"type": f"response.{end}", "response": {"output": [], "usage": RESPONSES}}], Usage(30, 4, 16))
            for end in ("completed", "incomplete", "failed")
        ),
        ([{"type": "response.in_progress", "response": {"usage": RESPONSES}}], None),
        ([START], Usage(123, 9, 100)),
        ([START, DELTA], Usage(123, 42, 100)),  # merged field by field
        ([RUNNING], None),
        ([RUNNING, {"meta_info": SGLANG}], Usage(6, 2, 4)),
        ([*COUNTS, {"choices": [], "usage": None}], Usage(10, 3, 0)),
        ([ERROR], Usage(2, 0, 0)),
    ],
)
def test_usage_of_a_stream_is_the_last_of_each_count(events, usage):
    assert of_events(*events) == usage


@pytest.mark.parametrize(("value", "count"), [("12", 12), (12.0, 12), (0, 0)])
def test_number_may_be_spelled_otherwise(value, count):
    assert of_body({"usage": {"prompt_tokens": value, "completion_tokens": 1}}) == Usage(count, 1, 0)


@pytest.mark.parametrize("value", [None, "", "many", "-3", -3, 1.5, 1e300, True, [], {}, "9" * 5000, "\u0663"])
def test_count_that_is_none_stays_out(value):
    assert of_body({"usage": {"prompt_tokens": value}}) is None
    assert of_body({"usage": {"prompt_tokens": value, "completion_tokens": 1}}) == Usage(0, 1, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"usage",
        b'{"usage":"none"}',
        b'{"usage":{"prompt_tokens":1',
        b'{"usage":{"prompt_tokens":1]]',
        b'{"usage":{"prompt_tokens":' + b"9" * 5000 + b"}}",
        b'{"usage":{"prompt_tokens":"\xff"}}',
        b'{"usage":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"choices":[{"usage":{"prompt_tokens":1}}]}',
        b'[{"usage":{"prompt_tokens":1}}]',
    ],
)
def test_nonsense_has_no_usage(body):
    assert of_body(body) is None
    assert of_stream(b"data: " + body[:-1] + b"\n\n") is None


@pytest.mark.parametrize("start", [b"data:", b"data: ", b"data:  "])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_may_start_and_end_as_the_format_allows(start, end):
    body = b": usage" + end + start + b'{"usage":{"prompt_tokens":5}}' + end + end + start + b"[DONE]" + end + end
    assert of_stream(body) == Usage(5, 0, 0)
    assert of_stream(*cut(body, 1)) == Usage(5, 0, 0)


@pytest.mark.parametrize("field", [b"event: ", b": ", b"", b"dat: "])
def test_only_data_lines_are_read(field):
    assert of_stream(field + b'{"usage":{"prompt_tokens":5}}\n\n') is None


def test_last_line_needs_no_end():
    assert of_stream(b'data: {"usage":{"prom', b'pt_tokens":5}}') == Usage(5, 0, 0)


def test_line_of_more_than_a_mebibyte_is_given_up():
    def line(length):
        head, tail = b'data: {"usage":{"prompt_tokens":5},"x":"', b'"}'
        return head + b"x" * (length - len(head) - len(tail)) + tail

    fits, too_long = line(2**20), line(2**20 + 1)
    after = b'data: {"usage":{"completion_tokens":1}}\n\n'
    for text, usage in ((fits, Usage(5, 1, 0)), (too_long, Usage(0, 1, 0))):
        assert of_stream(text + b"\n", after) == of_stream(text[:99], text[99:], b"\n" + after) == usage
    assert of_stream(too_long) is None


def test_usage_of_more_than_64_kib_is_given_up():
    assert of_body({"usage": {"prompt_tokens": 5, "x": "x" * 65_000}}) == Usage(5, 0, 0)
    assert of_body({"usage": {"prompt_tokens": 5, "x": "x" * 66_000}}) is None


def test_usage_is_there_before_the_end_of_the_body():
    reader = UsageReader(event_stream=False)
    reader.feed(b'{"usage":{"prompt_tokens":5', last=False)
    assert reader.usage is None
    reader.feed(b'},"metadata":', last=False)
    assert reader.usage == Usage(5, 0, 0)


@pytest.mark.parametrize("tail", [b"", b"}", b',"x":tru'])
def test_usage_before_broken_json_counts(tail):
    """A model server may break off, and the prompt was computed all the same."""
    assert of_body(b'{"usage":{"prompt_tokens":5}' + tail) == Usage(5, 0, 0)


def test_usage_behind_64_kib_of_body_is_found():
    body = json.dumps({"data": "x" * 70_000, "usage": {"prompt_tokens": 5}}).encode()
    for step in (1000, 65_536, 70_010, 100_000):
        assert read(*cut(body, step), event_stream=False).usage == Usage(5, 0, 0)


@pytest.mark.parametrize("space", [b"", b" ", b"\t \t"])
def test_events_without_counts_are_not_parsed_but_those_with_them_are(space):
    nothing = b'data: {"choices":[],"usage"' + space + b":" + space + b"null}\n\n"
    counts = b'data: {"choices":[],"usage"' + space + b":" + space + b'{"completion_tokens":2}}\n\n'
    assert of_stream(nothing, nothing) is None
    assert of_stream(nothing, counts, nothing) == of_stream(nothing + counts, nothing) == Usage(0, 2, 0)
