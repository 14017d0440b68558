# SPDX-License-Identifier: Apache-2.0
"""Arrays of accelerator properties for candidates: price, capacity, cost of waking up, placement, share in use."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from math import inf
from types import MappingProxyType
from typing import TypeVarTuple

import msgspec
import numpy as np

from epp.framework.accelerators.tag import (
    FROZEN,
    TFLOPS_USED,
    VIRTUAL,
    VRAM_USED,
    AcceleratorTag,
    CostBasis,
    SpotPreference,
)
from epp.framework.arrays import Floats, Mask, any_true
from epp.framework.candidates import Candidates
from epp.framework.limits import Count, Weight, require_weights
from epp.framework.load import LOAD_INPUTS, fill_unknown
from epp.framework.plugin import Parameters
from epp.framework.records import Records
from epp.framework.snapshot import ACCELERATOR, GPU_UTILIZATION, IN_FLIGHT, KV_USAGE, RUNNING, Attribute

A = TypeVarTuple("A")

_LEAST_TFLOPS, _MOST_TFLOPS = 1e-3, 1e9


def tag_numbers(candidates: Candidates, number: Callable[[AcceleratorTag, *A], float | None], *arguments: *A) -> Floats:
    """Return `number(tag, *arguments)` for each candidate, NaN for None.

    The result is memoised: `number` must be a module-level function or a method, and the arguments hashable.
    """
    return candidates.snapshot.records(ACCELERATOR).derive_numbers(number, *arguments)[candidates.slots]


def tag_mask(candidates: Candidates, test: Callable[[AcceleratorTag, *A], bool], *arguments: *A) -> Mask:
    """Return `test(tag, *arguments)` for each candidate; memoised like `tag_numbers`."""
    return candidates.snapshot.records(ACCELERATOR).derive_mask(test, *arguments)[candidates.slots]


def cost_per_hour(candidates: Candidates, preference: SpotPreference = "auto", basis: CostBasis = "memory") -> Floats:
    """Return the price of each whole endpoint in US dollars an hour; NaN if unknown."""
    return tag_numbers(candidates, AcceleratorTag.cost_per_hour, preference, basis)


def relative_capacity(candidates: Candidates) -> Floats:
    """Return each endpoint's fp16 TFLOPS over the median of the known ones in the pool; 1 if unknown.

    The median is over the pool, not the candidates, so that an endpoint's capacity does not change with a filter.
    """
    return candidates.snapshot.records(ACCELERATOR).derive(_relative_capacity)[candidates.slots]


def _relative_capacity(tags: tuple[AcceleratorTag, ...]) -> Floats:
    figures = np.array([tag.tflops() for tag in tags], dtype=np.float64)
    known = (figures >= _LEAST_TFLOPS) & (figures <= _MOST_TFLOPS)
    return np.where(known, figures / np.median(figures[known]), 1.0) if known.any() else np.ones(len(figures))


WAKE_UP_INPUTS = (ACCELERATOR, RUNNING, IN_FLIGHT)
"""Inputs of the cost; a plugin that uses `WakeUpCost` must read them."""


class WakeUpCost:
    """Cost `memory` or `disk` for each candidate that is frozen there, and 0 for the others.

    An endpoint with running requests or requests in flight is awake, or will be soon.
    """

    def __init__(self, memory: float, disk: float) -> None:
        self._memory = memory
        self._disk = disk
        self._tags: Records[AcceleratorTag] | None = None
        self._costs: Floats | None = None

    def of(self, candidates: Candidates) -> Floats | None:
        """Return the cost of each candidate; None if no endpoint is frozen."""
        tags = candidates.snapshot.records(ACCELERATOR)
        if tags is not self._tags:
            costs = tags.derive_numbers(_cost, self._memory, self._disk)
            self._tags, self._costs = tags, costs if any_true(costs > 0.0) else None
        if self._costs is None:
            return None
        busy = (candidates.values(IN_FLIGHT) > 0) | (candidates.values(RUNNING) > 0)
        return np.where(busy, 0.0, self._costs[candidates.slots])


def _cost(tag: AcceleratorTag, memory: float, disk: float) -> float:
    place = tag.attributes.get(FROZEN)
    return memory if place == "memory" else disk if place == "disk" else 0.0


class PlacementMode(StrEnum):
    COMPACT_FIRST = "CompactFirst"
    LOW_LOAD_FIRST = "LowLoadFirst"
    NODE_COMPACT = "NodeCompactGPULowLoad"


class PlacementTemplate(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    mode: PlacementMode = PlacementMode.NODE_COMPACT
    most_connections: int | None = None
    """Maximum number of requests on one GPU; None for no limit."""
    zone_label: str = ""
    """Label of nodes that all legs of a request must share; empty for none."""
    allow_local_gpu: bool = True
    """Whether endpoints may use the GPUs of the node that they run on."""


class EndpointPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """Placement templates for an endpoint."""

    own: str = ""
    templates: Mapping[str, PlacementTemplate] = MappingProxyType({})
    is_local: bool = False
    """Whether it runs on the node of its GPUs."""

    def template(self, name: str) -> PlacementTemplate | None:
        """Return the template of this name, or that of the endpoint for an empty name; None if there is none."""
        return self.templates.get(name or self.own)


NO_PLACEMENT = EndpointPlacement()
PLACEMENT: Attribute[EndpointPlacement] = Attribute("placement", NO_PLACEMENT, "accelerator-data-source")
"""Placement templates of the cluster, and that of the endpoint."""

UNKNOWN_SCORE = 0.5
USAGE_INPUTS = (KV_USAGE, GPU_UTILIZATION, *LOAD_INPUTS)


class GpuUsageParameters(Parameters, frozen=True):
    """Weights of memory and compute."""

    vram_weight: Weight = 0.7
    """Weight of the memory in use."""
    tflops_weight: Weight = 0.3
    """Weight of the TFLOPS in use."""
    max_num_seqs: Count = 256
    """Running requests at which an engine is fully used; for endpoints without a GPU allocator that reports usage."""
    use_virtual_capacity: bool = False
    """Use the virtual capacity of oversubscribed TensorFusion nodes, on which more requests fit but slow each other
    down; by default the physical capacity."""

    def __post_init__(self) -> None:
        require_weights({"vramWeight": self.vram_weight, "tflopsWeight": self.tflops_weight})


def used_share(candidates: Candidates, parameters: GpuUsageParameters) -> tuple[Floats, Mask]:
    """Return the share of each endpoint's GPUs in use, 0..1 or NaN for unknown, and a mask of those without capacity.

    If memory or TFLOPS are unknown, or have weight 0, the other one alone counts.
    """
    suffix = VIRTUAL if parameters.use_virtual_capacity else ""
    vram = tag_numbers(candidates, _fraction, VRAM_USED, suffix)
    tflops = tag_numbers(candidates, _fraction, TFLOPS_USED, suffix)
    empty = np.isinf(vram) | np.isinf(tflops)
    batch = candidates.values(RUNNING) / parameters.max_num_seqs
    busy = np.where(np.isnan(batch), candidates.values(GPU_UTILIZATION), batch)
    shares = np.array(
        [np.where(np.isnan(vram), candidates.values(KV_USAGE), vram), np.where(np.isnan(tflops), busy, tflops)]
    )
    weights = np.array([[parameters.vram_weight], [parameters.tflops_weight]])
    known = np.isfinite(shares)
    weight = (weights * known).sum(axis=0)
    used = (weights * np.where(known, np.clip(shares, 0.0, 1.0), 0.0)).sum(axis=0)
    return np.divide(used, weight, out=np.full(len(weight), np.nan), where=weight > 0), empty


def estimated_share(candidates: Candidates, parameters: GpuUsageParameters) -> tuple[Floats, Mask]:
    """Return the same, with estimates from requests in flight for unknown shares."""
    used, empty = used_share(candidates, parameters)
    return np.minimum(fill_unknown(used, candidates, per_request=1.0 / parameters.max_num_seqs), 1.0), empty


def _fraction(tag: AcceleratorTag, attribute: str, suffix: str) -> float | None:
    """Return the attribute; infinity for a capacity of 0, and None if it is not reported."""
    value = tag.attributes.get(attribute + suffix, tag.attributes.get(attribute))
    if not isinstance(value, int | float):
        return None
    return min(float(value), 1.0) if value >= 0 else inf
