# SPDX-License-Identifier: Apache-2.0
"""Readers of the OpenAI APIs whose conversation is a list of items: responses and conversations."""

import msgspec

from epp.framework import RequestBody
from epp.plugins.parsers.json_errors import empty
from epp.plugins.parsers.json_parser import ABSENT, Common, Limit, request_body
from epp.plugins.parsers.prompt import Content, PromptWriter


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


def read_responses(body: bytes) -> RequestBody:
    """Read a request for a response: tools, instructions as a system message, then the input."""
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
    return request_body(
        responses, prompt.written(), responses.max_output_tokens, prompt.media_items, media=prompt.media()
    )


def read_conversations(body: bytes) -> RequestBody:
    """Read a request for a new conversation."""
    conversations = _decode_conversations(body)
    if not conversations.items:
        raise empty("items", "send at least one item")
    prompt = PromptWriter()
    _write_items(prompt, conversations.items)
    return request_body(conversations, prompt.written(), None, prompt.media_items, media=prompt.media())


def _write_items(prompt: PromptWriter, items: list[msgspec.Raw]) -> None:
    """Write messages as in a chat, results of tools under the name of the call, other items as JSON."""
    for raw in items:
        try:
            item = _decode_item(raw) if bytes(memoryview(raw)[:1]) == b"{" else _Item()
        except msgspec.ValidationError:  # an unknown item is left to the engine
            item = _Item()
        if item.role is not None:
            prompt.message(item.role, item.content)
        elif item.output is not None:
            prompt.message(f"{item.type} {item.call_id or ''}", item.output)
        else:
            prompt.json(raw)
            prompt.text("\n")
