# SPDX-License-Identifier: Apache-2.0
"""Base of the parsers of JSON bodies: limits, common fields and errors; and the parser of all other paths."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Annotated, ClassVar, TypeAlias

import msgspec
import numpy as np

from epp.framework import Headers, Media, Parser, RequestBody
from epp.framework.errors import MalformedBodyError, NoParserError
from epp.framework.plugin import P
from epp.framework.request import BYTES_PER_TOKEN
from epp.plugins.parsers.json_errors import not_json, wrong_shape

MOST_VALUES = 65_536
"""JSON values in a body: messages, content parts, tools and their members; token ids have their own limit."""
MOST_TOKEN_IDS = 1024 * 1024
"""Token ids in a body: the longest contexts of models have one million tokens."""
MOST_TOKEN_ID_BYTES = 10 * MOST_TOKEN_IDS
"""Bytes of the JSON of token ids: a number of seven digits, a comma and a space have nine."""
MOST_LISTED_TOKEN_IDS = 320 * 1024
"""Token ids of several prompts; OpenAI takes 300,000 tokens in one request of embeddings."""
MOST_TEXT = 8 * 1024 * 1024
"""Characters of text in a prompt, about two million tokens; media have their own limit."""
MOST_ESCAPES = 2 * 1024 * 1024
"""Escapes in the strings of a body, which are slow to decode."""
MOST_MODEL = 64 * 1024
"""Characters of a model name."""
_WINDOW_BYTES = 64 * 1024
_MOST_QUOTES = 4 * MOST_VALUES
"""Quotes: a value may have four, with its key."""


def check_limits(body: bytes, token_ids: Callable[[bytes], msgspec.Raw] | None = None) -> msgspec.Raw | None:
    """Raise MalformedBodyError for a body beyond a limit; return many token ids, as a part of the body.

    `token_ids` returns the JSON of the member that may have token ids; it may raise errors of msgspec.
    """
    if len(body) > MOST_ESCAPES and b"\\" in body and body.count(b"\\") > MOST_ESCAPES:
        raise beyond("escapes in strings", MOST_ESCAPES)
    commas = count_of(",", body)  # those in strings too
    if commas <= MOST_VALUES:
        return None
    most = MOST_VALUES if token_ids is None else MOST_VALUES + MOST_TOKEN_IDS
    values = commas if commas <= most else count_values(body, most)
    if values > most:
        raise beyond("JSON values" if token_ids is None else "JSON values and token ids", most)
    if token_ids is None:
        return None
    raw = token_ids(body)
    ids = bytes(raw)
    quotes = count_of('"', ids)
    inside = count_values(ids, MOST_TOKEN_IDS) if quotes else count_of(",", ids)
    if inside > MOST_TOKEN_IDS:
        raise beyond("token ids", MOST_TOKEN_IDS)
    if len(ids) > MOST_TOKEN_ID_BYTES and not quotes:
        raise beyond("bytes of token ids", MOST_TOKEN_ID_BYTES)
    lists = count_of("[", ids)
    if inside > MOST_LISTED_TOKEN_IDS and (lists > 1 or quotes):
        raise beyond("token ids in several lists", MOST_LISTED_TOKEN_IDS)
    if lists > MOST_VALUES or quotes > 2 * MOST_VALUES:
        raise beyond("JSON values", MOST_VALUES)
    if values - inside > MOST_VALUES and count_values(body, most) - inside > MOST_VALUES:
        raise beyond("JSON values", MOST_VALUES)
    return raw


def count_of(character: str, text: bytes) -> int:
    """Return the number of these characters: faster than bytes.count where there are many."""
    every = np.frombuffer(text, np.uint8)
    starts = range(0, len(text), _WINDOW_BYTES)
    return sum(int(np.count_nonzero(every[start : start + _WINDOW_BYTES] == ord(character))) for start in starts)


def count_values(text: bytes, most: int) -> int:
    """Return the number of commas outside of strings, about the number of values; `most` + 1 if there are more.

    It also returns `most` + 1 for more quotes than 65,536 values can have.
    """
    found = quotes = start = 0
    while start < len(text):
        window = text[start : start + _WINDOW_BYTES]
        if (len(window) - len(window.rstrip(b"\\"))) % 2:  # the window ends within an escape
            window += text[start + _WINDOW_BYTES : start + _WINDOW_BYTES + 1]
        start += len(window)
        if b"\\" in window:
            window = window.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        parts = window.split(b'"')
        found += b"".join(parts[quotes % 2 :: 2]).count(b",")
        quotes += len(parts) - 1
        if found > most or quotes > _MOST_QUOTES:
            return most + 1
    return found


def beyond(what: str, most: int) -> MalformedBodyError:
    """Return the error for a body beyond a limit."""
    return MalformedBodyError(
        f"the request body has more than {most} {what}: send a shorter request", kind="invalid_value"
    )


ABSENT = msgspec.Raw()
_MOST_TOKENS = 2**63 - 1
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Limit: TypeAlias = int | float | None
TokenId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class ApiBody(msgspec.Struct, gc=False):
    """The fields of one API that routing needs."""

    def read(self) -> RequestBody:
        """Return what routing needs; raises MalformedBodyError or an error of msgspec."""
        raise NotImplementedError


class Common(ApiBody, gc=False):
    """Fields with the same meaning in most APIs."""

    model: str | None = None
    stream: bool | None = None
    cache_salt: str | None = None


class JsonParser(Parser[P]):
    """Base: one type of body for each path."""

    bodies: ClassVar[Mapping[str, type[ApiBody]]]
    not_run: ClassVar[frozenset[str]] = frozenset()
    """Paths that render or count a prompt: the engine does not run the model, so the prompt is empty."""
    id_members: ClassVar[Mapping[str, str]] = {}
    """By path, the member that may have token ids."""

    def setup(self) -> None:
        self._decode = {path: msgspec.json.Decoder(body).decode for path, body in self.bodies.items()}
        self._token_ids = {path: _raw_member(name) for path, name in self.id_members.items()}

    @property
    def suffixes(self) -> tuple[str, ...]:
        return tuple(self.bodies)

    def parse(self, suffix: str, headers: Headers, body: bytes) -> RequestBody:
        decode = self._decode.get(suffix)
        if decode is None:
            raise NoParserError(suffix)
        try:
            ids = check_limits(body, self._token_ids.get(suffix)) if len(body) > MOST_VALUES else None
            found = (decode(body) if ids is None else self._without(ids, suffix, body)).read()
        except msgspec.ValidationError as error:
            raise wrong_shape(error) from error
        except _UNREADABLE as error:
            raise not_json(error, body, headers) from error
        return RequestBody(model=found.model, skip_response=True) if suffix in self.not_run else found

    def _without(self, ids: msgspec.Raw, suffix: str, body: bytes) -> ApiBody:
        """Return the decoded body; token ids are scanned once."""
        start, end = (int(np.frombuffer(each, np.uint8).__array_interface__["data"][0]) for each in (body, ids))
        at = end - start
        found = self._decode[suffix](b"%b[]%b" % (body[:at], body[at + len(memoryview(ids)) :]))
        setattr(found, self.id_members[suffix], ids)
        return found


def _raw_member(name: str) -> Callable[[bytes], msgspec.Raw]:
    """Return a function that returns the JSON of one member of a body."""
    decode = msgspec.json.Decoder(msgspec.defstruct("Member", [(name, msgspec.Raw, ABSENT)], gc=False)).decode
    return lambda body: getattr(decode(body), name)


def request_body(
    common: Common,
    prompt: bytes,
    limit: Limit,
    media_items: int = 0,
    *,
    media: tuple[Media, ...] = (),
    media_hashes: tuple[tuple[str, bytes], ...] = (),
    ends: tuple[int, ...] = (),
    is_token_ids: bool = False,
) -> RequestBody:
    """Return the parsed body; a negative limit means no limit. Raises MalformedBodyError for one beyond 64 bits."""
    if common.model is not None and len(common.model) > MOST_MODEL:
        raise beyond('characters in "model"', MOST_MODEL)
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
        media_hashes=media_hashes,
        prompt_ends=ends,
        is_token_ids=is_token_ids,
    )


class PassthroughParser(Parser):
    """Accepts requests of all paths without a parser; they have no model and no prompt."""

    plugin_type = "passthrough-parser"
    names_model = False
    suffixes = ()

    def parse(self, suffix: str, headers: Headers, body: bytes) -> RequestBody:
        return RequestBody()
