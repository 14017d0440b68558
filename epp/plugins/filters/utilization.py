"""Drops endpoints that are over a cap on their load."""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import Meta

from epp.framework import (
    IN_FLIGHT,
    KV_USAGE,
    RUNNING,
    WAITING,
    Candidates,
    Column,
    Filter,
    FilterParameters,
    Mask,
    NonNegative,
    Parameters,
    Request,
)

Metric: TypeAlias = Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]

_COLUMNS: Mapping[Metric, Column] = {
    "active-requests": IN_FLIGHT,
    "running-requests": RUNNING,
    "waiting-queue": WAITING,
    "kv-cache-utilization": KV_USAGE,
}


class UtilizationCondition(Parameters, frozen=True):
    """One cap."""

    metric: Metric
    """What is capped: `active-requests` (sent by this picker and not ended), `running-requests` (in the engine's
    batch), `waiting-queue` (requests in the engine's queue) or `kv-cache-utilization` (0..1)."""
    max_value: NonNegative
    """The highest value that is still let through."""


class UtilizationParameters(FilterParameters, frozen=True, kw_only=True):
    """The caps."""

    conditions: Annotated[tuple[UtilizationCondition, ...], Meta(min_length=1)]
    """Caps that must all hold; at least one."""
    in_flight_load_producer_name: str = ""
    """Accepted for compatibility: requests in flight are counted in one place, whoever asks."""


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
