# SPDX-License-Identifier: Apache-2.0
"""Reader of Anthropic's messages API for bodies of many elements, in batches."""

from collections.abc import Callable

import msgspec

from epp.framework.json_cuts import string_cut
from epp.framework.long_json import Envelope
from epp.framework.request import Reading
from epp.framework.steps import Turns
from epp.plugins.parsers.anthropic_reader import (
    Message,
    MessagesFields,
    is_billing_text,
    write_blocks,
    write_messages,
    write_system_blocks,
)
from epp.plugins.parsers.in_batches import (
    LONG_MESSAGE,
    array_of,
    content_in_batches,
    decode_raws,
    first_of,
    has_content,
    in_batches,
    is_content,
    is_empty,
    is_text,
    json_in_slices,
    part_in_slices,
    read_element,
    text_in_slices,
    tools_in_slices,
)
from epp.plugins.parsers.json_errors import empty
from epp.plugins.parsers.json_parser import ABSENT, request_body
from epp.plugins.parsers.prompt import PromptWriter

_HEAD_BYTES = 1024


class _LongBlock(msgspec.Struct, gc=False):
    type: str = ""
    text: msgspec.Raw = ABSENT
    thinking: msgspec.Raw = ABSENT
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = ABSENT
    tool_use_id: str | None = None
    content: msgspec.Raw = ABSENT


class _Messages(MessagesFields, gc=False):
    messages: msgspec.Raw = ABSENT
    system: msgspec.Raw = ABSENT


_LONG_BLOCK = Envelope(_LongBlock)
_MESSAGES = Envelope(_Messages)
_decode_text = msgspec.json.Decoder(str).decode
_decode_messages = msgspec.json.Decoder(list[Message]).decode


def read_dense_messages(body: bytes) -> Reading:
    """Read a conversation."""
    request = yield from _MESSAGES.read(body)
    messages = array_of(request.messages, "$.messages")
    if (yield from is_empty(messages)):
        raise empty("messages", "send at least one message")
    prompt = PromptWriter()
    yield from tools_in_slices(prompt, request.tools)
    if (yield from has_content(request.system)):
        prompt.text("system\n")
        yield from _blocks(prompt, request.system, "$.system", is_system=True)
        prompt.text("\n")

    def write(batch: bytes) -> None:
        write_messages(prompt, _decode_messages(batch))
        prompt.compact()

    yield from in_batches(messages, "$.messages", write, lambda element: _message(prompt, element))
    written = yield from prompt.written_in_turns()
    return request_body(request, written, request.max_tokens, prompt.media_items, media=prompt.media())


def _message(prompt: PromptWriter, element: memoryview) -> Turns:
    """Write a single long message."""
    message = yield from read_element(LONG_MESSAGE, element)
    prompt.text(message.role + "\n")
    yield from _blocks(prompt, message.content, "$[0].content", is_system=False)
    prompt.text("\n")


def _blocks(prompt: PromptWriter, raw: msgspec.Raw, place: str, *, is_system: bool) -> Turns:
    """Write a text or content blocks."""
    if first_of(raw) != b"[":
        yield from content_in_batches(prompt, raw, place)
        return
    write_all: Callable[[PromptWriter, list[msgspec.Raw]], None] = write_system_blocks if is_system else write_blocks

    def write(batch: bytes) -> None:
        write_all(prompt, decode_raws(batch))
        prompt.compact()

    yield from in_batches(memoryview(raw), place, write, lambda element: _block(prompt, element, is_system=is_system))


def _block(prompt: PromptWriter, element: memoryview, *, is_system: bool) -> Turns:
    """Write a single long block, like `write_block`."""
    block = _LongBlock()
    if first_of(element) == b"{":
        try:
            block = yield from _LONG_BLOCK.read(element)
        except msgspec.ValidationError:
            block = _LongBlock()
    if not (is_text(block.text) and is_text(block.thinking) and is_content(block.content)):
        block = _LongBlock()
    if is_system and _is_billing(block):
        return
    if block.type == "text" and first_of(block.text) == b'"':
        yield from text_in_slices(prompt, memoryview(block.text))
    elif block.type == "thinking" and first_of(block.thinking) == b'"':
        yield from text_in_slices(prompt, memoryview(block.thinking))
    elif block.type == "tool_use":
        prompt.text(f"tool_use {block.id or ''} {block.name or ''}\n")
        yield from json_in_slices(prompt, block.input)
        prompt.text("\n")
    elif block.type == "tool_result":
        prompt.text(f"tool_result {block.tool_use_id or ''}\n")
        yield from content_in_batches(prompt, block.content, "$[0].content")
        prompt.text("\n")
    elif block.type != "redacted_thinking":
        yield from part_in_slices(prompt, element)


def _is_billing(block: _LongBlock) -> bool:
    """Return whether a long block of the system prompt is the billing block, given the head of its text."""
    if first_of(block.text) != b'"':
        return False
    head = bytes(memoryview(block.text)[:_HEAD_BYTES])
    if len(head) == _HEAD_BYTES:
        head = head[: 1 + string_cut(head[1:], _HEAD_BYTES // 2)] + b'"'
    return is_billing_text(_decode_text(head))
