# SPDX-License-Identifier: Apache-2.0
"""Readers of long arrays that give other requests a turn between batches."""

import re
from collections.abc import Callable, Generator
from typing import TypeAlias

import msgspec

from epp.framework.request import BYTES_PER_TOKEN
from epp.plugins.parsers.json_parser import ABSENT, TokenId
from epp.plugins.parsers.long_arrays import BATCH_BYTES, batches
from epp.plugins.parsers.prompt import Content, PromptWriter
from epp.plugins.parsers.token_ids import all_ids, pack, packed_json

Turns: TypeAlias = Generator[None, None, None]

_IDS_BYTES = 64 * 1024
_LONG_BYTES = 256 * 1024
"""An array that takes a millisecond to be found."""
_EMPTY = re.compile(rb"\[[ \t\n\r]*+\]")
_INDEX = re.compile(r"`\$\[(\d+)\]")

decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw] | None).decode
_decode_ids = msgspec.json.Decoder(list[TokenId]).decode
_decode_content = msgspec.json.Decoder(Content).decode


class LongMessage(msgspec.Struct, gc=False):
    """A message of a conversation, before its content is read."""

    role: str = ""
    content: msgspec.Raw = ABSENT
    tool_calls: msgspec.Raw = ABSENT


_decode_long_messages = msgspec.json.Decoder(tuple[LongMessage]).decode


def array_of(raw: msgspec.Raw, place: str) -> bytes:
    """Return the JSON of an array, the empty one for null and absence; raises ValidationError for anything else."""
    found = bytes(raw)
    if found.startswith(b"["):
        return found
    if found:
        try:
            _decode_list(found)
        except msgspec.ValidationError as error:
            raise within(error, place) from error
    return b"[]"


def within(error: msgspec.ValidationError, place: str) -> msgspec.ValidationError:
    """Return an error of a value as one of the whole, given its place, such as `$.messages[0].content`."""
    text = str(error)
    if "at `$" in text:
        return msgspec.ValidationError(text.replace("at `$", f"at `{place}", 1))
    return msgspec.ValidationError(f"{text} - at `{place}`")


def turn_if_long(array: bytes) -> Turns:
    """Let others have a turn before an array that takes a while to be searched."""
    if len(array) > _LONG_BYTES:
        yield


def is_empty(array: bytes) -> bool:
    """Return whether an array has no elements."""
    return _EMPTY.fullmatch(array) is not None


def in_batches(
    array: bytes, place: str, read: Callable[[bytes], None], read_long: Callable[[bytes], Turns] | None = None
) -> Turns:
    """Call `read` with an array in batches, `read_long` with those of a single long element.

    Of errors of msgspec, the path gets the place of the array and the index in it.
    """
    for first, batch in batches(array):
        if first or not batch or len(array) > _LONG_BYTES:
            yield
        if not batch:
            continue
        try:
            if read_long is None or len(batch) <= BATCH_BYTES:
                read(batch)
            else:
                yield from turn_if_long(batch)
                yield from read_long(batch)
        except msgspec.ValidationError as error:
            raise moved(error, place, first) from error


def moved(error: msgspec.ValidationError, place: str, first: int) -> msgspec.ValidationError:
    """Return an error of a batch as one of the whole, given the array's place and the index of the first element."""
    index = _INDEX.search(str(error))
    text = str(error) if index is None else _INDEX.sub(f"`$[{int(index[1]) + first}]", str(error), count=1)
    return within(msgspec.ValidationError(text), place)


def ids_in_batches(array: bytes, place: str, write: Callable[[bytes], None]) -> Turns:
    """Call `write` with the token ids of an array, packed; raises ValidationError for other elements."""
    yield from turn_if_long(array)
    if not all_ids(array):
        yield from in_batches(array, place, lambda batch: write(pack(_decode_ids(batch))))
        return
    first, start, end = 0, 1, len(array) - 1
    while start < end:
        if first or len(array) > _LONG_BYTES:
            yield
        comma = array.find(b",", start + _IDS_BYTES, end)
        stop = end if comma < 0 else comma
        batch = b"[%b]" % array[start:stop]
        packed = packed_json(batch)
        if packed is None:
            try:
                packed = pack(_decode_ids(batch))
            except msgspec.ValidationError as error:
                raise moved(error, place, first) from error
        write(packed)
        first += len(packed) // BYTES_PER_TOKEN
        start = stop + 1


def decode_long_message(batch: bytes) -> LongMessage:
    """Return the only message of a list."""
    (message,) = _decode_long_messages(batch)
    return message


def message_in_batches(prompt: PromptWriter, batch: bytes) -> Turns:
    """Write a single long message."""
    message = decode_long_message(batch)
    prompt.text(message.role + "\n")
    yield from content_in_batches(prompt, message.content, "$[0].content")
    prompt.json(message.tool_calls)
    prompt.text("\n")


def content_in_batches(prompt: PromptWriter, raw: msgspec.Raw, place: str) -> Turns:
    """Write a text or content parts; raises ValidationError for anything else."""
    found = bytes(raw)
    if not found.startswith(b"["):
        try:
            prompt.content(_decode_content(found) if found else None)
        except msgspec.ValidationError as error:
            raise within(error, place) from error
        return

    def write(batch: bytes) -> None:
        prompt.content(decode_raws(batch))
        prompt.compact()

    yield from in_batches(found, place, write)


def has_content(raw: msgspec.Raw) -> bool:
    """Return whether the JSON of a content is none of null, the empty text and the empty list, and not absent."""
    found = bytes(raw)
    return found not in {b"", b"null", b'""'} and not (found.startswith(b"[") and is_empty(found))


def is_content(raw: msgspec.Raw) -> bool:
    """Return whether the JSON is a text, a list or null, or absent."""
    return bytes(memoryview(raw)[:1]) in {b'"', b"[", b"n", b""}
