# SPDX-License-Identifier: Apache-2.0
"""Lines of wanted series from a large page, a slice at a time."""

import asyncio
import re
from collections.abc import Iterable, Iterator

from epp.collectors.http.cost import ReadingCost

LARGE_BYTES = 256 * 1024
"""Size from which a page takes milliseconds to be searched for what it has not."""
_SLICE_BYTES = 128 * 1024
"""What is searched without a pause: half a millisecond."""


class Sieve:
    """Takes from a page in the Prometheus text format what extractors read, so that they are quick with it."""

    def __init__(self, names: Iterable[str]) -> None:
        wanted = b"|".join(re.escape(name.encode()) for name in sorted(names, reverse=True))
        self._line = re.compile(rb"\n((?:%s)[ \t{][^\n]*)" % wanted)

    async def sift(self, page: bytes, cost: ReadingCost) -> bytes:
        """Return the lines of the series with the names, in order; other tasks run in between."""
        found: list[bytes] = []
        cost.begin()
        for lines in self.slices(page):
            found += lines
            cost.end()
            await asyncio.sleep(0)
            cost.begin()
        cost.end()
        return b"\n".join(found)

    def slices(self, page: bytes) -> Iterator[list[bytes]]:
        """Yield the lines in one slice of the page after the other."""
        start = 0
        while start < len(page):
            end = start + _SLICE_BYTES
            end = max(page.rfind(b"\n", start, end), start) if end < len(page) else len(page)
            if end == start:  # a line that is longer than a slice
                end = page.find(b"\n", start + _SLICE_BYTES)
                end = len(page) if end < 0 else end
            yield self._line.findall(b"\n" + page[start:end])
            start = end + 1
