# SPDX-License-Identifier: Apache-2.0
"""Profiles in the format of `go tool pprof`: gzipped protobuf, perftools.profiles.Profile."""

import gzip
from collections.abc import Iterable

from epp.debugging.stack import Kind, Place, Profile

_VARINT, _BYTES = 0, 2
_MASK = 2**64 - 1
_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRING = 1, 2, 4, 5, 6
_TIME, _DURATION, _PERIOD_TYPE, _PERIOD, _DEFAULT_TYPE = 9, 10, 11, 12, 14


def encoded(profile: Profile) -> bytes:
    """Return the profile as a file."""
    return gzip.compress(_Writer().profile(profile), compresslevel=1)


class _Writer:
    """Gathers strings, functions and locations, each once."""

    def __init__(self) -> None:
        self._strings: dict[str, int] = {"": 0}
        self._functions: dict[tuple[str, str, int], int] = {}
        self._locations: dict[Place, int] = {}

    def profile(self, profile: Profile) -> bytes:
        """Return the message."""
        parts = [_field(_SAMPLE_TYPE, self._kind(kind)) for kind in profile.kinds]
        for (stack, label), numbers in profile.samples.items():
            sample = _packed(1, (self._location(place) for place in stack)) + _packed(2, numbers)
            if label:
                sample += _field(3, _number(1, self._string(profile.label)) + _number(2, self._string(label)))
            parts.append(_field(_SAMPLE, sample))
        default = self._string(profile.kinds[-1].name)
        period = self._kind(profile.period)
        functions: dict[tuple[str, str, int], int] = self._functions
        for place, number in self._locations.items():
            function = functions.setdefault((place.function, place.file, place.first_line), len(functions) + 1)
            line = _number(1, function) + _number(2, place.line)
            parts.append(_field(_LOCATION, _number(1, number) + _field(4, line)))
        for (name, file, first_line), number in functions.items():
            named, filed = self._string(name), self._string(file)
            told = _number(1, number) + _number(2, named) + _number(3, named) + _number(4, filed)
            parts.append(_field(_FUNCTION, told + _number(5, first_line)))
        parts += [_field(_STRING, text.encode("utf-8", "backslashreplace")) for text in self._strings]
        parts += [_number(_TIME, profile.began), _number(_DURATION, profile.nanoseconds)]
        parts += [_field(_PERIOD_TYPE, period), _number(_PERIOD, profile.period_value)]
        parts.append(_number(_DEFAULT_TYPE, default))
        return b"".join(parts)

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _kind(self, kind: Kind) -> bytes:
        return _number(1, self._string(kind.name)) + _number(2, self._string(kind.unit))

    def _location(self, place: Place) -> int:
        return self._locations.setdefault(place, len(self._locations) + 1)


def _varint(value: int) -> bytes:
    value &= _MASK
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004  seven bits in each byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value) if value else b""


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(content)) + content


def _packed(field: int, values: Iterable[int]) -> bytes:
    return _field(field, b"".join(map(_varint, values)))
