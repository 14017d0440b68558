# SPDX-License-Identifier: Apache-2.0
"""Keeps endpoints out of use whose cluster has a taint."""

from typing import Any, Literal

from epp.framework import Candidates, Filter, Floats, Mask, Request
from epp.framework.arrays import all_true, any_true
from epp.framework.clusters import CLUSTER, ClusterStatus, ClusterToleration, TaintEffect, counts_from, status_numbers
from epp.framework.errors import NoClustersError
from epp.framework.result import DropCause
from epp.framework.sessions import SessionAffinity, SessionAffinityParameters


class TaintFilterParameters(SessionAffinityParameters, frozen=True):
    """Tolerations, and the sessions that stay: a struct cannot derive from the parameters of filters as well."""

    strategy: Literal["encoded_endpoint_header", "session_id"] = "session_id"
    """Recognition of sessions: `session_id`, by their id; `encoded_endpoint_header`, by the token in the response
    header of the request before."""
    tolerations: tuple[ClusterToleration, ...] = ()
    """Taints that do not count."""
    fallback_on_empty: bool = False
    """Skip the filter where it would drop all candidates, instead of refusing the request."""


class TaintFilter(SessionAffinity[TaintFilterParameters], Filter[Any]):
    """Drops an endpoint if its cluster has a taint of effect `NoSelect`, or `NoSelectIfNew`.

    With `NoSelectIfNew`, an endpoint that served the request's session last is kept. Requests in
    flight end where they are. If no endpoint is left, the request is refused with 503.
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
            raise NoClustersError("all clusters of the endpoints that are left have taints")
        return kept

    def _from(self, candidates: Candidates, effect: TaintEffect) -> Floats:
        """Return from what time on a taint of that effect counts."""
        return status_numbers(candidates, self._counts_from, effect)

    def _counts_from(self, status: ClusterStatus, effect: TaintEffect) -> float:
        return counts_from(status, effect, self.parameters.tolerations)
