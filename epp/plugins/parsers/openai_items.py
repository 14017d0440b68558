# SPDX-License-Identifier: Apache-2.0
"""Readers of the OpenAI APIs whose conversation is a list of items: responses and conversations."""

import msgspec

from epp.framework import RequestBody
from epp.framework.long_json import Envelope
from epp.framework.request import Reading
from epp.framework.steps import Text, Turns
from epp.plugins.parsers.in_batches import (
    array_of,
    content_in_batches,
    decode_raws,
    first_of,
    has_content,
    in_batches,
    is_content,
    is_empty,
    json_in_slices,
    tools_in_slices,
)
from epp.plugins.parsers.json_errors import empty
from epp.plugins.parsers.json_parser import ABSENT, Common, Limit, request_body
from epp.plugins.parsers.prompt import Content, PromptWriter

_NONE = frozenset({b"", b"null"})


class _ItemFields(msgspec.Struct, gc=False):
    type: str = ""
    role: str | None = None
    call_id: str | None = None


class _Item(_ItemFields, gc=False):
    content: Content = None
    output: Content = None


class _LongItem(_ItemFields, gc=False):
    content: msgspec.Raw = ABSENT
    output: msgspec.Raw = ABSENT


class _ResponsesFields(Common, gc=False):
    tools: msgspec.Raw = ABSENT
    max_output_tokens: Limit = None


class _Responses(_ResponsesFields, gc=False):
    input: Content = None
    instructions: Content = None


class _DenseResponses(_ResponsesFields, gc=False):
    input: msgspec.Raw = ABSENT
    instructions: msgspec.Raw = ABSENT


class _Conversations(Common, gc=False):
    items: list[msgspec.Raw] | None = None


class _DenseConversations(Common, gc=False):
    items: msgspec.Raw = ABSENT


_LONG_ITEM = Envelope(_LongItem)
_LONG_RESPONSES = Envelope(_DenseResponses)
_LONG_CONVERSATIONS = Envelope(_DenseConversations)
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


def read_dense_responses(body: bytes) -> Reading:
    """Read a request for a response with many elements, in batches."""
    responses = yield from _LONG_RESPONSES.read(body)
    found = memoryview(responses.input)
    if bytes(found[:5]) in _NONE:
        raise empty("input", "send a text or items")
    prompt = PromptWriter()
    yield from tools_in_slices(prompt, responses.tools)
    if (yield from has_content(responses.instructions)):
        prompt.text("system\n")
        yield from content_in_batches(prompt, responses.instructions, "$.instructions")
        prompt.text("\n")
    if first_of(found) == b"[":
        yield from _items_in_batches(prompt, found, "$.input")
    else:
        prompt.text("user\n")
        yield from content_in_batches(prompt, responses.input, "$.input")
        prompt.text("\n")
    written = yield from prompt.written_in_turns()
    return request_body(responses, written, responses.max_output_tokens, prompt.media_items, media=prompt.media())


def read_dense_conversations(body: bytes) -> Reading:
    """Read a request for a new conversation with many elements, in batches."""
    conversations = yield from _LONG_CONVERSATIONS.read(body)
    items = array_of(conversations.items, "$.items")
    if (yield from is_empty(items)):
        raise empty("items", "send at least one item")
    prompt = PromptWriter()
    yield from _items_in_batches(prompt, items, "$.items")
    written = yield from prompt.written_in_turns()
    return request_body(conversations, written, None, prompt.media_items, media=prompt.media())


def _items_in_batches(prompt: PromptWriter, items: Text, place: str) -> Turns:
    def write(batch: bytes) -> None:
        _write_items(prompt, decode_raws(batch))
        prompt.compact()

    yield from in_batches(items, place, write, lambda element: _item_in_batches(prompt, element))


def _item_in_batches(prompt: PromptWriter, element: memoryview) -> Turns:
    """Write a single long item."""
    item = _LongItem()
    if first_of(element) == b"{":
        try:
            item = yield from _LONG_ITEM.read(element)
        except msgspec.ValidationError:
            item = _LongItem()
    known = is_content(item.content) and is_content(item.output)
    if known and item.role is not None:
        head, content = item.role, item.content
    elif known and bytes(memoryview(item.output)[:5]) not in _NONE:
        head, content = f"{item.type} {item.call_id or ''}", item.output
    else:
        yield from json_in_slices(prompt, element)
        prompt.text("\n")
        return
    prompt.text(head + "\n")
    yield from content_in_batches(prompt, content, place="$[0]")
    prompt.text("\n")


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
