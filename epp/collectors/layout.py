# SPDX-License-Identifier: Apache-2.0
"""Places of series in the pages of one endpoint, where they are looked for first in the next page."""

from collections.abc import Sequence

from epp.collectors.exposition import AFTER_NAME, Selector, Series, start_of_value

_NEAR, _VERY_NEAR = 512, 16
"""How far a line moves from page to page, as numbers before it get more digits."""
_LARGE = 8 * 1024
"""Bytes of a page that takes a while to be searched for what it has not."""
_SEARCHES = 8
"""Of so many large pages of one length, one is searched for a series that was not there."""
_LINE = 48
"""Bytes that a page grows by, at least, when a series is added with its comments."""


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


class Layout:
    """Reads series as their selectors do, but looks first where they were last time.

    The outcome is the same, since a page has all lines of a name in one place: lines of that name, with none of that
    name before or after them, are all there are. A series that a large page did not have is searched for in every
    eighth page, and in one of another length.
    """

    __slots__ = ("_places", "_shift")

    def __init__(self) -> None:
        self._places: dict[bytes, _Place] = {}
        self._shift = 0
        """How far all places have moved since they were read."""

    def same(self, page: bytes) -> bool:
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

    def _still_absent(self, page: bytes, place: _Place) -> bool:
        if not place.skips or not -_LINE < len(page) - place.length < _LINE:
            return False
        place.skips -= 1
        return True

    def _end_of_name(self, selector: Selector, page: bytes, place: _Place) -> int:
        """Return the end of the name in the first line, near to where it was; -1 if it is not there."""
        needle, at = selector.needle, place.at + self._shift
        start = place.head or needle
        if not page.startswith(start, at):
            at = page.find(start, max(at - _VERY_NEAR, 0), max(at, 0) + len(start) + _VERY_NEAR)
            if at < 0:
                at = place.at + self._shift
                at = page.find(start, max(at - _NEAR, 0), max(at, 0) + _NEAR)
        end = at + len(needle)
        if at < 0 or page[end : end + 1] not in AFTER_NAME or page.startswith(needle, page.rfind(b"\n", 0, at)):
            return -1
        return end

    def _read_here(self, selector: Selector, page: bytes, place: _Place, end: int) -> Sequence[Series]:
        at = end - len(selector.needle)
        stop = self._reread_value(selector, page, place, at)
        if stop < 0:
            place.found, lines, stop = selector.read_from(page, end)
            value = start_of_value(page, end) if lines == len(place.found) == 1 else -1
            place.head = page[max(at, 0) : max(value, 0)]
        if place.around and at >= 0:  # what follows has probably moved as far
            self._shift = at - place.at
        beyond = stop + len(selector.needle) + 1
        if at >= 0 and beyond <= len(page):
            before = max(page.rfind(b"\n", 0, at), 0)
            place.at, place.around_at, place.around = at - self._shift, before - self._shift, page[before:beyond]
        else:
            place.around = b""
        return place.found

    def _reread_value(self, selector: Selector, page: bytes, place: _Place, at: int) -> int:
        """Read the value of the only line if the line starts as before; return its end, or -1."""
        head = place.head
        if not head or not page.startswith(head, at):
            return -1
        start = at + len(head)
        stop = page.find(b"\n", start)
        if stop < 0 or page.startswith(selector.needle, stop):
            return -1
        try:
            value = float(page[start:stop])
        except ValueError:  # a time stamp, or no number
            return -1
        place.found = (Series(place.found[0].block, value),)
        return stop
