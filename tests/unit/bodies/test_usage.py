# SPDX-License-Identifier: Apache-2.0
"""The token counts of every API are found, and nothing else in a response matters."""

import json
from pathlib import Path

import pytest

from epp.framework import Usage
from epp.routing.bodies.usage import UsageReader

RECORDED = Path(__file__).parents[2] / "data" / "vllm-0.32" / "chat-stream.txt"


def of_stream(*pieces):
    reader = UsageReader(event_stream=True)
    for number, piece in enumerate(pieces):
        reader.feed(piece, last=number == len(pieces) - 1)
    return reader.usage


def of_events(*events):
    return of_stream(b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events))


def of_body(document):
    reader = UsageReader(event_stream=False)
    reader.feed(document if isinstance(document, bytes) else json.dumps(document).encode(), last=True)
    return reader.usage


def test_recorded_stream_has_its_usage_in_the_last_chunk():
    body = RECORDED.read_bytes()
    assert of_stream(body) == Usage(prompt_tokens=19, completion_tokens=3, cached_tokens=0)
    assert of_stream(*(body[i : i + 5] for i in range(0, len(body), 5))) == of_stream(body)
    assert of_stream(body[: body.index(b'"usage"')]) is None


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_of_a_stream_are_counted_however_it_is_cut(end, size):
    body = (b'data: {"choices":[]}' + end) * 5 + b"data: [DONE]" + end
    reader = UsageReader(event_stream=True)
    for at in range(0, len(body), size):
        reader.feed(body[at : at + size], last=at + size >= len(body))
    assert reader.events == 6


def test_chat_answer():
    details = {"cached_tokens": 8}
    usage = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25, "prompt_tokens_details": details}
    assert of_body({"choices": [], "usage": usage}) == Usage(20, 5, 8)
    assert of_body({"choices": [], "usage": usage | {"prompt_tokens_details": None}}) == Usage(20, 5, 0)


def test_embeddings_generate_nothing():
    data = [{"embedding": [0.25] * 10_000}]
    assert of_body({"data": data, "usage": {"prompt_tokens": 7, "total_tokens": 7}}) == Usage(7, 0, 0)


RESPONSES_USAGE = {"input_tokens": 30, "input_tokens_details": {"cached_tokens": 16}, "output_tokens": 4}


def test_responses_answer():
    # cached tokens are part of the input here
    assert of_body({"object": "response", "usage": RESPONSES_USAGE, "metadata": {}}) == Usage(30, 4, 16)


@pytest.mark.parametrize("kind", ["response.completed", "response.incomplete", "response.failed"])
def test_responses_stream_ends_with_its_usage(kind):
    created = {"type": "response.created", "response": {"usage": None}}
    assert of_events(created, {"type": kind, "response": {"output": [], "usage": RESPONSES_USAGE}}) == Usage(30, 4, 16)


def test_response_of_another_event_is_not_read():
    assert of_events({"type": "response.in_progress", "response": {"usage": RESPONSES_USAGE}}) is None


def test_messages_answer_counts_cached_tokens_apart():
    usage = {"input_tokens": 3, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 9}
    # the prompt is 3 + 100 + 20 tokens long
    assert of_body({"type": "message", "usage": usage}) == Usage(123, 9, 100)


def test_messages_stream_is_merged_field_by_field():
    start = {"input_tokens": 3, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 1}
    begun = {"type": "message_start", "message": {"role": "assistant", "usage": start}}
    assert of_events(begun) == Usage(123, 1, 100)
    delta = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 42, "input_tokens": None}}
    assert of_events(begun, delta) == Usage(123, 42, 100)


def test_sglang_counts_when_it_has_finished():
    running = {"meta_info": {"prompt_tokens": 6, "completion_tokens": 1, "cached_tokens": 4, "finish_reason": None}}
    done = {
        "meta_info": {"prompt_tokens": 6, "completion_tokens": 2, "cached_tokens": 4, "finish_reason": {"type": "stop"}}
    }
    assert of_events(running) is None
    assert of_events(running, done) == Usage(6, 2, 4)
    assert of_body({"text": "x"} | done) == Usage(6, 2, 4)


def test_last_of_running_counts_wins():
    events = [{"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": n}} for n in (1, 2, 3)]
    assert of_events(*events, {"choices": [], "usage": None}) == Usage(10, 3, 0)


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


def test_error_event_beside_a_usage_does_not_hide_it():
    event = {"type": "error", "message": "out of memory", "response": 5, "usage": {"prompt_tokens": 2}}
    assert of_events(event) == Usage(2, 0, 0)


@pytest.mark.parametrize("start", [b"data:", b"data: ", b"data:  "])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_may_start_and_end_as_the_format_allows(start, end):
    body = b": usage" + end + start + b'{"usage":{"prompt_tokens":5}}' + end + end + start + b"[DONE]" + end + end
    assert of_stream(body) == Usage(5, 0, 0)
    assert of_stream(*(body[i : i + 1] for i in range(len(body)))) == Usage(5, 0, 0)


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
    assert of_stream(fits + b"\n", after) == of_stream(fits[:99], fits[99:], b"\n" + after) == Usage(5, 1, 0)
    assert (
        of_stream(too_long + b"\n", after) == of_stream(too_long[:99], too_long[99:], b"\n" + after) == Usage(0, 1, 0)
    )
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
        reader = UsageReader(event_stream=False)
        for start in range(0, len(body), step):
            reader.feed(body[start : start + step], last=start + step >= len(body))
        assert reader.usage == Usage(5, 0, 0)


@pytest.mark.parametrize("space", [b"", b" ", b"\t \t"])
def test_events_without_counts_are_not_parsed_but_those_with_them_are(space):
    nothing = b'data: {"choices":[],"usage"' + space + b":" + space + b"null}\n\n"
    counts = b'data: {"choices":[],"usage"' + space + b":" + space + b'{"completion_tokens":2}}\n\n'
    assert of_stream(nothing, nothing) is None
    assert of_stream(nothing, counts, nothing) == of_stream(nothing + counts, nothing) == Usage(0, 2, 0)
