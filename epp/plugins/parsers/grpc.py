# SPDX-License-Identifier: Apache-2.0
"""Parsers of gRPC APIs: those of vLLM, whose prompts are token ids or text, and of Vertex AI, which wraps JSON."""

from collections.abc import Callable, Mapping
from typing import ClassVar, TypeAlias

import msgspec

from epp.framework import GrpcCounts, GrpcResponse, Headers, Parser, RequestBody
from epp.framework.errors import MalformedBodyError
from epp.framework.protobuf import FieldReader, count_varints, read_uint32s, varint
from epp.plugins.parsers.generate import Span, with_media
from epp.plugins.parsers.json_parser import (
    MOST_TEXT,
    MOST_TOKEN_IDS,
    Common,
    beyond,
    request_body,
)
from epp.plugins.parsers.openai import OpenAIParser

MOST_FIELDS = 16_384
"""Fields of the messages of a request; a list of token ids is one."""
_HEAD_BYTES = 5
_COMPRESSED = 1
Value: TypeAlias = int | memoryview
_Read: TypeAlias = Callable[[FieldReader, memoryview, Headers], RequestBody]


def read_message(body: bytes) -> memoryview:
    """Return the one message of a unary request; raises MalformedBodyError unless it is whole and not compressed."""
    if len(body) < _HEAD_BYTES:
        raise _malformed(f"it has {len(body)} bytes, fewer than the head of a message")
    flag, size, follow = body[0], int.from_bytes(body[1:_HEAD_BYTES]), len(body) - _HEAD_BYTES
    if flag == _COMPRESSED:
        raise _malformed("its message is compressed: send it without compression")
    if flag:
        raise _malformed(f"its message has the unknown flag {flag}")
    if size > follow:
        raise _malformed(f"its message is cut off after {follow} of {size} bytes")
    if size < follow:
        raise _malformed("more follows its first message: send one message")
    return memoryview(body)[_HEAD_BYTES:]


def _malformed(problem: str) -> MalformedBodyError:
    return MalformedBodyError(f"the gRPC request cannot be read: {problem}")


class GrpcParser(Parser):
    """Base: a function that reads the message, for each path; other methods are passed on and not read."""

    methods: ClassVar[Mapping[str, _Read]]
    names_model = False
    takes_others = True
    needs_http2 = True

    @property
    def suffixes(self) -> tuple[str, ...]:
        return tuple(self.methods)

    def parse(self, suffix: str, headers: Headers, body: bytes) -> RequestBody:
        read = self.methods.get(suffix)
        if read is None:
            return RequestBody(skip_response=True)
        message = read_message(body)
        try:
            return read(FieldReader(MOST_FIELDS), message, headers)
        except ValueError as error:
            raise _malformed(f"its message is no valid Protobuf: {error}") from error


_INPUT_IDS = 2
"""Of a tokenized prompt."""
_TOKENIZED, _TEXT, _SAMPLING, _STREAM, _MEDIA = 2, 3, 4, 5, 7
"""Of a request."""
_MAX_TOKENS = 8
"""Of sampling parameters."""
_PLACEHOLDERS, _HASHES = 5, 6
"""Of media."""
_OFFSET, _LENGTH = 1, 2
"""Of a placeholder."""
_GENERATED = GrpcResponse(
    counts=(
        GrpcCounts(message=1, prompt_tokens=2, completion_tokens=3, cached_tokens=4),
        GrpcCounts(message=2, prompt_tokens=3, completion_tokens=4, cached_tokens=5),
    )
)
"""A piece of a response, and its end."""
_EMBEDDED = GrpcResponse(counts=(GrpcCounts(prompt_tokens=2),))


def _generate(reader: FieldReader, message: memoryview, _: Headers) -> RequestBody:
    found = dict(reader.fields(message))  # of several values, the last one counts
    text = b"" if _TOKENIZED in found else bytes(_part(found, _TEXT))
    if len(text) > MOST_TEXT:
        raise beyond("characters of text", MOST_TEXT)
    prompt = text or _token_ids(reader, _part(found, _TOKENIZED))
    spans = _spans(reader, _part(found, _MEDIA))
    if text:  # the placeholders are in the tokens, which the server computes
        spans = [span._replace(offset=0, length=0) for span in spans]
    prompt, hashes = with_media(prompt, spans, "mm_inputs.mm_placeholders", ids="tokenized.input_ids")
    parsed = request_body(
        Common(stream=bool(_number(found, _STREAM))),
        prompt,
        _number(dict(reader.fields(_part(found, _SAMPLING))), _MAX_TOKENS),
        len(spans),
        media_hashes=hashes,
        is_token_ids=not text and not spans,
    )
    return msgspec.structs.replace(parsed, grpc_response=_GENERATED)


def _embed(reader: FieldReader, message: memoryview, _: Headers) -> RequestBody:
    prompt = _token_ids(reader, _part(dict(reader.fields(message)), _TOKENIZED))
    parsed = request_body(Common(), prompt, None, is_token_ids=True)
    return msgspec.structs.replace(parsed, grpc_response=_EMBEDDED)


def _token_ids(reader: FieldReader, tokenized: memoryview) -> bytes:
    """Return the token ids, four bytes each; they may come in several parts, or one by one."""
    parts: list[bytes] = []
    for number, value in reader.fields(tokenized):
        if number == _INPUT_IDS:
            parts.append(varint(value) if isinstance(value, int) else bytes(value))
            if parts[-1][-1:] >= b"\x80":
                raise ValueError("a number is cut off")
    packed = b"".join(parts)
    if count_varints(packed) > MOST_TOKEN_IDS:
        raise beyond("token ids", MOST_TOKEN_IDS)
    return read_uint32s(packed).astype("<u4").tobytes()


def _spans(reader: FieldReader, media: memoryview) -> list[Span]:
    """Return the placeholders of media; hashes belong to them in order."""
    placeholders: list[Mapping[int, Value]] = []
    hashes: list[str] = []
    for number, value in reader.fields(media):
        if isinstance(value, memoryview) and number == _PLACEHOLDERS:
            placeholders.append(dict(reader.fields(value)))
        elif isinstance(value, memoryview) and number == _HASHES:
            hashes.append(bytes(value).decode("utf-8", "replace"))
    hashes += [""] * len(placeholders)
    return [
        Span("", _number(span, _OFFSET) or 0, _number(span, _LENGTH) or 0, found or None)
        for span, found in zip(placeholders, hashes, strict=False)
    ]


def _part(fields: Mapping[int, Value], number: int) -> memoryview:
    """Return a message, text or bytes; empty if it is missing."""
    value = fields.get(number)
    return value if isinstance(value, memoryview) else memoryview(b"")


def _number(fields: Mapping[int, Value], number: int) -> int | None:
    value = fields.get(number)
    return value if isinstance(value, int) else None


class VLLMGRPCParser(GrpcParser):
    """Parses `Generate` and `Embed` of vLLM's gRPC API: the prompt is the token ids, or the text.

    Requests name no model. Hashes of media stand in place of their placeholder tokens. Other methods are routed without
    a prompt. Compressed messages are refused.
    """

    plugin_type = "vllmgrpc-parser"
    methods: ClassVar[Mapping[str, _Read]] = {
        "vllm.grpc.engine.VllmEngine/Generate": _generate,
        "vllm.grpc.engine.VllmEngine/Embed": _embed,
    }


_HTTP_BODY, _DATA = 2, 2
"""Of a request, and of the body in it."""
_WRAPPED = GrpcResponse(json_body=_DATA)


def _wrapped(suffix: str) -> _Read:
    def read(reader: FieldReader, message: memoryview, headers: Headers) -> RequestBody:
        body = _part(dict(reader.fields(message)), _HTTP_BODY)
        data = bytes(_part(dict(reader.fields(body)), _DATA))
        return msgspec.structs.replace(_OPENAI.parse(suffix, headers, data), grpc_response=_WRAPPED)

    return read


_OPENAI = OpenAIParser()


class VertexAIParser(GrpcParser):
    """Parses the prediction service of Vertex AI, whose messages wrap JSON of OpenAI's API.

    `ChatCompletions` has a chat, `RawPredict` and `StreamRawPredict` have a body of the Responses API. Other methods
    are routed without a prompt. Models are not rewritten. Compressed messages are refused.
    """

    plugin_type = "vertexai-parser"
    methods: ClassVar[Mapping[str, _Read]] = {
        f"google.cloud.aiplatform.{version}.PredictionService/{method}": _wrapped(suffix)
        for version in ("v1", "v1beta1")
        for method, suffix in (
            ("ChatCompletions", "chat/completions"),
            ("RawPredict", "responses"),
            ("StreamRawPredict", "responses"),
        )
    }
