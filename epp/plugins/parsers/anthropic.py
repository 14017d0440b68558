# SPDX-License-Identifier: Apache-2.0
"""Parser of the Anthropic Messages API."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from epp.plugins.parsers.json_errors import empty
from epp.plugins.parsers.json_parser import ABSENT, ApiBody, JsonParser, Limit
from epp.plugins.parsers.prompt import Content, PromptWriter, Written, decode_object

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


_decode_block = msgspec.json.Decoder(_Block).decode
_UNKNOWN = _Block()


class _Messages(Written, gc=False):
    tools: msgspec.Raw = ABSENT
    max_tokens: Limit = None
    messages: list[_Message] | None = None
    system: Content = None

    @property
    def output_limit(self) -> Limit:
        return self.max_tokens

    def write(self, prompt: PromptWriter) -> None:
        if not self.messages:
            raise empty("messages", "send at least one message")
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
        block = decode_object(_decode_block, raw) or _UNKNOWN
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

    The prompt of a conversation is a prefix of the prompt of its next turn. Counting tokens does not run the model, so
    its prompt is empty.
    """

    plugin_type = "anthropic-parser"
    bodies: ClassVar[Mapping[str, type[ApiBody]]] = {"messages": _Messages, "messages/count_tokens": _Messages}
    not_run = frozenset({"messages/count_tokens"})
