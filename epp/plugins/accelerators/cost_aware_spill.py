"""Keeps requests on the cheapest accelerators until those are full, then opens the next dearer ones."""

from collections.abc import Sequence
from math import inf
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from epp.framework import (
    ACCELERATOR,
    IN_FLIGHT,
    KV_USAGE,
    RUNNING,
    WAITING,
    AcceleratorTag,
    Candidates,
    Filter,
    FilterParameters,
    Floats,
    Mask,
    NonNegative,
    Parameters,
    Positions,
    Positive,
    PositiveShare,
    Request,
    tag_numbers,
)
from epp.framework.accelerator_classes import limit_for, names_of
from epp.framework.accelerators import SpotPreference

_ORDERS_REMEMBERED = 256


class _Group(NamedTuple):
    """Endpoints that are opened together; groups sort from the cheapest to the dearest."""

    price: float
    """US dollars an hour; infinite where it is not known."""
    name: str
    """Of the class; empty in groups by price."""


class SaturationLimits(Parameters, frozen=True):
    """Where an endpoint with an accelerator of one class counts as full; what is left out is as for the others."""

    queue_threshold: Positive | None = None
    """Requests in the engine's queue."""
    kv_threshold: PositiveShare | None = None
    """Share of the KV cache in use, 0..1."""
    max_concurrency: NonNegative | None = None
    """Requests under way, queued or running; 0 for no limit."""
    bound: Positive | None = None
    """Saturation from which the next group is opened."""


class CostAwareSpillParameters(FilterParameters, frozen=True):
    """What makes a group, and when it is full."""

    group_by: Literal["price", "class"] = "price"
    """`price`: endpoints that cost the same an hour go together; `class`: those with accelerators of one class, the
    classes in the order of their cheapest endpoint."""
    spot_preference: SpotPreference = "auto"
    """Which price counts: the spot price where the node is spot (`auto`), wherever there is one (`always`), or nowhere
    (`never`)."""
    queue_threshold: Positive = 5.0
    """Requests in an engine's queue at which an endpoint counts as full."""
    kv_threshold: PositiveShare = 0.8
    """Share of an engine's KV cache in use at which an endpoint counts as full, 0..1."""
    max_concurrency: NonNegative = 0.0
    """Requests under way, queued or running, at which an endpoint counts as full; 0 for no limit."""
    bound: Positive = 1.0
    """Saturation of a group, 1 for full, from which the next dearer one is opened."""
    hysteresis: NonNegative = 0.1
    """How far the saturation must fall below the bound before the dearer group is closed again."""
    limits: dict[str, SaturationLimits] = msgspec.field(default_factory=dict)
    """Other limits for endpoints whose accelerator is of a class, by its name, or else is of a model such as `t4`."""

    def __post_init__(self) -> None:
        """Refuse a hysteresis that would keep a group full forever."""
        least = min(self.bound, *(limit.bound for limit in self.limits.values() if limit.bound is not None), inf)
        if self.hysteresis >= least:
            raise ValueError(f"hysteresis is {self.hysteresis}; it must be less than every bound")


class CostAwareSpill(Filter[CostAwareSpillParameters]):
    """Keeps the cheapest group of endpoints, and as many dearer ones, in order, as are needed to find one with room.

    A group's saturation is the mean over its endpoints of `max(waiting / queueThreshold, kv / kvThreshold, under way /
    maxConcurrency)`; an endpoint of which nothing is known does not count. A group is full from its bound on, the mean
    of its endpoints' bounds, until its saturation is below `bound - hysteresis`. Endpoints without a price make the
    last group. This filter never leaves nobody.
    """

    plugin_type = "cost-aware-spill"
    may_empty = False
    reads = (ACCELERATOR, WAITING, KV_USAGE, IN_FLIGHT, RUNNING)

    def setup(self) -> None:
        self._full: dict[tuple[_Group, ...], Mask] = {}
        self._limits = {name.lower(): limits for name, limits in self.parameters.limits.items()}

    @property
    def accelerator_names(self) -> Sequence[str]:
        return tuple(self.parameters.limits)

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        order, ranks = candidates.snapshot.records(ACCELERATOR).derive(self._ranked)
        groups = ranks[candidates.slots]
        present = np.flatnonzero(np.bincount(groups, minlength=len(order)))
        if len(present) <= 1:
            return np.ones(len(candidates), dtype=np.bool_)
        saturation = _means(self.fullness(candidates), groups, len(order))[present]
        bound = _means(self._limit(candidates, "bound"), groups, len(order))[present]
        full = self._now_full(tuple(order[rank] for rank in present), saturation, bound)
        last = present[-1] if full.all() else present[np.argmin(full)]
        opened: Mask = groups <= last
        return opened

    def fullness(self, candidates: Candidates) -> Floats:
        """Return how full each candidate is, 1 for full; NaN where nothing is known."""
        waiting, running = candidates.values(WAITING), candidates.values(RUNNING)
        under_way = np.fmax(candidates.values(IN_FLIGHT), np.fmax(waiting, 0.0) + np.fmax(running, 0.0))
        concurrency = self._limit(candidates, "max_concurrency")
        limited = np.divide(under_way, concurrency, out=np.full(len(candidates), np.nan), where=concurrency > 0)
        queued = waiting / self._limit(candidates, "queue_threshold")
        cached = candidates.values(KV_USAGE) / self._limit(candidates, "kv_threshold")
        fullest: Floats = np.fmax(np.fmax(queued, cached), limited)
        return fullest

    def _now_full(self, order: tuple[_Group, ...], saturation: Floats, bound: Floats) -> Mask:
        """Say which groups are full, given which were when groups in this order were last looked at."""
        before = self._full.pop(order, None)
        if before is None:
            before = np.zeros(len(order), dtype=np.bool_)
        threshold = np.where(before, bound - self.parameters.hysteresis, bound)
        full: Mask = saturation >= threshold
        if len(self._full) >= _ORDERS_REMEMBERED:
            del self._full[next(iter(self._full))]  # the one longest not looked at
        self._full[order] = full
        return full

    def _ranked(self, tags: tuple[AcceleratorTag, ...]) -> tuple[list[_Group], Positions]:
        """Return the groups of the whole pool, the cheapest first, and the number of each slot's group."""
        by_class = self.parameters.group_by == "class"
        groups = [_Group(self._price(tag), _class_of(tag) if by_class else "") for tag in tags]
        if by_class:
            cheapest = {group.name: group.price for group in sorted(groups, reverse=True)}
            groups = [_Group(cheapest[group.name], group.name) for group in groups]
        order = sorted(set(groups))
        rank = {group: number for number, group in enumerate(order)}
        return order, np.array([rank[group] for group in groups], dtype=np.intp)

    def _price(self, tag: AcceleratorTag) -> float:
        price = tag.cost_per_hour(self.parameters.spot_preference)
        return inf if price is None else round(price, 6)  # sums of prices are not exact

    def _limit(self, candidates: Candidates, name: str) -> Floats:
        """Return one limit for each candidate, by its class."""
        return tag_numbers(candidates, self._limit_of, name)

    def _limit_of(self, tag: AcceleratorTag, name: str) -> float | None:
        return limit_for(tag, name, self._limits, self.parameters)


def _class_of(tag: AcceleratorTag) -> str:
    return next(iter(names_of(tag)), "")


def _means(values: Floats, groups: Positions, count: int) -> Floats:
    """Return the mean of each group's known values; 0 where none is."""
    known = ~np.isnan(values)
    sums = np.bincount(groups, weights=np.where(known, values, 0.0), minlength=count)
    numbers = np.bincount(groups, weights=known, minlength=count)
    means: Floats = np.divide(sums, numbers, out=np.zeros(count), where=numbers > 0)
    return means
