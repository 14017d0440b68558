# SPDX-License-Identifier: Apache-2.0
"""Prefer endpoints by their cluster: local, untainted, with few requests, or chosen before."""

from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from epp.framework import (
    LOAD_INPUTS,
    PREFIX_MATCH,
    WAITING,
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
    expected_load,
)
from epp.framework.clusters import (
    CLUSTER,
    MOST_SCORE,
    ClusterIndex,
    Clusters,
    ClusterStatus,
    ClusterToleration,
    TaintEffect,
    counts_from,
    status_mask,
    status_numbers,
)
from epp.framework.limits import Threshold, Tunable
from epp.framework.quantities import duration_setting
from epp.framework.session_affinity import Bindings, SessionIds


class LocalClusterParameters(Parameters, frozen=True):
    """The local cluster, and limits of its preference."""

    local_cluster: str = ""
    """Name of the local cluster; empty for that of the `cluster-data-source`, else for endpoints without a cluster."""
    score: str = ""
    """`resourceName/scoreName` of the score of the local cluster to compare with `minScore`; empty for none."""
    min_score: Annotated[float, Meta(ge=-MOST_SCORE, le=MOST_SCORE)] = 0.0
    """Score, -100..100, below which the local cluster is not preferred. A missing score is not below."""
    max_waiting: Threshold | None = None
    """Mean length of the engines' queues in the local cluster above which it is not preferred; no limit if left out."""


class LocalClusterScorer(Scorer[LocalClusterParameters]):
    """1 for endpoints in the local cluster, 0 for all others; 0 for all if the local cluster is not preferred.

    It is not preferred if its score is below `minScore`, or the mean number of waiting requests at its candidates is
    above `maxWaiting`.
    """

    plugin_type = "local-cluster-scorer"
    category = Category.AFFINITY
    zero_means = "is not in the local cluster, or that cluster is not preferred now"

    def setup(self) -> None:
        self._clusters = ClusterIndex()
        self.reads = (CLUSTER,) if self.parameters.score else ()
        self.may_read = LOAD_INPUTS if self.parameters.score else (CLUSTER, *LOAD_INPUTS)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        local = self._is_local(candidates)
        if not local.any():
            return np.zeros(len(candidates))
        limit, low = self.parameters.max_waiting, self.parameters.score
        if limit is not None and expected_load(candidates, WAITING)[local].mean() > limit:
            return np.zeros(len(candidates))
        if low and (status_numbers(candidates, _score, low)[local] < self.parameters.min_score).any():
            return np.zeros(len(candidates))
        return local.astype(np.float64)

    def _is_local(self, candidates: Candidates) -> Mask:
        name = self.parameters.local_cluster
        if not name and CLUSTER.name in candidates.snapshot.attributes:
            return status_mask(candidates, _local)
        clusters = self._clusters.of(candidates.snapshot)
        local: Mask = clusters.numbers[candidates.slots] == clusters.named(name)
        return local


def _local(status: ClusterStatus) -> bool:
    return status.local


def _score(status: ClusterStatus, name: str) -> float | None:
    return status.scores.get(name)


class TaintParameters(Parameters, frozen=True):
    """Tolerations."""

    tolerations: tuple[ClusterToleration, ...] = ()
    """Taints to ignore."""


class TaintScorer(Scorer[TaintParameters]):
    """0 for endpoints in a cluster with a taint of effect `PreferNoSelect`, 1 for all others.

    Endpoints in a cluster that multi-cluster queueing (MultiKueue) reports as inactive also get 0. `taint-filter`
    handles taints of other effects.
    """

    plugin_type = "taint-scorer"
    category = Category.AFFINITY
    zero_means = "is in an inactive cluster, or one with a taint of effect PreferNoSelect"
    reads = (CLUSTER,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        untainted = status_numbers(candidates, self._counts_from) > self.clock.utc()
        return (untainted & ~status_mask(candidates, _is_inactive)).astype(float)

    def _counts_from(self, status: ClusterStatus) -> float:
        return counts_from(status, TaintEffect.PREFER_NO_SELECT, self.parameters.tolerations)


def _is_inactive(status: ClusterStatus) -> bool:
    return status.active is False


_MOST_CLUSTERS = 1024
_LEAST = 1e-3
"""Decayed requests below which a cluster counts as idle."""


class BalanceParameters(Parameters, frozen=True):
    """Half-life and scale of the count."""

    half_life: str = "1m"
    """Half-life of a request in the count."""
    normalize_by: Literal["", "endpoints"] = ""
    """`endpoints`: divide the count of a cluster by the number of its endpoints. Empty: do not divide."""

    def __post_init__(self) -> None:
        duration_setting("halfLife", self.half_life)


class BalanceScorer(Scorer[BalanceParameters], PreRequest[BalanceParameters]):
    """`1 - count / max`, where `count` is the decayed number of requests sent to the endpoint's cluster.

    `max` is the highest count among the candidates' clusters; without any requests, all get 1. A request counts half
    after `halfLife`. This is the prioritizer Balance of Open Cluster Management, for requests instead of decisions and
    without rounding.
    """

    plugin_type = "balance-scorer"
    zero_means = "is in the cluster with the most recent requests"
    may_read = (CLUSTER,)

    def setup(self) -> None:
        self._half_life = duration_setting("halfLife", self.parameters.half_life)
        self._clusters = ClusterIndex()
        self._recent: dict[str, tuple[float, float]] = {}
        """Count of each cluster, and its time."""

    def score(self, request: Request, candidates: Candidates) -> Floats:
        clusters = self._clusters.of(candidates.snapshot)
        of_candidates = self._counts(clusters, candidates)[clusters.numbers[candidates.slots]]
        most = of_candidates.max(initial=0.0)
        return 1.0 - of_candidates / most if most > _LEAST else np.ones(len(candidates))

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        clusters = self._clusters.of(result.primary.candidates.snapshot)
        name, now = clusters.names[clusters.numbers[result.primary.slot]], self.clock.now()
        count = self._decayed(name, now) + 1.0
        self._recent.pop(name, None)
        self._recent[name] = count, now
        if len(self._recent) > _MOST_CLUSTERS:  # the least recently used one
            del self._recent[next(iter(self._recent))]

    def _counts(self, clusters: Clusters, candidates: Candidates) -> Floats:
        now = self.clock.now()
        counts = np.array([self._decayed(name, now) for name in clusters.names])
        if self.parameters.normalize_by == "endpoints":
            in_use = clusters.numbers[candidates.snapshot.slots]
            counts /= np.maximum(np.bincount(in_use, minlength=len(counts)), 1)
        return counts

    def _decayed(self, name: str, now: float) -> float:
        count, at = self._recent.get(name, (0.0, now))
        return float(count * 0.5 ** ((now - at) / self._half_life))


class SteadyParameters(Parameters, frozen=True):
    """Recognition of requests that belong to a cluster."""

    session_id_config: SessionIds = msgspec.field(default_factory=SessionIds)
    """Sources of the session id, and limits of the memory."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance to read prefix matches from, if any; empty for the default one."""
    min_prefix_share: Annotated[PositiveShare, Tunable(0.1, 1)] = 0.5
    """Minimum share of the prompt, 0..1, that an endpoint must hold for its cluster to count as having served it."""


class SteadyScorer(Scorer[SteadyParameters], PreRequest[SteadyParameters]):
    """1 for endpoints in the cluster that last served the request's session, 0 for all others.

    For a request without a known session: 1 for endpoints in the clusters where an endpoint holds the largest share of
    the prompt's blocks, if that share is at least `minPrefixShare`; else 0 for all. This is the prioritizer Steady of
    Open Cluster Management, applied to each session.
    """

    plugin_type = "steady-scorer"
    category = Category.AFFINITY
    zero_means = "is not in the cluster of this session"

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
        return self._has_longest_prefix(request, candidates, clusters)[numbers]

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        session = self.parameters.session_id_config.session(request)
        if session:
            clusters = self._clusters.of(result.primary.candidates.snapshot)
            self._bindings.bind(session, clusters.names[clusters.numbers[result.primary.slot]], self.clock.now())

    def _has_longest_prefix(self, request: Request, candidates: Candidates, clusters: Clusters) -> Floats:
        """Return 1 for each cluster with the longest match, 0 for the others."""
        match = request.get(self._match_key)
        best = np.zeros(len(clusters.names))
        if match is not None and match.total_blocks:
            np.maximum.at(best, clusters.numbers[candidates.slots], match.blocks(candidates) / match.total_blocks)
        most = max(float(best.max(initial=0.0)), self.parameters.min_prefix_share)
        found: Mask = best == most
        return found.astype(np.float64)
