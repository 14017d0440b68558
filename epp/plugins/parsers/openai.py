# SPDX-License-Identifier: Apache-2.0
"""Parser of OpenAI's APIs: chat, completions, embeddings, images, and those of items."""

import re
from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import ClassVar, TypeAlias, cast

import msgspec

from epp.framework import RequestBody
from epp.framework.errors import MalformedBodyError
from epp.plugins.parsers.json_errors import empty
from epp.plugins.parsers.json_parser import ABSENT, Common, JsonParser, Limit, Reader, TokenId, not_run, request_body
from epp.plugins.parsers.openai_items import read_conversations, read_responses
from epp.plugins.parsers.prompt import Content, PromptWriter
from epp.plugins.parsers.token_ids import pack, packed_json

_Input: TypeAlias = str | list[str | TokenId | list[TokenId]] | None

_LONG_BYTES = 16 * 1024
_IDS = re.compile(rb'"prompt"\s*+:\s*+\[\s*+[0-9]')
_EMBEDS_BASE64_BYTES_PER_TOKEN = 10923  # a hidden size of 4,096 at two bytes, four base64 bytes for three


class _Message(msgspec.Struct, gc=False):
    role: str = ""
    content: Content = None
    tool_calls: msgspec.Raw = ABSENT


class _Chat(Common, gc=False):
    messages: list[_Message] | None = None
    tools: msgspec.Raw = ABSENT
    max_tokens: Limit = None
    max_completion_tokens: Limit = None


class _CompletionsRest(Common, gc=False):
    prompt_embeds: str | list[str] | None = None
    max_tokens: Limit = None


class _Completions(_CompletionsRest, gc=False):
    prompt: _Input = None


class _RawCompletions(_CompletionsRest, gc=False):
    prompt: msgspec.Raw = ABSENT


class _Embeddings(Common, gc=False):
    input: _Input = None
    messages: list[_Message] | None = None


class _Images(Common, gc=False):
    prompt: str | None = None


_decode_chat = msgspec.json.Decoder(_Chat).decode
_decode_completions = msgspec.json.Decoder(_Completions).decode
_decode_raw_completions = msgspec.json.Decoder(_RawCompletions).decode
_decode_embeddings = msgspec.json.Decoder(_Embeddings).decode
_decode_images = msgspec.json.Decoder(_Images).decode


def _read_chat(body: bytes) -> RequestBody:
    chat = _decode_chat(body)
    if not chat.messages:
        raise empty("messages", "send at least one message")
    prompt = PromptWriter()
    prompt.tools(chat.tools)
    _write_messages(prompt, chat.messages)
    limit = chat.max_tokens if chat.max_completion_tokens is None else chat.max_completion_tokens
    return request_body(chat, prompt.written(), limit, prompt.media_items, media=prompt.media())


def _read_completions(body: bytes) -> RequestBody:
    if len(body) >= _LONG_BYTES and _begins_with_id(body):
        raw = _decode_raw_completions(body)
        ids = packed_json(bytes(raw.prompt))
        if ids is not None:
            return _completions(raw, PromptWriter(ids))
    completions = _decode_completions(body)
    prompt = PromptWriter()
    _write_input(prompt, completions.prompt, "prompt")
    return _completions(completions, prompt)


def _completions(completions: _CompletionsRest, prompt: PromptWriter) -> RequestBody:
    """Return the parsed body, given what it has for a prompt."""
    embeds = completions.prompt_embeds or []
    for encoded in [embeds] if isinstance(embeds, str) else embeds:
        prompt.opaque(encoded.encode(), len(encoded) // _EMBEDS_BASE64_BYTES_PER_TOKEN)
    written = prompt.written()
    if not written:
        raise empty("prompt", "send a text or token ids")
    return request_body(completions, written, completions.max_tokens, ends=prompt.ends())


def _read_embeddings(body: bytes) -> RequestBody:
    embeddings = _decode_embeddings(body)
    if embeddings.input is None and not embeddings.messages:
        raise empty("input", "send a text or token ids, or messages")
    prompt = PromptWriter()
    _write_input(prompt, embeddings.input, "input")
    _write_messages(prompt, embeddings.messages or [])
    return request_body(
        embeddings, prompt.written(), None, prompt.media_items, media=prompt.media(), ends=prompt.ends()
    )


def _read_images(body: bytes) -> RequestBody:
    images = _decode_images(body)
    if not images.prompt:
        raise empty("prompt", "send a text")
    return request_body(images, images.prompt.encode(), None)


def _begins_with_id(body: bytes) -> bool:
    """Return whether the first `prompt` in the body, perhaps that of the object, seems to be a list of token ids."""
    position = body.find(b'"prompt"')
    return position >= 0 and _IDS.match(body, position) is not None


def _write_messages(prompt: PromptWriter, messages: list[_Message]) -> None:
    for message in messages:
        prompt.message(message.role, message.content, message.tool_calls)


def _write_input(prompt: PromptWriter, found: _Input, field: str) -> None:
    """Write a string, strings, token ids or lists of token ids; raises MalformedBodyError for a mixture."""
    if isinstance(found, str):
        prompt.text(found)
    elif found:
        kinds = set(map(type, found))
        if kinds == {int}:
            prompt.packed(cast("list[int]", found))
        elif kinds == {str}:
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


class OpenAIParser(JsonParser):
    """Parses the OpenAI APIs: the canonical prompt of a chat is its tools, then its messages.

    The prompt of a conversation is a prefix of that of its continuation. The render APIs run no model, so their prompt
    is empty.
    """

    plugin_type = "openai-parser"
    readers: ClassVar[Mapping[str, Reader]] = MappingProxyType(
        {
            "chat/completions": _read_chat,
            "chat/completions/render": not_run(_read_chat),
            "completions": _read_completions,
            "completions/render": not_run(_read_completions),
            "conversations": read_conversations,
            "embeddings": _read_embeddings,
            "images/generations": _read_images,
            "responses": read_responses,
        }
    )
