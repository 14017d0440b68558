# SPDX-License-Identifier: Apache-2.0
"""Base of the parsers of JSON bodies: common fields, token limits and errors."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, ClassVar, TypeAlias

import msgspec

from epp.framework import Headers, Media, Parser, RequestBody
from epp.framework.errors import MalformedBodyError, NoParserError
from epp.framework.request import BYTES_PER_TOKEN
from epp.plugins.parsers import body_limits
from epp.plugins.parsers.json_errors import not_json, wrong_shape

ABSENT = msgspec.Raw()
_MOST_TOKENS = 2**63 - 1
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Limit: TypeAlias = int | float | None
TokenId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Reader: TypeAlias = Callable[[bytes], RequestBody]
"""Reads the bodies of one API; raises MalformedBodyError or an error of msgspec."""


class Common(msgspec.Struct, gc=False):
    """Fields with the same meaning in all APIs."""

    model: str | None = None
    stream: bool | None = None
    cache_salt: str | None = None


class JsonParser(Parser):
    """Base: a reader for each path that it claims."""

    readers: ClassVar[Mapping[str, Reader]]
    token_ids: ClassVar[Mapping[str, Callable[[bytes], msgspec.Raw]]] = MappingProxyType({})
    """By path, what returns the JSON of the member that may have token ids."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        return tuple(self.readers)

    def parse(self, suffix: str, headers: Headers, body: bytes) -> RequestBody:
        read = self.readers.get(suffix)
        if read is None:
            raise NoParserError(suffix)
        try:
            if len(body) > body_limits.MOST_VALUES:
                body_limits.check(body, self.token_ids.get(suffix))
            return read(body)
        except msgspec.ValidationError as error:
            raise wrong_shape(error) from error
        except _UNREADABLE as error:
            raise not_json(error, body, headers) from error


def request_body(
    common: Common,
    prompt: bytes,
    limit: Limit,
    media_items: int = 0,
    *,
    media: tuple[Media, ...] = (),
    ends: tuple[int, ...] = (),
) -> RequestBody:
    """Return the parsed body; a negative limit is none. Raises MalformedBodyError for a limit beyond 64 bits."""
    if common.model is not None and len(common.model) > body_limits.MOST_MODEL:
        raise body_limits.beyond('characters in "model"', body_limits.MOST_MODEL)
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
