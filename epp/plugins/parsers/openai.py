# SPDX-License-Identifier: Apache-2.0
"""Parsers of the OpenAI API and of the Anthropic Messages API."""

from collections.abc import Mapping
from itertools import chain
from typing import ClassVar, TypeAlias, cast

import msgspec
import xxhash

from epp.framework import Parameters, RequestBody
from epp.framework.errors import MalformedBodyError
from epp.plugins.parsers.json_parser import ABSENT, ApiBody, JsonParser, Limit, TokenId, error_at, missing_field
from epp.plugins.parsers.prompt import Content, PromptWriter, Written, decode_object, pack, packed_json, packed_lists


class _Item(msgspec.Struct, gc=False):
    type: str = ""
    role: str | None = None
    call_id: str | None = None
    content: Content = None
    output: Content = None


_decode_item = msgspec.json.Decoder(_Item).decode


class _Responses(Written, gc=False):
    tools: msgspec.Raw = ABSENT
    output_limit: Limit = msgspec.field(default=None, name="max_output_tokens")
    input: Content = None
    instructions: Content = None

    def write(self, prompt: PromptWriter) -> None:
        if self.input is None:
            raise missing_field("input", "send a text or items")
        prompt.tools(self.tools)
        if self.instructions:
            prompt.message("system", self.instructions)
        if isinstance(self.input, str):
            prompt.message("user", self.input)
        else:
            _write_items(prompt, self.input)


class _Conversations(Written, gc=False):
    items: list[msgspec.Raw] | None = None

    def write(self, prompt: PromptWriter) -> None:
        if not self.items:
            raise missing_field("items", "send at least one item")
        _write_items(prompt, self.items)


def _write_items(prompt: PromptWriter, items: list[msgspec.Raw]) -> None:
    """Write messages as in a chat, results of tools under the name of the call, other items as JSON."""
    for raw in items:
        item = decode_object(_decode_item, raw) or _Item()
        if item.role is not None:
            prompt.message(item.role, item.content)
        elif item.output is not None:
            prompt.message(f"{item.type} {item.call_id or ''}", item.output)
        else:
            prompt.json(raw)
            prompt.text("\n")


class _Message(msgspec.Struct, gc=False):
    role: str = ""
    content: Content = None
    tool_calls: msgspec.Raw = ABSENT


class _Chat(Written, gc=False):
    messages: list[_Message] | None = None
    tools: msgspec.Raw = ABSENT
    max_tokens: Limit = None
    max_completion_tokens: Limit = None

    @property
    def output_limit(self) -> Limit:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def write(self, prompt: PromptWriter) -> None:
        if not self.messages:
            raise missing_field("messages", "send at least one message")
        prompt.tools(self.tools)
        _write_messages(prompt, self.messages)


_EMBEDS_BASE64_BYTES_PER_TOKEN = 10923  # a hidden size of 4,096 at two bytes, four base64 bytes for three


class _Completions(Written, gc=False):
    prompt: msgspec.Raw = ABSENT
    prompt_embeds: str | list[str] | None = None
    output_limit: Limit = msgspec.field(default=None, name="max_tokens")

    def write(self, prompt: PromptWriter) -> None:
        _write_input(prompt, self.prompt, "prompt")
        embeds = self.prompt_embeds or []
        for encoded in [embeds] if isinstance(embeds, str) else embeds:
            prompt.opaque(xxhash.xxh3_128_digest(encoded.encode()), len(encoded) // _EMBEDS_BASE64_BYTES_PER_TOKEN)

    def read(self) -> RequestBody:
        parsed = super().read()
        if not parsed.prompt:
            raise missing_field("prompt", "send a text or token ids")
        return parsed


class _Embeddings(Written, gc=False):
    input: msgspec.Raw = ABSENT
    messages: list[_Message] | None = None

    def write(self, prompt: PromptWriter) -> None:
        if bytes(self.input) in _NONE and not self.messages:
            raise missing_field("input", "send a text or token ids, or messages")
        _write_input(prompt, self.input, "input")
        _write_messages(prompt, self.messages or [])


class _Images(Written, gc=False):
    prompt: str | None = None

    def write(self, prompt: PromptWriter) -> None:
        if not self.prompt:
            raise missing_field("prompt", "send a text")
        prompt.text(self.prompt)


def _write_messages(prompt: PromptWriter, messages: list[_Message]) -> None:
    for message in messages:
        prompt.message(message.role, message.content, message.tool_calls)


Input: TypeAlias = str | list[str | TokenId | list[TokenId]] | None
"""A prompt: a text, texts, token ids or lists of those."""
_decode_input = msgspec.json.Decoder(Input).decode
_NONE = frozenset({b"", b"null"})


def _write_input(prompt: PromptWriter, raw: msgspec.Raw, field: str) -> None:
    """Write a string, strings, token ids or lists of token ids; raises MalformedBodyError for a mixture."""
    text = bytes(raw)
    if text in _NONE:
        return
    if text.startswith(b"["):
        packed = packed_json(text)
        if packed is not None:
            prompt.packed(packed)
            return
        lists = packed_lists(text)
        if lists is not None:
            prompt.is_token_ids = True
            prompt.prompts(lists, b"".join)
            return
    try:
        found = _decode_input(text)
    except msgspec.ValidationError as error:
        raise error_at(error, f"$.{field}") from error
    if isinstance(found, str):
        prompt.text(found)
    elif found:
        kinds = set(map(type, found))
        if kinds == {str}:
            prompt.prompts(cast("list[str]", found), lambda texts: "".join(texts).encode())
        elif kinds == {list}:
            prompt.is_token_ids = True
            prompt.prompts(cast("list[list[int]]", found), lambda lists: pack(chain.from_iterable(lists)))
        else:
            raise MalformedBodyError(
                f'"{field}" mixes types: send a string, an array of strings, an array of token ids or an array of '
                "arrays of token ids",
                param=field,
                kind="invalid_type",
            )


class OpenAIParameters(Parameters, frozen=True):
    """Rewriting of request bodies."""

    propagate_priority: bool = False
    """Write the priority of a request into the member `priority` of its body, by which engines order their queues. It
    is negated for vLLM, where a lower value is more urgent. Endpoints run vLLM unless their label
    `llm-d.ai/engine-type` names another engine."""


class OpenAIParser(JsonParser[OpenAIParameters]):
    """Parses the OpenAI APIs: the canonical prompt of a chat is its tools, then its messages.

    The prompt of a conversation is a prefix of the prompt of its next turn. The render APIs do not run the model, so
    their prompt is empty.
    """

    plugin_type = "openai-parser"
    bodies: ClassVar[Mapping[str, type[ApiBody]]] = {
        "chat/completions": _Chat,
        "chat/completions/render": _Chat,
        "completions": _Completions,
        "completions/render": _Completions,
        "conversations": _Conversations,
        "embeddings": _Embeddings,
        "images/generations": _Images,
        "responses": _Responses,
    }
    not_run = frozenset({"chat/completions/render", "completions/render"})
    id_members: ClassVar[Mapping[str, str]] = {
        "completions": "prompt",
        "completions/render": "prompt",
        "embeddings": "input",
    }

    @property
    def propagates_priority(self) -> bool:
        return self.parameters.propagate_priority


_BILLING = "x-anthropic-billing-header"


class _Block(msgspec.Struct, gc=False):
    """A content block."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = ABSENT
    tool_use_id: str | None = None
    content: Content = None


_decode_block = msgspec.json.Decoder(_Block).decode


class _Messages(Written, gc=False):
    tools: msgspec.Raw = ABSENT
    output_limit: Limit = msgspec.field(default=None, name="max_tokens")
    messages: list[_Message] | None = None
    system: Content = None

    def write(self, prompt: PromptWriter) -> None:
        if not self.messages:
            raise missing_field("messages", "send at least one message")
        prompt.tools(self.tools)
        if self.system:
            _write_message(prompt, "system", self.system, without_billing=True)
        for message in self.messages:
            _write_message(prompt, message.role, message.content)


def _write_message(prompt: PromptWriter, role: str, content: Content, *, without_billing: bool = False) -> None:
    """Write a message, or the system prompt without the billing block of coding agents.

    Engines drop this block, which changes with every request and would make every prefix unique.
    """
    if isinstance(content, str):
        prompt.message(role, content)
        return
    prompt.text(role + "\n")
    for raw in content or ():
        block = decode_object(_decode_block, raw) or _Block()
        if not (without_billing and (block.text or "").startswith(_BILLING)):
            _write_block(prompt, raw, block)
    prompt.text("\n")


def _write_block(prompt: PromptWriter, raw: msgspec.Raw, block: _Block) -> None:
    """Write the part of a block that the model sees: no signatures, and no `cache_control`, which moves each turn."""
    if block.type == "text" and block.text is not None:
        prompt.text(block.text)
    elif block.type == "thinking" and block.thinking is not None:
        prompt.text(block.thinking)
    elif block.type == "tool_use":
        prompt.text(f"tool_use {block.id or ''} {block.name or ''}\n")
        prompt.json(block.input)
        prompt.text("\n")
    elif block.type == "tool_result":
        prompt.message(f"tool_result {block.tool_use_id or ''}", block.content)
    elif block.type != "redacted_thinking":  # encrypted, unreadable for other engines
        prompt.part(raw)


class AnthropicParser(JsonParser):
    """Parses the messages API: the canonical prompt is the tools, the system prompt and the messages, in that order.

    The prompt of a conversation is a prefix of the prompt of its next turn. Token counting does not run the model, so
    its prompt is empty.
    """

    plugin_type = "anthropic-parser"
    bodies: ClassVar[Mapping[str, type[ApiBody]]] = {"messages": _Messages, "messages/count_tokens": _Messages}
    not_run = frozenset({"messages/count_tokens"})
