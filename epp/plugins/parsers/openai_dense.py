# SPDX-License-Identifier: Apache-2.0
"""Readers of the OpenAI APIs chat, completions and embeddings for bodies of many elements, in batches."""

import msgspec

from epp.framework.request import Reading
from epp.plugins.parsers.in_batches import (
    Turns,
    array_of,
    ids_in_batches,
    in_batches,
    is_empty,
    message_in_batches,
    turn_if_long,
    within,
)
from epp.plugins.parsers.json_errors import empty
from epp.plugins.parsers.json_parser import ABSENT, Common, Limit, TokenId, request_body
from epp.plugins.parsers.openai_readers import (
    Input,
    Message,
    completion_of,
    mixed,
    write_embeds,
    write_input,
    write_messages,
)
from epp.plugins.parsers.prompt import PromptWriter
from epp.plugins.parsers.token_ids import all_ids

_SPACE = b" \t\n\r"


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


_decode_chat = msgspec.json.Decoder(_Chat).decode
_decode_completions = msgspec.json.Decoder(_Completions).decode
_decode_embeddings = msgspec.json.Decoder(_Embeddings).decode
_decode_messages = msgspec.json.Decoder(list[Message]).decode
_decode_input = msgspec.json.Decoder(Input).decode
_decode_inputs = msgspec.json.Decoder(list[str | TokenId | list[TokenId]]).decode
_decode_embeds = msgspec.json.Decoder(str | list[str] | None).decode


def read_dense_chat(body: bytes) -> Reading:
    """Read a chat."""
    chat = _decode_chat(body)
    messages = array_of(chat.messages, "$.messages")
    if is_empty(messages):
        raise empty("messages", "send at least one message")
    prompt = PromptWriter()
    prompt.tools(chat.tools)
    yield from _messages_in_batches(prompt, messages)
    limit = chat.max_tokens if chat.max_completion_tokens is None else chat.max_completion_tokens
    return request_body(chat, prompt.written(), limit, prompt.media_items, media=prompt.media())


def read_dense_completions(body: bytes) -> Reading:
    """Read a request for a completion."""
    completions = _decode_completions(body)
    prompt = PromptWriter()
    yield from _input_in_batches(prompt, completions.prompt, "prompt")
    yield from _embeds_in_batches(prompt, completions.prompt_embeds)
    return completion_of(completions, completions.max_tokens, prompt)


def read_dense_embeddings(body: bytes) -> Reading:
    """Read a request for embeddings."""
    embeddings = _decode_embeddings(body)
    messages = array_of(embeddings.messages, "$.messages")
    if bytes(embeddings.input) in {b"", b"null"} and is_empty(messages):
        raise empty("input", "send a text or token ids, or messages")
    prompt = PromptWriter()
    yield from _input_in_batches(prompt, embeddings.input, "input")
    yield from _messages_in_batches(prompt, messages)
    return request_body(
        embeddings, prompt.written(), None, prompt.media_items, media=prompt.media(), ends=prompt.ends()
    )


def _messages_in_batches(prompt: PromptWriter, messages: bytes) -> Turns:
    def write(batch: bytes) -> None:
        write_messages(prompt, _decode_messages(batch))
        prompt.compact()

    yield from in_batches(messages, "$.messages", write, lambda batch: message_in_batches(prompt, batch))


def _input_in_batches(prompt: PromptWriter, raw: msgspec.Raw, field: str) -> Turns:
    """Write a string, strings, token ids or lists of token ids; raises MalformedBodyError for a mixture."""
    found, place = bytes(raw), f"$.{field}"
    if not found.startswith(b"["):
        try:
            write_input(prompt, _decode_input(found) if found else None, field)
        except msgspec.ValidationError as error:
            raise within(error, place) from error
        return
    yield from turn_if_long(found)
    if all_ids(found):
        yield from ids_in_batches(found, place, prompt.part_of_prompt)
        return
    kinds: set[type] = set()

    def write(batch: bytes) -> None:
        inputs = _decode_inputs(batch)
        kinds.update(map(type, inputs))
        if len(kinds) == 1:
            write_input(prompt, inputs, field)
            prompt.compact()

    def write_long(batch: bytes) -> Turns:
        element = batch[1:-1].strip(_SPACE)
        if not element.startswith(b"["):
            write(batch)
            return
        kinds.add(list)
        yield from ids_in_batches(element, "$[0]", prompt.part_of_prompt)
        prompt.end_prompt()

    yield from in_batches(found, place, write, write_long)
    if len(kinds) > 1:
        raise mixed(field)


def _embeds_in_batches(prompt: PromptWriter, raw: msgspec.Raw) -> Turns:
    found, place = bytes(raw), "$.prompt_embeds"

    def write(batch: bytes) -> None:
        embeds = _decode_embeds(batch) or []
        write_embeds(prompt, [embeds] if isinstance(embeds, str) else embeds)
        prompt.compact()

    if found.startswith(b"["):
        yield from in_batches(found, place, write)
    elif found:
        try:
            write(found)
        except msgspec.ValidationError as error:
            raise within(error, place) from error
