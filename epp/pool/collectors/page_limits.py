# SPDX-License-Identifier: Apache-2.0
"""Limits on metrics pages, and a filter that keeps the wanted series of a large page within them."""

import math
import os
import re
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from functools import lru_cache

from epp.framework.datalayer import PageError
from epp.pool.settings import PageLimits

LARGE_BYTES = 64 * 1024
"""Size from which a page is filtered: the most that extractors read at once."""
_SLICE_BYTES = 32 * 1024
"""Bytes that are collected before they are searched, which takes a tenth of a millisecond."""
_SHORTEST_LINE_BYTES = 8
_CHECKED = 64
"""Number of small pages of similar size among which one is checked for too many lines."""
_GROWN_BYTES = 512
_START_BYTES = 2048
"""Size of the start of a page without wanted series, which is returned for messages."""


class Limit(StrEnum):
    """A limit on pages, by its name in metrics."""

    PAGE_BYTES = "page_bytes"
    PAGE_CHUNKS = "page_chunks"
    PAGE_SECONDS = "page_seconds"
    PAGES_BYTES = "pages_bytes"
    FAMILY_SERIES = "family_series"
    SERIES_BYTES = "series_bytes"


class PageLimitError(PageError):
    """A page exceeds a limit, and is refused or read in part."""

    def __init__(self, message: str, limit: Limit, *, remedy: str) -> None:
        super().__init__(message, remedy=remedy)
        self.limit = limit
        self.in_part = limit in (Limit.FAMILY_SERIES, Limit.SERIES_BYTES)
        """Whether the part within the limit is read."""


class ImpossibleValueError(PageError):
    """A page has impossible values, which count as unknown; the other values are read."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(
            f"the page has impossible values: {', '.join(problems[:3])}; they count as unknown",
            remedy="check the server of this page, and engineConfigs of the extractor",
        )


REMEDIES = {
    Limit.PAGE_BYTES: "check the metrics of the server, or raise --max-page-size",
    Limit.PAGE_CHUNKS: "check proxies between the server and this program: servers send fewer pieces",
    Limit.PAGE_SECONDS: "check the load and the log of the server, or raise timeout of the source",
    Limit.PAGES_BYTES: "check which endpoints send large pages; this endpoint is polled again",
    Limit.FAMILY_SERIES: "check the labels of the server's metrics, or raise --max-page-series",
    Limit.SERIES_BYTES: "check the labels of the server's metrics, or raise --max-series-size",
}


def cut_short(limit: Limit, limits: PageLimits) -> PageLimitError:
    """Return the error of a page that is read in part."""
    if limit is Limit.FAMILY_SERIES:
        text = f"the page has more than {limits.family_series} series of one name: the first ones are read"
    else:
        text = (
            f"the page has more than {limits.series_bytes} bytes of series to be read, or a quarter of that in one: "
            "the rest is not read"
        )
    return PageLimitError(text, limit, remedy=REMEDIES[limit])


class MetricFilter:
    """Keeps the wanted series of the pages of an endpoint, one page after the other.

    A small page is kept whole. A large page, or one with very many lines, is reduced to the lines of the wanted names,
    within the limits; work and memory per piece are bounded. For each name in `newest`, only the series with the
    greatest value is kept.
    """

    __slots__ = (
        "_buffered", "_buffered_bytes", "_counts", "_filtering", "_found", "_found_bytes", "_limits", "_line",
        "_line_bytes", "_newest", "_newest_found", "_plain_bytes", "_plain_pages", "_skipping", "_start", "cut",
    )  # fmt: skip

    def __init__(
        self, names: Collection[str], limits: PageLimits, *, newest: Iterable[str] = (), line_bytes: int | None = None
    ) -> None:
        """`line_bytes` limits a single series; the default is a quarter of the limit for all series."""
        self._limits = limits
        self._line_bytes = limits.series_bytes // 4 if line_bytes is None else line_bytes
        self._line = _pattern(frozenset(names))
        self._newest = frozenset(map(str.encode, newest))
        self._plain_bytes = self._plain_pages = 0
        self.begin()

    def begin(self) -> None:
        self.cut: set[Limit] = set()
        """Limits that the page exceeds."""
        self._buffered: list[bytes] = []
        self._buffered_bytes = 0
        self._filtering = self._skipping = False
        self._start = b""
        self._counts: dict[bytes, int] = {}
        self._found: list[bytes] = []
        self._found_bytes = 0
        self._newest_found: dict[bytes, tuple[float, bytes]] = {}

    def feed(self, piece: bytes) -> None:
        self._buffered.append(piece)
        self._buffered_bytes += len(piece)
        if self._buffered_bytes >= (_SLICE_BYTES if self._filtering else LARGE_BYTES):
            self._filter_buffered()

    def end(self) -> bytes:
        """Return the page or its wanted lines; the start of the page if there are none."""
        if not self._filtering:
            page = self._buffered[0] if len(self._buffered) == 1 else b"".join(self._buffered)
            if self._is_plain(page):
                self._buffered = []
                return page
        self._filter_buffered(last=True)
        lines = self._found + [line for _, line in self._newest_found.values()]
        self._buffered, self._found, self._newest_found = [], [], {}
        return b"\n".join(lines) if lines or self.cut else self._start

    def _is_plain(self, page: bytes) -> bool:
        """Return whether a small page has too few lines to exceed the limit of series."""
        most = self._limits.family_series
        if len(page) < most * _SHORTEST_LINE_BYTES:
            return True
        if len(page) > self._plain_bytes or not self._plain_pages:
            if page.count(b"\n") > most:
                return False
            self._plain_bytes, self._plain_pages = len(page) + _GROWN_BYTES, _CHECKED
        self._plain_pages -= 1
        return True

    def _filter_buffered(self, *, last: bool = False) -> None:
        data = b"".join(self._buffered if self._filtering else [b"\n", *self._buffered])
        self._filtering = True
        self._start = self._start or data[1:_START_BYTES]
        if self._skipping:  # the rest of a line over the limit
            start = data.find(b"\n")
            self._skipping = start < 0
            data = b"" if start < 0 else data[start:]
        end = len(data) if last else max(data.rfind(b"\n"), 0)
        rest = data[end:]
        if len(rest) > self._line_bytes:
            if self._line.match(rest) is not None:
                self.cut.add(Limit.SERIES_BYTES)
            self._skipping, rest = True, b""
        self._buffered, self._buffered_bytes = [rest], len(rest)
        for name, rest_of_line in self._line.findall(data[:end]):
            self._take(name, rest_of_line)

    def _take(self, name: bytes, rest: bytes) -> None:
        line = name + rest
        if len(line) > self._line_bytes:
            self.cut.add(Limit.SERIES_BYTES)
        elif name in self._newest:
            value = _value_in(rest)
            known = self._newest_found.get(name)
            if not math.isnan(value) and (known is None or value > known[0]):
                self._newest_found[name] = value, line
        elif (count := self._counts.get(name, 0)) >= self._limits.family_series:
            self.cut.add(Limit.FAMILY_SERIES)
        elif self._found_bytes + len(line) > self._limits.series_bytes:
            self.cut.add(Limit.SERIES_BYTES)
        else:
            self._counts[name] = count + 1
            self._found_bytes += len(line)
            self._found.append(line)


def _value_in(rest: bytes) -> float:
    """Return the value in a line without its name; infinity for an invalid one, so that the extractor reports it."""
    try:
        return float(rest[rest.rfind(b"}") + 1 :].split(None, 1)[0])
    except (IndexError, ValueError):
        return math.inf


@lru_cache(maxsize=64)
def _pattern(names: frozenset[str]) -> re.Pattern[bytes]:
    """Return a pattern for a line feed, the name of a series, and the rest of its line."""
    return re.compile(rb"\n(%b)([ \t{][^\n]*)" % _any_of(sorted(names)).encode())


def _any_of(words: list[str]) -> str:
    """Return an expression for sorted words that shares their common prefixes, since most lines match none."""
    shared = os.path.commonprefix(words)  # noqa: RUF071  by character
    by_next: dict[str, list[str]] = {}
    for word in words:
        by_next.setdefault(word[len(shared) : len(shared) + 1], []).append(word[len(shared) :])
    ends = by_next.pop("", [])  # a word that ends here
    ways = [_any_of(group) if group != words else re.escape(group[0]) for group in by_next.values()] + ends
    return re.escape(shared) + (ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})" if ways else "")
