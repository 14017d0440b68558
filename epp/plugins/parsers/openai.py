# SPDX-License-Identifier: Apache-2.0
"""Parser of the OpenAI API."""

from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import ClassVar, TypeAlias, cast

import msgspec
import xxhash

from epp.framework import RequestBody
from epp.framework.errors import MalformedBodyError
from epp.plugins.parsers.json_errors import empty, within
from epp.plugins.parsers.json_parser import ABSENT, Common, JsonParser, Limit, Reader, TokenId, not_run
from epp.plugins.parsers.prompt import Content, PromptWriter, pack, packed_json


class _Item(msgspec.Struct, gc=False):
    type: str = ""
    role: str | None = None
    call_id: str | None = None
    content: Content = None
    output: Content = None


class _Responses(Common, gc=False):
    tools: msgspec.Raw = ABSENT
    max_output_tokens: Limit = None
    input: Content = None
    instructions: Content = None


class _Conversations(Common, gc=False):
    items: list[msgspec.Raw] | None = None


_decode_item = msgspec.json.Decoder(_Item).decode
_decode_responses = msgspec.json.Decoder(_Responses).decode
_decode_conversations = msgspec.json.Decoder(_Conversations).decode


def _read_responses(body: bytes) -> RequestBody:
    responses = _decode_responses(body)
    if responses.input is None:
        raise empty("input", "send a text or items")
    prompt = PromptWriter()
    prompt.tools(responses.tools)
    if responses.instructions:
        prompt.message("system", responses.instructions)
    if isinstance(responses.input, str):
        prompt.message("user", responses.input)
    else:
        _write_items(prompt, responses.input)
    return prompt.body(responses, responses.max_output_tokens)


def _read_conversations(body: bytes) -> RequestBody:
    conversations = _decode_conversations(body)
    if not conversations.items:
        raise empty("items", "send at least one item")
    prompt = PromptWriter()
    _write_items(prompt, conversations.items)
    return prompt.body(conversations)


def _write_items(prompt: PromptWriter, items: list[msgspec.Raw]) -> None:
    """Write messages as in a chat, results of tools under the name of the call, other items as JSON."""
    for raw in items:
        try:
            item = _decode_item(raw) if bytes(memoryview(raw)[:1]) == b"{" else _Item()
        except msgspec.ValidationError:  # the engine judges unknown items
            item = _Item()
        if item.role is not None:
            prompt.message(item.role, item.content)
        elif item.output is not None:
            prompt.message(f"{item.type} {item.call_id or ''}", item.output)
        else:
            prompt.json(raw)
            prompt.text("\n")


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


def _prompt_of_completions(body: bytes) -> msgspec.Raw:
    return _decode_completions(body).prompt


def _input_of_embeddings(body: bytes) -> msgspec.Raw:
    return _decode_input_alone(body).input


def _read_chat(body: bytes) -> RequestBody:
    chat = _decode_chat(body)
    if not chat.messages:
        raise empty("messages", "send at least one message")
    prompt = PromptWriter()
    prompt.tools(chat.tools)
    _write_messages(prompt, chat.messages)
    limit = chat.max_tokens if chat.max_completion_tokens is None else chat.max_completion_tokens
    return prompt.body(chat, limit)


def _read_completions(body: bytes) -> RequestBody:
    completions = _decode_completions(body)
    prompt = PromptWriter()
    _write_input(prompt, completions.prompt, "prompt")
    embeds = completions.prompt_embeds or []
    for encoded in [embeds] if isinstance(embeds, str) else embeds:
        prompt.opaque(xxhash.xxh3_128_digest(encoded.encode()), len(encoded) // _EMBEDS_BASE64_BYTES_PER_TOKEN)
    parsed = prompt.body(completions, completions.max_tokens)
    if not parsed.prompt:
        raise empty("prompt", "send a text or token ids")
    return parsed


def _read_embeddings(body: bytes) -> RequestBody:
    embeddings = _decode_embeddings(body)
    if bytes(embeddings.input) in _NONE and not embeddings.messages:
        raise empty("input", "send a text or token ids, or messages")
    prompt = PromptWriter()
    _write_input(prompt, embeddings.input, "input")
    _write_messages(prompt, embeddings.messages or [])
    return prompt.body(embeddings)


def _read_images(body: bytes) -> RequestBody:
    images = _decode_images(body)
    if not images.prompt:
        raise empty("prompt", "send a text")
    prompt = PromptWriter()
    prompt.text(images.prompt)
    return prompt.body(images)


def _write_messages(prompt: PromptWriter, messages: list[_Message]) -> None:
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


class OpenAIParser(JsonParser):
    """Parses the OpenAI APIs: the canonical prompt of a chat is its tools, then its messages.

    The prompt of a conversation is a prefix of the prompt of its next turn. The render APIs do not run the model, so
    their prompt is empty.
    """

    plugin_type = "openai-parser"
    readers: ClassVar[Mapping[str, Reader]] = MappingProxyType(
        {
            "chat/completions": _read_chat,
            "chat/completions/render": not_run(_read_chat),
            "completions": _read_completions,
            "completions/render": not_run(_read_completions),
            "conversations": _read_conversations,
            "embeddings": _read_embeddings,
            "images/generations": _read_images,
            "responses": _read_responses,
        }
    )
    token_ids = MappingProxyType(
        {
            "completions": _prompt_of_completions,
            "completions/render": _prompt_of_completions,
            "embeddings": _input_of_embeddings,
        }
    )
