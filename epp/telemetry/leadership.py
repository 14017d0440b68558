# SPDX-License-Identifier: Apache-2.0
"""The metric of leader election, under the name that Kubernetes' own components have for it."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class LeaderMetrics(Collector):
    """Shows whether this replica leads."""

    def __init__(self, lease: str, *, is_leader: Callable[[], bool]) -> None:
        self._lease = lease
        self._is_leader = is_leader

    def describe(self) -> Iterable[Metric]:
        """Return the metric without samples."""
        return (_family(),)

    def collect(self) -> Iterator[Metric]:
        """Yield the sample of the lease."""
        family = _family()
        family.add_metric((self._lease,), float(self._is_leader()))
        yield family


def _family() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "leader_election_master_status",
        "1 while this replica holds the lease of that name, 0 while it stands by.",
        labels=("name",),
    )
