# SPDX-License-Identifier: Apache-2.0
"""Long JSON texts, read a slice in each turn of the event loop, with the same outcome as at once."""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from epp.framework.json_cuts import string_cut
from epp.framework.json_scan import members
from epp.framework.steps import LONG_BYTES, Steps, Text, Turns

S = TypeVar("S", bound=msgspec.Struct)

RUN_BYTES = 256 * 1024
"""Of a string, or of whitespace."""
_SPACE = b" \t\n\r"
_LONGEST_ESCAPES = 16
_HEAD_BYTES = 1024
MOST_TYPED_BYTES = 1024 * 1024
"""Of a member that is read at once, as names of models are."""
_decode_text = msgspec.json.Decoder(str).decode


class Envelope(Generic[S]):
    """Reads JSON objects as structs whose long members are of type `msgspec.Raw`."""

    def __init__(self, struct: type[S]) -> None:
        self._decode = msgspec.json.Decoder(struct).decode
        fields = msgspec.structs.fields(struct)
        self._raw = {field.encode_name: field.name for field in fields if field.type is msgspec.Raw}
        self._typed = {field.encode_name for field in fields} - set(self._raw)

    def read(self, text: Text) -> Steps[S]:
        """Return what decoding returns, and raise what it raises: of several errors, any.

        Raises ValidationError for a member of another type than `msgspec.Raw` and of more than 1 MiB.
        """
        if len(text) < LONG_BYTES:
            return self._decode(text)
        view = memoryview(text)
        spans: dict[str, tuple[int, int]] = {}

        def found(name: str, start: int, end: int) -> None:
            if name in self._typed:
                self._check_type(view, name, start, end)
            spans[name] = start, end

        def several(members: bytes) -> None:
            self._decode(b"{%b}" % members)

        yield from members(text, self._typed | set(self._raw), found, several)
        typed = [self._member(view, name, spans[name])[1:] for name in spans if name in self._typed]
        read = self._decode(b"{%b}" % b",".join(typed))
        for name, field in self._raw.items():
            if name in spans:
                start, end = yield from stripped(view, *spans[name])
                setattr(read, field, msgspec.Raw(view[start:end]))
        return read

    @staticmethod
    def _member(view: memoryview, name: str, span: tuple[int, int]) -> bytes:
        return b"".join((b'{"', name.encode(), b'":', view[slice(*span)]))

    def _check_type(self, view: memoryview, name: str, start: int, end: int) -> None:
        """Raise an error where a value, or the beginning of a long one, shows that it is of another type."""
        is_whole = end - start <= _HEAD_BYTES
        head = self._member(view, name, (start, min(end, start + _HEAD_BYTES)))
        try:
            self._decode(head + b"}" if is_whole else head)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if is_whole or isinstance(error, msgspec.ValidationError):
                raise
        if end - start > MOST_TYPED_BYTES:
            raise msgspec.ValidationError(f"Longer than {MOST_TYPED_BYTES} bytes - at `$.{name}`")


def stripped(text: Text, start: int, end: int) -> Steps[tuple[int, int]]:
    """Return start and end of what is between without the whitespace around it."""
    while start < end:
        window = bytes(text[start : min(start + RUN_BYTES, end)])
        left = window.lstrip(_SPACE)
        start += len(window) - len(left)
        if left:
            break
        yield None
    while start < end:
        window = bytes(text[max(end - RUN_BYTES, start) : end])
        left = window.rstrip(_SPACE)
        end -= len(window) - len(left)
        if left:
            break
        yield None
    return start, end


def decoded_text(text: Text, write: Callable[[bytes], None]) -> Turns:
    """Call `write` with the parts of a JSON string, in UTF-8; raises UnicodeDecodeError."""
    position, end = 1, len(text) - 1
    while position < end:
        window = bytes(text[position : min(position + RUN_BYTES, end)])
        if position + len(window) < end:
            window += bytes(text[position + len(window) : min(position + len(window) + _LONGEST_ESCAPES, end)])
            window = window[: string_cut(window, min(RUN_BYTES, len(window)))]
        position += len(window)
        if not window.isascii() or b"\\" in window:
            window = _decode_text(b'"%b"' % window).encode()
        write(window)
        yield None
