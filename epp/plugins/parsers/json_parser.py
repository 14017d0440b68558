# SPDX-License-Identifier: Apache-2.0
"""Base of the parsers of JSON bodies: common fields, token limits and errors."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Annotated, ClassVar, TypeAlias

import msgspec

from epp.framework import Headers, Media, Parser, RequestBody
from epp.framework.errors import MalformedBodyError, NoParserError
from epp.framework.request import BYTES_PER_TOKEN, Reading
from epp.framework.steps import LONG_BYTES
from epp.plugins.parsers.json_errors import not_json, not_json_in_turns, wrong_shape
from epp.plugins.parsers.long_arrays import is_dense

ABSENT = msgspec.Raw()
_MOST_TOKENS = 2**63 - 1
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Limit: TypeAlias = int | float | None
TokenId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Reader: TypeAlias = Callable[[bytes], RequestBody]
"""Reads the bodies of one API; raises MalformedBodyError or an error of msgspec."""
DenseReader: TypeAlias = Callable[[bytes], Reading]
"""Reads the same bodies with the same result, a batch of elements at a time."""


class Common(msgspec.Struct, gc=False):
    """Fields with the same meaning in all APIs."""

    model: str | None = None
    stream: bool | None = None
    cache_salt: str | None = None


class JsonParser(Parser):
    """Base: a reader for each path that it claims."""

    readers: ClassVar[Mapping[str, Reader]]
    dense_readers: ClassVar[Mapping[str, DenseReader]]
    """For long bodies and those of many elements; an API without one reads none."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        return tuple(self.readers)

    def parse(self, suffix: str, headers: Headers, body: bytes) -> RequestBody | Reading:
        read = self.readers.get(suffix)
        if read is None:
            raise NoParserError(suffix)
        read_dense = self.dense_readers.get(suffix)
        if len(body) >= LONG_BYTES:
            return _in_turns(read_dense or _at_once(read), headers, body)
        if read_dense is not None and is_dense(body):
            return _begun(_in_turns(read_dense, headers, body))
        try:
            return read(body)
        except _UNREADABLE as error:
            raise _malformed(error, headers, body) from error


def _at_once(read: Reader) -> DenseReader:
    def reading(body: bytes) -> Reading:
        yield from ()
        return read(body)

    return reading


def _in_turns(read: DenseReader, headers: Headers, body: bytes) -> Reading:
    try:
        return (yield from read(body))
    except _UNREADABLE as error:
        if isinstance(error, msgspec.ValidationError):
            raise wrong_shape(error) from error
        raise (yield from not_json_in_turns(error, body, headers)) from error


def _begun(reading: Reading) -> RequestBody | Reading:
    """Return the result if it takes no more than one turn."""
    try:
        next(reading)
    except StopIteration as end:
        found: RequestBody = end.value
        return found
    return reading


def _malformed(error: Exception, headers: Headers, body: bytes) -> MalformedBodyError:
    return wrong_shape(error) if isinstance(error, msgspec.ValidationError) else not_json(error, body, headers)


def request_body(
    common: Common,
    prompt: bytes,
    limit: Limit,
    media_items: int = 0,
    *,
    media: tuple[Media, ...] = (),
    ends: tuple[int, ...] = (),
) -> RequestBody:
    """Return the parsed body; a negative limit is none, one beyond 64 bits raises MalformedBodyError."""
    tokens = -(-len(prompt) // BYTES_PER_TOKEN)
    if ends:
        tokens = sum([-((start - end) // BYTES_PER_TOKEN) for start, end in pairwise((0, *ends))])
    if limit is not None and limit > _MOST_TOKENS:
        raise MalformedBodyError(
            f"the limit of output tokens is more than {_MOST_TOKENS}: send a smaller one", kind="invalid_value"
        )
    return RequestBody(
        model=common.model or "",
        prompt=prompt,
        prompt_tokens=tokens,
        max_output_tokens=None if limit is None or limit < 0 else int(limit),
        streaming=bool(common.stream),
        cache_salt=common.cache_salt or "",
        media_items=media_items,
        media=media,
        prompt_ends=ends,
    )


def not_run(read: Reader) -> Reader:
    """Return a reader with the same checks for an API that renders or counts a prompt without running the model.

    Its prompt is empty: the engine computes and caches nothing.
    """

    def read_envelope(body: bytes) -> RequestBody:
        return RequestBody(model=read(body).model, skip_response=True)

    return read_envelope


def dense_not_run(read: DenseReader) -> DenseReader:
    """Return the same for bodies of many elements."""

    def read_envelope(body: bytes) -> Reading:
        return RequestBody(model=(yield from read(body)).model, skip_response=True)

    return read_envelope
