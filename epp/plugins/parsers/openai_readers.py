# SPDX-License-Identifier: Apache-2.0
"""Readers of the OpenAI APIs chat, completions, embeddings and images."""

from itertools import chain
from typing import TypeAlias, cast

import msgspec
import xxhash

from epp.framework import RequestBody
from epp.framework.errors import MalformedBodyError
from epp.plugins.parsers.json_errors import empty
from epp.plugins.parsers.json_parser import ABSENT, Common, Limit, TokenId, request_body
from epp.plugins.parsers.prompt import Content, PromptWriter
from epp.plugins.parsers.token_ids import pack

Input: TypeAlias = str | list[str | TokenId | list[TokenId]] | None
"""A prompt: a text, texts, token ids or lists of those."""

_EMBEDS_BASE64_BYTES_PER_TOKEN = 10923  # a hidden size of 4,096 at two bytes, four base64 bytes for three


class Message(msgspec.Struct, gc=False):
    """A message of a chat."""

    role: str = ""
    content: Content = None
    tool_calls: msgspec.Raw = ABSENT


class _Chat(Common, gc=False):
    messages: list[Message] | None = None
    tools: msgspec.Raw = ABSENT
    max_tokens: Limit = None
    max_completion_tokens: Limit = None


class _Completions(Common, gc=False):
    prompt: Input = None
    prompt_embeds: str | list[str] | None = None
    max_tokens: Limit = None


class _Embeddings(Common, gc=False):
    input: Input = None
    messages: list[Message] | None = None


class _Images(Common, gc=False):
    prompt: str | None = None


_decode_chat = msgspec.json.Decoder(_Chat).decode
_decode_completions = msgspec.json.Decoder(_Completions).decode
_decode_embeddings = msgspec.json.Decoder(_Embeddings).decode
_decode_images = msgspec.json.Decoder(_Images).decode


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
    write_input(prompt, completions.prompt, "prompt")
    embeds = completions.prompt_embeds or []
    write_embeds(prompt, [embeds] if isinstance(embeds, str) else embeds)
    return completion_of(completions, completions.max_tokens, prompt)


def completion_of(common: Common, limit: Limit, prompt: PromptWriter) -> RequestBody:
    """Return the parsed body of a request for a completion, given its prompt."""
    return completion_with(common, limit, prompt, prompt.written())


def completion_with(common: Common, limit: Limit, prompt: PromptWriter, written: bytes) -> RequestBody:
    """Return the same, given what was written."""
    if not written:
        raise empty("prompt", "send a text or token ids")
    return request_body(common, written, limit, ends=prompt.ends())


def read_embeddings(body: bytes) -> RequestBody:
    """Read a request for embeddings."""
    embeddings = _decode_embeddings(body)
    if embeddings.input is None and not embeddings.messages:
        raise empty("input", "send a text or token ids, or messages")
    prompt = PromptWriter()
    write_input(prompt, embeddings.input, "input")
    write_messages(prompt, embeddings.messages or [])
    return request_body(
        embeddings, prompt.written(), None, prompt.media_items, media=prompt.media(), ends=prompt.ends()
    )


def read_images(body: bytes) -> RequestBody:
    """Read a request for images."""
    images = _decode_images(body)
    if not images.prompt:
        raise empty("prompt", "send a text")
    return request_body(images, images.prompt.encode(), None)


def write_messages(prompt: PromptWriter, messages: list[Message]) -> None:
    """Write messages of a chat."""
    for message in messages:
        prompt.message(message.role, message.content, message.tool_calls)


def write_input(prompt: PromptWriter, found: Input, field: str) -> None:
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
            raise mixed(field)


def mixed(field: str) -> MalformedBodyError:
    """Return the error for a list with elements of several types."""
    return MalformedBodyError(
        f'"{field}" mixes types: send a string, an array of strings, an array of token ids or an array of '
        "arrays of token ids",
        param=field,
        kind="invalid_type",
    )


def write_embeds(prompt: PromptWriter, embeds: list[str]) -> None:
    """Write placeholders of embeddings in base64."""
    for encoded in embeds:
        write_embed(prompt, xxhash.xxh3_128_digest(encoded.encode()), len(encoded))


def write_embed(prompt: PromptWriter, digest: bytes, characters: int) -> None:
    """Write a placeholder of an embedding of this hash and so many characters of base64."""
    prompt.opaque(digest, characters // _EMBEDS_BASE64_BYTES_PER_TOKEN)


def _encoded(texts: list[str]) -> bytes:
    return "".join(texts).encode()


def _packed(prompts: list[list[int]]) -> bytes:
    return pack(chain.from_iterable(prompts))
