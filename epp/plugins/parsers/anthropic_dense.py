# SPDX-License-Identifier: Apache-2.0
"""Reader of Anthropic's messages API for bodies of many elements, in batches."""

from collections.abc import Callable

import msgspec

from epp.framework.request import Reading
from epp.plugins.parsers.anthropic_reader import (
    UNKNOWN,
    Block,
    BlockFields,
    Message,
    MessagesFields,
    is_billing,
    write_block,
    write_blocks,
    write_messages,
    write_system_blocks,
)
from epp.plugins.parsers.in_batches import (
    LongMessage,
    Turns,
    array_of,
    content_in_batches,
    decode_long_message,
    decode_raws,
    has_content,
    in_batches,
    is_content,
    is_empty,
)
from epp.plugins.parsers.json_errors import empty
from epp.plugins.parsers.json_parser import ABSENT, request_body
from epp.plugins.parsers.prompt import PromptWriter


class _LongBlock(BlockFields, gc=False):
    content: msgspec.Raw = ABSENT


class _Messages(MessagesFields, gc=False):
    messages: msgspec.Raw = ABSENT
    system: msgspec.Raw = ABSENT


_decode_long_block = msgspec.json.Decoder(_LongBlock).decode
_decode_request = msgspec.json.Decoder(_Messages).decode
_decode_messages = msgspec.json.Decoder(list[Message]).decode


def read_dense_messages(body: bytes) -> Reading:
    """Read a conversation."""
    request = _decode_request(body)
    messages = array_of(request.messages, "$.messages")
    if is_empty(messages):
        raise empty("messages", "send at least one message")
    prompt = PromptWriter()
    prompt.tools(request.tools)
    if has_content(request.system):
        prompt.text("system\n")
        yield from _blocks(prompt, request.system, "$.system", is_system=True)
        prompt.text("\n")

    def write(batch: bytes) -> None:
        write_messages(prompt, _decode_messages(batch))
        prompt.compact()

    yield from in_batches(messages, "$.messages", write, lambda batch: _message(prompt, batch))
    return request_body(request, prompt.written(), request.max_tokens, prompt.media_items, media=prompt.media())


def _message(prompt: PromptWriter, batch: bytes) -> Turns:
    """Write a single long message."""
    message: LongMessage = decode_long_message(batch)
    prompt.text(message.role + "\n")
    yield from _blocks(prompt, message.content, "$[0].content", is_system=False)
    prompt.text("\n")


def _blocks(prompt: PromptWriter, raw: msgspec.Raw, place: str, *, is_system: bool) -> Turns:
    """Write a text or content blocks."""
    found = bytes(raw)
    if not found.startswith(b"["):
        yield from content_in_batches(prompt, raw, place)
        return
    write_all: Callable[[PromptWriter, list[msgspec.Raw]], None] = write_system_blocks if is_system else write_blocks

    def write(batch: bytes) -> None:
        write_all(prompt, decode_raws(batch))
        prompt.compact()

    yield from in_batches(found, place, write, lambda batch: _block(prompt, batch, is_system=is_system))


def _block(prompt: PromptWriter, batch: bytes, *, is_system: bool) -> Turns:
    """Write a single long block."""
    (raw,) = decode_raws(batch)
    try:
        found = _decode_long_block(raw)
    except msgspec.ValidationError:
        found = _LongBlock()
    block = UNKNOWN
    if is_content(found.content):
        block = Block(found.type, found.text, found.thinking, found.id, found.name, found.input, found.tool_use_id)
    if is_system and is_billing(block):
        return
    if block.type != "tool_result":
        write_block(prompt, raw, block)
        return
    prompt.text(f"tool_result {block.tool_use_id or ''}\n")
    yield from content_in_batches(prompt, found.content, "$[0].content")
    prompt.text("\n")
