# SPDX-License-Identifier: Apache-2.0
"""Parser of the Anthropic Messages API."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import msgspec

from epp.framework import RequestBody
from epp.plugins.parsers.json_errors import empty
from epp.plugins.parsers.json_parser import ABSENT, Common, JsonParser, Limit, Reader, not_run
from epp.plugins.parsers.prompt import Content, PromptWriter

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


class _Message(msgspec.Struct, gc=False):
    role: str = ""
    content: Content = None


class _Messages(Common, gc=False):
    tools: msgspec.Raw = ABSENT
    max_tokens: Limit = None
    messages: list[_Message] | None = None
    system: Content = None


_decode_block = msgspec.json.Decoder(_Block).decode
_decode_messages = msgspec.json.Decoder(_Messages).decode
_UNKNOWN = _Block()


def read_messages(body: bytes) -> RequestBody:
    """Read a conversation."""
    request = _decode_messages(body)
    if not request.messages:
        raise empty("messages", "send at least one message")
    prompt = PromptWriter()
    prompt.tools(request.tools)
    _write_system(prompt, request.system)
    _write_messages(prompt, request.messages)
    return prompt.body(request, request.max_tokens)


def _write_messages(prompt: PromptWriter, messages: list[_Message]) -> None:
    for message in messages:
        prompt.text(message.role + "\n")
        if isinstance(message.content, str):
            prompt.text(message.content)
        else:
            for raw in message.content or ():
                _write_block(prompt, raw, _block_of(raw))
        prompt.text("\n")


def _write_system(prompt: PromptWriter, system: Content) -> None:
    """Write the system prompt without the billing block of coding agents.

    Engines drop this block, which changes with every request and would make every prefix unique.
    """
    if not system:
        return
    prompt.text("system\n")
    if isinstance(system, str):
        prompt.text(system)
    else:
        for raw in system:
            block = _block_of(raw)
            if not (block.text or "").startswith(_BILLING):
                _write_block(prompt, raw, block)
    prompt.text("\n")


def _block_of(raw: msgspec.Raw) -> _Block:
    try:
        return _decode_block(raw) if bytes(memoryview(raw)[:1]) == b"{" else _UNKNOWN
    except msgspec.ValidationError:  # the engine judges unknown blocks
        return _UNKNOWN


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

    The prompt of a conversation is a prefix of the prompt of its next turn. Counting tokens does not run the model, so
    its prompt is empty.
    """

    plugin_type = "anthropic-parser"
    readers: ClassVar[Mapping[str, Reader]] = MappingProxyType(
        {"messages": read_messages, "messages/count_tokens": not_run(read_messages)}
    )
