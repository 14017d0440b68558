# SPDX-License-Identifier: Apache-2.0
"""Bytes as the page of a model server: series are found as a plain reading finds them, and only PageError is raised."""

import contextlib

from targets import FuzzTarget

from epp.collectors.engines.metrics import CoreMetricsExtractor
from epp.collectors.exposition import AFTER_NAME, Selector
from epp.collectors.sieve import Sieve
from epp.framework import Endpoint
from epp.framework.datalayer import PageError

_NAMES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:lora_requests_info", "a", "a_b")
_SELECTORS = (*map(Selector, _NAMES), Selector("a", {"x": "y"}), Selector("a", {"x": 'q"\\\n'}))
_ENDPOINT = Endpoint("a", "10.0.0.1", 8000)


class Target(FuzzTarget):
    """Pages, and specifications of the series to find in them."""

    def __init__(self) -> None:
        self._sieve = Sieve(_NAMES)
        self._extractor = CoreMetricsExtractor()

    def __call__(self, content: bytes) -> None:
        for selector in _SELECTORS:
            try:
                found = selector.read(content)
            except PageError as error:
                assert str(error)  # noqa: PT017  PageError is allowed, and says something
                continue
            assert len(found) <= content.count(selector.name.encode())
            for series in found:
                assert isinstance(series.value, float)
                labels = series.labels
                assert all(labels.get(name) == value for name, value in selector.labels.items())
        sifted = [line for lines in self._sieve.slices(content) for line in lines]
        assert sifted == _lines(content), "the sieve lets other lines pass"
        with contextlib.suppress(PageError):
            self._extractor.extract(content, _ENDPOINT)
        try:
            Selector.parse(content[:200].decode(errors="replace"))
        except ValueError as error:
            assert "is not a metric spec" in str(error)  # noqa: PT017  the same


def _lines(page: bytes) -> list[bytes]:
    """Return the lines of these names, by a plain reading."""
    names = [name.encode() for name in _NAMES]
    return [
        line
        for line in page.split(b"\n")
        if any(line.startswith(name) and line[len(name) : len(name) + 1] in AFTER_NAME for name in names)
    ]
