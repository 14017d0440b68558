# SPDX-License-Identifier: Apache-2.0
"""Parsers of the generate APIs of vLLM and SGLang, whose prompts are token ids."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import msgspec
import xxhash

from epp.framework import RequestBody
from epp.framework.errors import MalformedBodyError
from epp.framework.messages import printable
from epp.framework.request import BYTES_PER_TOKEN
from epp.plugins.parsers.json_parser import ABSENT, ApiBody, Common, JsonParser, Limit, TokenId, request_body
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
        spans = _spans(self.features)
        prompt, hashes = with_media(prompt, spans, "features.mm_placeholders", ids="token_ids")
        return request_body(self, prompt, limit, len(spans), media_hashes=hashes)


MOST_FEATURES = 2048
"""Most images and other media in a request."""
_KINDS = frozenset({"image", "audio", "video"})


class Span(NamedTuple):
    """Placeholder tokens of a media item in a prompt of token ids."""

    kind: str
    """`image`, `audio`, `video` or another; empty for unknown."""
    offset: int
    length: int
    hash: str | None
    """Hash of the content; None if it is unknown."""


def _spans(features: _Features) -> list[Span]:
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
    """Parses the generate API: the prompt is the token ids, four little-endian bytes each, the salt `extra_key`."""

    plugin_type = "sglanghttp-parser"
    names_model = False
    bodies: ClassVar[Mapping[str, type[ApiBody]]] = {"/generate": _SGLangGenerate}
    id_members: ClassVar[Mapping[str, str]] = {"/generate": "input_ids"}
