# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints in clusters that were given fewer requests of late."""

from typing import Literal

import numpy as np

from epp.framework import Candidates, Category, Floats, Parameters, PreRequest, Request, SchedulingResult, Scorer
from epp.framework.clusters import CLUSTER, ClusterIndex, Clusters
from epp.framework.quantities import parse_duration

_MOST_CLUSTERS = 1024
_LEAST = 1e-3
"""Requests below which a cluster counts as having been given none."""


class BalanceParameters(Parameters, frozen=True):
    """Memory of the count, and its measure."""

    half_life: str = "1m"
    """Time after which a request counts half."""
    normalize_by: Literal["", "endpoints"] = ""
    """`endpoints`: divide the count of a cluster by the number of its endpoints. Empty: do not divide."""

    def __post_init__(self) -> None:
        """Check the duration; raises ValueError."""
        try:
            seconds = parse_duration(self.half_life)
        except ValueError as error:
            raise ValueError(f"halfLife: {error}") from None
        if seconds <= 0:
            raise ValueError(f"halfLife is {self.half_life!r}: write a duration above 0")


class BalanceScorer(Scorer[BalanceParameters], PreRequest[BalanceParameters]):
    """`1 - count / max`, where `count` is the number of requests sent to the endpoint's cluster of late.

    `max` is the highest count among the candidates' clusters; without any requests, all get 1. A request counts half
    after `halfLife`. This is Balance of Open Cluster Management, with requests in place of decisions, and not rounded.
    """

    plugin_type = "balance-scorer"
    category = Category.DISTRIBUTION
    zero_means = "is in the cluster that got the most requests of late"
    may_read = (CLUSTER,)

    def setup(self) -> None:
        self._half_life = parse_duration(self.parameters.half_life)
        self._clusters = ClusterIndex()
        self._given: dict[str, tuple[float, float]] = {}
        """Count of each cluster, and when it was that."""

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        clusters = self._clusters.of(candidates.snapshot)
        of_candidates = self._counts(clusters, candidates)[clusters.numbers[candidates.slots]]
        most = of_candidates.max(initial=0.0)
        return 1.0 - of_candidates / most if most > _LEAST else np.ones(len(candidates))

    def pre_request(self, request: Request, result: SchedulingResult) -> None:  # noqa: ARG002
        """Count the request for the cluster of its target."""
        clusters = self._clusters.of(result.primary.candidates.snapshot)
        name, now = clusters.names[clusters.numbers[result.primary.slot]], self.clock.now()
        count = self._left(name, now) + 1.0
        self._given.pop(name, None)
        self._given[name] = count, now
        if len(self._given) > _MOST_CLUSTERS:  # former ones
            del self._given[next(iter(self._given))]

    def _counts(self, clusters: Clusters, candidates: Candidates) -> Floats:
        """Return one number for each cluster."""
        now = self.clock.now()
        counts = np.array([self._left(name, now) for name in clusters.names])
        if self.parameters.normalize_by == "endpoints":
            in_use = clusters.numbers[candidates.snapshot.slots]
            counts /= np.maximum(np.bincount(in_use, minlength=len(counts)), 1)
        return counts

    def _left(self, name: str, now: float) -> float:
        count, at = self._given.get(name, (0.0, now))
        return float(count * 0.5 ** ((now - at) / self._half_life))
