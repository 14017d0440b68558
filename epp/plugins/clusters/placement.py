# SPDX-License-Identifier: Apache-2.0
"""Keeps the endpoints in clusters that a Placement chose, or that export an imported pool."""

from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from epp.framework import Candidates, Filter, FilterParameters, Mask, Request
from epp.framework.arrays import any_true
from epp.framework.cluster_arrays import standing_mask
from epp.framework.clusters import CLUSTER, ClusterStanding
from epp.framework.errors import NoClustersError

ObjectName = Annotated[str, Meta(pattern=r"^[^/\s]+/[^/\s]+$")]


class PlacementFilterParameters(FilterParameters, frozen=True, kw_only=True):
    """The placement, and how an empty one is treated."""

    placement: ObjectName
    """`namespace/name` of a Placement."""
    on_empty: Literal["FailClosed", "FailOpen"] = "FailClosed"
    """How to treat a placement that chose no cluster, or is not known: `FailClosed` refuses requests with 503,
    `FailOpen` keeps all endpoints."""


class PlacementFilter(Filter[PlacementFilterParameters]):
    """Keeps an endpoint if the placement chose its cluster, by all its PlacementDecision objects together.

    A cluster that leaves the placement gets no new requests; those in flight end there, and sessions and prefixes that
    it holds do not draw requests to it. If the placement chose clusters, but none with an endpoint that is left, the
    request is refused with 503.
    """

    plugin_type = "placement-filter"
    reads = (CLUSTER,)

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        chosen = standing_mask(candidates, self._is_chosen)
        if any_true(chosen):
            return chosen
        name = self.parameters.placement
        if any_true(candidates.snapshot.records(CLUSTER).derive_mask(self._has_decision)[candidates.snapshot.slots]):
            problem = f"placement {name} chose no cluster of an endpoint that is left"
        elif self.parameters.on_empty == "FailOpen":
            return np.ones(len(candidates), dtype=np.bool_)
        else:
            problem = f"placement {name} chose no cluster, or is not known"
        if self.parameters.fallback_on_empty:
            return chosen
        raise NoClustersError(problem)

    def _is_chosen(self, standing: ClusterStanding) -> bool:
        found = standing.placements.get(self.parameters.placement)
        return found is not None and found.chosen

    def _has_decision(self, standing: ClusterStanding) -> bool:
        found = standing.placements.get(self.parameters.placement)
        return found is not None and found.any_chosen
