"""Drops endpoints that are over a cap on their load."""

from math import inf

import numpy as np

from epp.framework import Candidates, Filter, FilterParameters, Mask, Parameters, Request
from epp.framework.snapshot import IN_FLIGHT, KV_USAGE, RUNNING, WAITING

_COLUMNS = {
    "active-requests": IN_FLIGHT,
    "running-requests": RUNNING,
    "waiting-queue": WAITING,
    "kv-cache-utilization": KV_USAGE,
}


class UtilizationCondition(Parameters, frozen=True):
    """One cap."""

    metric: str
    """What is capped: `active-requests` (sent by this picker and not ended), `running-requests` (in the engine's
    batch), `waiting-queue` (requests in the engine's queue) or `kv-cache-utilization` (0..1)."""
    max_value: float
    """The highest value that is still let through."""

    def __post_init__(self) -> None:
        """Refuse what caps nothing, or everything."""
        if self.metric not in _COLUMNS:
            raise ValueError(f"metric {self.metric!r} is not known; use {', '.join(_COLUMNS)}")
        if not 0.0 <= self.max_value < inf:
            raise ValueError(f"maxValue of {self.metric} is {self.max_value}; it must be 0 or more, and finite")


class UtilizationParameters(FilterParameters, frozen=True, kw_only=True):
    """The caps."""

    conditions: tuple[UtilizationCondition, ...]
    """Caps that must all hold; at least one."""
    in_flight_load_producer_name: str = ""
    """Accepted for compatibility: requests in flight are counted in one place, whoever asks."""

    def __post_init__(self) -> None:
        """Refuse a filter that drops nobody."""
        if not self.conditions:
            raise ValueError("conditions is empty; list at least one metric with its maxValue")


class UtilizationFilter(Filter[UtilizationParameters]):
    """Drops an endpoint if any capped metric is above its `maxValue`; a metric that is not known is not above it.

    Where that leaves nobody the profile fails, unless `fallbackOnEmpty` is set.
    """

    plugin_type = "utilization-filter"

    def setup(self) -> None:
        self._caps = [(_COLUMNS[condition.metric], condition.max_value) for condition in self.parameters.conditions]
        self.reads = tuple(dict.fromkeys(column for column, _ in self._caps))

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        over = np.zeros(len(candidates), dtype=np.bool_)
        for column, max_value in self._caps:
            over |= candidates.values(column) > max_value
        return ~over
