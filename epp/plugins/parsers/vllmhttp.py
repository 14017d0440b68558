# SPDX-License-Identifier: Apache-2.0
"""Parser of vLLM's generate API, whose prompt is token ids."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import msgspec

from epp.framework import RequestBody
from epp.framework.errors import MalformedBodyError
from epp.framework.messages import printable
from epp.framework.request import BYTES_PER_TOKEN
from epp.plugins.parsers.json_parser import ABSENT, Common, JsonParser, Limit, Reader, TokenId, request_body
from epp.plugins.parsers.prompt import placeholder
from epp.plugins.parsers.token_ids import read_ids


class _Range(msgspec.Struct, gc=False):
    offset: TokenId
    length: TokenId


class _Features(msgspec.Struct, gc=False):
    mm_hashes: dict[str, list[str | None]] | None = None
    mm_placeholders: dict[str, list[_Range]] | None = None


class _Sampling(msgspec.Struct, gc=False):
    max_tokens: Limit = None


class _Generate(Common, gc=False):
    token_ids: msgspec.Raw = ABSENT
    features: _Features | None = None
    sampling_params: _Sampling | None = None


_decode = msgspec.json.Decoder(_Generate).decode
MOST_FEATURES = 2048
"""Images and other media of a request."""


def _read(body: bytes) -> RequestBody:
    generate = _decode(body)
    prompt = read_ids(generate.token_ids, "token_ids")
    media_items = 0
    if generate.features is not None:
        prompt = _with_media(prompt, generate.features)
        media_items = sum(map(len, (generate.features.mm_placeholders or {}).values()))
    limit = None if generate.sampling_params is None else generate.sampling_params.max_tokens
    return request_body(generate, prompt, limit, media_items)


def _ids(body: bytes) -> msgspec.Raw:
    return _decode(body).token_ids


def _with_media(prompt: bytes, features: _Features) -> bytes:
    """Return the prompt with the hash of each media item in place of its placeholder tokens, which are all equal."""
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
                    f'"features.mm_placeholders.{printable(kind)}" lie outside "token_ids" or on top of each other: '
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
    readers: ClassVar[Mapping[str, Reader]] = MappingProxyType({"inference/v1/generate": _read})
    token_ids = MappingProxyType({"inference/v1/generate": _ids})
