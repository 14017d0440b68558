# SPDX-License-Identifier: Apache-2.0
"""Readers of the OpenAI APIs chat, completions and embeddings for bodies of many elements, in batches."""

import msgspec
import xxhash

from epp.framework.long_json import Envelope, decoded_text
from epp.framework.request import Reading
from epp.framework.steps import Text, Turns
from epp.plugins.parsers.in_batches import (
    all_ids,
    array_of,
    first_of,
    ids_in_batches,
    in_batches,
    is_empty,
    message_in_batches,
    text_in_slices,
    tools_in_slices,
    turn_if_long,
    within,
)
from epp.plugins.parsers.json_errors import empty
from epp.plugins.parsers.json_parser import ABSENT, Common, Limit, TokenId, request_body
from epp.plugins.parsers.openai_readers import (
    Input,
    Message,
    completion_with,
    mixed,
    write_embed,
    write_embeds,
    write_input,
    write_messages,
)
from epp.plugins.parsers.prompt import PromptWriter


class _Chat(Common, gc=False):
    messages: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    max_tokens: Limit = None
    max_completion_tokens: Limit = None


class _Completions(Common, gc=False):
    prompt: msgspec.Raw = ABSENT
    prompt_embeds: msgspec.Raw = ABSENT
    max_tokens: Limit = None


class _Embeddings(Common, gc=False):
    input: msgspec.Raw = ABSENT
    messages: msgspec.Raw = ABSENT


class _Images(Common, gc=False):
    prompt: msgspec.Raw = ABSENT


_CHAT = Envelope(_Chat)
_COMPLETIONS = Envelope(_Completions)
_EMBEDDINGS = Envelope(_Embeddings)
_IMAGES = Envelope(_Images)
_decode_messages = msgspec.json.Decoder(list[Message]).decode
_decode_input = msgspec.json.Decoder(Input).decode
_decode_inputs = msgspec.json.Decoder(list[str | TokenId | list[TokenId]]).decode
_decode_embeds = msgspec.json.Decoder(str | list[str] | None).decode
_decode_text = msgspec.json.Decoder(str | None).decode


def read_dense_chat(body: bytes) -> Reading:
    """Read a chat."""
    chat = yield from _CHAT.read(body)
    messages = array_of(chat.messages, "$.messages")
    if (yield from is_empty(messages)):
        raise empty("messages", "send at least one message")
    prompt = PromptWriter()
    yield from tools_in_slices(prompt, chat.tools)
    yield from _messages_in_batches(prompt, messages)
    limit = chat.max_tokens if chat.max_completion_tokens is None else chat.max_completion_tokens
    written = yield from prompt.written_in_turns()
    return request_body(chat, written, limit, prompt.media_items, media=prompt.media())


def read_dense_completions(body: bytes) -> Reading:
    """Read a request for a completion."""
    completions = yield from _COMPLETIONS.read(body)
    prompt = PromptWriter()
    yield from _input_in_batches(prompt, completions.prompt, "prompt")
    yield from _embeds_in_batches(prompt, completions.prompt_embeds)
    written = yield from prompt.written_in_turns()
    return completion_with(completions, completions.max_tokens, prompt, written)


def read_dense_embeddings(body: bytes) -> Reading:
    """Read a request for embeddings."""
    embeddings = yield from _EMBEDDINGS.read(body)
    messages = array_of(embeddings.messages, "$.messages")
    if bytes(memoryview(embeddings.input)[:5]) in {b"", b"null"} and (yield from is_empty(messages)):
        raise empty("input", "send a text or token ids, or messages")
    prompt = PromptWriter()
    yield from _input_in_batches(prompt, embeddings.input, "input")
    yield from _messages_in_batches(prompt, messages)
    written = yield from prompt.written_in_turns()
    return request_body(embeddings, written, None, prompt.media_items, media=prompt.media(), ends=prompt.ends())


def read_long_images(body: bytes) -> Reading:
    """Read a request for images."""
    images = yield from _IMAGES.read(body)
    found = memoryview(images.prompt)
    prompt = PromptWriter()
    if first_of(found) == b'"':
        yield from text_in_slices(prompt, found)
    elif found:
        try:
            _decode_text(found)
        except msgspec.ValidationError as error:
            raise within(error, "$.prompt") from error
    written = yield from prompt.written_in_turns()
    if not written:
        raise empty("prompt", "send a text")
    return request_body(images, written, None)


def _messages_in_batches(prompt: PromptWriter, messages: Text) -> Turns:
    def write(batch: bytes) -> None:
        write_messages(prompt, _decode_messages(batch))
        prompt.compact()

    yield from in_batches(messages, "$.messages", write, lambda element: message_in_batches(prompt, element))


def _input_in_batches(prompt: PromptWriter, raw: msgspec.Raw, field: str) -> Turns:
    """Write a string, strings, token ids or lists of token ids; raises MalformedBodyError for a mixture."""
    found, place = memoryview(raw), f"$.{field}"
    if first_of(found) == b'"':
        yield from text_in_slices(prompt, found)
    elif first_of(found) == b"[":
        yield from turn_if_long(found)
        if (yield from all_ids(found)):
            yield from ids_in_batches(found, place, prompt.part_of_prompt)
        else:
            yield from _inputs_in_batches(prompt, found, field)
    elif found:
        try:
            write_input(prompt, _decode_input(found), field)
        except msgspec.ValidationError as error:
            raise within(error, place) from error


def _inputs_in_batches(prompt: PromptWriter, found: memoryview, field: str) -> Turns:
    """Write a list of strings or of lists of token ids."""
    kinds: set[type] = set()

    def write(batch: bytes) -> None:
        inputs = _decode_inputs(batch)
        kinds.update(map(type, inputs))
        if len(kinds) == 1:
            write_input(prompt, inputs, field)
            prompt.compact()

    def write_long(element: memoryview) -> Turns:
        first = first_of(element)
        if first == b"[":
            kinds.add(list)
            yield from ids_in_batches(element, "$[0]", prompt.part_of_prompt)
            prompt.end_prompt()
        elif first == b'"':
            kinds.add(str)
            yield from text_in_slices(prompt, element)
            prompt.end_prompt()
        else:
            write(b"[%b]" % bytes(element))

    yield from in_batches(found, f"$.{field}", write, write_long)
    if len(kinds) > 1:
        raise mixed(field)


def _embeds_in_batches(prompt: PromptWriter, raw: msgspec.Raw) -> Turns:
    found, place = memoryview(raw), "$.prompt_embeds"

    def write(batch: Text) -> None:
        embeds = _decode_embeds(batch) or []
        write_embeds(prompt, [embeds] if isinstance(embeds, str) else embeds)
        prompt.compact()

    def write_long(element: memoryview) -> Turns:
        if first_of(element) != b'"':
            write(b"[%b]" % bytes(element))
            return
        digest, characters = xxhash.xxh3_128(), 0

        def take(part: bytes) -> None:
            nonlocal characters
            digest.update(part)
            characters += len(part) if part.isascii() else len(part.decode())

        yield from decoded_text(element, take)
        write_embed(prompt, digest.digest(), characters)

    first = first_of(found)
    if first == b"[":
        yield from in_batches(found, place, write, write_long)
    elif len(found) > len(b'""') and first == b'"':  # an empty text is none
        yield from write_long(found)
    elif found:
        try:
            write(found)
        except msgspec.ValidationError as error:
            raise within(error, place) from error
