# SPDX-License-Identifier: Apache-2.0
"""Renders the metrics page metric by metric, with pauses, so that other threads can run."""

import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from epp.telemetry.families import Samples

_WORK_SECONDS = 0.0005
"""Time after which there is a pause: what a request waits for at most, each time it wants the interpreter back."""
_PAUSE = 2.0
"""Length of a pause, as a multiple of the work before it."""
_SAMPLES = 16
"""Samples between two looks at the clock."""


class Paced(Collector):
    """The metrics of a registry; what renders them runs in a thread, and takes a third of the time at most."""

    def __init__(
        self,
        registry: Collector,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._sleep = sleep
        self._began = clock()

    def collect(self) -> Iterator[Metric]:
        """Yield each metric, with samples that are handed out slowly."""
        for metric in self._registry.collect():
            self._rest()
            paced = copy(metric)  # a collector may keep its own
            paced.samples = Samples(partial(_rested, metric.samples, self._rest))
            yield paced

    def _rest(self) -> None:
        """Pause, if it is time for that."""
        worked = self._clock() - self._began
        if worked >= _WORK_SECONDS:
            self._sleep(_PAUSE * worked)
            self._began = self._clock()


def _rested(samples: Iterable[Sample], rest: Callable[[], None]) -> Iterator[Sample]:
    """Yield samples with a rest now and then."""
    remaining = iter(samples)
    while some := tuple(islice(remaining, _SAMPLES)):
        yield from some
        rest()


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
