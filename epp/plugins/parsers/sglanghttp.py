# SPDX-License-Identifier: Apache-2.0
"""Parser of SGLang's generate API, whose prompt is token ids."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import msgspec

from epp.framework import RequestBody
from epp.plugins.parsers.json_parser import ABSENT, Common, JsonParser, Limit, Reader, request_body
from epp.plugins.parsers.token_ids import read_ids


class _Sampling(msgspec.Struct, gc=False):
    max_new_tokens: Limit = None


class _Generate(msgspec.Struct, gc=False):
    input_ids: msgspec.Raw = ABSENT
    extra_key: str | None = None
    sampling_params: _Sampling | None = None
    stream: bool | None = None
    image_data: msgspec.Raw = ABSENT
    audio_data: msgspec.Raw = ABSENT
    video_data: msgspec.Raw = ABSENT


_decode = msgspec.json.Decoder(_Generate).decode
_NONE = frozenset({b"", b"null"})
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _read(body: bytes) -> RequestBody:
    generate = _decode(body)
    prompt = read_ids(generate.input_ids, "input_ids")
    limit = generate.sampling_params.max_new_tokens if generate.sampling_params is not None else None
    common = Common(stream=generate.stream, cache_salt=generate.extra_key)
    media = (generate.image_data, generate.audio_data, generate.video_data)
    return request_body(common, prompt, limit, sum(map(_count, media)))


def _ids(body: bytes) -> msgspec.Raw:
    return _decode(body).input_ids


def _count(media: msgspec.Raw) -> int:
    """Return the number of items: a single one, a list, or a list for each prompt."""
    return sum(len(_items(item)) for item in _items(media))


def _items(media: msgspec.Raw) -> list[msgspec.Raw]:
    found = bytes(media)
    if found.startswith(b"["):
        return _decode_list(found)
    return [] if found in _NONE else [media]


class SGLangHTTPParser(JsonParser):
    """Parses the generate API: the prompt is the token ids, four little-endian bytes each, the salt `extra_key`."""

    plugin_type = "sglanghttp-parser"
    names_model = False
    readers: ClassVar[Mapping[str, Reader]] = MappingProxyType({"/generate": _read})
    token_ids = MappingProxyType({"/generate": _ids})
