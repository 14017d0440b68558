# SPDX-License-Identifier: Apache-2.0
"""Base class of the parsers of JSON bodies: limits, common fields, errors with positions. Parser of other paths."""

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Annotated, ClassVar, TypeAlias

import msgspec
import numpy as np

from epp.framework import Headers, Media, Parser, RequestBody
from epp.framework.errors import MalformedBodyError, NoParserError
from epp.framework.messages import quoted
from epp.framework.plugin import P
from epp.framework.request import BYTES_PER_TOKEN

_WRONG_TYPE = re.compile(r"Expected `([^`]+)`(?: (>=|<=) (-?\d+))?(?:, got `([^`]+)`)?(?: - at `\$\.?([^`]*)`)?")
_MISSING = re.compile(r"Object missing required field `([^`]+)`(?: - at `\$\.?([^`]*)`)?")
_OTHER = re.compile(r"(.*?)(?: - at `\$\.?([^`]*)`)?")
_JSON_ERROR = re.compile(r"JSON is malformed: (.*) \(byte (\d+)\)")
_TYPES = {
    "array": "an array",
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "null": "null",
    "object": "an object",
    "str": "a string",
}
_HALF_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
_BOUNDS = {">=": "at least", "<=": "at most"}
_TRAILING = "trailing characters"
_EXPECTED = {
    "invalid character": "a JSON value was expected",
    "object keys must be strings": "a key in double quotes was expected",
    _TRAILING: "nothing was expected after the JSON value",
    "trailing comma in object": "a key was expected after the comma",
    "trailing comma in array": "a value was expected after the comma",
}
_FIRST_PRINTABLE = 0x20


def wrong_shape(error: msgspec.ValidationError) -> MalformedBodyError:
    """Return the error for valid JSON of the wrong shape: it names the place and both types."""
    text = str(error)
    if found := _WRONG_TYPE.fullmatch(text):
        types, bound, number, got, path = found.groups()
        wanted = _type_names(types) if bound is None else f"{_type_names(types)} of {_BOUNDS[bound]} {number}"
        instead = "" if got is None else f", not {_TYPES.get(got, got)}"
        kind = "invalid_type" if bound is None else "invalid_value"
        return _shape_error(path, f"must be {wanted}{instead}", kind)
    if found := _MISSING.fullmatch(text):
        field, path = found.groups()
        return _shape_error(f"{path}.{field}" if path else field, "is missing: add it", "missing_required_parameter")
    found = _OTHER.fullmatch(text)
    problem, path = found.groups() if found else (text, "")
    return _shape_error(path, f"is not accepted: {problem[:1].lower()}{problem[1:]}", "invalid_value")


def not_json(error: Exception, body: bytes, headers: Headers) -> MalformedBodyError:
    """Return the error for a body that is not valid JSON, with the place and a possible cause.

    The message quotes no text of the body, because that may be part of the prompt.
    """
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        return MalformedBodyError(
            f"the request body has content-encoding {quoted(encoding)}, which is not supported: "
            "send it as plain JSON, uncompressed"
        )
    return MalformedBodyError(f"the request body is not valid JSON: {_problem(error, body)}{_hint(headers)}")


def _problem(error: Exception, body: bytes) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        try:
            body.decode()
        except UnicodeDecodeError as whole:  # `error` has the position within a string
            return f"{_position(body, whole.start)} is not UTF-8"
    found = _JSON_ERROR.fullmatch(str(error))
    if found is None:
        half = _HALF_PAIR.search(body) if b"\\u" in body else None  # msgspec reports such a string as unterminated
        if half is not None:
            place = _position(body, half.start())
            return f"at {place}, half of a surrogate pair was found, or it ends before it is complete"
        return f"it ends at {_position(body, len(body))}, before it is complete"
    position = int(found[2]) - (found[1] == _TRAILING)  # msgspec has read past the first such character
    if found[1] == "invalid character" and position < len(body) and body[position] < _FIRST_PRINTABLE:
        expected = "a control character was found: escape it inside a string, a line break as \\n"
    else:
        expected = _EXPECTED.get(found[1], found[1])
    return f"at {_position(body, position)}, {expected}"


def _position(body: bytes, position: int) -> str:
    line, last = body.count(b"\n", 0, position) + 1, body.rfind(b"\n", 0, position)
    return f"line {line}, column {position - last} (byte {position})"


def _hint(headers: Headers) -> str:
    content_type = headers.get("content-type", "")
    if not content_type or "json" in content_type.lower():
        return ""
    return f"; its content-type is {quoted(content_type)}: send JSON, with content-type: application/json"


def _type_names(types: str) -> str:
    """Name the types, without null, which means absence, and without integers if other numbers are allowed."""
    names = types.split(" | ")
    kept = [name for name in names if name != "null" and not (name == "int" and "float" in names)]
    *others, last = [_TYPES.get(name, name) for name in kept or names]
    return f"{', '.join(others)} or {last}" if others else last


def _shape_error(path: str | None, problem: str, kind: str) -> MalformedBodyError:
    subject = f'"{path}"' if path else "the JSON of the request body"
    return MalformedBodyError(f"{subject} {problem}", param=path or None, kind=kind)


def missing_field(param: str, remedy: str) -> MalformedBodyError:
    return MalformedBodyError(
        f'"{param}" is missing or empty: {remedy}', param=param, kind="missing_required_parameter"
    )


def error_at(error: msgspec.ValidationError, place: str) -> msgspec.ValidationError:
    """Return the error of a value as an error of the whole body; `place` is the value's, such as `$.prompt`."""
    text = str(error)
    if "at `$" in text:
        return msgspec.ValidationError(text.replace("at `$", f"at `{place}", 1))
    return msgspec.ValidationError(f"{text} - at `{place}`")


MOST_VALUES = 65_536
"""Maximum JSON values in a body: messages, content parts, tools and their members; token ids have their own limit."""
MOST_TOKEN_IDS = 1024 * 1024
"""Maximum token ids in a body: the longest contexts of models have one million tokens."""
MOST_TOKEN_ID_BYTES = 10 * MOST_TOKEN_IDS
"""Maximum bytes of the JSON of token ids: a number of seven digits, a comma and a space have nine."""
MOST_LISTED_TOKEN_IDS = 320 * 1024
"""Maximum token ids of several prompts; OpenAI takes 300,000 tokens in one request of embeddings."""
MOST_TEXT = 8 * 1024 * 1024
"""Maximum characters of text in a prompt, about two million tokens; media have their own limit."""
MOST_ESCAPES = 2 * 1024 * 1024
"""Maximum escapes in the strings of a body, which are slow to decode."""
MOST_MODEL = 64 * 1024
"""Maximum characters of a model name."""
_WINDOW_BYTES = 64 * 1024
_MOST_QUOTES = 4 * MOST_VALUES
"""Maximum quotes: a value may have four, with its key."""


def check_limits(body: bytes, token_ids: Callable[[bytes], msgspec.Raw] | None = None) -> msgspec.Raw | None:
    """Raise MalformedBodyError for a body beyond a limit; return the JSON of the token ids if there are many.

    `token_ids` returns the JSON of the member that may have token ids; it may raise errors of msgspec.
    """
    if len(body) > MOST_ESCAPES and b"\\" in body and body.count(b"\\") > MOST_ESCAPES:
        raise limit_exceeded("escapes in strings", MOST_ESCAPES)
    commas = count_of(",", body)  # including those in strings
    if commas <= MOST_VALUES:
        return None
    most = MOST_VALUES if token_ids is None else MOST_VALUES + MOST_TOKEN_IDS
    values = commas if commas <= most else count_values(body, most)
    if values > most:
        raise limit_exceeded("JSON values" if token_ids is None else "JSON values and token ids", most)
    if token_ids is None:
        return None
    raw = token_ids(body)
    ids = bytes(raw)
    quotes = count_of('"', ids)
    inside = count_values(ids, MOST_TOKEN_IDS) if quotes else count_of(",", ids)
    if inside > MOST_TOKEN_IDS:
        raise limit_exceeded("token ids", MOST_TOKEN_IDS)
    if len(ids) > MOST_TOKEN_ID_BYTES and not quotes:
        raise limit_exceeded("bytes of token ids", MOST_TOKEN_ID_BYTES)
    lists = count_of("[", ids)
    if inside > MOST_LISTED_TOKEN_IDS and (lists > 1 or quotes):
        raise limit_exceeded("token ids in several lists", MOST_LISTED_TOKEN_IDS)
    if lists > MOST_VALUES or quotes > 2 * MOST_VALUES:
        raise limit_exceeded("JSON values", MOST_VALUES)
    if values - inside > MOST_VALUES and count_values(body, most) - inside > MOST_VALUES:
        raise limit_exceeded("JSON values", MOST_VALUES)
    return raw


def count_of(character: str, text: bytes) -> int:
    """Return the number of these characters; faster than bytes.count if there are many."""
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


def limit_exceeded(what: str, most: int) -> MalformedBodyError:
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
        """Return the parsed body; raises MalformedBodyError or an error of msgspec."""
        raise NotImplementedError


class Common(ApiBody, gc=False):
    """Fields with the same meaning in most APIs."""

    model: str | None = None
    stream: bool | None = None
    cache_salt: str | None = None


class JsonParser(Parser[P]):
    """Base class: one type of body for each path."""

    bodies: ClassVar[Mapping[str, type[ApiBody]]]
    not_run: ClassVar[frozenset[str]] = frozenset()
    """Paths that render or count a prompt: the engine does not run the model, so the prompt is empty."""
    id_members: ClassVar[Mapping[str, str]] = {}
    """Member that may have token ids, by path."""

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
            found = (decode(body) if ids is None else self._decode_without(ids, suffix, body)).read()
        except msgspec.ValidationError as error:
            raise wrong_shape(error) from error
        except _UNREADABLE as error:
            raise not_json(error, body, headers) from error
        return RequestBody(model=found.model, skip_response=True) if suffix in self.not_run else found

    def _decode_without(self, ids: msgspec.Raw, suffix: str, body: bytes) -> ApiBody:
        """Return the decoded body; the token ids `ids` are scanned only once."""
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
    """Return the parsed body; a negative limit means no limit. Raises MalformedBodyError for a limit beyond 64 bits."""
    if common.model is not None and len(common.model) > MOST_MODEL:
        raise limit_exceeded('characters in "model"', MOST_MODEL)
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
