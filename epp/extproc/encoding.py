# SPDX-License-Identifier: Apache-2.0
"""Protobuf's wire format, written by hand where most replies need it; `proto/ext_proc.proto` has the fields' numbers.

Fields of a message may come in any order: what varies comes last, so that all before it depends on its length only.
"""

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_VARINT, _LENGTH_DELIMITED = 0, 2
_REMEMBERED = 1024
"""Values shorter than this are frequent, as pieces of event streams are: what goes before them is kept."""
_CONTINUES = 0x80
_VARINTS = (FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_ENUM, FieldDescriptor.TYPE_INT32)


def varint(number: int) -> bytes:
    """Return a number as the format has lengths, tags and flags."""
    if number < _CONTINUES:
        return number.to_bytes()
    found = bytearray()
    while number >= _CONTINUES:
        found.append(number % _CONTINUES | _CONTINUES)
        number //= _CONTINUES
    found.append(number)
    return bytes(found)


def tag(message: type[Message], name: str) -> bytes:
    """Return what comes before the value of a field, or before its length."""
    field = message.DESCRIPTOR.fields_by_name[name]
    return varint(field.number << 3 | (_VARINT if field.type in _VARINTS else _LENGTH_DELIMITED))


def flag(message: type[Message], name: str, number: int = 1) -> bytes:
    """Return a field that is a bool, or of another number."""
    return tag(message, name) + varint(number)


def text(message: type[Message], name: str, value: str) -> bytes:
    """Return a field that is a string or bytes."""
    encoded = value.encode()
    return tag(message, name) + varint(len(encoded)) + encoded


class Nested:
    """A field within the last field of a message, and so on outwards; `Nested(...)(value)` is the outermost one.

    Each level is given as the bytes before its length: its tag, after all other fields of its message.
    """

    __slots__ = ("_before", "_levels")

    def __init__(self, *levels: bytes) -> None:
        self._levels = levels
        self._before: dict[int, bytes] = {}

    def __call__(self, value: bytes) -> bytes:
        """Return the field with this innermost value."""
        size = len(value)
        return (self._before.get(size) or self.before(size)) + value

    def before(self, size: int) -> bytes:
        """Return all bytes before an innermost value of this size, which is the end."""
        found = b""
        for level in self._levels:
            found = level + varint(len(found) + size) + found
        if size < _REMEMBERED:
            self._before[size] = found
        return found
