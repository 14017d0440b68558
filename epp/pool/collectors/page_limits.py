# SPDX-License-Identifier: Apache-2.0
"""Limits on metrics pages, and a filter that keeps the wanted series of a large page within them."""

import math
import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from epp.framework.datalayer import PageError

_KIB, _MIB = 1024, 1024 * 1024


class Limit(StrEnum):
    """What a page has too much of."""

    PAGE_BYTES = "page_bytes"
    PAGE_CHUNKS = "page_chunks"
    PAGE_SECONDS = "page_seconds"
    PAGES_BYTES = "pages_bytes"
    FAMILY_SERIES = "family_series"
    SERIES_BYTES = "series_bytes"


_IN_PART = frozenset({Limit.FAMILY_SERIES, Limit.SERIES_BYTES})


@dataclass(frozen=True, slots=True)
class PageLimits:
    """How much is read of one page of one endpoint."""

    page_bytes: int = 8 * _MIB
    """A larger page is refused."""
    family_series: int = 1000
    """Series of one name that are read: the first ones."""
    series_bytes: int = 64 * _KIB
    """Bytes of all series that are read; a single one may have a quarter of them."""
    arriving_bytes: int = 64 * _MIB
    """Bytes of all pages that are kept whole and not all there yet, beyond the first 64 KiB of each."""


class PageLimitError(PageError):
    """A page is beyond a limit, and is refused, or read in part."""

    def __init__(self, message: str, limit: Limit, *, remedy: str) -> None:
        super().__init__(message, remedy=remedy)
        self.limit = limit
        self.in_part = limit in _IN_PART
        """Whether what is within the limit is read."""


class ImpossibleValueError(PageError):
    """A page has values that no engine can have; they count as unknown, and the others are read."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(
            f"the page says what cannot be: {', '.join(problems[:3])}; that counts as unknown",
            remedy="look at what serves this page, and at engineConfigs of the extractor",
        )


REMEDIES = {
    Limit.PAGE_BYTES: "look at what the server counts, or raise --max-page-size",
    Limit.PAGE_CHUNKS: "look at what is between the server and this program: no server cuts a page so small",
    Limit.PAGE_SECONDS: "look at the server's load and log, or raise timeout of the source",
    Limit.PAGES_BYTES: "look at which endpoints send pages of so many bytes; this one is asked again",
    Limit.FAMILY_SERIES: "look at what the server counts by, or raise --max-page-series",
    Limit.SERIES_BYTES: "look at what the server counts by, or raise --max-series-size",
}


def cut_short(limit: Limit, limits: PageLimits) -> PageLimitError:
    """Return what is said of a page that is read in part."""
    if limit is Limit.FAMILY_SERIES:
        text = f"the page has more than {limits.family_series} series of one name: the first ones are read"
    else:
        text = (
            f"the page has more than {limits.series_bytes} bytes of series to be read, or a quarter of that in one: "
            "the rest is not read"
        )
    return PageLimitError(text, limit, remedy=REMEDIES[limit])


LARGE_BYTES = 64 * 1024
"""Size from which a page is sifted: extractors have no more to read at once, whatever a server sends."""
_SLICE_BYTES = 32 * 1024
"""What is gathered before it is searched: a tenth of a millisecond."""
_LINE_SHARE = 4
"""The part of all bytes of series that a single one may have is one by this."""
_SHORTEST_LINE_BYTES = 8
_CHECKED = 64
"""Of so many small pages of one size, one is looked at for whether it has too many lines."""
_GROWN_BYTES = 512
_START_BYTES = 2048
"""Of a page that has nothing to be read: it shows what the page is."""


class MetricFilter:
    """Takes from the pages of an endpoint what extractors read, one page after the other.

    A small page stays whole. Of a large one, or one of very many lines, only lines of the names are left, within
    limits: the work for each piece of it, and what is kept, are bounded. Of the names `newest`, only the series with
    the greatest value is left.
    """

    __slots__ = (
        "_counts", "_found", "_found_bytes", "_held", "_held_bytes", "_limits", "_line", "_line_bytes", "_newest",
        "_newest_found", "_plain_bytes", "_plain_pages", "_sifting", "_skipping", "_start", "cut",
    )  # fmt: skip

    def __init__(
        self, names: Collection[str], limits: PageLimits, *, newest: Iterable[str] = (), line_bytes: int | None = None
    ) -> None:
        """`line_bytes` limits a single series; the default is a quarter of the limit for all series."""
        self._limits = limits
        self._line_bytes = limits.series_bytes // _LINE_SHARE if line_bytes is None else line_bytes
        self._line = _pattern(frozenset(names))
        self._newest = frozenset(map(str.encode, newest))
        self._plain_bytes = self._plain_pages = 0
        self.begin()

    def begin(self) -> None:
        """Begin a page."""
        self.cut: frozenset[Limit] = frozenset()
        """Limits that the page went beyond."""
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._sifting = self._skipping = False
        self._start = b""
        self._counts: dict[bytes, int] = {}
        self._found: list[bytes] = []
        self._found_bytes = 0
        self._newest_found: dict[bytes, tuple[float, bytes]] = {}

    def feed(self, piece: bytes) -> None:
        """Take the next piece."""
        self._held.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes >= (_SLICE_BYTES if self._sifting else LARGE_BYTES):
            self._sift_held()

    def end(self) -> bytes:
        """Return the page, or what is left of it; where nothing is, its start."""
        if not self._sifting:
            page = self._held[0] if len(self._held) == 1 else b"".join(self._held)
            if self._is_plain(page):
                self._held = []
                return page
        self._sift_held(last=True)
        lines = self._found + [line for _, line in self._newest_found.values()]
        self._held, self._found, self._newest_found = [], [], {}
        return b"\n".join(lines) if lines or self.cut else self._start

    def _is_plain(self, page: bytes) -> bool:
        """Return whether a small page cannot have too many series, by the number of its lines."""
        most = self._limits.family_series
        if len(page) < most * _SHORTEST_LINE_BYTES:
            return True
        if len(page) > self._plain_bytes or not self._plain_pages:
            if page.count(b"\n") > most:
                return False
            self._plain_bytes, self._plain_pages = len(page) + _GROWN_BYTES, _CHECKED
        self._plain_pages -= 1
        return True

    def _sift_held(self, *, last: bool = False) -> None:
        data = b"".join(self._held if self._sifting else [b"\n", *self._held])
        self._sifting = True
        self._start = self._start or data[1:_START_BYTES]
        if self._skipping:  # the rest of a line that is too long
            start = data.find(b"\n")
            self._skipping = start < 0
            data = b"" if start < 0 else data[start:]
        end = len(data) if last else max(data.rfind(b"\n"), 0)
        rest = data[end:]
        if len(rest) > self._line_bytes:
            if self._line.match(rest) is not None:
                self._cut_by(Limit.SERIES_BYTES)
            self._skipping, rest = True, b""
        self._held, self._held_bytes = [rest], len(rest)
        for name, rest_of_line in self._line.findall(data[:end]):
            self._take(name, rest_of_line)

    def _take(self, name: bytes, rest: bytes) -> None:
        line = name + rest
        if len(line) > self._line_bytes:
            self._cut_by(Limit.SERIES_BYTES)
        elif name in self._newest:
            value = _value_in(rest)
            known = self._newest_found.get(name)
            if value > (-math.inf if known is None else known[0]) or (known is None and value == -math.inf):
                self._newest_found[name] = value, line
        elif (count := self._counts.get(name, 0)) >= self._limits.family_series:
            self._cut_by(Limit.FAMILY_SERIES)
        elif self._found_bytes + len(line) > self._limits.series_bytes:
            self._cut_by(Limit.SERIES_BYTES)
        else:
            self._counts[name] = count + 1
            self._found_bytes += len(line)
            self._found.append(line)

    def _cut_by(self, limit: Limit) -> None:
        if limit not in self.cut:
            self.cut |= {limit}


def _value_in(rest: bytes) -> float:
    """Return the value in a line without its name; NaN for NaN, infinity for none, so that the extractor sees it."""
    try:
        return float(rest[rest.rfind(b"}") + 1 :].split(None, 1)[0])
    except (IndexError, ValueError):
        return math.inf


@lru_cache(maxsize=64)
def _pattern(names: frozenset[str]) -> re.Pattern[bytes]:
    """Return what finds the name of a series, and the rest of its line; a line feed goes before it."""
    return re.compile(rb"\n(%b)([ \t{][^\n]*)" % _any_of(sorted(names)).encode())


def _any_of(words: list[str]) -> str:
    """Return an expression for words in order: common beginnings are looked at once, as most lines have none."""
    shared = os.path.commonprefix(words)  # noqa: RUF071  of letters is what is wanted
    by_next: dict[str, list[str]] = {}
    for word in words:
        by_next.setdefault(word[len(shared) : len(shared) + 1], []).append(word[len(shared) :])
    ends = by_next.pop("", None) is not None
    ways = [_any_of(group) if group != words else re.escape(group[0]) for group in by_next.values()]
    if ends:
        ways.append("")
    return re.escape(shared) + (ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})" if ways else "")
