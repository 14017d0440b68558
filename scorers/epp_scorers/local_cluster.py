# SPDX-License-Identifier: Apache-2.0
"""Prefers the local cluster until its score, or its queues, say otherwise."""

from typing import Annotated

import numpy as np
from msgspec import Meta

from epp.framework import (
    LOAD_INPUTS,
    WAITING,
    Candidates,
    Category,
    Floats,
    Mask,
    Parameters,
    Request,
    Scorer,
    expected_load,
)
from epp.framework.clusters import CLUSTER, MOST_SCORE, ClusterIndex, ClusterStatus, status_mask, status_numbers
from epp.framework.limits import Threshold


class LocalClusterParameters(Parameters, frozen=True):
    """The local cluster, and until when it is preferred."""

    local_cluster: str = ""
    """Name of the local cluster; empty for that of the `cluster-data-source`, and without one for the endpoints that
    name no cluster."""
    score: str = ""
    """`resourceName/scoreName` of the score of the local cluster to compare with `minScore`; empty for none."""
    min_score: Annotated[float, Meta(ge=-MOST_SCORE, le=MOST_SCORE)] = 0.0
    """Score, -100..100, below which the local cluster is not preferred. A score that is missing is not below."""
    max_waiting: Threshold | None = None
    """Mean of the requests in the engines' queues of the local cluster above which it is not preferred; left out for
    no limit."""


class LocalClusterScorer(Scorer[LocalClusterParameters]):
    """1 for endpoints in the local cluster, 0 for all others; 0 for all while the local cluster is not preferred.

    It is not preferred while its score is below `minScore`, or more requests are waiting than `maxWaiting` at its
    endpoints, on average over those that are candidates.
    """

    plugin_type = "local-cluster-scorer"
    category = Category.AFFINITY
    zero_means = "is not in the local cluster, or that is not preferred now"

    def setup(self) -> None:
        self._clusters = ClusterIndex()
        self.reads = (CLUSTER,) if self.parameters.score else ()
        self.may_read = LOAD_INPUTS if self.parameters.score else (CLUSTER, *LOAD_INPUTS)

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
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
