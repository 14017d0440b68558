# SPDX-License-Identifier: Apache-2.0
"""The metrics page as bytes, made metric by metric: what is made and freed at once stops all threads meanwhile."""

import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from epp.observability.pacing import Paced

Encoder: TypeAlias = Callable[[Any], bytes]
"""Writes the metrics of a collector in one format, as prometheus_client chooses it."""

_END = b"# EOF\n"
_GZIP_LEVEL = 1  # a thirtieth of the size; higher levels take five times as long for little gain
_GZIP_FORMAT = 31


def rendered(encoder: Encoder, metrics: Collector, *, compress: bool) -> bytes:
    """Return the page of a collector, with pauses in between; gzipped with `compress`."""
    pieces = _pieces(encoder, metrics)
    if not compress:
        return b"".join(pieces)
    compressor = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_FORMAT)
    return b"".join([*(compressor.compress(piece) for piece in pieces), compressor.flush()])


def _pieces(encoder: Encoder, metrics: Collector) -> Iterator[bytes]:
    end = b""
    for metric in Paced(metrics).collect():
        piece = encoder(_One(metric))
        if piece.endswith(_END):  # of every page in the format of OpenMetrics
            piece, end = piece[: -len(_END)], _END
        yield piece
    yield end


class _One(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric
