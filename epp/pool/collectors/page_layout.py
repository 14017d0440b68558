# SPDX-License-Identifier: Apache-2.0
"""Places of series in the pages of one endpoint, where they are looked for first in the next page."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from epp.pool.collectors.exposition import AFTER_NAME, Selector, Series, start_of_value

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
