# SPDX-License-Identifier: Apache-2.0
"""gRPC requests of vLLM, and of Vertex AI with JSON inside."""

import json
import struct
from contextlib import suppress

import pytest
import xxhash
from google.api.httpbody_pb2 import HttpBody
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Headers
from epp.framework.errors import MalformedBodyError
from epp.framework.protobuf import read_uint32s, varint
from epp.plugins.parsers.grpc import VertexAIParser, VLLMGRPCParser
from tests.support.vllm_grpc import M, framed, generate

GENERATE = "vllm.grpc.engine.VllmEngine/Generate"
EMBED = "vllm.grpc.engine.VllmEngine/Embed"
VERTEX = "google.cloud.aiplatform.v1beta1.PredictionService"
CHAT = f"{VERTEX}/ChatCompletions"


def parsed(message, suffix=GENERATE):
    return VLLMGRPCParser().parse(suffix, Headers(), framed(message))


def test_token_ids_are_the_prompt():
    body = parsed(generate([1, 300, 2**32 - 1], sampling_params={"max_tokens": 7}, stream=True))
    assert body.prompt == struct.pack("<3I", 1, 300, 2**32 - 1)
    assert (body.model, body.prompt_tokens, body.max_output_tokens, body.streaming) == ("", 3, 7, True)
    assert body.is_token_ids
    assert parsed(M["EmbedRequest"](tokenized={"input_ids": [5]}), EMBED).prompt == struct.pack("<I", 5)


def test_text_is_the_prompt_in_bytes_and_a_limit_may_be_missing():
    body = parsed(generate(text="héllo"))
    assert (body.prompt, body.max_output_tokens, body.streaming) == ("héllo".encode(), None, False)
    assert not body.is_token_ids


def test_media_are_their_hashes_and_one_without_keeps_its_tokens():
    spans = [{"offset": 1, "length": 4}, {"offset": 5, "length": 1}]
    body = parsed(generate([1, 9, 9, 9, 9, 9], mm_inputs={"mm_placeholders": spans, "mm_hashes": ["h"]}))
    digest = xxhash.xxh3_128_digest(b"h")
    assert body.prompt == struct.pack("<I", 1) + digest + struct.pack("<I", 9)
    assert (body.media_items, body.media_hashes, body.is_token_ids) == (2, (("other", digest),), False)
    with pytest.raises(MalformedBodyError, match=r'"mm_inputs.mm_placeholders" lie outside "tokenized.input_ids"'):
        parsed(generate([1, 9], mm_inputs={"mm_placeholders": spans}))
    assert parsed(generate(text="a", mm_inputs={"mm_placeholders": spans, "mm_hashes": ["h"]})).prompt == b"a"


def test_other_methods_are_routed_without_a_prompt_and_not_read():
    body = VLLMGRPCParser().parse("", Headers(), b"\xff")
    assert (body.prompt, body.skip_response) == (b"", True)


WHOLE = framed(generate([1, 2]))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "it has 0 bytes, less than a message header"),
        (WHOLE[:4], "it has 4 bytes, less than a message header"),
        (WHOLE[:-1], "its message is cut off after 5 of 6 bytes"),
        (b"\0\xff\xff\xff\xff" + WHOLE, "its message is cut off after 11 of 4294967295 bytes"),
        (WHOLE + WHOLE, "data follows its first message: send one message"),
        (framed(generate([1]), flag=1), "its message is compressed: send it without compression"),
        (framed(generate([1]), flag=2), "its message has the unknown flag 2"),
        (framed(b"\x12\xff\xff\xff\xff\x0f"), "not valid Protobuf: a field of 4294967295 bytes is cut off"),
        (framed(b"\x12"), "not valid Protobuf: a number is cut off"),
        (framed(b"\x13\x14"), "not valid Protobuf: it has a field of the wire type 3"),
        (framed(b"\x09\0"), "not valid Protobuf: a field of 8 bytes is cut off"),
        (framed(b"\x12\x03\x12\x01\x80"), "not valid Protobuf: a number is cut off"),
        (framed(b"\x12\x08\x12\x06" + b"\xff" * 5 + b"\x01"), "not valid Protobuf: a number is not below 2^32"),
        (framed(b"\x12\x07\x12\x05\xff\xff\xff\xff\x1f"), "not valid Protobuf: a number is not below 2^32"),
        (framed(b"\x28\x01" * 17_000), "not valid Protobuf: it has too many fields"),
        (framed(b"\x12\x80\x80\x01" + b"\x10\x01" * 8_192 + b"\x28\x01" * 8_192), "it has too many fields"),
        (framed(generate([1] * (2**20 + 1))), "more than 1048576 token ids"),
        (framed(generate(text="a" * (8 * 2**20 + 1))), "more than 8388608 characters of text"),
    ],
)
def test_what_is_no_request_is_refused(body, problem):
    with pytest.raises(MalformedBodyError) as caught:
        VLLMGRPCParser().parse(GENERATE, Headers(), body)
    assert problem in str(caught.value)


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_numbers_are_read_as_protobuf_writes_them(numbers):
    assert read_uint32s(b"".join(map(varint, numbers))).tolist() == numbers
    assert parsed(generate(numbers)).prompt == struct.pack(f"<{len(numbers)}I", *numbers)
    one_by_one = b"".join(b"\x10" + varint(number) for number in numbers)
    assert parsed(b"\x12" + varint(len(one_by_one)) + one_by_one).prompt == struct.pack(f"<{len(numbers)}I", *numbers)


@given(st.binary(max_size=200))
def test_any_message_is_read_or_refused(message):
    with suppress(MalformedBodyError):
        parsed(message)


def wrapped(body: object) -> bytes:
    inner = HttpBody(content_type="application/json", data=json.dumps(body).encode()).SerializeToString()
    return framed(b"\x0a\x01e\x12" + varint(len(inner)) + inner)


def test_vertex_wraps_json_of_openai():
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 3}
    body = VertexAIParser().parse(CHAT, Headers(), wrapped(chat))
    assert (body.model, body.prompt, body.streaming, body.max_output_tokens) == ("m", b"user\nhi\n", True, 3)
    body = VertexAIParser().parse(f"{VERTEX}/RawPredict", Headers(), wrapped({"model": "m", "input": "hi"}))
    assert b"hi" in body.prompt
    with pytest.raises(MalformedBodyError, match="not valid JSON"):
        VertexAIParser().parse(CHAT, Headers(), framed(b""))
