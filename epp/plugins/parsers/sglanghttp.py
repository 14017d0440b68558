# SPDX-License-Identifier: Apache-2.0
"""Parser of SGLang's generate API, whose prompt is token ids."""

from collections.abc import Generator, Mapping
from types import MappingProxyType
from typing import ClassVar

import msgspec

from epp.framework import RequestBody
from epp.framework.request import Reading
from epp.plugins.parsers.in_batches import Turns, array_of, decode_raws, ids_in_batches, in_batches, is_empty
from epp.plugins.parsers.json_errors import empty
from epp.plugins.parsers.json_parser import (
    ABSENT,
    Common,
    DenseReader,
    JsonParser,
    Limit,
    Reader,
    TokenId,
    request_body,
)
from epp.plugins.parsers.prompt import PromptWriter
from epp.plugins.parsers.token_ids import pack


class _Sampling(msgspec.Struct, gc=False):
    max_new_tokens: Limit = None


class _Generate(msgspec.Struct, gc=False):
    input_ids: list[TokenId] | None = None
    extra_key: str | None = None
    sampling_params: _Sampling | None = None
    stream: bool | None = None
    image_data: msgspec.Raw = ABSENT
    audio_data: msgspec.Raw = ABSENT
    video_data: msgspec.Raw = ABSENT


class _Dense(msgspec.Struct, gc=False):
    input_ids: msgspec.Raw = ABSENT
    extra_key: str | None = None
    sampling_params: _Sampling | None = None
    stream: bool | None = None
    image_data: msgspec.Raw = ABSENT
    audio_data: msgspec.Raw = ABSENT
    video_data: msgspec.Raw = ABSENT


_decode_dense = msgspec.json.Decoder(_Dense).decode
_decode = msgspec.json.Decoder(_Generate).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _read(body: bytes) -> RequestBody:
    generate = _decode(body)
    if not generate.input_ids:
        raise empty("input_ids", "send the prompt as token ids")
    limit = generate.sampling_params.max_new_tokens if generate.sampling_params is not None else None
    common = Common(stream=generate.stream, cache_salt=generate.extra_key)
    media = (generate.image_data, generate.audio_data, generate.video_data)
    return request_body(common, pack(generate.input_ids), limit, sum(map(_count, media)))


def _read_dense(body: bytes) -> Reading:
    """Read a body of many elements, in batches."""
    generate = _decode_dense(body)
    ids = array_of(generate.input_ids, "$.input_ids")
    if is_empty(ids):
        raise empty("input_ids", "send the prompt as token ids")
    prompt = PromptWriter()
    yield from ids_in_batches(ids, "$.input_ids", prompt.part_of_prompt)
    limit = generate.sampling_params.max_new_tokens if generate.sampling_params is not None else None
    common = Common(stream=generate.stream, cache_salt=generate.extra_key)
    items = 0
    for media in (generate.image_data, generate.audio_data, generate.video_data):
        items += yield from _count_in_batches(media)
    return request_body(common, prompt.written(), limit, items)


def _count_in_batches(media: msgspec.Raw) -> Generator[None, None, int]:
    """Return the same as `_count`."""
    found = bytes(media)
    if not found.startswith(b"["):
        return _count(media)
    counts: list[int] = []

    def count(batch: bytes) -> None:
        counts.append(sum(len(_items(item)) for item in decode_raws(batch)))

    def count_long(batch: bytes) -> Turns:
        (item,) = decode_raws(batch)
        if bytes(item).startswith(b"["):
            yield from in_batches(bytes(item), "$", lambda inner: counts.append(len(decode_raws(inner))))
        else:
            counts.append(1)

    yield from in_batches(found, "$", count, count_long)
    return sum(counts)


def _count(media: msgspec.Raw) -> int:
    """Return the number of items: a single one, a list, or a list for each prompt."""
    return sum(len(_items(item)) for item in _items(media))


def _items(media: msgspec.Raw) -> list[msgspec.Raw]:
    found = bytes(media)
    if found.startswith(b"["):
        return _decode_list(found)
    return [] if found in {b"", b"null"} else [media]


class SGLangHTTPParser(JsonParser):
    """Parses the generate API: the prompt is the token ids, four little-endian bytes each, the salt `extra_key`."""

    plugin_type = "sglanghttp-parser"
    names_model = False
    readers: ClassVar[Mapping[str, Reader]] = MappingProxyType({"/generate": _read})
    dense_readers: ClassVar[Mapping[str, DenseReader]] = MappingProxyType({"/generate": _read_dense})
