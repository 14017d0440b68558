# SPDX-License-Identifier: Apache-2.0
"""Metrics of records of decisions: read from the recorder whenever the page is."""

from collections.abc import Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.explain.recorder import Recorder


class DecisionMetrics(Collector):
    """Shows a recorder."""

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples."""
        return _families()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; none without a recorder."""
        recorder = self._recorder
        if recorder is None:
            return
        recorded, lost, size = families = _families()
        for why, count in recorder.recorded.items():
            recorded.add_metric((why,), count)
        for why, count in recorder.lost.items():
            lost.add_metric((why,), count)
        lost.add_metric(("file",), 0 if recorder.file is None else recorder.file.lost)
        size.add_metric((), recorder.ring.size_bytes)
        yield from families


def _families() -> tuple[CounterMetricFamily, CounterMetricFamily, GaugeMetricFamily]:
    return (
        CounterMetricFamily(
            "llm_d_epp_decision_records",
            "Decisions that were recorded, by what for: sampled, asked or failed.",
            labels=("recorded_for",),
        ),
        CounterMetricFamily(
            "llm_d_epp_decision_records_lost",
            "Decisions that were to be recorded and are not: busy, for want of time; rate, too many failures in a "
            "second; error, a fault of a plugin or of the picker; file, not written to --decision-file.",
            labels=("reason",),
        ),
        GaugeMetricFamily("llm_d_epp_decision_buffer_bytes", "Size of the decisions that are kept in memory."),
    )
