# SPDX-License-Identifier: Apache-2.0
"""Parser of SGLang's generate API, whose prompt is token ids."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import msgspec

from epp.framework import RequestBody
from epp.framework.long_json import Envelope
from epp.framework.request import Reading
from epp.framework.steps import Steps, Turns
from epp.plugins.parsers.in_batches import (
    array_of,
    decode_raws,
    first_of,
    ids_in_batches,
    in_batches,
    is_empty,
    read_object,
)
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
    sampling_params: msgspec.Raw = ABSENT
    stream: bool | None = None
    image_data: msgspec.Raw = ABSENT
    audio_data: msgspec.Raw = ABSENT
    video_data: msgspec.Raw = ABSENT


_DENSE = Envelope(_Dense)
_SAMPLING = Envelope(_Sampling)
_decode = msgspec.json.Decoder(_Generate).decode
_NONE = frozenset({b"", b"null"})
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
    generate = yield from _DENSE.read(body)
    ids = array_of(generate.input_ids, "$.input_ids")
    if (yield from is_empty(ids)):
        raise empty("input_ids", "send the prompt as token ids")
    prompt = PromptWriter()
    yield from ids_in_batches(ids, "$.input_ids", prompt.part_of_prompt)
    sampling = yield from read_object(_SAMPLING, generate.sampling_params, "$.sampling_params")
    limit = None if sampling is None else sampling.max_new_tokens
    common = Common(stream=generate.stream, cache_salt=generate.extra_key)
    items = 0
    for media in (generate.image_data, generate.audio_data, generate.video_data):
        items += yield from _count_in_batches(media)
    written = yield from prompt.written_in_turns()
    return request_body(common, written, limit, items)


def _count_in_batches(media: msgspec.Raw) -> Steps[int]:
    """Return the same as `_count`."""
    found = memoryview(media)
    if first_of(found) != b"[":
        return int(bytes(found[:5]) not in _NONE)
    counts: list[int] = []

    def count(batch: bytes) -> None:
        counts.append(sum(len(_items(item)) for item in decode_raws(batch)))

    def count_long(element: memoryview) -> Turns:
        if first_of(element) == b"[":
            yield from in_batches(element, "$", count_inner, count_one)
        else:
            counts.append(1)

    def count_inner(batch: bytes) -> None:
        counts.append(len(decode_raws(batch)))

    def count_one(_element: memoryview) -> Turns:
        counts.append(1)
        yield from ()

    yield from in_batches(found, "$", count, count_long)
    return sum(counts)


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
    dense_readers: ClassVar[Mapping[str, DenseReader]] = MappingProxyType({"/generate": _read_dense})
