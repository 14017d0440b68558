# SPDX-License-Identifier: Apache-2.0
"""Readers of the OpenAI APIs chat, completions, embeddings and images."""

from itertools import chain
from typing import TypeAlias, cast

import msgspec
import xxhash

from epp.framework import RequestBody
from epp.framework.errors import MalformedBodyError
from epp.plugins.parsers.json_errors import empty, within
from epp.plugins.parsers.json_parser import ABSENT, Common, Limit, TokenId, request_body
from epp.plugins.parsers.prompt import Content, PromptWriter
from epp.plugins.parsers.token_ids import pack, packed_json

Input: TypeAlias = str | list[str | TokenId | list[TokenId]] | None
"""A prompt: a text, texts, token ids or lists of those."""

_EMBEDS_BASE64_BYTES_PER_TOKEN = 10923  # a hidden size of 4,096 at two bytes, four base64 bytes for three


class _Message(msgspec.Struct, gc=False):
    """A message of a chat."""

    role: str = ""
    content: Content = None
    tool_calls: msgspec.Raw = ABSENT


class _Chat(Common, gc=False):
    messages: list[_Message] | None = None
    tools: msgspec.Raw = ABSENT
    max_tokens: Limit = None
    max_completion_tokens: Limit = None


class _Completions(Common, gc=False):
    prompt: msgspec.Raw = ABSENT
    prompt_embeds: str | list[str] | None = None
    max_tokens: Limit = None


class _Embeddings(Common, gc=False):
    input: msgspec.Raw = ABSENT
    messages: list[_Message] | None = None


class _InputAlone(msgspec.Struct, gc=False):
    input: msgspec.Raw = ABSENT


class _Images(Common, gc=False):
    prompt: str | None = None


_decode_chat = msgspec.json.Decoder(_Chat).decode
_decode_completions = msgspec.json.Decoder(_Completions).decode
_decode_embeddings = msgspec.json.Decoder(_Embeddings).decode
_decode_input_alone = msgspec.json.Decoder(_InputAlone).decode
_decode_images = msgspec.json.Decoder(_Images).decode
_decode_input = msgspec.json.Decoder(Input).decode
_NONE = frozenset({b"", b"null"})


def prompt_of_completions(body: bytes) -> msgspec.Raw:
    """Return the JSON of `prompt`."""
    return _decode_completions(body).prompt


def input_of_embeddings(body: bytes) -> msgspec.Raw:
    """Return the JSON of `input`."""
    return _decode_input_alone(body).input


def read_chat(body: bytes) -> RequestBody:
    """Read a chat: tools, then messages."""
    chat = _decode_chat(body)
    if not chat.messages:
        raise empty("messages", "send at least one message")
    prompt = PromptWriter()
    prompt.tools(chat.tools)
    write_messages(prompt, chat.messages)
    limit = chat.max_tokens if chat.max_completion_tokens is None else chat.max_completion_tokens
    return request_body(chat, prompt.written(), limit, prompt.media_items, media=prompt.media())


def read_completions(body: bytes) -> RequestBody:
    """Read a request for a completion."""
    completions = _decode_completions(body)
    prompt = PromptWriter()
    _write_input(prompt, completions.prompt, "prompt")
    embeds = completions.prompt_embeds or []
    for encoded in [embeds] if isinstance(embeds, str) else embeds:
        prompt.opaque(xxhash.xxh3_128_digest(encoded.encode()), len(encoded) // _EMBEDS_BASE64_BYTES_PER_TOKEN)
    written = prompt.written()
    if not written:
        raise empty("prompt", "send a text or token ids")
    return request_body(completions, written, completions.max_tokens, ends=prompt.ends())


def read_embeddings(body: bytes) -> RequestBody:
    """Read a request for embeddings."""
    embeddings = _decode_embeddings(body)
    if bytes(embeddings.input) in _NONE and not embeddings.messages:
        raise empty("input", "send a text or token ids, or messages")
    prompt = PromptWriter()
    _write_input(prompt, embeddings.input, "input")
    write_messages(prompt, embeddings.messages or [])
    return request_body(
        embeddings, prompt.written(), None, prompt.media_items, media=prompt.media(), ends=prompt.ends()
    )


def read_images(body: bytes) -> RequestBody:
    """Read a request for images."""
    images = _decode_images(body)
    if not images.prompt:
        raise empty("prompt", "send a text")
    prompt = PromptWriter()
    prompt.text(images.prompt)
    return request_body(images, prompt.written(), None)


def write_messages(prompt: PromptWriter, messages: list[_Message]) -> None:
    """Write messages of a chat."""
    for message in messages:
        prompt.message(message.role, message.content, message.tool_calls)


def _write_input(prompt: PromptWriter, raw: msgspec.Raw, field: str) -> None:
    """Write a string, strings, token ids or lists of token ids; raises MalformedBodyError for a mixture."""
    text = bytes(raw)
    if text in _NONE:
        return
    packed = packed_json(text) if text.startswith(b"[") else None
    if packed is not None:
        prompt.packed(packed)
        return
    try:
        found = _decode_input(text)
    except msgspec.ValidationError as error:
        raise within(error, f"$.{field}") from error
    if isinstance(found, str):
        prompt.text(found)
    elif found:
        kinds = set(map(type, found))
        if kinds == {str}:
            prompt.prompts(cast("list[str]", found), _encoded)
        elif kinds == {list}:
            prompt.prompts(cast("list[list[int]]", found), _packed)
        else:
            raise MalformedBodyError(
                f'"{field}" mixes types: send a string, an array of strings, an array of token ids or an array of '
                "arrays of token ids",
                param=field,
                kind="invalid_type",
            )


def _encoded(texts: list[str]) -> bytes:
    return "".join(texts).encode()


def _packed(prompts: list[list[int]]) -> bytes:
    return pack(chain.from_iterable(prompts))
