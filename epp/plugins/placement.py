# SPDX-License-Identifier: Apache-2.0
"""Filters by placement template, by requests on one device or node, and by price until accelerators are full."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np

from epp.framework import (
    ACCELERATOR,
    IN_FLIGHT,
    KV_USAGE,
    LOAD_INPUTS,
    RUNNING,
    WAITING,
    AcceleratorTag,
    Candidates,
    Column,
    Filter,
    FilterParameters,
    Floats,
    Mask,
    Natural,
    NonNegative,
    Parameters,
    Positions,
    Positive,
    PositiveShare,
    Request,
    Tunable,
    expected_load,
    tag_numbers,
)
from epp.framework.accelerators.arrays import PLACEMENT, EndpointPlacement, PlacementTemplate
from epp.framework.accelerators.places import requests_on_device, requests_on_node
from epp.framework.accelerators.tag import SpotPreference, limit_for, names_of
from epp.framework.arrays import everyone
from epp.framework.result import DropCause
from epp.framework.snapshot import NODE_LABELS

_UNKNOWN = -1


class PlacementTemplateFilterParameters(FilterParameters, frozen=True):
    """Template."""

    template: str = ""
    """Name of a SchedulingConfigTemplate of TensorFusion; by default the template of each endpoint's GPUPool."""


class PlacementTemplateFilter(Filter[PlacementTemplateFilterParameters]):
    """Keeps an endpoint if the placement of a SchedulingConfigTemplate allows it.

    - `gpuFilters` of type `avoidTooMuchConnectionsOnSameGPU`: fewer than `connectionNum` requests on each of its GPUs;
    - of type `avoidDifferentZone`: a node with the same `topologyKey` label as the peer's, if both are known; the peer
      is the endpoint picked for the first leg of the request;
    - `allowUsingLocalGPU: false`: endpoints that run on the node of their own GPUs are dropped.

    Endpoints without a template are kept.
    """

    plugin_type = "placement-template-filter"
    drops = DropCause.CONSTRAINT
    drop_means = "is in a place that its template excludes, or its GPU serves too many requests"
    reads = (PLACEMENT, NODE_LABELS, ACCELERATOR, IN_FLIGHT)
    may_read = LOAD_INPUTS

    @property
    def placement_template(self) -> str:
        return self.parameters.template

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        records, template = candidates.snapshot.records(PLACEMENT), self.parameters.template
        most = records.derive_numbers(_most_connections, template)[candidates.slots]
        kept: Mask = records.derive_mask(_allows_place, template)[candidates.slots]
        if np.isfinite(most).any():
            kept = kept & (requests_on_device(candidates.snapshot)[candidates.slots] < most)
        if candidates.peer is not None:
            for label in records.derive(_zone_labels, template):
                bound = records.derive_mask(_is_bound, template, label)[candidates.slots]
                kept = kept & (~bound | _in_zone(candidates, candidates.peer, label))
        return kept


def _in_zone(candidates: Candidates, peer: int, label: str) -> Mask:
    """Mark candidates whose node has the label value of the peer's node, and those whose value is unknown."""
    values = candidates.snapshot.records(NODE_LABELS).derive(_numbered, label)
    zones = values[candidates.slots]
    near: Mask = (zones == values[peer]) | (zones == _UNKNOWN) | (values[peer] == _UNKNOWN)
    return near


def _numbered(nodes: tuple[Mapping[str, str], ...], label: str) -> Positions:
    numbers: dict[str, int] = {}
    values = [labels.get(label) for labels in nodes]
    return np.array(
        [_UNKNOWN if value is None else numbers.setdefault(value, len(numbers)) for value in values], dtype=np.intp
    )


def _template(placement: EndpointPlacement, name: str) -> PlacementTemplate:
    return placement.template(name) or PlacementTemplate(name="")


def _most_connections(placement: EndpointPlacement, name: str) -> float:
    most = _template(placement, name).most_connections
    return inf if most is None else most


def _allows_place(placement: EndpointPlacement, name: str) -> bool:
    return _template(placement, name).allow_local_gpu or not placement.is_local


def _zone_labels(placements: tuple[EndpointPlacement, ...], name: str) -> tuple[str, ...]:
    """Return the zone labels of all templates, at most one for each."""
    return tuple(sorted({_template(each, name).zone_label for each in placements} - {""}))


def _is_bound(placement: EndpointPlacement, name: str, label: str) -> bool:
    return _template(placement, name).zone_label == label


class NodeConcurrencyParameters(FilterParameters, frozen=True):
    """Limits on simultaneous requests; both are off by default."""

    max_requests_per_node: Natural = 0
    """Maximum requests at all endpoints of one node together; 0 for no limit."""
    max_requests_per_device: Natural = 0
    """Maximum requests at all endpoints that share one physical device; 0 for no limit."""


class NodeConcurrencyFilter(Filter[NodeConcurrencyParameters]):
    """Keeps an endpoint if its node, and each of its devices, serves fewer requests than the limit.

    The number of requests at an endpoint is the larger of the requests in flight from this picker, and the waiting and
    running requests that the engine reports. All endpoints of the pool count, not only candidates. An endpoint with an
    unknown node or device does not share it. If no endpoint is left, the profile fails as saturated, unless
    `fallbackOnEmpty` is set.
    """

    plugin_type = "node-concurrency-filter"
    drops = DropCause.SATURATION
    reads = (ACCELERATOR, IN_FLIGHT)
    may_read = LOAD_INPUTS

    @property
    def warnings(self) -> Sequence[str]:
        given = self.parameters
        if given.max_requests_per_node or given.max_requests_per_device:
            return ()
        return ("it has no limit and no effect: set maxRequestsPerNode or maxRequestsPerDevice, or remove it",)

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        kept = everyone(len(candidates))
        if most := self.parameters.max_requests_per_node:
            kept &= requests_on_node(candidates.snapshot)[candidates.slots] < most
        if most := self.parameters.max_requests_per_device:
            kept &= requests_on_device(candidates.snapshot)[candidates.slots] < most
        return kept

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:
        reasons = [""] * len(dropped)
        for place, most, counts in (
            ("a device", self.parameters.max_requests_per_device, requests_on_device(dropped.snapshot)),
            ("its node", self.parameters.max_requests_per_node, requests_on_node(dropped.snapshot)),
        ):
            for position, count in enumerate(counts[dropped.slots].tolist()):
                if most and count >= most:
                    reasons[position] = f"{place} serves {count:g} requests"
        return reasons


_ORDERS_REMEMBERED = 256


class _Group(NamedTuple):
    """Endpoints that are opened together; groups sort by ascending price."""

    price: float
    """US dollars an hour; infinite if unknown."""
    name: str
    """Name of the class; empty in groups by price."""


class SaturationLimits(Parameters, frozen=True):
    """Limits of endpoints with accelerators of one class; unset limits are those of all endpoints."""

    queue_threshold: Positive | None = None
    """Requests in the engine's queue."""
    kv_threshold: PositiveShare | None = None
    """Share of the KV cache in use, 0..1."""
    max_concurrency: NonNegative | None = None
    """Requests in flight, queued or running; 0 for no limit."""
    bound: Positive | None = None
    """Saturation at which the next group is opened."""


class CostAwareSpillParameters(FilterParameters, frozen=True):
    """Grouping of endpoints, and the limits at which a group is full."""

    group_by: Literal["price", "class"] = "price"
    """`price`: endpoints with the same price an hour form a group; `class`: those with accelerators of one class do,
    and classes are ordered by their cheapest endpoint."""
    spot_preference: SpotPreference = "auto"
    """Use of the spot price: on spot nodes (`auto`), whenever one is known (`always`), or never (`never`)."""
    queue_threshold: Annotated[Positive, Tunable(0.5, 64, log=True)] = 5.0
    """Requests in the engine's queue at which an endpoint is full."""
    kv_threshold: Annotated[PositiveShare, Tunable(0.3, 1)] = 0.8
    """Share of the KV cache in use at which an endpoint is full, 0..1."""
    max_concurrency: NonNegative = 0.0
    """Requests in flight, queued or running, at which an endpoint is full; 0 for no limit."""
    bound: Annotated[Positive, Tunable(0.1, 4, log=True)] = 1.0
    """Saturation of a group at which the next more expensive group is opened; 1 is full."""
    hysteresis: Annotated[NonNegative, Tunable(0, 1)] = 0.1
    """Distance below the bound to which the saturation must fall before the next group is closed again."""
    limits: dict[str, SaturationLimits] = msgspec.field(default_factory=dict)
    """Other limits by name of the accelerator class or else of the model, such as `t4`."""

    def __post_init__(self) -> None:
        least = min(self.bound, *(limit.bound for limit in self.limits.values() if limit.bound is not None), inf)
        if self.hysteresis >= least:
            raise ValueError(f"hysteresis is {self.hysteresis}; it must be less than every bound")


class CostAwareSpill(Filter[CostAwareSpillParameters]):
    """Keeps the cheapest group of endpoints and, while these are full, further groups in order of price.

    The saturation of a group is the mean over its endpoints of `max(waiting / queueThreshold, kv / kvThreshold,
    in flight / maxConcurrency)`. Endpoints without any metric are left out; if all endpoints of a group lack metrics,
    these are estimated from requests in flight. A group is full once its saturation reaches its bound, the mean of its
    endpoints' bounds, until it is below `bound - hysteresis`. Endpoints without a known price form the last group. At
    least one endpoint is always kept.
    """

    plugin_type = "cost-aware-spill"
    may_empty = False
    drop_means = "has no known price, and endpoints with a known price are not full"
    reads = (ACCELERATOR, KV_USAGE, *LOAD_INPUTS)
    without_prices = "all endpoints are kept, without a preference"

    def setup(self) -> None:
        self._full: dict[tuple[_Group, ...], Mask] = {}
        self._limits = {name.lower(): limits for name, limits in self.parameters.limits.items()}

    @property
    def accelerator_names(self) -> Sequence[str]:
        return tuple(self.parameters.limits)

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        order, ranks = candidates.snapshot.records(ACCELERATOR).derive(self._ranked)
        groups = ranks[candidates.slots]
        present = np.flatnonzero(np.bincount(groups, minlength=len(order)))
        if len(present) <= 1:
            return everyone(len(candidates))
        fullness = self._fullness(candidates, Candidates.values)
        silent = np.bincount(groups, weights=~np.isnan(fullness))[groups] == 0  # no metric in the whole group
        if silent.any():
            fullness = np.where(silent, self._fullness(candidates, expected_load), fullness)
        saturation = _means(fullness, groups, len(order))[present]
        bound = _means(self._limit(candidates, "bound"), groups, len(order))[present]
        full = self._full_groups(tuple(order[rank] for rank in present), saturation, bound, keep=not request.dry_run)
        last = present[-1] if full.all() else present[np.argmin(full)]
        opened: Mask = groups <= last
        return opened

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:
        prices = [self._price(tag) for tag in dropped.records(ACCELERATOR)]
        return [
            f"costs ${price:.2f} an hour, and cheaper endpoints are not full" if price < inf else "" for price in prices
        ]

    def _fullness(self, candidates: Candidates, load: Callable[[Candidates, Column], Floats]) -> Floats:
        """Return the fullness of each candidate, 1 for full; NaN without any metric."""
        waiting, running = load(candidates, WAITING), load(candidates, RUNNING)
        under_way = np.fmax(candidates.values(IN_FLIGHT), np.fmax(waiting, 0.0) + np.fmax(running, 0.0))
        concurrency = self._limit(candidates, "max_concurrency")
        limited = np.divide(under_way, concurrency, out=np.full(len(candidates), np.nan), where=concurrency > 0)
        queued = waiting / self._limit(candidates, "queue_threshold")
        cached = load(candidates, KV_USAGE) / self._limit(candidates, "kv_threshold")
        fullest: Floats = np.fmax(np.fmax(queued, cached), limited)
        return fullest

    def _full_groups(self, order: tuple[_Group, ...], saturation: Floats, bound: Floats, *, keep: bool) -> Mask:
        """Return a mask of the full groups, with hysteresis based on the last result; with `keep`, store this one."""
        before = self._full.get(order)
        if before is None:
            before = np.zeros(len(order), dtype=np.bool_)
        threshold = np.where(before, bound - self.parameters.hysteresis, bound)
        full: Mask = saturation >= threshold
        if not keep:
            return full
        self._full.pop(order, None)
        if len(self._full) >= _ORDERS_REMEMBERED:
            del self._full[next(iter(self._full))]  # the least recently seen
        self._full[order] = full
        return full

    def _ranked(self, tags: tuple[AcceleratorTag, ...]) -> tuple[list[_Group], Positions]:
        """Return the groups of the whole pool, cheapest first, and the group number of each slot."""
        by_class = self.parameters.group_by == "class"
        groups = [_Group(self._price(tag), next(iter(names_of(tag)), "") if by_class else "") for tag in tags]
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
        return tag_numbers(candidates, self._limit_of, name)

    def _limit_of(self, tag: AcceleratorTag, name: str) -> float | None:
        return limit_for(tag, name, self._limits, self.parameters)


def _means(values: Floats, groups: Positions, count: int) -> Floats:
    """Return the mean of each group's known values; 0 without any."""
    known = ~np.isnan(values)
    sums = np.bincount(groups, weights=np.where(known, values, 0.0), minlength=count)
    numbers = np.bincount(groups, weights=known, minlength=count)
    means: Floats = np.divide(sums, numbers, out=np.zeros(count), where=numbers > 0)
    return means
