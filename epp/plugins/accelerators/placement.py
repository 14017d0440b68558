# SPDX-License-Identifier: Apache-2.0
"""Filters by placement templates, and by the requests on one device or node."""

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from epp.framework import (
    ACCELERATOR,
    IN_FLIGHT,
    LOAD_INPUTS,
    Candidates,
    Filter,
    FilterParameters,
    Mask,
    Natural,
    Request,
)
from epp.framework.accelerators.arrays import PLACEMENT, EndpointPlacement, PlacementTemplate
from epp.framework.accelerators.places import requests_on_device, requests_on_node
from epp.framework.arrays import Positions
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
    - of type `avoidDifferentZone`: a node with the same `topologyKey` label as the peer's, where both are known; the
      peer is the endpoint picked for the first leg of the request;
    - `allowUsingLocalGPU: false`: endpoints that run on the node of their own GPUs are dropped.

    Endpoints without a template are kept.
    """

    plugin_type = "placement-template-filter"
    drops = DropCause.CONSTRAINT
    drop_means = "is not where its template allows, or its GPU serves too many requests"
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
    there = values[candidates.slots]
    near: Mask = (there == values[peer]) | (there == _UNKNOWN) | (values[peer] == _UNKNOWN)
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
    """Most requests at all endpoints of one node together; 0 for no limit."""
    max_requests_per_device: Natural = 0
    """Most requests at all endpoints that share one physical device; 0 for no limit."""


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
        kept = np.ones(len(candidates), dtype=np.bool_)
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
