# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints in clusters without taints."""

from epp.framework import Candidates, Category, Floats, Parameters, Request, Scorer
from epp.framework.clusters import (
    CLUSTER,
    ClusterStatus,
    ClusterToleration,
    TaintEffect,
    counts_from,
    status_mask,
    status_numbers,
)


class TaintParameters(Parameters, frozen=True):
    """Tolerations."""

    tolerations: tuple[ClusterToleration, ...] = ()
    """Taints that do not count."""


class TaintScorer(Scorer[TaintParameters]):
    """0 for endpoints in a cluster with a taint of effect `PreferNoSelect`, 1 for all others.

    0 as well for those in a cluster that multi-cluster queueing (MultiKueue) reports as not active. Taints of the other
    effects are left to `taint-filter`.
    """

    plugin_type = "taint-scorer"
    category = Category.AFFINITY
    zero_means = "is in a cluster with a taint of effect PreferNoSelect, or one that is not active"
    reads = (CLUSTER,)

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        untainted = status_numbers(candidates, self._counts_from) > self.clock.utc()
        return (untainted & ~status_mask(candidates, _is_inactive)).astype(float)

    def _counts_from(self, status: ClusterStatus) -> float:
        return counts_from(status, TaintEffect.PREFER_NO_SELECT, self.parameters.tolerations)


def _is_inactive(status: ClusterStatus) -> bool:
    return status.active is False
