# SPDX-License-Identifier: Apache-2.0
"""Readers of long arrays that give other requests a turn between batches."""

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec
import xxhash

from epp.framework.long_json import Envelope, decoded_text, stripped
from epp.framework.request import BYTES_PER_TOKEN
from epp.framework.steps import Steps, Text, Turns
from epp.plugins.parsers.json_parser import ABSENT, TokenId
from epp.plugins.parsers.long_arrays import batches
from epp.plugins.parsers.prompt import Content, PromptWriter
from epp.plugins.parsers.token_ids import are_ids, pack, packed_json

S = TypeVar("S", bound=msgspec.Struct)

_HEAD_BYTES = 64 * 1024
"""Of a medium: they have its size."""
_WRONG = {b"{": b"{}", b'"': b'""'}
"""What stands for a long value of a wrong type."""
_IDS_BYTES = 64 * 1024
_LONG_BYTES = 256 * 1024
"""An array that takes a millisecond to be found, or a text to be read."""
_INDEX = re.compile(r"`\$\[(\d+)\]")

decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw] | None).decode
_decode_ids = msgspec.json.Decoder(list[TokenId]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_content = msgspec.json.Decoder(Content).decode


class LongMessage(msgspec.Struct, gc=False):
    """A message of a conversation, before its content is read."""

    role: str = ""
    content: msgspec.Raw = ABSENT
    tool_calls: msgspec.Raw = ABSENT


class _LongPart(msgspec.Struct, gc=False):
    type: str = ""
    text: msgspec.Raw = ABSENT
    source: msgspec.Raw = ABSENT


LONG_MESSAGE = Envelope(LongMessage)
_LONG_PART = Envelope(_LongPart)


def first_of(raw: msgspec.Raw | Text) -> bytes:
    """Return the first byte of a value."""
    return bytes(memoryview(raw)[:1])


def array_of(raw: msgspec.Raw, place: str) -> Text:
    """Return the JSON of an array, the empty one for null and absence; raises ValidationError for anything else."""
    found = memoryview(raw)
    if first_of(found) == b"[":
        return found
    if found:
        try:
            _decode_list(_WRONG.get(first_of(found), found))
        except msgspec.ValidationError as error:
            raise within(error, place) from error
    return b"[]"


def within(error: msgspec.ValidationError, place: str) -> msgspec.ValidationError:
    """Return an error of a value as one of the whole, given its place, such as `$.messages[0].content`."""
    text = str(error)
    if "at `$" in text:
        return msgspec.ValidationError(text.replace("at `$", f"at `{place}", 1))
    return msgspec.ValidationError(f"{text} - at `{place}`")


def turn_if_long(array: Text) -> Turns:
    """Let others have a turn before an array that takes a while to be searched."""
    if len(array) > _LONG_BYTES:
        yield None


def is_empty(array: Text) -> Steps[bool]:
    """Return whether an array has no elements."""
    start, end = yield from stripped(array, 1, len(array) - 1)
    return start == end


def in_batches(
    array: Text, place: str, read: Callable[[bytes], None], read_long: Callable[[memoryview], Turns] | None = None
) -> Turns:
    """Call `read` with an array in batches, `read_long` with each long element, without the space around it.

    Of errors of msgspec, the path gets the place of the array and the index in it.
    """
    for first, batch in batches(array):
        if first or not batch or len(array) > _LONG_BYTES:
            yield None
        if not batch:
            continue
        try:
            if isinstance(batch, bytes):
                read(batch)
            elif read_long is None:
                read(b"[%b]" % bytes(batch))
            else:
                yield from turn_if_long(batch)
                start, end = yield from stripped(batch, 0, len(batch))
                yield from read_long(batch[start:end])
        except msgspec.ValidationError as error:
            raise moved(error, place, first) from error


def moved(error: msgspec.ValidationError, place: str, first: int) -> msgspec.ValidationError:
    """Return an error of a batch as one of the whole, given the array's place and the index of the first element."""
    index = _INDEX.search(str(error))
    text = str(error) if index is None else _INDEX.sub(f"`$[{int(index[1]) + first}]", str(error), count=1)
    return within(msgspec.ValidationError(text), place)


def all_ids(array: Text) -> Steps[bool]:
    """Return whether a JSON array holds nothing but numbers without sign or fraction."""
    view = memoryview(array)
    for start in range(1, len(view) - 1, _LONG_BYTES):
        if not are_ids(bytes(view[start : min(start + _LONG_BYTES, len(view) - 1)])):
            return False
        yield from turn_if_long(view)
    return True


def ids_in_batches(array: Text, place: str, write: Callable[[bytes], None]) -> Turns:
    """Call `write` with the token ids of an array, packed; raises ValidationError for other elements."""
    yield from turn_if_long(array)
    view = memoryview(array)
    if not (yield from all_ids(view)):
        yield from in_batches(view, place, lambda batch: write(pack(_decode_ids(batch))))
        return
    first, start, end = 0, 1, len(view) - 1
    while start < end:
        if first or len(view) > _LONG_BYTES:
            yield None
        stop = yield from _comma(view, start + _IDS_BYTES, end)
        batch = b"[%b]" % bytes(view[start:stop])
        packed = packed_json(batch)
        if packed is None:
            try:
                packed = pack(_decode_ids(batch))
            except msgspec.ValidationError as error:
                raise moved(error, place, first) from error
        write(packed)
        first += len(packed) // BYTES_PER_TOKEN
        start = stop + 1


def _comma(view: memoryview, start: int, end: int) -> Steps[int]:
    """Return where the next comma is, or the end."""
    while start < end:
        found = bytes(view[start : min(start + _IDS_BYTES, end)]).find(b",")
        if found >= 0:
            return start + found
        start += _IDS_BYTES
        yield None
    return end


def read_element(envelope: Envelope[S], element: memoryview) -> Steps[S]:
    """Return an element as a struct; the place in an error is that in a list of one."""
    try:
        return (yield from envelope.read(element))
    except msgspec.ValidationError as error:
        raise within(error, "$[0]") from error


def read_object(envelope: Envelope[S], raw: msgspec.Raw, place: str) -> Steps[S | None]:
    """Return an object as a struct; None for null and absence."""
    found = memoryview(raw)
    if bytes(found[:5]) in {b"", b"null"}:
        return None
    try:
        return (yield from envelope.read(found))
    except msgspec.ValidationError as error:
        raise within(error, place) from error


def message_in_batches(prompt: PromptWriter, element: memoryview) -> Turns:
    """Write a single long message."""
    message = yield from read_element(LONG_MESSAGE, element)
    prompt.text(message.role + "\n")
    yield from content_in_batches(prompt, message.content, "$[0].content")
    yield from json_in_slices(prompt, message.tool_calls)
    prompt.text("\n")


def content_in_batches(prompt: PromptWriter, raw: msgspec.Raw, place: str) -> Turns:
    """Write a text or content parts; raises ValidationError for anything else."""
    found = memoryview(raw)
    first = first_of(found)
    if first == b"[":

        def write(batch: bytes) -> None:
            prompt.content(decode_raws(batch))
            prompt.compact()

        yield from in_batches(found, place, write, lambda element: _part_in_slices(prompt, element))
    elif first == b'"':
        yield from text_in_slices(prompt, found)
    elif found:
        try:
            _decode_content(_WRONG.get(first, found))
        except msgspec.ValidationError as error:
            raise within(error, place) from error


def text_in_slices(prompt: PromptWriter, found: Text) -> Turns:
    """Write a JSON string."""
    if len(found) <= _LONG_BYTES:
        prompt.text(_decode_text(found))
        return
    prompt.compact()
    yield from decoded_text(found, prompt.part_of_prompt)
    prompt.keep()


def json_in_slices(prompt: PromptWriter, raw: msgspec.Raw | memoryview) -> Steps[bool]:
    """Write JSON unchanged and return whether there was any, like `PromptWriter.json`."""
    found = memoryview(raw)
    if len(found) <= _LONG_BYTES:
        return prompt.json(msgspec.Raw(found))
    prompt.compact()
    for start in range(0, len(found), _LONG_BYTES):
        prompt.part_of_prompt(bytes(found[start : start + _LONG_BYTES]))
        yield None
    prompt.keep()
    return True


def tools_in_slices(prompt: PromptWriter, tools: msgspec.Raw) -> Turns:
    """Write the tools' JSON and a newline; nothing without tools."""
    if (yield from json_in_slices(prompt, tools)):
        prompt.text("\n")


def _part_in_slices(prompt: PromptWriter, element: memoryview) -> Turns:
    """Write a single long content part."""
    if first_of(element) != b"{":
        yield from json_in_slices(prompt, element)
        return
    yield from part_in_slices(prompt, element)


def part_in_slices(prompt: PromptWriter, element: memoryview) -> Turns:
    """Write a content part that is an object, like `PromptWriter.part`."""
    try:
        part = yield from _LONG_PART.read(element)
    except msgspec.ValidationError:
        part = _LongPart()
    if not is_text(part.text):
        yield from json_in_slices(prompt, element)
    elif prompt.is_text(part.type) and first_of(part.text) == b'"':
        yield from text_in_slices(prompt, memoryview(part.text))
    elif prompt.is_medium(part.type):
        found = prompt.identity(part.type, memoryview(part.source), element)
        digest = xxhash.xxh3_128()
        for start in range(0, len(found), _LONG_BYTES):
            digest.update(found[start : start + _LONG_BYTES])
            yield None
        prompt.medium(part.type, bytes(found[:_HEAD_BYTES]), len(found), digest.digest())
    else:
        yield from json_in_slices(prompt, element)


def has_content(raw: msgspec.Raw) -> Steps[bool]:
    """Return whether the JSON of a content is none of null, the empty text and the empty list, and not absent."""
    found = memoryview(raw)
    if bytes(found[:5]) in {b"", b"null", b'""'}:
        return False
    return not (first_of(found) == b"[" and (yield from is_empty(found)))


def is_content(raw: msgspec.Raw) -> bool:
    """Return whether the JSON is a text, a list or null, or absent."""
    return first_of(raw) in {b'"', b"[", b"n", b""}


def is_text(raw: msgspec.Raw) -> bool:
    """Return whether the JSON is a text or null, or absent."""
    return first_of(raw) in {b'"', b"n", b""}
