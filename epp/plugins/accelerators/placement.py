# SPDX-License-Identifier: Apache-2.0
"""Drops endpoints that the GPU filters of a placement template exclude."""

from collections.abc import Mapping
from math import inf

import numpy as np

from epp.framework import ACCELERATOR, IN_FLIGHT, LOAD_INPUTS, Candidates, Filter, FilterParameters, Mask, Request
from epp.framework.accelerators.arrays import PLACEMENT, EndpointPlacement, PlacementTemplate
from epp.framework.accelerators.places import requests_on_device
from epp.framework.arrays import Positions
from epp.framework.result import DropCause
from epp.framework.snapshot import NODE_LABELS

_UNKNOWN = -1


class PlacementTemplateFilterParameters(FilterParameters, frozen=True):
    """Template."""

    template: str = ""
    """Name of a SchedulingConfigTemplate of TensorFusion; by default that of each endpoint's GPUPool."""


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
        """Name of the template."""
        return self.parameters.template

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
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
    """Mark the candidates whose node has the value of the label of the peer's node; and all that are unknown."""
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
    """Return the labels of all templates that count, at most one for each template."""
    return tuple(sorted({_template(each, name).zone_label for each in placements} - {""}))


def _is_bound(placement: EndpointPlacement, name: str, label: str) -> bool:
    return _template(placement, name).zone_label == label
