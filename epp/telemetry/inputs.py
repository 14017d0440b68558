# SPDX-License-Identifier: Apache-2.0
"""Metrics of what plugins and flags follow, such as files: read from them whenever the page is."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.framework.plugin_status import HasInputs

_LABELS = ("plugin_name", "file")


class InputMetrics(Collector):
    """Shows the inputs of all that is in use now; those of a plugin that is not any more are gone at once."""

    def __init__(self, owners: Callable[[], Iterable[HasInputs]]) -> None:
        self._owners = owners

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples."""
        return _families()

    def collect(self) -> Iterator[Metric]:
        """Yield a sample of each metric for each file, or for each kind of object."""
        problems, kept, rejected, ignored = families = _families()
        for owner in self._owners():
            inputs = owner.inputs
            problem_counts = Counter(each.file for each in inputs.problems)
            kept_counts: Counter[str] = Counter()
            for each in inputs.problems:
                kept_counts[each.file] += each.kept
            for file, count in inputs.rejected.items():
                problems.add_metric((owner.name, file), problem_counts[file])
                kept.add_metric((owner.name, file), kept_counts[file])
                rejected.add_metric((owner.name, file), count)
            for kind, count in Counter(each.kind for each in inputs.ignored).items():
                ignored.add_metric((owner.name, kind), count)
        yield from families


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, CounterMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily(
            "llm_d_epp_input_problems",
            "1 for a file whose newest version is not in effect, or else the number of such objects in it.",
            labels=_LABELS,
        ),
        GaugeMetricFamily(
            "llm_d_epp_input_objects_kept",
            "Objects in effect in an earlier version, since the newest one cannot be used or the file is gone.",
            labels=_LABELS,
        ),
        CounterMetricFamily(
            "llm_d_epp_input_versions_rejected",
            "Versions of a file, or of its objects, that cannot be used.",
            labels=_LABELS,
        ),
        GaugeMetricFamily(
            "llm_d_epp_input_values_ignored",
            "Impossible values, by the kind of the objects that are used without them.",
            labels=("plugin_name", "kind"),
        ),
    )
