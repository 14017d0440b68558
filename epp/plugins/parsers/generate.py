# SPDX-License-Identifier: Apache-2.0
"""Parsers of the generate APIs of vLLM and SGLang, whose prompts are token ids."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import msgspec

from epp.framework import RequestBody
from epp.framework.errors import MalformedBodyError
from epp.framework.messages import printable
from epp.framework.request import BYTES_PER_TOKEN
from epp.plugins.parsers.json_parser import ABSENT, Common, JsonParser, Limit, Reader, TokenId, request_body
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


_decode_vllm = msgspec.json.Decoder(_VLLMGenerate).decode
MOST_FEATURES = 2048
"""Most images and other media in a request."""


def _read_vllm(body: bytes) -> RequestBody:
    generate = _decode_vllm(body)
    prompt = read_ids(generate.token_ids, "token_ids")
    media_items = 0
    if generate.features is not None:
        prompt = _with_media(prompt, generate.features)
        media_items = sum(map(len, (generate.features.mm_placeholders or {}).values()))
    limit = None if generate.sampling_params is None else generate.sampling_params.max_tokens
    return request_body(generate, prompt, limit, media_items)


def _vllm_ids(body: bytes) -> msgspec.Raw:
    return _decode_vllm(body).token_ids


def _with_media(prompt: bytes, features: _Features) -> bytes:
    """Return the prompt with the hash of each media item in place of its equal placeholder tokens."""
    hashes = features.mm_hashes or {}
    ranges = features.mm_placeholders or {}
    if {kind: len(found) for kind, found in hashes.items()} != {kind: len(found) for kind, found in ranges.items()}:
        raise MalformedBodyError(
            '"features.mm_hashes" and "features.mm_placeholders" differ in length: name the same items in both',
            param="features",
            kind="invalid_value",
        )
    if sum(map(len, ranges.values())) > MOST_FEATURES:
        raise MalformedBodyError(
            f'"features" has more than {MOST_FEATURES} media: send fewer images in one request',
            param="features",
            kind="invalid_value",
        )
    written = bytearray(prompt)
    tokens_left = len(prompt) // BYTES_PER_TOKEN
    for kind, found in hashes.items():
        for mm_hash, span in zip(found, ranges[kind], strict=True):
            start, end = span.offset * BYTES_PER_TOKEN, (span.offset + span.length) * BYTES_PER_TOKEN
            tokens_left -= span.length
            if end > len(prompt) or tokens_left < 0:
                raise MalformedBodyError(
                    f'"features.mm_placeholders.{printable(kind)}" lie outside "token_ids" or overlap: '
                    "send offsets and lengths within it",
                    param="features.mm_placeholders",
                    kind="invalid_value",
                )
            if mm_hash is not None:
                written[start:end] = placeholder(mm_hash.encode(), span.length)
    return bytes(written)


class VLLMHTTPParser(JsonParser):
    """Parses the generate API: the prompt is the token ids, four little-endian bytes each, and hashes of media."""

    plugin_type = "vllmhttp-parser"
    readers: ClassVar[Mapping[str, Reader]] = MappingProxyType({"inference/v1/generate": _read_vllm})
    token_ids = MappingProxyType({"inference/v1/generate": _vllm_ids})


class _SGLangSampling(msgspec.Struct, gc=False):
    max_new_tokens: Limit = None


class _SGLangGenerate(msgspec.Struct, gc=False):
    input_ids: msgspec.Raw = ABSENT
    extra_key: str | None = None
    sampling_params: _SGLangSampling | None = None
    stream: bool | None = None
    image_data: msgspec.Raw = ABSENT
    audio_data: msgspec.Raw = ABSENT
    video_data: msgspec.Raw = ABSENT


_decode_sglang = msgspec.json.Decoder(_SGLangGenerate).decode
_NO_MEDIA = frozenset({b"", b"null"})
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _read_sglang(body: bytes) -> RequestBody:
    generate = _decode_sglang(body)
    prompt = read_ids(generate.input_ids, "input_ids")
    limit = generate.sampling_params.max_new_tokens if generate.sampling_params is not None else None
    common = Common(stream=generate.stream, cache_salt=generate.extra_key)
    media = (generate.image_data, generate.audio_data, generate.video_data)
    return request_body(common, prompt, limit, sum(map(_count, media)))


def _sglang_ids(body: bytes) -> msgspec.Raw:
    return _decode_sglang(body).input_ids


def _count(media: msgspec.Raw) -> int:
    return sum(len(_items(item)) for item in _items(media))


def _items(media: msgspec.Raw) -> list[msgspec.Raw]:
    found = bytes(media)
    if found.startswith(b"["):
        return _decode_list(found)
    return [] if found in _NO_MEDIA else [media]


class SGLangHTTPParser(JsonParser):
    """Parses the generate API: the prompt is the token ids, four little-endian bytes each, the salt `extra_key`."""

    plugin_type = "sglanghttp-parser"
    names_model = False
    readers: ClassVar[Mapping[str, Reader]] = MappingProxyType({"/generate": _read_sglang})
    token_ids = MappingProxyType({"/generate": _sglang_ids})
