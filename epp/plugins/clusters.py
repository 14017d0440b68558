# SPDX-License-Identifier: Apache-2.0
"""Filters by the cluster of an endpoint: the choice of a Placement, and taints."""

import re
from typing import Any, Literal

import numpy as np

from epp.framework import Candidates, Filter, FilterParameters, Floats, Mask, Request
from epp.framework.arrays import all_true, any_true
from epp.framework.clusters import (
    CLUSTER,
    POOL_IMPORT,
    ClusterStatus,
    ClusterToleration,
    TaintEffect,
    counts_from,
    status_mask,
    status_numbers,
)
from epp.framework.refusals import NoClustersError
from epp.framework.result import DropCause
from epp.framework.sessions import SessionAffinity, SessionAffinityParameters

_OBJECT = re.compile(r"[^/\s]+/[^/\s]+")


class PlacementFilterParameters(FilterParameters, frozen=True):
    """The placement or import, and how an empty one is treated."""

    placement: str = ""
    """`namespace/name` of a Placement."""
    pool_import: str = ""
    """`namespace/name` of an InferencePoolImport, in place of a placement: the clusters that export the pool, and the
    local one."""
    on_empty: Literal["FailClosed", "FailOpen"] = "FailClosed"
    """How to treat a placement that chose no cluster or is unknown: `FailClosed` refuses requests with 503,
    `FailOpen` keeps all endpoints."""

    def __post_init__(self) -> None:
        if bool(self.placement) == bool(self.pool_import):
            raise ValueError("write either placement or poolImport, with the namespace/name of the object")
        for name, value in (("placement", self.placement), ("poolImport", self.pool_import)):
            if value and not _OBJECT.fullmatch(value):
                raise ValueError(f"{name} is {value!r}: write namespace/name")


class PlacementFilter(Filter[PlacementFilterParameters]):
    """Keeps an endpoint if the placement chose its cluster, by all its PlacementDecision objects together.

    With `poolImport`, keeps it if its cluster exports the pool, or is the local one. A cluster that leaves the
    placement gets no new requests, even for its sessions and cached prefixes; requests in flight finish there. If the
    placement chose clusters, but no remaining endpoint is in one of them, the request is refused with 503.
    """

    plugin_type = "placement-filter"
    drops = DropCause.AVAILABILITY
    drop_means = "is in a cluster that was not chosen"
    reads = (CLUSTER,)

    def setup(self) -> None:
        imported = self.parameters.pool_import
        self._name = f"{POOL_IMPORT}/{imported}" if imported else self.parameters.placement

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        chosen = status_mask(candidates, self._is_chosen)
        if any_true(chosen):
            return chosen
        name = self._name
        if any_true(candidates.snapshot.records(CLUSTER).derive_mask(self._has_decision)[candidates.snapshot.slots]):
            problem = f"placement {name} chose no cluster of the remaining endpoints"
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


class TaintFilterParameters(SessionAffinityParameters, frozen=True):
    """Tolerations, and the recognition of sessions."""

    strategy: Literal["encoded_endpoint_header", "session_id"] = "session_id"
    """How sessions are recognised: `session_id`, by their id; `encoded_endpoint_header`, by the token in the header of
    the previous response."""
    tolerations: tuple[ClusterToleration, ...] = ()
    """Taints to ignore."""
    fallback_on_empty: bool = False
    """Skip the filter if it would drop all candidates, instead of refusing the request."""


class TaintFilter(SessionAffinity[TaintFilterParameters], Filter[Any]):
    """Drops an endpoint if its cluster has a taint of effect `NoSelect`, or `NoSelectIfNew`.

    With `NoSelectIfNew`, the endpoint that served the request's session last is kept. Requests in flight finish there.
    If no endpoint is left, the request is refused with 503.
    """

    plugin_type = "taint-filter"
    drops = DropCause.AVAILABILITY
    drop_means = "is in a cluster with a taint that is not tolerated"

    def setup(self) -> None:
        super().setup()
        self.reads = (CLUSTER, *self.reads)

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        now = self.clock.utc()
        kept = self._from(candidates, TaintEffect.NO_SELECT) > now
        for_new = self._from(candidates, TaintEffect.NO_SELECT_IF_NEW) > now
        if not all_true(for_new):
            kept &= for_new | self.bound(request, candidates)
        if not any_true(kept) and not self.parameters.fallback_on_empty:
            raise NoClustersError("all clusters of the remaining endpoints have taints")
        return kept

    def _from(self, candidates: Candidates, effect: TaintEffect) -> Floats:
        """Return the time from which a taint of that effect counts, in seconds since 1970 (UTC)."""
        return status_numbers(candidates, self._counts_from, effect)

    def _counts_from(self, status: ClusterStatus, effect: TaintEffect) -> float:
        return counts_from(status, effect, self.parameters.tolerations)
