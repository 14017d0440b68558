# SPDX-License-Identifier: Apache-2.0
"""Parsed bodies of the OpenAI API."""

import struct

import pytest
import xxhash

from epp.framework import RequestBody
from epp.framework.errors import MalformedBodyError
from tests.support.apis import parse

CHAT = "chat/completions"
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Hi"}


def digest(found):
    return xxhash.xxh3_128_digest(found)  # 16 bytes


IMAGE = b'{"type":"input_image","image_url":"data:AAAA"}'
CALL = b'{"type":"function_call","call_id":"c","arguments":"{}"}'
RESULTS = b"""{"input": [{"type": "function_call_output", "call_id": "c", "output": "42"},
    {"type": "function_call_output", "call_id": "d", "output": [%b]}]}"""
HI, TEXT = b"user\nHi\n", {"type": "text", "text": "Hi"}
ANSWER = {"role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]}
BRIEF = b"system\nBe brief.\n"


@pytest.mark.parametrize(
    ("suffix", "body", "prompt"),
    [
        # tools come first, and tool calls after the text, as they came; empty ones leave no trace
        (
            CHAT,
            b'{"messages": [{"role": "assistant", "content": "ok", "tool_calls": [ {"id":1} ]}], "tools": [{"a": 1}]}',
            b'[{"a": 1}]\nassistant\nok[ {"id":1} ]\n',
        ),
        (CHAT, {"messages": [QUESTION | {"tool_calls": None}], "tools": None}, HI),
        (CHAT, {"messages": [QUESTION | {"tool_calls": []}], "tools": []}, HI),
        # parts unlike any known are their JSON
        (
            CHAT,
            b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "See "}, {"type": "x"}, "plain"]}]}',
            b'user\nSee {"type": "x"}"plain"\n',
        ),
        ("embeddings", {"messages": [QUESTION]}, HI),
        ("responses", {"instructions": "Be brief.", "input": "Hi"}, BRIEF + HI),
        ("responses", {"instructions": "Be brief.", "input": [QUESTION, ANSWER]}, BRIEF + HI + b"assistant\nHello.\n"),
        # items that are no messages are their JSON, results of tools their call and their content
        ("responses", b'{"tools": [{"a":1}], "input": [' + CALL + b", 5]}", b'[{"a":1}]\n' + CALL + b"\n5\n"),
        (
            "responses",
            RESULTS % IMAGE,
            b"function_call_output c\n42\nfunction_call_output d\n" + (digest(IMAGE) * 225)[:900] + b"\n",
        ),
    ],
)
def test_prompt_is_what_the_model_sees_in_order(suffix, body, prompt):
    assert parse(suffix, body).prompt == prompt


@pytest.mark.parametrize(
    ("suffix", "fields", "expected"),
    [
        (CHAT, {"messages": [SYSTEM, QUESTION], "n": 1}, RequestBody("m", BRIEF + HI, 7)),  # 25 bytes
        (CHAT, {"messages": [{"role": "user", "content": [TEXT]}]}, RequestBody("m", HI, 2)),  # 8 bytes
        ("conversations", {"items": [{"type": "message", **QUESTION}]}, RequestBody("m", HI, 2)),
        ("images/generations", {"prompt": "a red cat", "size": "1024x1024"}, RequestBody("m", b"a red cat", 3)),
        # a rendered prompt is not run, so nothing of it is cached
        ("chat/completions/render", {"messages": [QUESTION], "stream": True}, RequestBody("m", skip_response=True)),
        ("completions/render", {"prompt": "Hi", "stream": True}, RequestBody("m", skip_response=True)),
    ],
)
def test_body_has_the_model_and_the_prompt(suffix, fields, expected):
    assert parse(suffix, {"model": "m", **fields}) == expected


def test_streaming_and_the_salt_are_known():
    body = parse(CHAT, {"messages": [QUESTION], "stream": True, "cache_salt": "s"})
    assert (body.streaming, body.cache_salt) == (True, "s")


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        (b'{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}', 225),  # 640 * 360 / 1024
        (b'{"type":"audio_url","audio_url":{"url":"https://a/b.wav"}}', 250),  # 10 seconds, 25 each
        (b'{"type":"video_url","video_url":{"url":"https://a/b.mp4"}}', 2250),  # 10 images
        (b'{"type":"input_audio","input_audio":{"data":"%s","format":"mp3"}}' % (b"A" * 8530), 10),  # 853 to a token
        (b'{"type":"input_audio","input_audio":{"data":"A","format":"mp3"}}', 4),  # never less than its hash
    ],
)
def test_media_are_their_hash_repeated_for_the_tokens_they_are_thought_to_take(part, tokens):
    body = parse(CHAT, b'{"messages":[{"role":"user","content":[' + part + b"]}]}")
    assert body.prompt == b"user\n" + (digest(part) * tokens)[: 4 * tokens] + b"\n"
    assert body.prompt_tokens == tokens + 2  # 6 bytes around them


def test_thousands_of_videos_do_not_blow_up_the_prompt():
    videos = [{"type": "video_url", "video_url": str(n)} for n in range(10_000)]
    body = parse(CHAT, {"messages": [{"role": "user", "content": videos}]})
    assert body.prompt_tokens == 256 * 2250 + 9744 * 4 + 2  # past the 256th: four tokens each


@pytest.mark.parametrize(
    ("suffix", "fields", "expected"),
    [
        (CHAT, {}, None),
        (CHAT, {"max_tokens": 5}, 5),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 7}, 7),
        (CHAT, {"max_tokens": 5.0}, 5),
        (CHAT, {"max_tokens": -1}, None),
        ("completions", {"max_tokens": 5, "max_completion_tokens": 7}, 5),
        ("responses", {"max_output_tokens": 9, "max_tokens": 5}, 9),
        ("embeddings", {"max_tokens": 5}, None),
    ],
)
def test_output_limit_is_the_one_of_the_api(suffix, fields, expected):
    body = {"messages": [QUESTION], "prompt": "p", "input": "i"} | fields
    assert parse(suffix, body).max_output_tokens == expected


@pytest.mark.parametrize(("suffix", "field"), [("completions", "prompt"), ("embeddings", "input")])
@pytest.mark.parametrize(
    ("value", "prompts", "tokens"),
    [
        ("h\u00e9llo", ["h\u00e9llo".encode()], 2),  # 6 bytes
        (["ab"], [b"ab"], 1),
        (["ab", "cd"], [b"ab", b"cd"], 2),  # two bytes each, a token begun counts
        (["ab", "", "h\u00e9"], [b"ab", b"", "h\u00e9".encode()], 2),
        ([1, 2, 70000], [struct.pack("<3I", 1, 2, 70000)], 3),
        ([[1, 2], [3]], [struct.pack("<2I", 1, 2), struct.pack("<I", 3)], 3),
        (["x"] * 300, [b"x"] * 255 + [b"x" * 45], 255 + 12),
    ],
)
def test_prompts_of_a_list_stand_by_themselves(suffix, field, value, prompts, tokens):
    body = parse(suffix, {"model": "m", field: value})
    assert (list(body.prompts), body.prompt, body.prompt_tokens) == (prompts, b"".join(prompts), tokens)


@pytest.mark.parametrize("embeds", ["A" * 54_615, ["A" * 54_615]])
def test_prompt_embeddings_count_a_token_for_every_8_kib(embeds):
    body = parse("completions", {"model": "m", "prompt_embeds": embeds})  # 54,615 = 5 * 10,923 base64 bytes
    assert (body.prompt, body.prompt_tokens) == ((digest(b"A" * 54_615) * 2)[:20], 5)


@pytest.mark.parametrize("model", [{}, {"model": None}, {"model": ""}])
def test_missing_model_is_left_empty(model):
    assert parse("completions", {"prompt": "p"} | model).model == ""


@pytest.mark.parametrize(
    ("suffix", "body", "sentence"),
    [
        (CHAT, {}, '"messages" is missing or empty: send at least one message'),
        (CHAT, {"messages": []}, '"messages" is missing or empty: send at least one message'),
        (CHAT, {"messages": "Hi"}, '"messages" must be an array, not a string'),
        (CHAT, {"messages": [QUESTION | {"content": 5}]}, '"messages[0].content" must be a string or an array, not an'),
        (CHAT, {"messages": [QUESTION], "max_tokens": "5"}, '"max_tokens" must be a number, not a string'),
        (CHAT, {"messages": [QUESTION], "stream": "yes"}, '"stream" must be true or false, not a string'),
        (CHAT, {"messages": [QUESTION], "model": 5}, '"model" must be a string, not an integer'),
        (CHAT, [], "the JSON of the request body must be an object, not an array"),
        ("completions", {}, '"prompt" is missing or empty: send a text or token ids'),
        ("completions", {"prompt": ""}, '"prompt" is missing or empty: send a text or token ids'),
        ("completions", {"prompt": [[]]}, '"prompt" is missing or empty: send a text or token ids'),
        ("completions", {"prompt": ["a", 1]}, '"prompt" mixes types: '),
        ("completions", {"prompt": [-1]}, '"prompt[0]" must be an integer of at least 0'),
        ("completions", {"prompt": [2**32]}, '"prompt[0]" must be an integer of at most 4294967295'),
        ("completions", {"prompt": "p", "max_tokens": 2**63}, "output tokens is more than 9223372036854775807"),
        ("completions", {"prompt": "p", "max_tokens": 1e300}, "output tokens is more than 9223372036854775807"),
        ("completions/render", {}, '"prompt" is missing or empty: send a text or token ids'),
        ("embeddings", {}, '"input" is missing or empty: send a text or token ids, or messages'),
        ("conversations", {}, '"items" is missing or empty: send at least one item'),
        ("conversations", {"items": []}, '"items" is missing or empty: send at least one item'),
        ("images/generations", {"prompt": ""}, '"prompt" is missing or empty: send a text'),
        ("images/generations", {"prompt": ["p"]}, '"prompt" must be a string, not an array'),
        ("responses", {}, '"input" is missing or empty: send a text or items'),
        ("messages", {}, '"messages" is missing or empty: send at least one message'),
        ("messages", {"messages": "Hi"}, '"messages" must be an array, not a string'),
        ("messages", {"messages": [QUESTION], "system": 5}, '"system" must be a string or an array, not an integer'),
        ("messages/count_tokens", {"messages": []}, '"messages" is missing or empty: send at least one message'),
        ("messages/count_tokens", b"{", "the request body is not valid JSON: it ends at "),
        ("messages/count_tokens", b'{"messages": [{"role": "\xff"}]}', "line 1, column 25 (byte 24) is not UTF-8"),
    ],
)
def test_body_that_does_not_fit_is_refused_with_a_sentence(suffix, body, sentence):
    with pytest.raises(MalformedBodyError) as refusal:
        parse(suffix, body)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"not json",
        b'{"messages": [}',
        b'{"model": "\xff"}',
        b'{"model": "\\ud800"}',
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages": [{"content": [{"type": "text", "text": "\xff"}]}]}',
    ],
)
def test_bad_json_is_refused_with_the_known_prefix(body):
    with pytest.raises(MalformedBodyError, match=r"^the request body is not valid JSON: "):
        parse(CHAT, body)
