# SPDX-License-Identifier: Apache-2.0
"""Search for selected series in a page in the Prometheus text format."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from epp.framework.datalayer import PageError

PROMETHEUS_TEXT = "text/plain;version=0.0.4,text/plain;q=0.5"
"""Media types of the format."""

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*"
_QUOTED = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_SPEC = re.compile(rf"\s*({_NAME})\s*(?:\{{(.*)\}})?\s*", re.DOTALL)
_MATCHER = re.compile(rf'\s*({_LABEL})\s*=\s*(?:({_QUOTED})|([^\s",{{}}]+))\s*(?:,|$)', re.DOTALL)

_BLOCK = re.compile(rb'[ \t]*\{([^"}\n]*(?:"[^"\\\n]*(?:\\.[^"\\\n]*)*"[^"}\n]*)*)\}')
_PAIR = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"([^"\\]*(?:\\.[^"\\]*)*)"')
_ESCAPE = re.compile(rb'\\([\\"n])')
AFTER_NAME = (b"{", b" ", b"\t")
_EXCERPT = 120
_MOST_STAMP_DIGITS = 18
_OLD_SECONDS = 300.0
"""Age of a time stamp from which a value is not that of now; clocks of machines differ by less."""


class Series(msgspec.Struct, frozen=True, gc=False):
    """One line of a page."""

    block: bytes
    """Text between the braces."""
    value: float
    """May be NaN or infinite."""
    is_old: bool = False
    """Whether its time stamp is long past."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels, parsed on access: most series are read for their value only."""
        return _labels_of(self.block)


@dataclass(frozen=True, slots=True)
class Selector:
    """A series name, and label values that must be equal."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    key: bytes = field(init=False, repr=False, compare=False)
    """Name and labels, to keep something by."""
    needle: bytes = field(init=False, repr=False, compare=False)
    """Start of a line with this name, line feed included; a longer name may start like that too."""

    def __post_init__(self) -> None:
        """Encode the name for the search."""
        object.__setattr__(self, "needle", b"\n" + self.name.encode())
        object.__setattr__(self, "key", repr((self.name, sorted(self.labels.items()))).encode())

    @classmethod
    def parse(cls, spec: str) -> "Selector":
        """Parse `name` or `name{label=value,...}`, values quoted or bare; raises ValueError."""
        whole = _SPEC.fullmatch(spec)
        if whole is None:
            raise ValueError(f"{spec!r} is not a metric spec: write name or name{{label=value,...}}")
        labels: dict[str, str] = {}
        body, end = (whole[2] or "").strip(), 0
        while end < len(body):
            matcher = _MATCHER.match(body, end)
            if matcher is None:
                raise ValueError(
                    f"{spec!r} is not a metric spec: {body[end:]!r} is not label=value; '=' is the only comparison"
                )
            key, quoted, bare = matcher.groups()
            labels[key] = bare if quoted is None else _unescape(quoted[1:-1].encode())
            end = matcher.end()
        return cls(whole[1], labels)

    def read(self, page: bytes) -> list[Series]:
        """Return the matching series in order of the page; raises PageError for an invalid one.

        In the format, all lines of one name are adjacent, so that the rest of the page is not searched.
        """
        end = self.find(page)
        return [] if end < 0 else self.read_from(page, end)[0]

    def find(self, page: bytes) -> int:
        """Return the end of the name at its first occurrence as that of a series; -1 for none."""
        end = len(self.needle) - 1 if page.startswith(self.needle[1:]) else self._next(page, 0)
        while end >= 0 and page[end : end + 1] not in AFTER_NAME:  # a longer name that starts with this one
            end = self._next(page, end)
        return end

    def read_from(self, page: bytes, end: int) -> tuple[list[Series], int, int]:
        """Return the matching series among the adjacent lines of this name, the number of these lines, and their end.

        `end` is the end of the name in the first of them. Raises PageError for an invalid one.
        """
        found: list[Series] = []
        lines = 0
        while True:
            line_end = self._read_line(page, end, found)
            lines += 1
            end = line_end + len(self.needle)
            if not page.startswith(self.needle, line_end) or page[end : end + 1] not in AFTER_NAME:
                return found, lines, line_end

    def _next(self, page: bytes, start: int) -> int:
        """Return the end of the name at its next occurrence at the start of a line; -1 for none."""
        at = page.find(self.needle, start)
        return -1 if at < 0 else at + len(self.needle)

    def _read_line(self, page: bytes, end_of_name: int, found: list[Series]) -> int:
        """Append the series if it matches; return the end of its line."""
        block = _BLOCK.match(page, end_of_name)
        start = end_of_name if block is None else block.end()
        stop = page.find(b"\n", start)
        rest = page[start:] if stop < 0 else page[start:stop]
        parts = rest.split(None, 2)
        try:
            value = float(parts[0])
            is_old = len(parts) > 1 and _is_old(parts[1])
        except (IndexError, ValueError):
            excerpt = (self.name.encode() + page[end_of_name:start] + rest)[:_EXCERPT].decode(errors="replace")
            raise PageError(f"a series cannot be read: {excerpt!r}") from None
        series = Series(b"" if block is None else block[1], value, is_old)
        if not self.labels or self.labels.items() <= series.labels.items():
            found.append(series)
        return len(page) if stop < 0 else stop


def start_of_value(page: bytes, end_of_name: int) -> int:
    """Return where the value of a series begins; -1 where something follows it, or no line feed."""
    block = _BLOCK.match(page, end_of_name)
    start = end_of_name if block is None else block.end()
    stop = page.find(b"\n", start)
    value = page[start:stop].split()
    return -1 if stop < 0 or len(value) != 1 else page.index(value[0], start)


def _is_old(stamp: bytes) -> bool:
    """Return whether a time stamp is long past; what follows a value may be no time stamp."""
    return stamp.isdigit() and time.time() - int(stamp[:_MOST_STAMP_DIGITS]) / 1000 > _OLD_SECONDS


@lru_cache(maxsize=1024)  # the labels of an engine are the same in every page
def _labels_of(block: bytes) -> Mapping[str, str]:
    return MappingProxyType({key.decode(): _unescape(value) for key, value in _PAIR.findall(block)})


def _unescape(value: bytes) -> str:
    if b"\\" in value:
        value = _ESCAPE.sub(lambda escape: b"\n" if escape[1] == b"n" else escape[1], value)
    return value.decode(errors="replace")


_NEAR, _VERY_NEAR = 512, 16
"""How far a line moves from page to page, as numbers before it get more digits."""
_LARGE = 8 * 1024
"""Bytes of a page that takes a while to be searched for what it has not."""
_SEARCHES = 8
"""Of so many large pages of one length, one is searched for a series that was not there."""
_LINE = 48
"""Bytes that a page grows by, at least, when a series is added with its comments."""
T = TypeVar("T")


class _Place:
    """Where all lines of one name were."""

    __slots__ = ("around", "around_at", "at", "found", "head", "length", "skips")

    def __init__(self) -> None:
        self.at = 0
        """Of the line feed before the first line."""
        self.found: Sequence[Series] = ()
        self.head = b""
        """The only line up to its value, with the line feed before it; empty for none, or several lines."""
        self.around = b""
        """The lines, the one before them, and the start of the one after them; empty where there are no such."""
        self.around_at = 0
        self.length = -_LARGE
        """Of the last page that was searched in vain."""
        self.skips = 0


class PageLayout:
    """Reads series as their selectors do, but looks first where they were last time.

    The outcome is the same, since a page has all lines of a name in one place: lines of that name, with none of that
    name before or after them, are all there are. A series that a large page did not have is searched for in every
    eighth page, and in one of another length.
    """

    __slots__ = ("_derived", "_places", "_shift")

    def __init__(self) -> None:
        self._places: dict[bytes, _Place] = {}
        self._derived: tuple[Sequence[Series], Any] | None = None
        self._shift = 0
        """How far all places have moved since they were read."""

    def matches(self, page: bytes) -> bool:
        """Whether all that was read from the last page is in this one, at the same place or moved as a whole."""
        shift, moved = self._shift, False
        for place in self._places.values():
            if not place.around:
                if not self._still_absent(page, place):
                    return False
                continue
            at = place.around_at + shift
            if at >= 0 and page.startswith(place.around, at):
                continue
            if moved:
                return False
            at = page.find(place.around, max(at - _NEAR, 0), at + len(place.around) + _NEAR)
            if at < 0:
                return False
            self._shift, moved = at - place.around_at, True
            shift = self._shift
        return bool(self._places)

    def read(self, selector: Selector, page: bytes) -> Sequence[Series]:
        """Return the matching series; raises PageError for an invalid one."""
        place = self._places.get(selector.key)
        if place is None:
            place = self._places[selector.key] = _Place()
        elif place.around:
            at = place.around_at + self._shift
            if at >= 0 and page.startswith(place.around, at):
                return place.found
            if place.head and self._reread_line(selector, page, place):
                return place.found
            end = self._end_of_name(selector, page, place)
            if end >= 0:
                return self._read_here(selector, page, place, end)
        elif self._still_absent(page, place):
            return ()
        place.around = b""
        end = selector.find(page)
        if end >= 0:
            return self._read_here(selector, page, place, end)
        if len(page) > _LARGE:
            place.length, place.skips = len(page), _SEARCHES - 1
        return ()

    def derived(self, series: Sequence[Series], derive: Callable[[Sequence[Series]], T]) -> T:
        """Return a value derived from the series; memoised for the series of the last page."""
        if self._derived is None or self._derived[0] is not series:
            self._derived = series, derive(series)
        found: T = self._derived[1]
        return found

    def _still_absent(self, page: bytes, place: _Place) -> bool:
        if not place.skips or not -_LINE < len(page) - place.length < _LINE:
            return False
        place.skips -= 1
        return True

    def _find_near(self, page: bytes, start: bytes, place: _Place) -> int:
        """Return where the first line starts, near to where it was; -1 if it is not there."""
        at = max(place.at + self._shift, 0)
        if page.startswith(start, at):
            return at
        found = page.find(start, max(at - _VERY_NEAR, 0), at + len(start) + _VERY_NEAR)
        if found < 0:
            found = page.find(start, max(at - _NEAR, 0), at + len(start) + _NEAR)
        if found >= 0:  # what follows has probably moved as far
            self._shift = found - place.at
        return found

    def _reread_line(self, selector: Selector, page: bytes, place: _Place) -> bool:
        """Read the value of the only line, and tell whether the line starts as before and still is the only one."""
        at = self._find_near(page, place.head, place)
        start = at + len(place.head)
        stop = page.find(b"\n", start)
        before = page.rfind(b"\n", 0, max(at, 0))
        needle = selector.needle
        if before < 0 or stop < 0 or page.startswith(needle, stop) or page.startswith(needle, before):
            return False
        try:
            value = float(page[start:stop])
        except ValueError:  # a time stamp, or no number
            return False
        place.found = (Series(place.found[0].block, value),)
        self._surround(place, page, at, before, stop + len(needle) + 1)
        return True

    def _end_of_name(self, selector: Selector, page: bytes, place: _Place) -> int:
        """Return the end of the name in the first line, near to where it was; -1 if it is not there."""
        needle = selector.needle
        at = self._find_near(page, needle, place)
        end = at + len(needle)
        before = page.rfind(b"\n", 0, max(at, 0))
        if before < 0 or page[end : end + 1] not in AFTER_NAME or page.startswith(needle, before):
            return -1
        return end

    def _read_here(self, selector: Selector, page: bytes, place: _Place, end: int) -> Sequence[Series]:
        place.around = b""  # in case of an invalid line
        place.found, lines, stop = selector.read_from(page, end)
        at = end - len(selector.needle)
        value = start_of_value(page, end) if lines == len(place.found) == 1 else -1
        place.head = page[max(at, 0) : max(value, 0)]
        if at >= 0:
            self._surround(place, page, at, page.rfind(b"\n", 0, at), stop + len(selector.needle) + 1)
        return place.found

    def _surround(self, place: _Place, page: bytes, at: int, before: int, beyond: int) -> None:
        """Keep the lines with what is around them, if all of that is there."""
        before = max(before, 0)
        place.at, place.around_at = at - self._shift, before - self._shift
        place.around = page[before:beyond] if beyond <= len(page) else b""
