# SPDX-License-Identifier: Apache-2.0
"""Metrics of what clients may take of a picker: read from the budgets whenever the page is."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.extproc.budgets import Budgets

_LABELS = ("budget",)


class BudgetMetrics(Collector):
    """Shows the budgets of a picker."""

    def __init__(self, budgets: Callable[[], Budgets]) -> None:
        self._budgets = budgets

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples."""
        return _families()

    def collect(self) -> Iterator[Metric]:
        """Yield a sample of each metric for each budget."""
        used, limits, refusals, timeouts = families = _families()
        budgets = self._budgets()
        for each in budgets:
            used.add_metric((each.name,), each.used)
            limits.add_metric((each.name,), each.limit)
            refusals.add_metric((each.name,), each.refusals)
        timeouts.add_metric((), budgets.timeouts)
        yield from families


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, CounterMetricFamily, CounterMetricFamily]:
    return (
        GaugeMetricFamily(
            "llm_d_epp_budget_used",
            "What gateways take of a budget: connections, streams, pending_streams (whose request is not complete), or "
            "gathered_bytes.",
            labels=_LABELS,
        ),
        GaugeMetricFamily("llm_d_epp_budget_limit", "The limit of a budget.", labels=_LABELS),
        CounterMetricFamily(
            "llm_d_epp_budget_refusals", "How often a budget had no room for one more, by budget.", labels=_LABELS
        ),
        CounterMetricFamily(
            "llm_d_epp_request_body_timeouts", "Requests refused as nothing more of them came for --body-timeout."
        ),
    )
