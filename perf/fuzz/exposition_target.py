# SPDX-License-Identifier: Apache-2.0
"""Bytes as the page of a model server: results match those of a simple parser, and only PageError is raised."""

import contextlib

from epp.framework import Endpoint
from epp.framework.datalayer import PageError
from epp.pool.collectors.engine_metrics import CoreMetricsExtractor
from epp.pool.collectors.exposition import AFTER_NAME, Selector
from epp.pool.collectors.page_limits import LARGE_BYTES, MetricFilter
from epp.pool.settings import PageLimits
from perf.fuzz.targets import FuzzTarget

_NAMES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:lora_requests_info", "a", "a_b")
_SELECTORS = (*map(Selector, _NAMES), Selector("a", {"x": "y"}), Selector("a", {"x": 'q"\\\n'}))
_FILLER = b"# what nobody reads\n" * (LARGE_BYTES // 20 + 10)
_ENDPOINT = Endpoint("a", "10.0.0.1", 8000)


class Target(FuzzTarget):
    """Pages, and specifications of the series to find in them."""

    def __init__(self) -> None:
        self._sieve = MetricFilter(_NAMES, PageLimits())
        self._extractor = CoreMetricsExtractor()

    def __call__(self, content: bytes) -> None:
        for selector in _SELECTORS:
            try:
                found = selector.read(content)
            except PageError as error:
                assert str(error)  # noqa: PT017  PageError is allowed, with a message
                continue
            assert len(found) <= content.count(selector.name.encode())
            for series in found:
                assert isinstance(series.value, float)
                labels = series.labels
                assert all(labels.get(name) == value for name, value in selector.labels.items())
        self._sift(content)
        with contextlib.suppress(PageError):
            self._extractor.extract(content, _ENDPOINT)
        try:
            Selector.parse(content[:200].decode(errors="replace"))
        except ValueError as error:
            assert "is not a metric spec" in str(error)  # noqa: PT017  the same

    def _sift(self, content: bytes) -> None:
        """Read it as a small page, and as the start of a large one, in pieces of different sizes."""
        large = content + b"\n" + _FILLER
        size = 1 + 997 * (content[0] if content else 0)
        for page in (content, large):
            self._sieve.begin()
            step = size if page is content else max(size, 4_096)
            for at in range(0, len(page), step):
                self._sieve.feed(page[at : at + step])
            left = self._sieve.end()
            if self._sieve.cut:
                assert set(left.split(b"\n")) <= {b"", *_lines(page)}, "the filter passes other lines"
            elif page is large and _lines(page):
                assert left.split(b"\n") == _lines(page), "the filter passes other lines, or loses some"


def _lines(page: bytes) -> list[bytes]:
    """Return the lines of these names, with a simple parser."""
    names = [name.encode() for name in _NAMES]
    return [
        line
        for line in page.split(b"\n")
        if any(line.startswith(name) and line[len(name) : len(name) + 1] in AFTER_NAME for name in names)
    ]
