# SPDX-License-Identifier: Apache-2.0
"""Parser of vLLM's generate API, whose prompt is token ids."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import msgspec

from epp.framework import RequestBody
from epp.framework.errors import MalformedBodyError
from epp.framework.long_json import Envelope
from epp.framework.printable import printable
from epp.framework.request import BYTES_PER_TOKEN, Reading
from epp.framework.steps import LONG_BYTES, Steps, joined
from epp.plugins.parsers.in_batches import array_of, ids_in_batches, is_empty, read_object, within
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
from epp.plugins.parsers.long_arrays import MOST_COMMAS, is_dense_in_turns
from epp.plugins.parsers.prompt import placeholder
from epp.plugins.parsers.token_ids import pack


class _Range(msgspec.Struct, gc=False):
    offset: TokenId
    length: TokenId


class _Features(msgspec.Struct, gc=False):
    mm_hashes: dict[str, list[str | None]] | None = None
    mm_placeholders: dict[str, list[_Range]] | None = None


class _LongFeatures(msgspec.Struct, gc=False):
    mm_hashes: msgspec.Raw = ABSENT
    mm_placeholders: msgspec.Raw = ABSENT


class _Sampling(msgspec.Struct, gc=False):
    max_tokens: Limit = None


class _Generate(Common, gc=False):
    token_ids: list[TokenId] | None = None
    features: _Features | None = None
    sampling_params: _Sampling | None = None


class _Dense(Common, gc=False):
    token_ids: msgspec.Raw = ABSENT
    features: msgspec.Raw = ABSENT
    sampling_params: msgspec.Raw = ABSENT


_decode = msgspec.json.Decoder(_Generate).decode
_DENSE = Envelope(_Dense)
_SAMPLING = Envelope(_Sampling)
_FEATURES = Envelope(_LongFeatures)
_decode_features = msgspec.json.Decoder(_Features).decode


def _read(body: bytes) -> RequestBody:
    generate = _decode(body)
    if not generate.token_ids:
        raise empty("token_ids", "send the prompt as token ids")
    return _parsed(generate, pack(generate.token_ids), generate.features, generate.sampling_params)


def _read_dense(body: bytes) -> Reading:
    """Read a body of many elements, in batches but for its media, whose number has a limit."""
    generate = yield from _DENSE.read(body)
    ids = array_of(generate.token_ids, "$.token_ids")
    if (yield from is_empty(ids)):
        raise empty("token_ids", "send the prompt as token ids")
    features = yield from _features(generate.features)
    sampling = yield from read_object(_SAMPLING, generate.sampling_params, "$.sampling_params")
    pieces: list[bytes] = []
    yield from ids_in_batches(ids, "$.token_ids", pieces.append)
    prompt = yield from joined(pieces)
    return _parsed(generate, prompt, features, sampling)


def _features(raw: msgspec.Raw) -> Steps[_Features | None]:
    """Return the media of a body of many elements, whose number has a limit."""
    if (yield from is_dense_in_turns(memoryview(raw))):
        raise _too_many_values()
    long = yield from read_object(_FEATURES, raw, "$.features")
    if long is None:
        return None
    if max(len(memoryview(long.mm_hashes)), len(memoryview(long.mm_placeholders))) > LONG_BYTES:
        raise _too_many_values()
    found = {"mm_hashes": long.mm_hashes, "mm_placeholders": long.mm_placeholders}
    try:
        return _decode_features(msgspec.json.encode({name: raw for name, raw in found.items() if raw is not ABSENT}))
    except msgspec.ValidationError as error:
        raise within(error, "$.features") from error


def _too_many_values() -> MalformedBodyError:
    return MalformedBodyError(
        f'"features" has more than {MOST_COMMAS} values: send fewer images in one request',
        param="features",
        kind="invalid_value",
    )


def _parsed(common: Common, prompt: bytes, features: _Features | None, sampling: _Sampling | None) -> RequestBody:
    """Return the parsed body, given its token ids as bytes."""
    media_items = 0
    if features is not None:
        prompt = _with_media(prompt, features)
        media_items = sum(map(len, (features.mm_placeholders or {}).values()))
    return request_body(common, prompt, sampling.max_tokens if sampling is not None else None, media_items)


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
    dense_readers: ClassVar[Mapping[str, DenseReader]] = MappingProxyType({"inference/v1/generate": _read_dense})
