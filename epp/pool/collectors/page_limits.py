# SPDX-License-Identifier: Apache-2.0
"""Limits on metrics pages, and the search of a large page for the wanted series within them."""

import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import lru_cache

from epp.framework.datalayer import PageError
from epp.pool.settings import PageLimits

LARGE_BYTES = 64 * 1024
"""Size from which only the wanted series of a page are read: the most that extractors read at once."""
_STEP_BYTES = 64 * 1024
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


class WantedLines:
    """The lines of the wanted series in a large page, within the limits, found in steps.

    For each name in `newest`, only the series with the greatest value is kept.
    """

    def __init__(
        self,
        page: bytes,
        names: Collection[str],
        limits: PageLimits,
        *,
        newest: Iterable[str] = (),
        line_bytes: int | None = None,
    ) -> None:
        """`line_bytes` limits a single series; the default is a quarter of the limit for all series."""
        self.page = page
        self._pattern = _pattern(frozenset(names))
        self._limits = limits
        self._line_bytes = limits.series_bytes // 4 if line_bytes is None else line_bytes
        self._newest = frozenset(map(str.encode, newest))
        self._newest_found: dict[bytes, tuple[float, bytes]] = {}
        self._counts: Counter[bytes] = Counter()
        self._found: list[bytes] = []
        self._found_bytes = 0
        self.cut: set[Limit] = set()
        """Limits that the page exceeds."""

    def search(self) -> Iterator[None]:
        """Search the page once, in steps of 64 KiB, or of one longer line: up to a few milliseconds."""
        start = 0
        while start < len(self.page):
            end = self.page.find(b"\n", start + _STEP_BYTES) + 1 or len(self.page)
            for name, rest in self._pattern.findall(b"\n" + self.page[start:end]):
                self._take(name, rest)
            start = end
            yield

    @property
    def text(self) -> bytes:
        """The lines that were found; the start of the page if there are none."""
        lines = self._found + [line for _, line in self._newest_found.values()]
        return b"\n".join(lines) if lines or self.cut else self.page[:_START_BYTES]

    def _take(self, name: bytes, rest: bytes) -> None:
        line = name + rest
        if len(line) > self._line_bytes:
            self.cut.add(Limit.SERIES_BYTES)
        elif name in self._newest:
            value = _value_in(rest)
            known = self._newest_found.get(name)
            if not math.isnan(value) and (known is None or value > known[0]):
                self._newest_found[name] = value, line
        elif self._counts[name] >= self._limits.family_series:
            self.cut.add(Limit.FAMILY_SERIES)
        elif self._found_bytes + len(line) > self._limits.series_bytes:
            self.cut.add(Limit.SERIES_BYTES)
        else:
            self._counts[name] += 1
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
