# SPDX-License-Identifier: Apache-2.0
"""Keeps the endpoints in clusters that a Placement chose, or that export an imported pool."""

import re
from typing import Literal

import numpy as np

from epp.framework import Candidates, Filter, FilterParameters, Mask, Request
from epp.framework.arrays import any_true
from epp.framework.clusters import CLUSTER, POOL_IMPORT, ClusterStatus, status_mask
from epp.framework.errors import NoClustersError
from epp.framework.result import DropCause

_OBJECT = re.compile(r"[^/\s]+/[^/\s]+")


class PlacementFilterParameters(FilterParameters, frozen=True):
    """The placement or import, and how an empty one is treated."""

    placement: str = ""
    """`namespace/name` of a Placement."""
    pool_import: str = ""
    """`namespace/name` of an InferencePoolImport, in place of a placement: the clusters that export the pool, and the
    local one."""
    on_empty: Literal["FailClosed", "FailOpen"] = "FailClosed"
    """How to treat a placement that chose no cluster, or is not known: `FailClosed` refuses requests with 503,
    `FailOpen` keeps all endpoints."""

    def __post_init__(self) -> None:
        """Refuse none of the two, and both; raises ValueError."""
        if bool(self.placement) == bool(self.pool_import):
            raise ValueError("write either placement or poolImport, with the namespace/name of the object")
        for name, value in (("placement", self.placement), ("poolImport", self.pool_import)):
            if value and not _OBJECT.fullmatch(value):
                raise ValueError(f"{name} is {value!r}: write namespace/name")


class PlacementFilter(Filter[PlacementFilterParameters]):
    """Keeps an endpoint if the placement chose its cluster, by all its PlacementDecision objects together.

    With `poolImport`, keeps it if its cluster exports the pool, or is the local one.

    A cluster that leaves the placement gets no new requests; those in flight end there, and sessions and prefixes that
    it holds do not draw requests to it. If the placement chose clusters, but none with an endpoint that is left, the
    request is refused with 503.
    """

    plugin_type = "placement-filter"
    drops = DropCause.AVAILABILITY
    drop_means = "is in a cluster that was not chosen"
    reads = (CLUSTER,)

    def setup(self) -> None:
        imported = self.parameters.pool_import
        self._name = f"{POOL_IMPORT}/{imported}" if imported else self.parameters.placement

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        chosen = status_mask(candidates, self._is_chosen)
        if any_true(chosen):
            return chosen
        name = self._name
        if any_true(candidates.snapshot.records(CLUSTER).derive_mask(self._has_decision)[candidates.snapshot.slots]):
            problem = f"placement {name} chose no cluster of an endpoint that is left"
        elif self.parameters.on_empty == "FailOpen":
            return np.ones(len(candidates), dtype=np.bool_)
        else:
            problem = f"placement {name} chose no cluster, or is not known"
        if self.parameters.fallback_on_empty:
            return chosen
        raise NoClustersError(problem)

    def _is_chosen(self, status: ClusterStatus) -> bool:
        found = status.placements.get(self._name)
        return found is not None and found.chosen

    def _has_decision(self, status: ClusterStatus) -> bool:
        found = status.placements.get(self._name)
        return found is not None and found.any_chosen
