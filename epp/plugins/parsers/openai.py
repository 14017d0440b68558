"""Reads the bodies of OpenAI's chat, completions, embeddings and responses APIs."""

from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

import msgspec
import numpy as np

from epp.framework import Headers, Parser, RequestBody
from epp.framework.errors import MalformedBodyError, NoParserError

_ABSENT = msgspec.Raw()
_EMPTY_JSON = (b"", b"null", b"[]")
_TEXT_TYPES = ("text", "input_text", "output_text")

_TokenId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_Prompt: TypeAlias = str | list[str | _TokenId | list[_TokenId]] | None
_Content: TypeAlias = str | list[msgspec.Raw] | None
_Limit: TypeAlias = int | float | None


class _Common(msgspec.Struct, gc=False):
    model: str | None = None
    stream: bool | None = None
    cache_salt: str | None = None


class _Message(msgspec.Struct, gc=False):
    role: str = ""
    content: _Content = None
    tool_calls: msgspec.Raw = _ABSENT


class _Part(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None


class _Item(msgspec.Struct, gc=False):
    role: str | None = None
    content: _Content = None


class _Chat(_Common, gc=False):
    messages: list[_Message] = []
    tools: msgspec.Raw = _ABSENT
    max_tokens: _Limit = None
    max_completion_tokens: _Limit = None


class _Completions(_Common, gc=False):
    prompt: _Prompt = None
    max_tokens: _Limit = None


class _Embeddings(_Common, gc=False):
    input: _Prompt = None


class _Responses(_Common, gc=False):
    input: _Content = None
    instructions: _Content = None
    tools: msgspec.Raw = _ABSENT
    max_output_tokens: _Limit = None


_decode_part = msgspec.json.Decoder(_Part).decode
_decode_item = msgspec.json.Decoder(_Item).decode
_decode_chat = msgspec.json.Decoder(_Chat).decode
_decode_completions = msgspec.json.Decoder(_Completions).decode
_decode_embeddings = msgspec.json.Decoder(_Embeddings).decode
_decode_responses = msgspec.json.Decoder(_Responses).decode


class OpenAIParser(Parser):
    """Decodes only what routing needs and puts the prompt into one canonical run of bytes.

    A chat is its tools, then each message as role, newline, content, tool calls, newline: a conversation that goes on
    starts with the bytes of the shorter one. Text parts count as their text, other parts (images, audio) and
    tools as the JSON they came as. Token ids are four little-endian bytes each, so that a quarter of the
    bytes is the number of tokens: an estimate for text, exact for ids.
    """

    plugin_type = "openai-parser"

    @property
    def suffixes(self) -> tuple[str, ...]:
        return tuple(_READERS)

    def parse(self, suffix: str, headers: Headers, body: bytes) -> RequestBody:  # noqa: ARG002
        read = _READERS.get(suffix)
        if read is None:
            raise NoParserError(suffix)
        try:
            return read(body)
        except msgspec.ValidationError as error:
            raise MalformedBodyError(f"invalid {suffix} request: {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedBodyError(f"error unmarshaling request bodyMap: {error}") from error


def _read_chat(body: bytes) -> RequestBody:
    chat = _decode_chat(body)
    if not chat.messages:
        raise MalformedBodyError("chat/completions request must have at least one message")
    pieces = _tools(chat.tools)
    for message in chat.messages:
        pieces += (message.role.encode(), b"\n", *_content(message.content), _json(message.tool_calls), b"\n")
    limit = chat.max_tokens if chat.max_completion_tokens is None else chat.max_completion_tokens
    return _body(chat, b"".join(pieces), limit)


def _read_completions(body: bytes) -> RequestBody:
    completions = _decode_completions(body)
    prompt = _prompt(completions.prompt, "completions", "prompt")
    if not prompt:
        raise MalformedBodyError("completions request must have a non-empty prompt")
    return _body(completions, prompt, completions.max_tokens)


def _read_embeddings(body: bytes) -> RequestBody:
    embeddings = _decode_embeddings(body)
    if embeddings.input is None:
        raise MalformedBodyError("embeddings request must have an input")
    return _body(embeddings, _prompt(embeddings.input, "embeddings", "input"), None)


def _read_responses(body: bytes) -> RequestBody:
    responses = _decode_responses(body)
    if responses.input is None:
        raise MalformedBodyError("responses request must have an input")
    pieces = _tools(responses.tools)
    if responses.instructions:
        pieces += (b"system\n", *_content(responses.instructions), b"\n")
    if isinstance(responses.input, str):
        pieces += (b"user\n", responses.input.encode(), b"\n")
    else:
        for raw in responses.input:
            pieces += _response_item(raw)
    return _body(responses, b"".join(pieces), responses.max_output_tokens)


def _response_item(raw: msgspec.Raw) -> tuple[bytes, ...]:
    """Render one input item: a message like a chat's, anything else as its JSON."""
    try:
        item = _decode_item(raw)
    except msgspec.ValidationError:  # unlike any item known here: the engine judges it
        return (_json(raw), b"\n")
    if item.role is None:
        return (_json(raw), b"\n")
    return (item.role.encode(), b"\n", *_content(item.content), b"\n")


def _content(content: _Content) -> list[bytes]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content.encode()]
    return [_part(raw) for raw in content]


def _part(raw: msgspec.Raw) -> bytes:
    try:
        part = _decode_part(raw)
    except msgspec.ValidationError:  # unlike any part known here: the engine judges it
        return _json(raw)
    if part.type in _TEXT_TYPES and part.text is not None:
        return part.text.encode()
    return _json(raw)


def _tools(tools: msgspec.Raw) -> list[bytes]:
    raw = _json(tools)
    return [raw, b"\n"] if raw else []


def _json(raw: msgspec.Raw) -> bytes:
    """Return JSON as it came; nothing for what is absent, null or an empty list."""
    found = bytes(raw)
    return b"" if found in _EMPTY_JSON else found


def _prompt(prompt: _Prompt, api: str, field: str) -> bytes:
    """Return the bytes of a string, of several, of token ids or of several lists of them; raises MalformedBodyError."""
    if prompt is None:
        return b""
    if isinstance(prompt, str):
        return prompt.encode()
    texts = [one for one in prompt if isinstance(one, str)]
    if len(texts) == len(prompt):
        return b"\n".join(text.encode() for text in texts)
    ids = [one for one in prompt if isinstance(one, int)]
    if len(ids) == len(prompt):
        return _pack(ids)
    lists = [one for one in prompt if isinstance(one, list)]
    if len(lists) == len(prompt):
        return b"".join(map(_pack, lists))
    raise MalformedBodyError(
        f"invalid {api} request: {field} mixes types; it must be a string, a list of strings, "
        "a list of token ids or a list of token-id lists"
    )


def _pack(ids: list[int]) -> bytes:
    return np.array(ids, dtype="<u4").tobytes()


def _body(common: _Common, prompt: bytes, limit: _Limit) -> RequestBody:
    return RequestBody(
        model=common.model or "",
        prompt=prompt,
        prompt_tokens=-(-len(prompt) // 4),
        max_output_tokens=None if limit is None else int(limit),
        streaming=bool(common.stream),
        cache_salt=common.cache_salt or "",
    )


_READERS: Mapping[str, Callable[[bytes], RequestBody]] = {
    "chat/completions": _read_chat,
    "completions": _read_completions,
    "embeddings": _read_embeddings,
    "responses": _read_responses,
}
