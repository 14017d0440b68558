# SPDX-License-Identifier: Apache-2.0
"""Drops endpoints above a limit of their load."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import Meta

from epp.framework import (
    IN_FLIGHT,
    KV_USAGE,
    LOAD_INPUTS,
    RUNNING,
    WAITING,
    Candidates,
    Column,
    DropCause,
    Filter,
    FilterParameters,
    Mask,
    NonNegative,
    Parameters,
    Request,
    expected_load,
)

Metric: TypeAlias = Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]

_COLUMNS: Mapping[Metric, Column] = {
    "active-requests": IN_FLIGHT,
    "running-requests": RUNNING,
    "waiting-queue": WAITING,
    "kv-cache-utilization": KV_USAGE,
}


class UtilizationCondition(Parameters, frozen=True):
    """Limit of one metric."""

    metric: Metric
    """The metric: `active-requests` (sent by this picker and not ended), `running-requests` (in the engine's batch),
    `waiting-queue` (requests in the engine's queue) or `kv-cache-utilization` (0..1)."""
    max_value: NonNegative
    """Highest value at which an endpoint is kept."""


class UtilizationParameters(FilterParameters, frozen=True, kw_only=True):
    """Limits of metrics."""

    conditions: Annotated[tuple[UtilizationCondition, ...], Meta(min_length=1)]
    """Limits that must all hold; at least one."""
    in_flight_load_producer_name: str = ""
    """Accepted for compatibility: requests in flight have one source."""


class UtilizationFilter(Filter[UtilizationParameters]):
    """Drops an endpoint if any metric is above its `maxValue`.

    A metric that the endpoint does not report is estimated from requests in flight.
    If no endpoint is left, the profile fails, unless `fallbackOnEmpty` is set.
    """

    plugin_type = "utilization-filter"
    drops = DropCause.SATURATION
    may_read = LOAD_INPUTS

    def setup(self) -> None:
        self._limits = [(_COLUMNS[condition.metric], condition.max_value) for condition in self.parameters.conditions]
        self.reads = tuple(dict.fromkeys(column for column, _ in self._limits))

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        over = np.zeros(len(candidates), dtype=np.bool_)
        for column, max_value in self._limits:
            over |= expected_load(candidates, column) > max_value
        return ~over

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:  # noqa: ARG002
        reasons = [""] * len(dropped)
        for condition, (column, most) in zip(self.parameters.conditions, self._limits, strict=True):
            for position, value in enumerate(expected_load(dropped, column).tolist()):
                if value > most and not reasons[position]:
                    reasons[position] = f"its {condition.metric} is {value:g}, more than {most:g}"
        return reasons
