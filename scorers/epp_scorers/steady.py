# SPDX-License-Identifier: Apache-2.0
"""Prefers the cluster that served the session, or the beginning of the prompt, before."""

import msgspec
import numpy as np

from epp.framework import (
    PREFIX_MATCH,
    Candidates,
    Category,
    Floats,
    Mask,
    Parameters,
    PositiveShare,
    PreRequest,
    Request,
    SchedulingResult,
    Scorer,
)
from epp.framework.clusters import CLUSTER, ClusterIndex, Clusters
from epp.framework.sessions import Bindings, SessionIds


class SteadyParameters(Parameters, frozen=True):
    """Recognition of what a cluster served before."""

    session_id_config: SessionIds = msgspec.field(default_factory=SessionIds)
    """Sources of the session id, and how long sessions are remembered."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance to read prefix matches from; empty for the default one. Without a producer,
    sessions alone count."""
    min_prefix_share: PositiveShare = 0.5
    """Least share of the prompt, 0..1, that an endpoint must hold for its cluster to count as having served it."""


class SteadyScorer(Scorer[SteadyParameters], PreRequest[SteadyParameters]):
    """1 for endpoints in the cluster that served the request's session last, 0 for all others.

    For a request without a session, or of an unknown one: 1 for endpoints in the clusters where an endpoint holds most
    of the prompt's blocks, if these are at least `minPrefixShare` of them; else 0 for all. This is Steady of Open
    Cluster Management, for each session by itself.
    """

    plugin_type = "steady-scorer"
    category = Category.AFFINITY
    zero_means = "is in another cluster than this session"

    def setup(self) -> None:
        ids = self.parameters.session_id_config
        self._match_key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self._clusters = ClusterIndex()
        self._bindings: Bindings[str] = Bindings(
            ttl_seconds=ids.eviction_ttl_seconds, sweep_seconds=ids.eviction_sweep_seconds, limit=ids.max_sessions
        )
        self.reads = ids.keys
        self.may_read = (CLUSTER, self._match_key)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        clusters = self._clusters.of(candidates.snapshot)
        numbers = clusters.numbers[candidates.slots]
        session = self.parameters.session_id_config.session(request)
        bound = self._bindings.find(session, self.clock.now(), use=not request.dry_run) if session else None
        if bound is not None:
            same: Mask = numbers == clusters.named(bound)
            return same.astype(np.float64)
        scores: Floats = self._holds_prefix(request, candidates, clusters)[numbers]
        return scores

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        """Bind the session to the cluster of the target."""
        session = self.parameters.session_id_config.session(request)
        if session:
            clusters = self._clusters.of(result.primary.candidates.snapshot)
            self._bindings.bind(session, clusters.names[clusters.numbers[result.primary.slot]], self.clock.now())

    def _holds_prefix(self, request: Request, candidates: Candidates, clusters: Clusters) -> Floats:
        """Return 1 for each cluster with the longest match, 0 for the others."""
        match = request.get(self._match_key)
        best = np.zeros(len(clusters.names))
        if match is not None and match.total_blocks:
            np.maximum.at(best, clusters.numbers[candidates.slots], match.blocks(candidates) / match.total_blocks)
        most = best.max(initial=0.0)
        found: Mask = (best == most) & (most >= self.parameters.min_prefix_share)
        return found.astype(np.float64)
