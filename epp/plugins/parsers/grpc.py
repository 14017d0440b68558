# SPDX-License-Identifier: Apache-2.0
"""Parsers of the generate APIs of vLLM and SGLang, and of the gRPC APIs of vLLM and Vertex AI."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeAlias

import msgspec
import xxhash

from epp.framework import GrpcCounts, GrpcResponse, Headers, Parser, RequestBody
from epp.framework.errors import MalformedBodyError
from epp.framework.messages import printable
from epp.framework.protobuf import FieldReader, count_varints, read_uint32s, varint
from epp.framework.request import BYTES_PER_TOKEN
from epp.plugins.parsers.json_parser import (
    ABSENT,
    MOST_TEXT,
    MOST_TOKEN_IDS,
    ApiBody,
    Common,
    JsonParser,
    Limit,
    TokenId,
    limit_exceeded,
    request_body,
)
from epp.plugins.parsers.openai import OpenAIParser
from epp.plugins.parsers.prompt import placeholder, read_ids


class _Range(msgspec.Struct, gc=False):
    offset: TokenId
    length: TokenId


class _Features(msgspec.Struct, gc=False):
    mm_hashes: dict[str, list[str | None]] | None = None
    mm_placeholders: dict[str, list[_Range]] | None = None


class _VLLMSampling(msgspec.Struct, gc=False):
    max_tokens: Limit = None


class _VLLMGenerate(Common, gc=False):
    token_ids: msgspec.Raw = ABSENT
    features: _Features | None = None
    sampling_params: _VLLMSampling | None = None

    def read(self) -> RequestBody:
        prompt = read_ids(self.token_ids, "token_ids")
        limit = None if self.sampling_params is None else self.sampling_params.max_tokens
        if self.features is None:
            return request_body(self, prompt, limit, is_token_ids=True)
        spans = _feature_spans(self.features)
        prompt, hashes = with_media(prompt, spans, "features.mm_placeholders", ids="token_ids")
        return request_body(self, prompt, limit, len(spans), media_hashes=hashes)


MOST_FEATURES = 2048
"""Maximum number of images and other media in a request."""
_KINDS = frozenset({"image", "audio", "video"})


class Span(NamedTuple):
    """Placeholder tokens of a media item in a prompt of token ids."""

    kind: str
    """`image`, `audio`, `video` or another; empty if unknown."""
    offset: int
    length: int
    hash: str | None
    """Hash of the content; None if it is unknown."""


def _feature_spans(features: _Features) -> list[Span]:
    hashes = features.mm_hashes or {}
    ranges = features.mm_placeholders or {}
    if {kind: len(found) for kind, found in hashes.items()} != {kind: len(found) for kind, found in ranges.items()}:
        raise _invalid(
            "features",
            '"features.mm_hashes" and "features.mm_placeholders" differ in length: name the same items in both',
        )
    return [
        Span(kind, span.offset, span.length, mm_hash)
        for kind, found in hashes.items()
        for mm_hash, span in zip(found, ranges[kind], strict=True)
    ]


def with_media(
    prompt: bytes, spans: Sequence[Span], param: str, *, ids: str
) -> tuple[bytes, tuple[tuple[str, bytes], ...]]:
    """Return the prompt with the hash of each media item in place of its equal placeholder tokens, and the hashes.

    Raises MalformedBodyError that names the fields `param` and `ids`.
    """
    if len(spans) > MOST_FEATURES:
        raise _invalid(param, f'"{param}" has more than {MOST_FEATURES} media: send fewer images in one request')
    written = bytearray(prompt)
    hashes: list[tuple[str, bytes]] = []
    tokens_left = len(prompt) // BYTES_PER_TOKEN
    for span in spans:
        start, end = span.offset * BYTES_PER_TOKEN, (span.offset + span.length) * BYTES_PER_TOKEN
        tokens_left -= span.length
        if end > len(prompt) or tokens_left < 0:
            raise _invalid(
                param,
                f'"{param}{printable(span.kind and f".{span.kind}")}" lie outside "{ids}" or overlap: '
                "send offsets and lengths within it",
            )
        if span.hash is not None:
            digest = xxhash.xxh3_128_digest(span.hash.encode())
            written[start:end] = placeholder(digest, span.length)
            hashes.append((span.kind if span.kind in _KINDS else "other", digest))
    return bytes(written), tuple(hashes)


def _invalid(param: str, sentence: str) -> MalformedBodyError:
    return MalformedBodyError(sentence, param=param, kind="invalid_value")


class VLLMHTTPParser(JsonParser):
    """Parses the generate API: the prompt is the token ids, four little-endian bytes each, and hashes of media."""

    plugin_type = "vllmhttp-parser"
    bodies: ClassVar[Mapping[str, type[ApiBody]]] = {"inference/v1/generate": _VLLMGenerate}
    id_members: ClassVar[Mapping[str, str]] = {"inference/v1/generate": "token_ids"}


class _SGLangSampling(msgspec.Struct, gc=False):
    max_new_tokens: Limit = None


class _SGLangGenerate(ApiBody, gc=False):
    input_ids: msgspec.Raw = ABSENT
    extra_key: str | None = None
    sampling_params: _SGLangSampling | None = None
    stream: bool | None = None
    image_data: msgspec.Raw = ABSENT
    audio_data: msgspec.Raw = ABSENT
    video_data: msgspec.Raw = ABSENT

    def read(self) -> RequestBody:
        prompt = read_ids(self.input_ids, "input_ids")
        limit = None if self.sampling_params is None else self.sampling_params.max_new_tokens
        common = Common(stream=self.stream, cache_salt=self.extra_key)
        media_lists = map(_items, (self.image_data, self.audio_data, self.video_data))
        media_items = sum(len(_items(one)) for media in media_lists for one in media)
        return request_body(common, prompt, limit, media_items, is_token_ids=not media_items)


_NO_MEDIA = frozenset({b"", b"null"})
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _items(media: msgspec.Raw) -> list[msgspec.Raw]:
    found = bytes(media)
    if found.startswith(b"["):
        return _decode_list(found)
    return [] if found in _NO_MEDIA else [media]


class SGLangHTTPParser(JsonParser):
    """Parses the generate API: the prompt is the token ids, four little-endian bytes each; `extra_key` is the salt."""

    plugin_type = "sglanghttp-parser"
    names_model = False
    bodies: ClassVar[Mapping[str, type[ApiBody]]] = {"/generate": _SGLangGenerate}
    id_members: ClassVar[Mapping[str, str]] = {"/generate": "input_ids"}


MOST_FIELDS = 16_384
"""Maximum fields in the messages of a request; a list of token ids is one field."""
_HEAD_BYTES = 5
_COMPRESSED = 1
Value: TypeAlias = int | memoryview
_Read: TypeAlias = Callable[[FieldReader, memoryview, Headers], RequestBody]
"""Reads the message of a request; raises ValueError if it is not valid Protobuf."""


def read_message(body: bytes) -> memoryview:
    """Return the message of a unary request; raises MalformedBodyError if it is incomplete or compressed."""
    if len(body) < _HEAD_BYTES:
        raise _malformed(f"it has {len(body)} bytes, less than a message header")
    flag, size, follow = body[0], int.from_bytes(body[1:_HEAD_BYTES]), len(body) - _HEAD_BYTES
    if flag == _COMPRESSED:
        raise _malformed("its message is compressed: send it without compression")
    if flag:
        raise _malformed(f"its message has the unknown flag {flag}")
    if size > follow:
        raise _malformed(f"its message is cut off after {follow} of {size} bytes")
    if size < follow:
        raise _malformed("data follows its first message: send one message")
    return memoryview(body)[_HEAD_BYTES:]


def _malformed(problem: str) -> MalformedBodyError:
    return MalformedBodyError(f"the gRPC request cannot be read: {problem}")


class GrpcParser(Parser):
    """Base class; requests of other methods are forwarded unread."""

    methods: ClassVar[Mapping[str, tuple[_Read, GrpcResponse]]]
    """Reader of requests, and format of responses, by path."""
    names_model = False
    takes_others = True
    needs_http2 = True

    @property
    def suffixes(self) -> tuple[str, ...]:
        return tuple(self.methods)

    def parse(self, suffix: str, headers: Headers, body: bytes) -> RequestBody:
        if suffix not in self.methods:
            return RequestBody(skip_response=True)
        read, response = self.methods[suffix]
        message = read_message(body)
        try:
            parsed = read(FieldReader(MOST_FIELDS), message, headers)
        except ValueError as error:
            raise _malformed(f"its message is not valid Protobuf: {error}") from error
        return msgspec.structs.replace(parsed, grpc_response=response)


_INPUT_IDS = 2
"""Field of a tokenized prompt."""
_TOKENIZED, _TEXT, _SAMPLING, _STREAM, _MEDIA = 2, 3, 4, 5, 7
"""Fields of a request."""
_MAX_TOKENS = 8
"""Field of sampling parameters."""
_PLACEHOLDERS, _HASHES = 5, 6
"""Fields of media."""
_OFFSET, _LENGTH = 1, 2
"""Fields of a placeholder."""
_GENERATED = GrpcResponse(
    counts=(
        GrpcCounts(message=1, prompt_tokens=2, completion_tokens=3, cached_tokens=4),
        GrpcCounts(message=2, prompt_tokens=3, completion_tokens=4, cached_tokens=5),
    )
)
"""Counts in a piece of a response, and in its end."""
_EMBEDDED = GrpcResponse(counts=(GrpcCounts(prompt_tokens=2),))


def _generate(reader: FieldReader, message: memoryview, _: Headers) -> RequestBody:
    found = dict(reader.fields(message))  # of several values, the last one counts
    text = b"" if _TOKENIZED in found else bytes(_part(found, _TEXT))
    if len(text) > MOST_TEXT:
        raise limit_exceeded("characters of text", MOST_TEXT)
    prompt = text or _token_ids(reader, _part(found, _TOKENIZED))
    spans = _spans(reader, _part(found, _MEDIA))
    if text:  # the placeholders are in the tokens, which the server computes
        spans = [span._replace(offset=0, length=0) for span in spans]
    prompt, hashes = with_media(prompt, spans, "mm_inputs.mm_placeholders", ids="tokenized.input_ids")
    return request_body(
        Common(stream=bool(_number(found, _STREAM))),
        prompt,
        _number(dict(reader.fields(_part(found, _SAMPLING))), _MAX_TOKENS),
        len(spans),
        media_hashes=hashes,
        is_token_ids=not text and not spans,
    )


def _embed(reader: FieldReader, message: memoryview, _: Headers) -> RequestBody:
    prompt = _token_ids(reader, _part(dict(reader.fields(message)), _TOKENIZED))
    return request_body(Common(), prompt, None, is_token_ids=True)


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
        raise limit_exceeded("token ids", MOST_TOKEN_IDS)
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

    Requests do not name a model. Hashes of media replace their placeholder tokens. Other methods are routed without a
    prompt. Compressed messages are refused.
    """

    plugin_type = "vllmgrpc-parser"
    methods: ClassVar[Mapping[str, tuple[_Read, GrpcResponse]]] = {
        "vllm.grpc.engine.VllmEngine/Generate": (_generate, _GENERATED),
        "vllm.grpc.engine.VllmEngine/Embed": (_embed, _EMBEDDED),
    }


_HTTP_BODY, _DATA = 2, 2
"""Fields of a request, and of the body in it."""
_WRAPPED = GrpcResponse(json_body=_DATA)


def _wrapped(suffix: str) -> _Read:
    def read(reader: FieldReader, message: memoryview, headers: Headers) -> RequestBody:
        body = _part(dict(reader.fields(message)), _HTTP_BODY)
        data = bytes(_part(dict(reader.fields(body)), _DATA))
        return _OPENAI.parse(suffix, headers, data)

    return read


_OPENAI = OpenAIParser()


class VertexAIParser(GrpcParser):
    """Parses the prediction service of Vertex AI, whose messages wrap JSON of OpenAI's API.

    `ChatCompletions` has a chat, `RawPredict` and `StreamRawPredict` have a body of the Responses API. Other methods
    are routed without a prompt. Models are not rewritten. Compressed messages are refused.
    """

    plugin_type = "vertexai-parser"
    methods: ClassVar[Mapping[str, tuple[_Read, GrpcResponse]]] = {
        f"google.cloud.aiplatform.{version}.PredictionService/{method}": (_wrapped(suffix), _WRAPPED)
        for version in ("v1", "v1beta1")
        for method, suffix in (
            ("ChatCompletions", "chat/completions"),
            ("RawPredict", "responses"),
            ("StreamRawPredict", "responses"),
        )
    }
