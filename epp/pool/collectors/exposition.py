# SPDX-License-Identifier: Apache-2.0
"""Search for selected series in a page in the Prometheus text format.

The picker needs seven of the hundreds of series in a page of 50 KB, twenty times per second. Names are searched for in
the raw bytes, and only lines with these names are parsed.
"""

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
"""Age of a time stamp from which a value is outdated; clocks of machines differ by less."""
_NEAR, _VERY_NEAR = 512, 16
"""Distance by which lines move between pages, as numbers before them get more digits."""
_LARGE = 8 * 1024
"""Size from which the search for a missing series is expensive."""
_SEARCHES = 8
"""Number of large pages of similar length among which one is searched for a missing series."""
_LINE = 48
"""Least growth of a page when a series and its comments are added, in bytes."""
T = TypeVar("T")


class Series(msgspec.Struct, frozen=True, gc=False):
    """One line of a page."""

    block: bytes
    """Text between the braces."""
    value: float
    """May be NaN or infinite."""
    is_old: bool = False
    """Whether its time stamp is outdated."""

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
    """Name and labels, as a key for memoised results."""
    needle: bytes = field(init=False, repr=False, compare=False)
    """Line feed and name; a longer name may start with it too."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "needle", b"\n" + self.name.encode())
        object.__setattr__(self, "key", repr((self.name, sorted(self.labels.items()))).encode())

    @classmethod
    def check(cls, spec: str, place: str) -> None:
        """Raise ValueError, which names the place, for an invalid spec."""
        try:
            cls.parse(spec)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None

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

        The format keeps all lines of one name adjacent, so that the rest of the page is not searched.
        """
        end = self.find(page)
        return [] if end < 0 else self.read_from(page, end)[0]

    def find(self, page: bytes) -> int:
        """Return the end of the name of the first series with this name; -1 if there is none."""
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
    """Return the position of the value of a series; -1 if the line has a time stamp or no line feed."""
    block = _BLOCK.match(page, end_of_name)
    start = end_of_name if block is None else block.end()
    stop = page.find(b"\n", start)
    value = page[start:stop].split()
    return -1 if stop < 0 or len(value) != 1 else page.index(value[0], start)


def _is_old(stamp: bytes) -> bool:
    """Return whether a text is an outdated time stamp."""
    return stamp.isdigit() and time.time() - int(stamp[:_MOST_STAMP_DIGITS]) / 1000 > _OLD_SECONDS


@lru_cache(maxsize=1024)  # the labels of an engine are the same in every page
def _labels_of(block: bytes) -> Mapping[str, str]:
    return MappingProxyType({key.decode(): _unescape(value) for key, value in _PAIR.findall(block)})


def _unescape(value: bytes) -> str:
    if b"\\" in value:
        value = _ESCAPE.sub(lambda escape: b"\n" if escape[1] == b"n" else escape[1], value)
    return value.decode(errors="replace")


@dataclass(slots=True)
class _Position:
    """Position of all lines of one name in the last page."""

    at: int = 0
    """Position of the line feed before the first line."""
    found: Sequence[Series] = ()
    head: bytes = b""
    """Line feed and line up to the value, if there is a single line; else empty."""
    around: bytes = b""
    """The line before, the lines, and the start of the line after; empty if one of these is missing."""
    around_at: int = 0
    length: int = -_LARGE
    """Length of the last page without the series."""
    skips: int = 0


class PageLayout:
    """Reads series like their selectors, but searches first at their positions in the last page.

    The result is the same, since all lines of a name are adjacent. A series that is missing from a large page is
    searched for again in every eighth page, and in pages of another length.
    """

    __slots__ = ("_derived", "_positions", "_shift")

    def __init__(self) -> None:
        self._positions: dict[bytes, _Position] = {}
        self._derived: tuple[Sequence[Series], Any] | None = None
        self._shift = 0
        """Distance by which all positions have moved since they were read."""

    def matches(self, page: bytes) -> bool:
        """Return whether this page has the same series as the last one, at the same or uniformly moved positions."""
        shift, moved = self._shift, False
        for position in self._positions.values():
            if not position.around:
                if not self._still_absent(page, position):
                    return False
                continue
            at = position.around_at + shift
            if at >= 0 and page.startswith(position.around, at):
                continue
            if moved:
                return False
            at = page.find(position.around, max(at - _NEAR, 0), at + len(position.around) + _NEAR)
            if at < 0:
                return False
            self._shift, moved = at - position.around_at, True
            shift = self._shift
        return bool(self._positions)

    def read(self, selector: Selector, page: bytes) -> Sequence[Series]:
        """Return the matching series; raises PageError for an invalid one."""
        position = self._positions.get(selector.key)
        if position is None:
            position = self._positions[selector.key] = _Position()
        elif position.around:
            at = position.around_at + self._shift
            if at >= 0 and page.startswith(position.around, at):
                return position.found
            if position.head and self._reread_line(selector, page, position):
                return position.found
            end = self._end_of_name(selector, page, position)
            if end >= 0:
                return self._read_here(selector, page, position, end)
        elif self._still_absent(page, position):
            return ()
        position.around = b""
        end = selector.find(page)
        if end >= 0:
            return self._read_here(selector, page, position, end)
        if len(page) > _LARGE:
            position.length, position.skips = len(page), _SEARCHES - 1
        return ()

    def derived(self, series: Sequence[Series], derive: Callable[[Sequence[Series]], T]) -> T:
        """Return a value derived from the series; memoised for the series of the last page."""
        if self._derived is None or self._derived[0] is not series:
            self._derived = series, derive(series)
        found: T = self._derived[1]
        return found

    def _still_absent(self, page: bytes, position: _Position) -> bool:
        if not position.skips or not -_LINE < len(page) - position.length < _LINE:
            return False
        position.skips -= 1
        return True

    def _find_near(self, page: bytes, start: bytes, position: _Position) -> int:
        """Return the position of the first line near its last one; -1 if it is not there."""
        at = max(position.at + self._shift, 0)
        if page.startswith(start, at):
            return at
        found = page.find(start, max(at - _VERY_NEAR, 0), at + len(start) + _VERY_NEAR)
        if found < 0:
            found = page.find(start, max(at - _NEAR, 0), at + len(start) + _NEAR)
        if found >= 0:  # the following series have probably moved as far
            self._shift = found - position.at
        return found

    def _reread_line(self, selector: Selector, page: bytes, position: _Position) -> bool:
        """Read the value of a single line; return whether it starts as before and is still the only one."""
        at = self._find_near(page, position.head, position)
        start = at + len(position.head)
        stop = page.find(b"\n", start)
        before = page.rfind(b"\n", 0, max(at, 0))
        needle = selector.needle
        if before < 0 or stop < 0 or page.startswith(needle, stop) or page.startswith(needle, before):
            return False
        try:
            value = float(page[start:stop])
        except ValueError:  # not a number, or a number and a time stamp
            return False
        position.found = (Series(position.found[0].block, value),)
        self._surround(position, page, at, before, stop + len(needle) + 1)
        return True

    def _end_of_name(self, selector: Selector, page: bytes, position: _Position) -> int:
        """Return the end of the name in the first line near its last position; -1 if it is not there."""
        needle = selector.needle
        at = self._find_near(page, needle, position)
        end = at + len(needle)
        before = page.rfind(b"\n", 0, max(at, 0))
        if before < 0 or page[end : end + 1] not in AFTER_NAME or page.startswith(needle, before):
            return -1
        return end

    def _read_here(self, selector: Selector, page: bytes, position: _Position, end: int) -> Sequence[Series]:
        position.around = b""  # in case of an invalid line
        position.found, lines, stop = selector.read_from(page, end)
        at = end - len(selector.needle)
        value = start_of_value(page, end) if lines == len(position.found) == 1 else -1
        position.head = page[max(at, 0) : max(value, 0)]
        if at >= 0:
            self._surround(position, page, at, page.rfind(b"\n", 0, at), stop + len(selector.needle) + 1)
        return position.found

    def _surround(self, position: _Position, page: bytes, at: int, before: int, beyond: int) -> None:
        """Remember the lines with their surroundings, if these are complete."""
        before = max(before, 0)
        position.at, position.around_at = at - self._shift, before - self._shift
        position.around = page[before:beyond] if beyond <= len(page) else b""
